"""The black box of `headway watch` over time, all attempts of it."""

import heapq
import shlex
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from headway.errors import InputError
from headway.guard.blackbox import is_blackbox
from headway.guard.boxlog import last_lines
from headway.guard.boxplan import plan_of, run_use
from headway.guard.boxrecords import (
    EVENT_LINES,
    EVENTS,
    MOMENT_LINES,
    Acted,
    Begun,
    Counted,
    Ended,
    Event,
    Foreseen,
    Mark,
    Moment,
    Note,
    Over,
    PlanMade,
    Seen,
    Sent,
    Span,
    segments,
)
from headway.guard.frame import Frame, Gauge
from headway.guard.senders import signal_name
from headway.reports.page.files import lines
from headway.reports.page.records import Band, Curve, History, Stack
from headway.reports.page.thin import Thinned, extremes
from headway.reports.page.tracks import Tracks
from headway.units import format_bytes

TREE = "processes of the run"
TOP, OTHERS = 7, "others"
"""Processes with a series of their own; the smaller ones share one."""
LOG_LINES, NOTES, FORECASTS = 40, 20, 20
EXITED_BADLY = 12
"""Processes that ended badly and are listed."""
CONSEQUENCES = {
    "cgroup": "the kernel kills a process of the group", "Ray": "Ray kills a worker",
    "node": "the kernel swaps, then kills a process", "device": "an allocation fails",
    "shm": "who writes there dies of a bus error", "disk": "writing fails",
    "memory.limit": "the guard stops the run before it",
}  # fmt: skip
CURVES = {
    "node": "node",
    "cgroup": "control group",
    "Ray": "as Ray counts",
    "device": "device",
    "shm": "files",
    "memory.limit": "processes of the run, as headway counts",
    "disk": "used",
}
_Uses = tuple[float, int, dict[str, int]]

__all__ = ["is_blackbox", "read_box"]


def read_box(folder: Path) -> History:
    """What a black box tells over time. OSError where it cannot be read; damaged records are counted."""
    reader = _Reader()
    events = sorted(reader.events(folder / EVENTS), key=_time)
    for record in heapq.merge(events, reader.moments(folder), key=_time):
        reader.take(record)
    try:
        log = last_lines(folder)[-LOG_LINES:]
    except (OSError, InputError):
        log = ()
    return reader.history(tuple(log))


def _time(record: Event | Moment) -> float:
    match record:
        case Seen():
            return record.frame.t
        case Acted():
            return record.action.t
        case _:
            return record.t


class _Reader:
    """Takes records in the order of their time."""

    def __init__(self) -> None:
        self._tracks, self._bad = Tracks(), 0
        self._begun: Begun | None = None
        self._plan = ""
        self._attempts = 0
        self._over: Over | None = None
        self._phase: tuple[str, int | None, float] | None = None
        self._step: int | None = None
        self._uses = Thinned[_Uses](_largest)
        self._pressure: dict[str, Thinned[tuple[float, float]]] = {}
        self._foreseen: dict[str, str] = {}
        self._facts: list[tuple[str, str]] = []
        self._notes: list[str] = []
        self._counters: dict[str, dict[str, int]] = {}
        self._peak: int | None = None

    def events(self, path: Path) -> Iterator[Event]:
        """The whole records of the file of events."""
        for line in lines(path):
            try:
                yield EVENT_LINES.decode(line)
            except (msgspec.MsgspecError, RecursionError):
                self._bad += bool(line.strip())

    def moments(self, folder: Path) -> Iterator[Moment]:
        """Frames, spans and marks of all files, the oldest first."""
        for path in segments(folder):
            try:
                for line in lines(path):
                    try:
                        yield MOMENT_LINES.decode(line)
                    except (msgspec.MsgspecError, RecursionError):
                        self._bad += bool(line.strip())
            except FileNotFoundError:
                continue  # thinned while we read

    def take(self, record: Event | Moment) -> None:
        """One record."""
        match record:
            case Begun():
                self._close()
                self._tracks.clock.begin(record.t, record.pid)
                self._begun, self._over, self._attempts = record, None, self._attempts + 1
                self._plan = record.ledger
                self._step = None
            case PlanMade():
                self._plan = record.ledger
            case Seen():
                self._frame(record.frame)
            case Span():
                self._span(record)
            case Mark():
                self._enter(self._tracks.clock.at(record.t), record.phase, record.step)
            case Acted():
                self._tracks.act(record.action)
            case Foreseen():
                self._forecast(record)
            case Over():
                self._tracks.clock.at(record.t)
                self._close()
                self._over = record
            case Ended() | Sent() | Counted() | Note():
                self._fact(record)

    def _frame(self, frame: Frame) -> None:
        t, tracks = self._tracks.clock.at(frame.t), self._tracks
        self._enter(t, frame.phase, frame.step)
        for gauge in frame.gauges:
            self._gauge(t, gauge)
        tracks.hold(frame.phase or "", dict(run_use(frame)))
        if frame.processes:
            total = sum(each.rss for each in frame.processes)
            host = next((g.pool for g in frame.gauges if g.pool.endswith((".host", ".unified"))), "node[0].host")
            tracks.add(host, TREE, t, total, about="sum of resident memory; shared pages count in each process")
            self._peak = max(self._peak or 0, total)
            if frame.phase is not None:
                tracks.hold(frame.phase, {"tree": total})
            uses: dict[str, int] = {}
            for each in frame.processes[:20]:
                role = f" ({each.role})" if each.role and each.role not in each.name else ""
                uses[f"{each.name[:60]}{role} {each.pid}"] = each.rss
            self._uses.add((t, total, uses))
        for name, share in frame.pressure.items():
            if name in self._pressure or len(self._pressure) < 4:
                self._pressure.setdefault(name, Thinned(extremes)).add((t, share))

    def _gauge(self, t: float, gauge: Gauge) -> None:
        curve = CURVES.get(gauge.name, gauge.name)
        self._tracks.add(gauge.pool, curve, t, gauge.used, about="without page cache that the kernel can drop")
        if gauge.limit is not None:
            self._tracks.limit(gauge.pool, gauge.name, gauge.limit, CONSEQUENCES.get(gauge.name, ""), curve)

    def _forecast(self, made: Foreseen) -> None:
        """A forecast: drawn where it has its numbers, and the last of each gauge or process as a sentence."""
        if made.pool in self._foreseen or len(self._foreseen) < FORECASTS:
            self._foreseen[made.pool] = made.text
        t, numbers = self._tracks.clock.at(made.t), made.numbers
        pool, _, gauge = made.pool.partition(" ")
        if {"level", "per_minute", "expected_t"} <= numbers.keys():
            seen = t - self._tracks.clock.starts[-1].t
            rate, seconds = numbers["per_minute"] / 60, numbers["expected_t"] - made.t
            self._tracks.foresight.add(pool, gauge, (t, numbers["level"]), rate, seconds, made.text, seen)

    def _span(self, span: Span) -> None:
        """A thinned stretch: its peaks, at its middle, as their moments are not known."""
        self._tracks.clock.at(span.until)
        t = self._tracks.clock.at((span.t + span.until) / 2)
        for key, size in span.peaks.items():
            pool, _, name = key.rpartition(" ")
            self._tracks.add(pool, CURVES.get(name, name), t, size)

    def _enter(self, t: float, phase: str | None, step: int | None) -> None:
        """The run is in a phase now; a step that is not told is the one before."""
        self._step = self._step if step is None else step
        if phase is None or (self._phase is not None and self._phase[:2] == (phase, self._step)):
            return
        self._close(t)
        self._phase = (phase, self._step, t)

    def _close(self, t: float | None = None) -> None:
        if self._phase is not None:
            phase, step, start = self._phase
            self._tracks.band(Band(phase, step, start, max(start, self._tracks.clock.end if t is None else t)))
            self._phase = None

    def _fact(self, record: Ended | Sent | Counted | Note) -> None:
        match record:
            case Ended() if record.code != 0 and len(self._facts) < EXITED_BADLY:
                held = "" if record.rss is None else f"; it held {format_bytes(record.rss)}"
                how = _ended(record.code, record.signal) or record.why or "how is not known"
                self._facts.append((f"{record.name} ({record.pid})", f"{how}{held}"))
            case Sent() if len(self._facts) < EXITED_BADLY:
                whom = f"{record.name} ({record.pid})" if record.pid is not None else record.name or "a process"
                known = f"{record.sender_name} ({record.sender})" if record.sender is not None else ""
                why = f"; {record.why}" if record.why else ""
                by = f"from {known}" if known else f"the sender is not known{why}"
                self._facts.append((f"{signal_name(record.signal)} to {whom}", by))
            case Counted():
                self._counters[record.when] = record.counters
            case Note() if len(self._notes) < NOTES:
                self._notes.append(record.text)

    def history(self, log: tuple[str, ...]) -> History:
        """All of it."""
        last = self._phase
        self._close()
        tracks, begun = self._tracks, self._begun
        notes = [*self._notes, *([f"{self._bad} records could not be read"] if self._bad else [])]
        where = "" if last is None else f"in {last[0]}" + ("" if last[1] is None else f" of step {last[1]}")
        code, killer = (None, None) if self._over is None else (self._over.code, self._over.signal)
        pools = tracks.pools()
        forecasts = [("forecast", text) for text in list(self._foreseen.values())[-FORECASTS:]]
        facts = (
            *_context(begun, self._attempts),
            *_planned(self._plan),
            *forecasts,
            *self._facts,
            *_counted(self._counters),
        )
        return History(
            starts=tuple(tracks.clock.starts), seconds=tracks.clock.end, bands=tracks.bands,
            pools=pools, processes=_stack(self._uses.rows),
            pressure=tuple(Curve(name, points.rows) for name, points in self._pressure.items()),
            actions=tuple(tracks.actions), held=tracks.held, passes=tracks.passes, phase_seconds=tracks.seconds,
            peak=self._peak, stopped=where, exit=_ended(code, killer), exit_code=code,
            command="" if begun is None else shlex.join(begun.command)[:2000],
            ledger=self._plan, facts=facts, log=log, notes=tuple(notes),
        )  # fmt: skip


def _ended(code: int | None, number: int | None) -> str:
    """How a process ended, in words; empty where nobody knows."""
    if number is not None:
        return f"ended by {signal_name(number)}"
    return "" if code is None else f"exit code {code}"


def _context(begun: Begun | None, attempts: int) -> list[tuple[str, str]]:
    if begun is None:
        return []
    found = [("attempts", str(attempts))] if attempts > 1 else []
    try:
        when = f"{datetime.fromtimestamp(begun.t, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        when = "unknown"
    return [*found, ("began", when), *([("policy", begun.policy)] if begun.policy else [])]


def _planned(ledger: str) -> list[tuple[str, str]]:
    plan = plan_of(ledger)
    return [] if plan is None else [("plan before the run", f"{plan.verdict}, on {plan.machine}")]


def _counted(counters: dict[str, dict[str, int]]) -> list[tuple[str, str]]:
    """Counters of the kernel that grew while the command ran."""
    before, after = counters.get("before", {}), counters.get("after", {})
    return [
        (f"counter {name}", f"{before[name]:,} before, {count:,} after")
        for name, count in after.items()
        if name in before and count != before[name]
    ][:EXITED_BADLY]


def _stack(rows: Sequence[_Uses]) -> Stack:
    """The processes that held the most at any time, and all others together."""
    tops: dict[str, int] = {}
    for _, _, uses in rows:
        for name, size in uses.items():
            tops[name] = max(size, tops.get(name, 0))
    names = sorted(tops, key=lambda name: -tops[name])[:TOP]
    parts = [[uses.get(name, 0) for name in names] for _, _, uses in rows]
    rest = [total - sum(part) for (_, total, _), part in zip(rows, parts, strict=True)]
    if any(rest):
        names = [*names, OTHERS]
        parts = [[*part, left] for part, left in zip(parts, rest, strict=True)]
    return Stack("line", tuple(names), tuple(t for t, *_ in rows), tuple(map(tuple, parts)))


def _largest(rows: Sequence[_Uses]) -> list[_Uses]:
    return [max(rows, key=lambda row: row[1])]
