"""The recording.jsonl of `headway train` over time."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from headway.guard.forecast import Forecast
from headway.guard.frame import Action
from headway.guard.recorder import FORMAT, PhaseRecord
from headway.reports.page.files import number, rows, size_of
from headway.reports.page.records import Band, History, Stack
from headway.reports.page.thin import Thinned
from headway.reports.page.tracks import Tracks
from headway.units import format_bytes

TREE, NOW, NODE, GROUP = "process tree, most in a phase", "process tree, readings", "node", "control group"
PLANNED, BOUND = "expected by the plan", "upper bound of the plan"
FAILURES = 20
"""Allocations that failed and are listed, the first ones."""
_Sizes = tuple[float, int, int]


def read_recording(path: Path, upper: Mapping[str, int] | None = None) -> History:
    """What a recording tells over time. `upper` is the plan's bound by phase. OSError where it cannot be read."""
    reader = _Reader(upper or {})
    for row in rows(path):
        reader.take(row)
    return reader.history()


class _Reader:
    """Takes the lines of a recording one by one."""

    def __init__(self, upper: Mapping[str, int]) -> None:
        self._tracks, self._upper = Tracks(), upper
        self._pool, self._machine, self._expected = "node[0].host", "", {}  # type: str, str, dict[str, int]
        self._open: list[dict[str, Any]] = []
        self._last: PhaseRecord | None = None
        self._processes = Thinned[_Sizes](_largest)
        self._known = False
        self._failures: list[tuple[str, str]] = []
        self._bad, self._foreign, self._peak = 0, 0, 0

    def take(self, row: dict[str, Any] | None) -> None:
        """One line; what is not whole or of another format is counted and passed over."""
        try:
            if row is None:
                raise ValueError
            kind = row.get("kind")
            if kind == "header":
                self._known = False
                self._header(row)
            elif not self._known:
                self._bad += not self._foreign
            elif kind == "reading":
                self._reading(row)
            elif kind == "phase":
                self._phase(msgspec.convert(row, PhaseRecord))
            elif kind == "action":
                self._tracks.act(msgspec.convert(row.get("action", row), Action))
            elif kind == "forecast":
                self._forecast(msgspec.convert(row, Forecast))
            elif kind == "failure" and len(self._failures) < FAILURES:
                self._failures.append(_failure(row))
            elif kind == "smaller" and len(self._failures) < FAILURES:
                self._failures.append(_smaller(row))
        except (ValueError, TypeError, KeyError, AttributeError, msgspec.ValidationError):
            self._bad += 1

    def _header(self, row: dict[str, Any]) -> None:
        if row["format"] != FORMAT:
            self._foreign += 1
            return
        self._unfinished()
        self._last, self._known = None, True
        self._tracks.clock.begin(float(row["t"]), int(row["pid"]))
        machine = row["machine"]
        self._machine = str(machine["name"])
        self._expected = {str(phase): int(size) for phase, size in row["expected"].items()}
        pools = [pool for pool in machine["pools"] if pool["kind"] in ("unified", "host")]
        for pool in pools[:1]:
            self._pool = str(pool["name"])
            for limit in pool["limits"]:
                curve = GROUP if limit["name"].startswith("cgroup") else TREE
                self._tracks.limit(
                    self._pool, str(limit["name"]), int(limit["bytes"]), str(limit["consequence"]), curve
                )

    def _reading(self, row: dict[str, Any]) -> None:
        if number(row["t"]) is None or size_of(row["rss"]) is None:
            raise ValueError
        self._open.append(row)
        if len(self._open) > 4000:  # one phase that takes days
            self._open = self._open[::2]

    def _phase(self, record: PhaseRecord) -> None:
        tracks, pool, phase = self._tracks, self._pool, str(record.phase)
        before = tracks.clock.end
        start, end = tracks.clock.at(record.t), tracks.clock.at(record.t + record.seconds)
        tracks.band(Band(phase, record.step, start, end))
        tracks.add(pool, TREE, before, record.outside_peak, "steps")
        tracks.add(pool, TREE, start, record.tree_peak, "steps")
        tracks.add(pool, TREE, end, record.tree_peak, "steps")
        self._plan(phase, start)
        alone = record.children_peak == 0  # else what the tree held at the borders is not known
        tracks.add(pool, NOW, start, record.rss_start if alone else None)
        for row in self._open:
            self._point(row)
        tracks.add(pool, NOW, end, record.rss_end if alone else None)
        tracks.add(pool, NODE, start, record.node_used_peak, "steps")
        tracks.add(pool, NODE, end, record.node_used_peak, "steps")
        tracks.add(pool, GROUP, start, record.cgroup_current_peak, "steps", about="with page cache")
        tracks.add(pool, GROUP, end, record.cgroup_current_peak, "steps")
        self._processes.add((start, record.rss_peak, record.children_peak))
        self._processes.add((end, record.rss_peak, record.children_peak))
        sizes = {"tree": record.tree_peak, "rss": record.rss_peak, "children": record.children_peak}
        tracks.hold(phase, {**sizes, **record.device})
        self._peak = max(self._peak, record.tree_peak, record.outside_peak)
        self._open, self._last = [], record

    def _forecast(self, made: Forecast) -> None:
        if made.expected is None or not made.told:
            return
        t, clock = self._tracks.clock.at(made.at), self._tracks.clock
        rate, seconds = made.per_minute / 60, made.expected.t - made.at
        start = (t, float(made.level))
        self._tracks.foresight.add(made.pool, made.gauge, start, rate, seconds, made.sentence, t - clock.starts[-1].t)

    def _plan(self, phase: str, start: float) -> None:
        """What was expected of a phase, and its bound, from where it began."""
        self._tracks.add(self._pool, PLANNED, start, self._expected.get(phase), "steps", planned=True)
        self._tracks.add(self._pool, BOUND, start, self._upper.get(phase), "steps", planned=True)

    def _point(self, row: Mapping[str, Any]) -> tuple[float, int]:
        """A reading on the time axis: when, and what the tree held."""
        t, rss, children = self._tracks.clock.at(float(row["t"])), int(row["rss"]), size_of(row.get("children")) or 0
        self._tracks.add(self._pool, NOW, t, rss + children)
        return t, rss + children

    def _unfinished(self) -> None:
        """Readings after the last finished phase: there the process was killed, or it is there now."""
        if not self._open:
            return
        before = self._tracks.clock.end
        phase, step = str(self._open[-1].get("phase")), size_of(self._open[-1].get("step"))
        for row in self._open:
            t, size = self._point(row)
            self._tracks.add(self._pool, TREE, t, size, "steps")
            self._tracks.add(self._pool, NODE, t, size_of(row.get("node_used")), "steps")
            self._tracks.add(self._pool, GROUP, t, size_of(row.get("cgroup")), "steps")
            self._processes.add((t, int(row["rss"]), size_of(row.get("children")) or 0))
            self._tracks.hold(phase, {"tree": size, "rss": int(row["rss"]), "children": size_of(row.get("children"))})
            self._peak = max(self._peak, size)
        self._plan(phase, before)
        self._tracks.band(Band(phase, step, before, self._tracks.clock.end, finished=False))
        self._open = []

    def _stopped(self) -> str:
        """Where the recording ends, where that is no safe point."""
        if self._open:
            row = self._open[-1]
            held = format_bytes(int(row["rss"]) + (size_of(row.get("children")) or 0))
            return f"inside {row.get('phase')} of step {row.get('step')}, where {held} were held"
        if self._last is not None and self._last.ended != "ok":
            return f"{self._last.phase} of step {self._last.step} was left by {self._last.ended}"
        return ""

    def history(self) -> History:
        """All of it. What follows the last finished phase becomes a band of its own."""
        stopped = self._stopped()
        self._unfinished()
        notes = [f"recording.jsonl: {self._bad} lines could not be read"] if self._bad else []
        if self._foreign:
            notes.append(f"recording.jsonl: {self._foreign} parts are of another format than {FORMAT}, and not shown")
        sizes = self._processes.rows
        names = ("the run's process", "its children") if any(each[2] for each in sizes) else ("the run's process",)
        parts = tuple((own, children)[: len(names)] for _, own, children in sizes)
        tracks = self._tracks
        return History(
            machine=self._machine, starts=tuple(tracks.clock.starts), seconds=tracks.clock.end, bands=tracks.bands,
            pools=tracks.pools((self._pool,)), actions=tuple(tracks.actions), held=tracks.held, passes=tracks.passes,
            processes=Stack("steps", names, tuple(each[0] for each in sizes), parts), facts=tuple(self._failures),
            phase_seconds=tracks.seconds, peak=self._peak or None, stopped=stopped, notes=tuple(notes),
        )  # fmt: skip


def _failure(row: Mapping[str, Any]) -> tuple[str, str]:
    """An allocation that failed: where, and what was asked for over how many tokens."""
    asked, tokens = size_of(row.get("asked")), size_of(row.get("tokens"))
    size = "" if asked is None else f"{format_bytes(asked)} asked for, "
    left = row.get("left") or "the sample was dropped"
    return (
        f"allocation failed in {row['phase']} of step {row['step']}",
        f"{size}micro-batch of {tokens or 0:,} tokens; {left}",
    )


def _smaller(row: Mapping[str, Any]) -> tuple[str, str]:
    """A setting that memory made smaller: which, when, and by whom."""
    return (
        f"{row['key']} is smaller from step {int(row['step'])} on",
        f"{int(row['now']):,} instead of {int(row['set']):,}: {row['reason']}",
    )


def _largest(sizes: "list[_Sizes] | Any") -> list[_Sizes]:
    """The moment at which all together held the most."""
    return [max(sizes, key=lambda each: each[1] + each[2])]
