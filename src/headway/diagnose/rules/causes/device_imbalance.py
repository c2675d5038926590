"""One rank has more than the others."""

import re
from collections.abc import Sequence

from headway.diagnose.case import Case
from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Claim, Rule

_RANK = re.compile(r"\[(?:rank|default)?(\d{1,5})\]:?")
_USED = re.compile(r"used_GB['\"]?\s*[:=]\s*['\"]?(\d+(?:\.\d+)?)")


def by_rank(lines: Sequence[tuple[int, str]]) -> dict[int, float]:
    """The highest reading of each rank, in GB.

    >>> by_rank([(1, "[rank3]: Memory-Usage x: {'used_GB': 7.5}")])
    {3: 7.5}
    """
    found: dict[int, float] = {}
    for _, text in lines:
        rank, used = _RANK.search(text), _USED.search(text)
        if rank and used:
            found[int(rank[1])] = max(found.get(int(rank[1]), 0.0), float(used[1]))
    return found


def _find(case: Case) -> Claim | None:
    if case.mechanism != "device-allocation-failure":
        return None
    used = by_rank(case.memory)
    if len(used) < 3:
        return None
    top, middle = max(used, key=lambda rank: used[rank]), sorted(used.values())[len(used) // 2]
    if used[top] < 1.3 * middle:
        return None
    return Claim("supported", f"rank {top} holds {used[top]:.1f} GB where the middle one holds {middle:.1f}")


RULE = Rule(
    name="device-imbalance",
    level="cause",
    sees="Measured memory of one rank that is far above the others'.",
    why="Tokens, experts or layers are divided unevenly: an expert that most tokens choose, a stage with the "
    "embedding, a rank with the longest samples.",
    sure="Supported by the ranks' own numbers.",
    look_alikes="The first pipeline stage always holds more activations.",
    example="[rank0]: Memory-Usage after train: {'used_GB': 50.0}\n[rank1]: Memory-Usage after train: {'used_GB': "
    "50.0}\n"
    "[rank2]: Memory-Usage after train: {'used_GB': 78.0}\n[rank3]: Memory-Usage after train: {'used_GB': 50.0}\n"
    "[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    near_miss="[rank0]: Memory-Usage after train: {'used_GB': 50.0}\n[rank1]: Memory-Usage after train: {'used_GB': "
    "51.0}\n"
    "[rank2]: Memory-Usage after train: {'used_GB': 52.0}\n[rank3]: Memory-Usage after train: {'used_GB': 53.0}\n"
    "[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    advice=(
        Advice(
            "balance the ranks by tokens; with experts, by an auxiliary loss or a capacity",
            "ranks are alike",
            "none for data; quality for capacity",
            "balance",
        ),
    ),
    settle=(settle.MEMORY,),
    find=_find,
)
