"""What the room that a run leaves is enough for: the next larger model of its series, the longest answer, any."""

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from headway.errors import InputError
from headway.facts.machine import Machine
from headway.facts.shapes import ModelShape, table
from headway.facts.workload import Workload
from headway.plan.ledger import Ledger, total
from headway.plan.plan import plan
from headway.plan.smaller import is_rehearsal, series
from headway.plan.verdict import furthest, limits_of, tops, with_lengths

LONGEST = 1 << 20
"""Tokens up to which answers are tried."""


WITHOUT_MODEL = frozenset({"process", "reward process", "operating system", "CUDA context", "communicators", "Ray"})
"""Lines of the ledger that are there whatever the model is."""


class Need(Struct, frozen=True):
    """What a changed run would need of the pool that fits worst, expected and at the upper bound, in bytes."""

    what: str
    expected: int
    upper: int


def larger_model(workload: Workload, machine: Machine, pool: str) -> Need | None:
    """What the run would need of a pool with the next larger model of its series; None where there is none.

    Models of one series have one name but for the size: qwen3-0.6B, qwen3-1.7B.
    """
    found = min(_larger(workload.model), key=lambda shape: shape.parameters(), default=None)
    if found is None:
        return None
    files = workload.weights_file_bytes * found.parameters() // workload.model.parameters()
    expected, upper = tops(plan(replace(workload, model=found, weights_file_bytes=files), machine))[pool]
    return Need(found.name, expected, upper)


def _larger(model: ModelShape) -> Iterator[ModelShape]:
    for shape in table().values():
        same = shape.family == model.family and is_rehearsal(shape) == is_rehearsal(model)
        if same and series(shape) == series(model) and shape.parameters() > model.parameters():
            yield shape


def longest_answer(workload: Workload, machine: Machine, *, surely: bool) -> int:
    """The longest answer in tokens whose run stays inside every limit: by its upper bound (`surely`), or by what is
    expected; and inside the model's context. 0 where not even one token does.

    >>> from headway.facts import machines
    >>> from headway.foreign.presets import workload
    >>> run, machine = workload(table()["qwen3-4b"], "headway-lora"), machines.by_name("l4").without_ray()
    >>> longest_answer(run, machine, surely=True) < longest_answer(run, machine, surely=False)
    True
    """

    def over(tokens: int) -> int | None:
        try:
            ledger = plan(with_lengths(workload, max_answer=tokens), machine)
        except InputError:  # the KV budget does not hold one such answer
            return LONGEST
        excess = [
            sizes[surely] - min(limit.bytes for limit in limits)
            for pool, sizes in tops(ledger).items()
            if (limits := limits_of(machine, pool))
        ]
        return max(excess, default=None)

    room = workload.model.context - workload.rollout.max_prompt if workload.model.context else LONGEST
    return furthest(over, 0, max(0, min(LONGEST, room)))


def without_model(ledger: Ledger, pool: str) -> int:
    """The most that a phase is expected to hold of a pool before a single parameter is there, in bytes: a limit below
    that lets no model run.

    >>> from headway.facts import machines
    >>> from headway.foreign.presets import workload
    >>> machine = machines.by_name("gb10").without_ray()
    >>> small, large = (plan(workload(table()[name], "headway"), machine) for name in ("qwen3-0.6b", "qwen3-4b"))
    >>> without_model(small, "node[0].unified") == without_model(large, "node[0].unified")
    True
    """
    phases = (ledger.select(pool, phase) for phase in ledger.phases(pool))
    return max(total(line for line in lines if line.item in WITHOUT_MODEL) for lines in phases)
