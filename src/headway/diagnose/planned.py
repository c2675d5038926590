"""The ledger beside a diagnosis: what the run was expected to hold, and changes that fit, in its system's flags."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from headway.diagnose.applied import has_flag, names
from headway.diagnose.finding import Diagnosis
from headway.errors import InputError
from headway.facts.machine import Limit, Machine
from headway.facts.workload import Workload
from headway.guard.boxplan import PlannedLimit, plan_of
from headway.units import format_bytes

if TYPE_CHECKING:
    from headway.plan.planned import Planned

MOST = 5
"""Remedies that are told."""
MORE = 1.1
"""Times a plan's bound, above which a log shows something that the plan does not have."""


def with_plan(diagnosis: Diagnosis, workload: Workload, machine: Machine) -> Diagnosis:
    """The diagnosis with the plan's verdict on every pool and its remedies. A run that cannot be planned is noted."""
    from headway.plan.planned import examine

    try:
        planned = examine(workload, machine)
    except InputError as error:
        return replace(diagnosis, notes=(*diagnosis.notes, f"the run cannot be planned: {error}"))
    lines = [f"the plan on {machine.name}: {planned.outcome.kind}"]
    lines += [
        _line(
            pool.pool, (pool.peak.bytes, pool.upper), f"{pool.peak.phase} of step {pool.peak.step}", pool.limit,
            pool.kind,
        )
        for pool in planned.outcome.pools
    ]  # fmt: skip
    lines += _against_the_log(diagnosis, planned)
    of_pool = [remedy for remedy in planned.advice.remedies if _may_help(diagnosis, remedy.pool)]
    if len(of_pool) < len(planned.advice.remedies):
        lines.append("the plan has changes for device memory too, which is not what ran out: headway plan shows them")
    remedies: tuple[Mapping[str, object], ...] = tuple(
        {
            "text": remedy.text, "verdict": remedy.kind, "pool": remedy.pool, "before_bytes": remedy.before_bytes,
            "after_bytes": remedy.after_bytes, "cost": remedy.cost.word,
        }
        for remedy in of_pool[:MOST]
    )  # fmt: skip
    remedies = (*remedies, *_more(diagnosis, planned))
    return _with_remedies(replace(diagnosis, context=(*diagnosis.context, *lines)), remedies)


def with_kept_plan(diagnosis: Diagnosis, ledger: str) -> Diagnosis:
    """The diagnosis with the plan that a black box holds, which was made before the run; as it is without one."""
    plan = plan_of(ledger)
    if plan is None:
        return diagnosis
    lines = [f"the plan before the run, on {plan.machine}: {plan.verdict}", *plan.refusals]
    lines += [
        _line(
            pool.pool, (pool.expected_bytes, pool.upper_bytes), f"{pool.worst.phase} of step {pool.worst.step}",
            pool.limits[0] if pool.limits else None, pool.verdict,
        )
        for pool in plan.pools
    ]  # fmt: skip
    remedies: tuple[Mapping[str, object], ...] = tuple(
        {
            "text": remedy.text, "verdict": remedy.verdict, "pool": remedy.pool,
            "before_bytes": remedy.before.expected_bytes, "after_bytes": remedy.after.expected_bytes,
            "cost": remedy.cost,
        }
        for remedy in plan.remedies[:MOST]
    )  # fmt: skip
    return _with_remedies(replace(diagnosis, context=(*diagnosis.context, *lines)), remedies)


def _with_remedies(diagnosis: Diagnosis, remedies: tuple[Mapping[str, object], ...]) -> Diagnosis:
    """The diagnosis with the ledger's remedies, which have sizes; advice for the same flag goes, each change once."""
    told = " ".join(str(each["text"]) for each in remedies)
    left = tuple(each for each, name in names(diagnosis.answer.advice) if not name or not has_flag(name, told))
    return replace(diagnosis, remedies=remedies).with_answer(replace(diagnosis.answer, advice=left))


def _may_help(diagnosis: Diagnosis, pool: str) -> bool:
    """Whether a change to a pool is about what ran out: none to the device where a node's own memory did."""
    return diagnosis.answer.family != "host-memory" or not pool.partition(".")[2].startswith("device")


def _against_the_log(diagnosis: Diagnosis, planned: "Planned") -> Iterator[str]:
    """Where a node, or a process on its device, held more than the plan's bound, so that the plan lacks something."""
    kill, asked, held = diagnosis.answer.kill, diagnosis.answer.asked, diagnosis.answer.in_use
    pools = planned.outcome.pools
    host = max((pool.upper for pool in pools if pool.pool.endswith((".host", ".unified"))), default=None)
    if kill is not None and host is not None and kill.used > MORE * host:
        yield (
            f"the node held {format_bytes(kill.used)} when the worker was killed, "
            f"{format_bytes(kill.used - host)} above the plan's bound: what grew from step to step, other "
            "programs, or what the script does not say"
        )
    device = max((pool.upper for pool in pools if ".device" in pool.pool), default=None)
    if held is not None and device is not None and (most := held + (asked or 0)) > MORE * device:
        yield (
            f"the process held {format_bytes(held)} and asked for more, {format_bytes(most - device)} above the "
            "plan's bound of the whole device: what ran is not what the script says, or it grew; the plan, and what "
            "rests on it, may not be of this run"
        )


def _line(pool: str, sizes: tuple[int, int], where: str, limit: Limit | PlannedLimit | None, kind: str) -> str:
    """A pool's plan: what is expected and at most, in which phase, against the limit that is reached first."""
    of = "no limit is known" if limit is None else f"{limit.name} at {format_bytes(limit.bytes)}"
    expected, upper = map(format_bytes, sizes)
    return f"{pool}: {expected} expected, {upper} at most, in phase {where}; {of}: {kind}"


def _more(diagnosis: Diagnosis, planned: "Planned") -> Iterator[Mapping[str, object]]:
    """What a run that fits can change: copies that it does not need, and what its pod has to be given."""
    from headway.plan.remedies import savings

    if planned.advice.remedies:
        return
    for saving in savings(planned.workload, planned.machine):
        yield {
            "text": saving.change.text, "verdict": planned.outcome.kind, "pool": saving.pool,
            "before_bytes": saving.before_bytes, "after_bytes": saving.after_bytes, "cost": "free",
        }  # fmt: skip
    hosts = [pool for pool in planned.outcome.pools if pool.pool.endswith((".host", ".unified"))]
    if hosts and any(each.name == "pod-eviction" for each in diagnosis.answer.candidates):
        most = max(hosts, key=lambda pool: pool.upper)
        size = -(-most.upper >> 30)
        yield {
            "text": f"the pod's resources.requests.memory and resources.limits.memory: at least {size}Gi each (a pod "
            "that holds more than it requested is evicted first)",
            "verdict": planned.outcome.kind, "pool": most.pool, "before_bytes": None, "after_bytes": most.upper,
            "cost": "free",
        }  # fmt: skip
