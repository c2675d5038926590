"""Whether a plan fits a machine, pool by pool, and the longest sample that still does."""

from dataclasses import dataclass, replace
from typing import Literal

from headway.facts.machine import Limit, Machine
from headway.facts.workload import Workload
from headway.plan.ledger import Ledger, Peak
from headway.plan.plan import plan


@dataclass(frozen=True)
class Verdict:
    """One pool's plan against its lowest limit.

    `peak` is the phase that decides: the worst expected one. `limit` is None where no limit of the pool is known,
    which fits. `margin` is what the limit leaves above `upper`, negative where it does not; 0 without a limit.
    """

    pool: str
    kind: Literal["fits", "tight", "does not fit"]
    peak: Peak
    upper: int
    limit: Limit | None
    margin: int


def verdict(ledger: Ledger, machine: Machine) -> tuple[Verdict, ...]:
    """A verdict for each pool of the ledger.

    "does not fit": the expected peak is over the lowest limit; "tight": only the upper bound is.
    """
    return tuple(_of_pool(ledger, name, machine) for name in ledger.pools())


def _of_pool(ledger: Ledger, name: str, machine: Machine) -> Verdict:
    peak, upper = ledger.peak(name), ledger.upper(name)
    limit = lowest_limit(machine, name)
    if limit is None:
        return Verdict(name, "fits", peak, upper, None, 0)
    kind: Literal["fits", "tight", "does not fit"] = "fits"
    if peak.bytes > limit.bytes:
        kind = "does not fit"
    elif upper > limit.bytes:
        kind = "tight"
    return Verdict(name, kind, peak, upper, limit, limit.bytes - upper)


def lowest_limit(machine: Machine, pool: str) -> Limit | None:
    """The limit that a pool reaches first; None where the machine has no such pool or knows no limit of it.

    Where CPU and GPU share one memory, its limits hold for the host's pool and for the device's, each on its own:
    their sum is not looked at yet.
    """
    by_name = {known.name: known for known in machine.pools}
    found = by_name.get(pool) or by_name.get("node[0].unified")
    return found.lowest if found is not None and found.limits else None


def fits_surely(workload: Workload, machine: Machine) -> bool:
    """Whether every pool keeps even its upper bound inside its lowest limit."""
    return all(each.kind == "fits" for each in verdict(plan(workload, machine), machine))


def longest_sample(workload: Workload, machine: Machine) -> int:
    """The longest sample in tokens whose lone micro-batch keeps the upper bound inside the lowest limits.

    At most the longest sample that the run can make, and 0 where not even one token fits.
    """

    def alone(tokens: int) -> Workload:
        rollout = workload.rollout
        answer = max(1, min(rollout.max_answer, tokens - 1))
        return replace(
            workload,
            rollout=replace(rollout, max_prompt=max(1, tokens - answer), max_answer=answer),
            trainer=replace(workload.trainer, cap=1),
        )

    low, high = 0, workload.rollout.longest
    while low < high:
        middle = (low + high + 1) // 2
        if fits_surely(alone(middle), machine):
            low = middle
        else:
            high = middle - 1
    return low
