"""What to set instead: changes to RunSpec keys, each planned again."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from headway.facts.machine import Machine
from headway.facts.workload import Lora, Workload
from headway.plan.plan import plan
from headway.plan.verdict import PoolVerdict, verdict
from headway.units import MIB, format_bytes


@dataclass(frozen=True)
class Change:
    """A change of the RunSpec, as the user writes it, and the workload that it makes."""

    text: str
    workload: Workload


def advise(workload: Workload, machine: Machine) -> tuple[str, ...]:
    """Changes that lower the peak of the pool that fits worst, best first, each with its new peak.

    When no single change makes it fit, the last line is a combination of all that help, as far as is needed.
    """
    before = plan(workload, machine)
    worst = min(verdict(before, machine), key=_room)
    found = []
    for change in changes(workload):
        peak = plan(change.workload, machine).peak(worst.pool)
        if peak.bytes < worst.peak.bytes:
            found.append((peak.bytes, change))
    found.sort(key=lambda pair: pair[0])
    lines = [_line(change.text, change.workload, worst, machine) for _, change in found]
    if worst.limit is not None and found and found[0][0] > worst.limit.bytes:
        lines += _together(workload, worst, machine)
    return tuple(lines)


def changes(workload: Workload) -> Iterator[Change]:
    """Every single change that may lower a peak."""
    trainer, rollout = workload.trainer, workload.rollout
    if not trainer.checkpointing:
        yield Change("train.checkpointing = true", _trainer(workload, checkpointing=True))
    if trainer.param_dtype == "fp32":
        yield Change('model.dtype = "bf16"', _trainer(workload, param_dtype="bf16"))
    if trainer.attention == "eager":
        yield Change('model.attention = "sdpa"', _trainer(workload, attention="sdpa"))
    if trainer.lora is None:
        reference = "adapter-off" if trainer.reference == "copy" else trainer.reference
        changed = _trainer(workload, lora=Lora(16, "all-linear"), reference=reference)
        yield Change("[lora] rank = 16", changed)
    if trainer.reference == "copy":
        yield Change("objective.kl_coef = 0", _trainer(workload, reference="none"))
    cap = max(rollout.longest, trainer.cap // 2)
    if cap < trainer.cap:
        yield Change(f"train.cap = {cap}", _trainer(workload, cap=cap))
    if trainer.logprob_chunk > 32:
        chunk = max(32, trainer.logprob_chunk // 4)
        yield Change(f"train.logprob_chunk = {chunk}", _trainer(workload, logprob_chunk=chunk))
    budget = rollout.kv_budget // 2
    if budget >= MIB:
        text = f'rollout.kv_budget = "{budget // MIB}MiB"'
        yield Change(text, replace(workload, rollout=replace(rollout, kv_budget=budget // MIB * MIB)))
    if rollout.max_answer >= 32:
        answer = rollout.max_answer // 2
        changed = replace(workload, rollout=replace(rollout, max_answer=answer))
        yield Change(f"rollout.max_answer = {answer}", changed)


def _trainer(workload: Workload, **fields: object) -> Workload:
    return replace(workload, trainer=replace(workload.trainer, **fields))  # type: ignore[arg-type]


def _together(workload: Workload, worst: PoolVerdict, machine: Machine) -> Iterator[str]:
    """One line with as many changes as it takes, best first; each is planned on top of those before it."""
    assert worst.limit is not None
    done: list[str] = []
    size = worst.peak.bytes
    while size > worst.limit.bytes:
        options = [(plan(change.workload, machine).peak(worst.pool).bytes, change) for change in changes(workload)]
        best = min(options, key=lambda pair: pair[0], default=None)
        if best is None or best[0] >= size:
            break
        size, workload = best[0], best[1].workload
        key = best[1].text.partition(" = ")[0]
        done = [text for text in done if text.partition(" = ")[0] != key] + [best[1].text]
    if done:
        yield _line(" and ".join(done), workload, worst, machine)


def _line(text: str, workload: Workload, worst: PoolVerdict, machine: Machine) -> str:
    peak = plan(workload, machine).peak(worst.pool)
    fits = "" if worst.limit is None or peak.bytes > worst.limit.bytes else ", which fits"
    return f"set {text}: {format_bytes(worst.peak.bytes)} -> {format_bytes(peak.bytes)} (phase {peak.phase}){fits}"


def _room(each: PoolVerdict) -> float:
    """How far the expected peak is below the limit, as a share of it; infinite without one."""
    return float("inf") if each.limit is None else 1 - each.peak.bytes / max(1, each.limit.bytes)
