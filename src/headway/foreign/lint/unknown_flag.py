"""Flags that are a slip of the keyboard away from one that decides memory."""

from collections.abc import Iterator
from functools import cache

from headway.foreign import megatron_flags, slime
from headway.foreign.lint.rule import HYDRA, SLIME, Rule, Sighting, Subject

SHORTEST = 6
"""Letters of a name below which a near one is no sign of a slip."""
OTHERS = frozenset({
    "critic-load", "critic-save", "ref-ckpt-step", "eval-num-gpus", "num-rollout", "num-epoch", "rm-type", "lr",
    "save-hf", "wandb-mode", "eval-top-p", "eval-top-k", "rollout-top-p", "rollout-top-k", "rollout-seed", "seed",
    "tp-comm-overlap", "num-gpus", "num-workers", "load", "save", "moe-router-topk", "mtp-num-layers",
    "critic-num-nodes", "train-iters", "eval-iters", "log-interval", "lr-decay-iters", "ref-save", "async-save",
})  # fmt: skip
"""Known flags that are near to others and mean something else."""


def find(subject: Subject) -> Iterator[Sighting]:
    """Flags that are not known, within two letters of one that is."""
    known = flags_of(subject.system)
    for given in {each.name: each for each in subject.given}.values():
        if given.name in known or "$" in given.name or any(name.startswith(given.name) for name in known):
            continue  # a parser takes the beginning of a name for the whole
        near = nearest(given.name, known)
        if near is not None:
            dashes = "" if subject.system in HYDRA else "--"
            yield Sighting(
                f"{dashes}{given.name} is no flag of {subject.system} that is known; {dashes}{near} is", given.at,
                instead=f"write {dashes}{near}",
            )  # fmt: skip


@cache
def flags_of(system: str) -> frozenset[str]:
    """The flags of a system that are known: those that decide memory, and those that are near to them."""
    if system in (*SLIME, "megatron"):
        names = {name for rule in slime.RULES for name in rule.flags}
        return frozenset({*names, *slime.SWITCHES, *slime.SIGNS, *slime.ONLY_MILES, *slime.NEEDS_VALUE, *OTHERS,
                          *megatron_flags.SWITCHES, *RECOMPUTE})  # fmt: skip
    if system == "openrlhf":
        from headway.foreign import openrlhf

        names = {name for row in openrlhf.VALUED for name in row[1]} | {n for _, own in openrlhf.ON_OFF for n in own}
        return frozenset({*openrlhf.SWITCHES, *openrlhf.MODEL, *names})
    if system in HYDRA:
        from headway.foreign import verl

        rows_of: tuple[verl.Row, ...] = verl.COMMON + verl.MEGATRON + verl.SHARDED + verl.SFT
        return frozenset({*verl.DEFAULTS, *(path for row in rows_of for path in row[1])})
    return frozenset()


RECOMPUTE = (
    "encoder-num-layers", "decoder-num-layers", "encoder-seq-length", "decoder-seq-length", "offload-modules",
    "hybrid-layer-pattern",
    "recompute-granularity", "recompute-method", "recompute-num-layers", "recompute-modules", "use-stateless-adam",
    "log-probs-chunk-size", "sglang-context-length", "eval-prompt-data", "custom-generate-function-path",
)  # fmt: skip


def nearest(name: str, known: frozenset[str]) -> str | None:
    """The known flag that a name is a slip for; None where it is near to none.

    >>> nearest("max-token-per-gpu", frozenset({"max-tokens-per-gpu"}))
    'max-tokens-per-gpu'
    >>> nearest("max_tokens_per_gpu", frozenset({"max-tokens-per-gpu"}))
    'max-tokens-per-gpu'
    """
    plain = _plain(name)
    head, _, last = name.rpartition(".")
    for each in sorted(known):
        if len(each) >= SHORTEST and _plain(each) == plain:
            return each
    for each in sorted(known):
        start, _, end = each.rpartition(".")
        if start == head and min(len(last), len(end)) >= SHORTEST and _alike(last, end):
            return each
    return None


def _alike(one: str, other: str) -> bool:
    """Whether two names are two letters apart at most, short ones one.

    With two slips at most, one third of the name is there as it is, which is quickly seen and mostly is not so.
    """
    third = len(other) // 3
    if not any(part in one for part in (other[:third], other[third : 2 * third], other[2 * third :])):
        return False
    return _apart(one, other) <= (2 if len(other) > 12 else 1)


def _plain(name: str) -> str:
    return name.replace("_", "-").lower()


def _apart(one: str, other: str) -> int:
    """Letters to add, take away, change or swap between two names; 3 for more than two.

    >>> _apart("rollout-batch-szie", "rollout-batch-size"), _apart("save-interval", "eval-interval")
    (1, 3)
    """
    if abs(len(one) - len(other)) > 2:
        return 3
    rows = [list(range(len(other) + 1))]
    for i, letter in enumerate(one, 1):
        row = [i]
        for j, its in enumerate(other, 1):
            cost = min(rows[-1][j] + 1, row[-1] + 1, rows[-1][j - 1] + (letter != its))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == its:
                cost = min(cost, rows[-2][j - 2] + 1)
            row.append(cost)
        rows.append(row)
    return min(rows[-1][-1], 3)


RULE = Rule(
    name="unknown-flag",
    severity="warning",
    title="a flag that is spelled wrong",
    sees="a flag or key that is not known and one or two letters away from one that decides memory, or written with "
    "`_` for `-`.",
    why="a strict parser ends with `unrecognized arguments`, and one that takes what it does not know leaves the "
    "default in place without a word",
    example="python3 train.py --rollout-batch-size 8 --use-dynamic-batch-size --max-token-per-gpu 9216",
    instead="write the name that is meant",
    near_miss="python3 train.py --rollout-batch-size 8 --max-tokens-per-gpu 9216 --critic-num-gpus-per-node 4 "
    "--my-own-flag 1",
    not_this="flags of a user's own plugin and flags that decide no memory are not near to any that is known here: "
    "that table holds those that decide memory, not every flag of a system.",
    find=find,
)
