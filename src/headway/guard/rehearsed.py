"""What a rehearsal showed: each phase's measured peak beside its plan and the lowest limit, and the verdict."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from headway.errors import InputError
from headway.facts.calibration import Overhead
from headway.facts.machine import Limit
from headway.guard.overhead import device_overhead, overhead, read_passes
from headway.guard.recorder import PhasePeak, read_recording
from headway.guard.rehearsal import Ended
from headway.plan.ledger import Ledger, Phase
from headway.plan.planned import Planned
from headway.plan.room import Need, larger_model, longest_answer

Kind = Literal["fits", "tight", "does not fit", "not reached"]
OUT_OF_MEMORY, KILLED = 5, -9
"""Statuses of a rehearsal in which memory ran out: headway's own exit code, and the kernel's SIGKILL."""


class PhaseRow(Struct, frozen=True):
    """A phase of a pool: planned and measured bytes. `measured` is None for a phase that was not reached.

    "tight": what was measured is inside the lowest limit, and the plan's upper bound is over it.

    >>> PhaseRow("node[0].host", Phase.TRAIN, 80, 120, 90, 100, ended=False).kind
    'tight'
    >>> PhaseRow("node[0].host", Phase.TRAIN, 80, 120, 95, 100, ended=True).kind, PhaseRow(
    ...     "node[0].host", Phase.TRAIN, 80, 120, 130, 100, ended=False).margin
    ('does not fit', -30)
    """

    pool: str
    phase: Phase
    predicted: int
    upper: int
    measured: int | None
    limit: int | None
    ended: bool

    @property
    def margin(self) -> int | None:
        """What the lowest limit leaves above the measured peak, in bytes."""
        return None if self.measured is None or self.limit is None else self.limit - self.measured

    @property
    def kind(self) -> Kind:
        """The phase's verdict; a phase in which the rehearsal ended for want of memory does not fit."""
        if self.measured is None:
            return "not reached"
        if self.ended or (self.margin is not None and self.margin < 0):
            return "does not fit"
        return "tight" if self.limit is not None and self.upper > self.limit else "fits"


class Rehearsed(Struct, frozen=True):
    """A rehearsal and what follows from it.

    `limit` is the lowest of the pool where least was left, None where none is known. `failures` are allocations that
    failed and were tried again in smaller parts. `larger` is what the next larger model of the series would need of
    that pool, `longest` the longest answer in tokens that surely fits by plan, `longest_expected` that which is
    expected to. `overhead` is what the allocator was seen to hold beyond live tensors, None where they were not
    counted, and `context` what a CUDA device held beside its allocator.
    """

    planned: Planned
    ended: Ended
    rows: tuple[PhaseRow, ...]
    failures: int
    limit: Limit | None
    larger: Need | None
    longest: int
    longest_expected: int
    overhead: Overhead | None = None
    context: int | None = None

    @property
    def fits(self) -> bool:
        """Whether the worst step of the run fits."""
        return self.ended.status == 0 and not self.failures and all(each.kind != "does not fit" for each in self.rows)

    @property
    def worst(self) -> PhaseRow | None:
        """The phase with the least margin, or the one in which it ended; None where nothing was measured."""
        seen = [row for row in self.rows if row.measured is not None]
        ended = [row for row in seen if row.ended]
        return next(
            iter(ended or sorted(seen, key=lambda row: (row.margin is None, row.margin or 0, -(row.measured or 0)))),
            None,
        )

    @property
    def room(self) -> int | None:
        """What is left of the lowest limit above the highest peak, in bytes; negative where it is passed."""
        return None if self.worst is None else self.worst.margin


def judge(planned: Planned, ended: Ended, recording: Path) -> Rehearsed:
    """What a rehearsal showed, from how it ended and what it recorded. InputError where it recorded nothing."""
    over = ended.reached is not None or ended.status in (OUT_OF_MEMORY, KILLED)
    peaks, failures = _recorded(recording, over=over)
    if over and not peaks:
        ended = replace(ended, phase=ended.phase or str(Phase.LOAD))  # it did not come to its first line
    rows = tuple(
        _row(planned, pool, phase, peaks, ended if over and ended.phase == phase else None)
        for pool in planned.ledger.pools()
        for phase in planned.ledger.phases(pool)
    )
    found = Rehearsed(planned, ended, rows, failures, None, None, 0, 0)
    worst = found.worst
    pool = planned.ledger.pools()[0] if worst is None else worst.pool
    limit = next((each.limit for each in planned.outcome.pools if each.pool == pool), None)
    workload, machine = planned.workload, planned.machine
    beyond, context = (None, None) if ended.status else _beyond_tensors(planned, pool, recording)
    return Rehearsed(
        planned, ended, rows, failures, ended.reached.limit if ended.reached is not None else limit,
        larger_model(workload, machine, pool), longest_answer(workload, machine, surely=True),
        longest_answer(workload, machine, surely=False), beyond, context,
    )  # fmt: skip


def _beyond_tensors(planned: Planned, pool: str, recording: Path) -> tuple[Overhead | None, int | None]:
    """What the allocator held beyond tensors where those are, and what a device held beside it."""
    if planned.workload.device == "cuda":
        return device_overhead(recording)
    ledger = planned.ledger
    objects = {
        phase: sum(line.bytes for line in ledger.select(pool, phase) if line.item == "answers")
        for phase in ledger.phases(pool)
    }
    return overhead(read_passes(recording, objects)), None


def _row(
    planned: Planned, pool: str, phase: Phase, peaks: Mapping[Phase, PhasePeak], ended: Ended | None
) -> PhaseRow:
    ledger = planned.ledger
    peak, limit = ledger.peak_of(pool, phase), next(each.limit for each in planned.outcome.pools if each.pool == pool)
    measured = None if phase not in peaks else _measured(ledger, pool, peaks[phase])
    here = pool == ledger.pools()[0]
    if ended is not None and here:
        measured = max(measured or 0, ended.used)
    return PhaseRow(
        pool, phase, peak.bytes, peak.upper, measured, None if limit is None else limit.bytes,
        ended=ended is not None and here,
    )  # fmt: skip


def _measured(ledger: Ledger, pool: str, peak: PhasePeak) -> int | None:
    """What was measured of the quantity that the pool's lines reach up to."""
    quantities = {line.quantity for line in ledger.lines if line.pool == pool}
    if "host" in quantities:
        return peak.tree_peak
    order = ("device_used", "reserved", "allocated")
    return next((peak.device[name] for name in order if name in quantities and name in peak.device), None)


def _recorded(path: Path, *, over: bool) -> tuple[Mapping[Phase, PhasePeak], int]:
    """The peaks of the phases, and how many allocations failed; none where it was over a limit before its start."""
    if not path.exists() or not path.stat().st_size:
        if over:
            return {}, 0
        raise InputError("the rehearsal ended before it recorded anything")
    text = path.read_text(errors="replace").splitlines()
    failures = sum(line.startswith('{"kind": "failure"') for line in text)
    return read_recording(path).segments[-1].peaks, failures
