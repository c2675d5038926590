"""The ledger beside a diagnosis: what the run was expected to hold, and changes that fit, in its system's flags."""

from collections.abc import Mapping

from msgspec.structs import replace

from headway.diagnose.finding import Diagnosis
from headway.errors import InputError
from headway.facts.machine import Machine
from headway.facts.workload import Workload
from headway.units import format_bytes

MOST = 5
"""Remedies that are told."""


def with_plan(diagnosis: Diagnosis, workload: Workload, machine: Machine) -> Diagnosis:
    """The diagnosis with the plan's verdict on every pool and its remedies. A run that cannot be planned is noted."""
    from headway.plan.planned import examine

    try:
        planned = examine(workload, machine)
    except InputError as error:
        return replace(diagnosis, notes=(*diagnosis.notes, f"the run cannot be planned: {error}"))
    lines = [f"the plan on {machine.name}: {planned.outcome.kind}"]
    for pool in planned.outcome.pools:
        limit = (
            "no limit is known" if pool.limit is None else f"{pool.limit.name} at {format_bytes(pool.limit.bytes)}"
        )
        lines.append(
            f"{pool.pool}: {format_bytes(pool.peak.bytes)} expected, {format_bytes(pool.upper)} at most, in phase "
            f"{pool.peak.phase} of step {pool.peak.step}; {limit}: {pool.kind}"
        )
    remedies: tuple[Mapping[str, object], ...] = tuple(
        {
            "text": remedy.text, "verdict": remedy.kind, "pool": remedy.pool, "before_bytes": remedy.before_bytes,
            "after_bytes": remedy.after_bytes, "cost": remedy.cost.name.lower(),
        }
        for remedy in planned.advice.remedies[:MOST]
    )  # fmt: skip
    return replace(diagnosis, context=(*diagnosis.context, *lines), remedies=remedies)
