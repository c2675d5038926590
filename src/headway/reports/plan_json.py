"""A plan as JSON: the document of `headway plan --json` and of a run's plan.json. docs/plan.md describes its keys.

Everything in it is a JSON type, so that it is equal to itself written and read again; sizes are integers of bytes.
"""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import asdict

from headway.plan.ledger import Ledger, Line, Phase
from headway.plan.planned import Planned
from headway.plan.remedies import Change, Remedy, as_settings
from headway.plan.time import Estimate
from headway.plan.verdict import PoolVerdict

Document = dict[str, Any]


def document(planned: Planned, trainer: str) -> Document:
    """The whole plan. `trainer` is its system in words."""
    workload, advice = planned.workload, planned.advice
    return {
        "verdict": planned.outcome.kind,
        "machine": planned.machine.name,
        "model": workload.model.name,
        "parameters": workload.model.parameters(),
        "trainer": trainer,
        "system": workload.trainer.system,
        "longest_sample": planned.longest_sample,
        "longest_expected": planned.longest_expected,
        "time": _time(planned.time),
        "pools": [_pool(planned, verdict) for verdict in planned.outcome.pools],
        "remedies": [_remedy(planned, remedy) for remedy in advice.remedies],
        "without_effect": [_remedy(planned, remedy) for remedy in advice.without_effect],
        "refusals": list(planned.outcome.refusals),
        "unplanned": list(planned.outcome.unplanned),
        "unknown": list(workload.unknown),
        "not_read": list(workload.not_read),
        "deciding": list(planned.outcome.deciding),
        "lines": [{**asdict(line), "phase": str(line.phase)} for line in planned.ledger.lines],
    }


def ledger_of(found: Mapping[str, Any]) -> Ledger:
    """The ledger that a document was made of.

    >>> ledger_of({"lines": [], "pools": []})
    Ledger(lines=(), first_step={})
    """
    lines = tuple(Line(**{**line, "phase": Phase(line["phase"])}) for line in found["lines"])
    steps = {Phase(name): phase["step"] for pool in found["pools"] for name, phase in pool["phases"].items()}
    return Ledger(lines, {phase: steps[phase] for phase in Phase if phase in steps})


def _pool(planned: Planned, verdict: PoolVerdict) -> Document:
    ledger, name = planned.ledger, verdict.pool
    highest = ledger.peak(name)
    kinds = {pool.name: str(pool.kind) for pool in planned.machine.pools}
    totals = {pool.name: pool.total_bytes for pool in planned.machine.pools}
    return {
        "pool": name,
        "kind": kinds.get(name, name.rpartition(".")[2].partition("[")[0]),
        "total_bytes": totals.get(name, 0),
        "verdict": verdict.kind,
        "limits": [
            {
                "name": margin.limit.name, "bytes": margin.limit.bytes, "consequence": margin.limit.consequence,
                "source": margin.limit.source, "verdict": margin.kind, "margin_bytes": margin.upper,
                "expected_margin_bytes": margin.expected,
            }
            for margin in verdict.margins
        ],
        "expected_bytes": verdict.peak.bytes,
        "upper_bytes": verdict.upper,
        "margin_bytes": verdict.margin if verdict.margins else None,
        "worst": {
            "phase": str(verdict.peak.phase), "role": verdict.role, "rank": verdict.rank, "step": verdict.peak.step
        },
        "highest": {"phase": str(highest.phase), "expected_bytes": highest.bytes, "step": highest.step},
        "phases": {str(phase): _phase(ledger, name, phase) for phase in ledger.phases(name)},
    }  # fmt: skip


def _phase(ledger: Ledger, pool: str, phase: Phase) -> Document:
    peak = ledger.peak_of(pool, phase)
    return {"expected_bytes": peak.bytes, "upper_bytes": peak.upper, "step": peak.step}


def _remedy(planned: Planned, remedy: Remedy) -> Document:
    return {
        "text": remedy.text,
        "verdict": remedy.verdict,
        "cost": remedy.cost.word,
        "loses": remedy.loses,
        "grown": [{"pool": pool, "upper_bytes": size} for pool, size in remedy.grown],
        "pool": remedy.pool,
        "before": {"expected_bytes": remedy.before_bytes, "upper_bytes": remedy.before_upper},
        "after": {
            "expected_bytes": remedy.after_bytes, "upper_bytes": remedy.after_upper, "phase": str(remedy.phase)
        },
        "worst": {
            "phase": str(remedy.worst_before.phase), "before_bytes": remedy.worst_before.bytes,
            "after_bytes": remedy.worst_after.bytes,
        },
        "effects": [
            {
                "pool": effect.pool, "verdict": effect.kind,
                "before": {"expected_bytes": effect.before_bytes, "upper_bytes": effect.before_upper},
                "after": {"expected_bytes": effect.after_bytes, "upper_bytes": effect.after_upper},
            }
            for effect in remedy.effects
        ],
        "changes": [_change(change) for change in remedy.changes],
        "settings": list(as_settings(planned.workload, remedy.workload)),
    }  # fmt: skip


def _time(found: Estimate | None) -> Document | None:
    if found is None:
        return None
    return {
        "step_seconds": round(found.step, 3), "run_seconds": None if found.run is None else round(found.run, 3),
        "rollout_seconds": round(found.rollout, 3), "train_seconds": round(found.train, 3),
        "factor": found.factor, "basis": found.basis,
    }  # fmt: skip


def _change(change: Change) -> Document:
    return {
        "key": change.key,
        "before": change.before,
        "value": change.value,
        "text": change.text,
        "runspec": dict(change.runspec),
    }
