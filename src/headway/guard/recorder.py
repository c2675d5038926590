"""Measures the memory of a run phase by phase and writes it to recording.jsonl, one JSON object a line.

Lines are appended and flushed as they happen, so that a killed run leaves all but its last moments. Kinds:

header    what was started: format, headway's version, pid, time, the machine's pools, the expected peaks
reading   now and then inside a phase: what a run that was killed there held
phase     what a phase held, at its end
failure   an allocation that failed, and what was tried next
action    what the guard did, and why
smaller   a setting that memory made smaller than the RunSpec's, when it was and in each resume
forecast  once a step, when a growing pool reaches its limit

A resumed run appends to the file: each header begins a segment.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Protocol, Self

from msgspec import Struct, ValidationError, convert, field, to_builtins
from msgspec.structs import replace

import headway
from headway.errors import InputError
from headway.facts.machine import Machine
from headway.facts.probe import ROOT
from headway.guard.boxlog import ends_unfinished
from headway.guard.lines import append_line
from headway.guard.read import process_status, reset_peak
from headway.guard.sample import Highest, Reading, Sampler, larger
from headway.plan.ledger import Phase

FORMAT = 1
"""Version of the file's lines. A reader of one format refuses another."""

SAMPLE_S = 0.25
"""Between readings of what keeps no peak of its own: other processes, the node, the control group."""

SAMPLE_OWN_S = 0.05
"""The same where the own process keeps no peak either."""

WRITE_S = 5.0
"""Between readings that are written to the file."""


class DeviceMeter(Protocol):
    """Peaks of a device's memory, such as torch's counters of a CUDA device."""

    def reset(self) -> None:
        """Start new peaks."""
        ...

    def read(self) -> dict[str, int]:
        """Peaks in bytes since `reset`, by quantity: allocated, reserved, device_used."""
        ...


class PhaseRecord(Struct, frozen=True):
    """What one pass through a phase held, in bytes. `rss_*` are of the process that records.

    `tree_peak` = `rss_peak` + `children_peak`; the two need not have come at the same moment. `outside_peak` is
    the tree's between the phase before and this one. `sampled`: `rss_peak` is the highest of readings, because
    the kernel's own peak could not be used. `ended`: "ok", or the name of the exception that left the phase.

    >>> record = PhaseRecord(t=0.0, phase=Phase.TRAIN, step=3, seconds=7.1, rss_start=900, rss_peak=1900,
    ...     rss_end=910, children_peak=100, tree_peak=2000, node_used_peak=None, cgroup_current_peak=None,
    ...     outside_peak=1000)
    >>> record.tree_peak - record.rss_peak
    100
    """

    t: float
    phase: Phase
    step: int
    seconds: float
    rss_start: int
    rss_peak: int
    rss_end: int
    children_peak: int
    tree_peak: int
    node_used_peak: int | None
    cgroup_current_peak: int | None
    outside_peak: int
    device: dict[str, int] = field(default_factory=dict)
    sampled: bool = False
    ended: str = "ok"


class PhasePeak(Struct, frozen=True):
    """The most that any pass through a phase held, each value on its own; `step` is where the tree's came first."""

    phase: Phase
    step: int
    passes: int
    seconds: float
    rss_peak: int
    children_peak: int
    tree_peak: int
    node_used_peak: int | None
    cgroup_current_peak: int | None
    device: Mapping[str, int]
    sampled: bool


class Header(Struct, frozen=True):
    """How a segment of a recording began. `expected` is the plan's peak of each phase, where there was a plan."""

    t: float
    version: str
    pid: int
    machine: Machine
    expected: Mapping[Phase, int]


class Segment(Struct, frozen=True):
    """One process's part of a recording. Of a process that was killed, `last_reading` says what it held then.

    `last_reading` is the reading line (t, phase, step, rss, children, node_used, cgroup) that came after the last
    finished phase, if there is one; `last_stop` the guard's last action that stops a run, or only would have.
    """

    header: Header
    peaks: Mapping[Phase, PhasePeak]
    outside_peak: int
    last: PhaseRecord | None
    last_reading: Mapping[str, Any] | None
    last_stop: Mapping[str, Any] | None = None

    @property
    def peak(self) -> int:
        """The most that the process tree held, in a phase or between two."""
        return max([self.outside_peak, *(each.tree_peak for each in self.peaks.values())])


class Recording(Struct, frozen=True):
    """A recording.jsonl, summed up. `torn` counts lines that a killed process left unfinished."""

    segments: tuple[Segment, ...]
    torn: int


def raise_peak(peak: PhasePeak | None, record: PhaseRecord) -> PhasePeak:
    """`peak` with one more pass through its phase taken into account."""
    if peak is None:
        return PhasePeak(
            phase=record.phase, step=record.step, passes=1, seconds=record.seconds, rss_peak=record.rss_peak,
            children_peak=record.children_peak, tree_peak=record.tree_peak,
            node_used_peak=record.node_used_peak, cgroup_current_peak=record.cgroup_current_peak,
            device=record.device, sampled=record.sampled,
        )  # fmt: skip
    names = {**peak.device, **record.device}
    return PhasePeak(
        phase=peak.phase,
        step=record.step if record.tree_peak > peak.tree_peak else peak.step,
        passes=peak.passes + 1,
        seconds=peak.seconds + record.seconds,
        rss_peak=max(peak.rss_peak, record.rss_peak),
        children_peak=max(peak.children_peak, record.children_peak),
        tree_peak=max(peak.tree_peak, record.tree_peak),
        node_used_peak=larger(peak.node_used_peak, record.node_used_peak),
        cgroup_current_peak=larger(peak.cgroup_current_peak, record.cgroup_current_peak),
        device={name: max(peak.device.get(name, 0), record.device.get(name, 0)) for name in names},
        sampled=peak.sampled or record.sampled,
    )


class _Window(Struct, frozen=True):
    """What was held since the window before: the own process's peak and end, and the highest readings."""

    rss_peak: int
    rss_end: int
    highest: Highest

    @property
    def tree_peak(self) -> int:
        return self.rss_peak + self.highest.children


class Recorder:
    """Records this process and its descendants, as a context manager around the whole run.

    The own peak is the kernel's (VmHWM, reset at each border of a phase), so it misses nothing however short;
    where it cannot be reset the own process is sampled faster instead, and the records say so. Other processes,
    the node and the control group are sampled. `on_reading` gets the resident bytes of the process tree from the
    sampling thread, some times a second.
    """

    def __init__(
        self,
        path: Path,
        machine: Machine,
        expected: Mapping[Phase, int] | None = None,
        meter: DeviceMeter | None = None,
        on_reading: Callable[[int], None] | None = None,
        root: Path = ROOT,
    ) -> None:
        self._pid, self._root = os.getpid(), root
        self._header = Header(time.time(), headway.__version__, self._pid, machine, dict(expected or {}))
        self._path, self._meter, self._on_reading = path, meter, on_reading
        self._peaks: dict[Phase, PhasePeak] = {}
        self._latest: dict[Phase, int] = {}
        self._outside_peak = 0
        self._inside: tuple[Phase, int] | None = None
        self._written = 0.0
        self.children = 0
        """Resident bytes of the descendants at the last reading."""
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        status = process_status(self._pid, self._root)
        assert status is not None, "this process has a status"
        # what this process held before it recorded, its imports among them, belongs before the first phase
        self._carried = status.rss if status.peak_rss is None else status.peak_rss
        self._exact = status.peak_rss is not None and reset_peak(self._pid, self._root)
        self._file = _open_to_append(self._path)
        self._write("header", _header_row(self._header))
        self._sampler = Sampler(self._pid, SAMPLE_S if self._exact else SAMPLE_OWN_S, self._on_sample, self._root)
        self._sampler.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._sampler.stop()
        finally:
            self._file.close()

    @contextmanager
    def phase(self, phase: Phase, step: int) -> Iterator[None]:
        """Measure what happens inside as one pass through a phase. Phases do not nest."""
        assert self._inside is None, f"phase {phase} begins inside phase {self._inside}"
        outside = self._close_window()
        if self._meter is not None:
            self._meter.reset()
        began, start, ended = time.time(), time.monotonic(), "ok"
        self._inside = (phase, step)
        try:
            yield
        except BaseException as error:
            ended = type(error).__name__
            raise
        finally:
            self._inside = None
            held = self._close_window()
            self._keep(
                PhaseRecord(
                    t=round(began, 3), phase=phase, step=step, seconds=round(time.monotonic() - start, 4),
                    rss_start=outside.rss_end, rss_peak=held.rss_peak, rss_end=held.rss_end,
                    children_peak=held.highest.children, tree_peak=held.tree_peak,
                    node_used_peak=held.highest.node_used, cgroup_current_peak=held.highest.cgroup,
                    outside_peak=outside.tree_peak, device={} if self._meter is None else self._meter.read(),
                    sampled=not self._exact, ended=ended,
                )
            )  # fmt: skip

    def note(self, kind: str, row: Mapping[str, Any]) -> None:
        """Write a line of another kind, from any thread: an allocation that failed, what the guard did."""
        self._write(kind, row)

    def peaks(self) -> dict[Phase, PhasePeak]:
        """The most that each phase held since this recorder was opened."""
        return dict(self._peaks)

    def latest(self) -> dict[Phase, int]:
        """Peak resident bytes of the process tree in the latest pass through each phase."""
        return dict(self._latest)

    @property
    def peak(self) -> int:
        """The most that the process tree held so far, in a phase or between two."""
        return max([self._outside_peak, *(each.tree_peak for each in self._peaks.values())])

    def _close_window(self) -> _Window:
        highest = self._sampler.window()
        status = process_status(self._pid, self._root)
        assert status is not None, "this process has a status"
        own = status.peak_rss if self._exact and status.peak_rss is not None else highest.rss
        if self._exact:
            reset_peak(self._pid, self._root)
        own, self._carried = max(own, self._carried), 0
        return _Window(own, status.rss, highest)

    def _keep(self, record: PhaseRecord) -> None:
        self._peaks[record.phase] = raise_peak(self._peaks.get(record.phase), record)
        self._latest[record.phase] = record.tree_peak
        self._outside_peak = max(self._outside_peak, record.outside_peak)
        self._write("phase", to_builtins(record))

    def _on_sample(self, reading: Reading) -> None:
        """In the sampling thread: pass the reading on, and write one now and then."""
        self.children = reading.children
        if self._on_reading is not None:
            self._on_reading(reading.tree)
        inside = self._inside
        if inside is not None and reading.t - self._written >= WRITE_S:
            self._written = reading.t
            row = to_builtins(reading) | {"t": round(reading.t, 3), "phase": inside[0], "step": inside[1]}
            self._write("reading", row)

    def _write(self, kind: str, row: Mapping[str, Any]) -> None:
        with self._lock:
            append_line(self._file.fileno(), json.dumps({"kind": kind, **row}))


def _open_to_append(path: Path) -> BinaryIO:
    """Open a recording, and end a line that a killed process left unfinished."""
    torn = ends_unfinished(path)
    opened = path.open("ab", buffering=0)
    if torn:
        opened.write(b"\n")
    return opened


def read_recording(path: Path) -> Recording:
    """Sum up a recording, line by line, in memory that does not grow with the run.

    A torn line is accepted where a process can have been killed: at the end, and before a header. InputError
    for a file that is missing or is no recording.
    """
    segments: list[Segment] = []
    torn, bad = 0, ""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file, start=1):
                row = _parse(line)
                if bad and (row is None or row["kind"] != "header"):
                    raise InputError(bad)
                if row is None:
                    torn, bad = torn + 1, f"{path}:{number}: not a line of a recording"
                    continue
                bad = ""
                _add(segments, row)
    except OSError as error:
        raise InputError(f"{path}: no recording can be read there ({error.strerror})") from None
    except (KeyError, TypeError, ValueError, IndexError, ValidationError) as error:
        raise InputError(f"{path}:{number}: not a line of a recording ({type(error).__name__}: {error})") from None
    if not segments:
        raise InputError(f"{path}: no recording of headway: it has no header")
    return Recording(tuple(segments), torn)


def _parse(line: str) -> dict[str, Any] | None:
    """The object on a line; None where the line is not whole."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and "kind" in row else None


def _add(segments: list[Segment], row: dict[str, Any]) -> None:
    """Take one line into account. Kinds that a later version may add are passed over."""
    if row["kind"] == "header":
        segments.append(Segment(_header(row), {}, 0, None, None))
    elif row["kind"] == "reading":
        segments[-1] = replace(segments[-1], last_reading=row)
    elif row["kind"] == "action" and row.get("name") == "stop":
        segments[-1] = replace(segments[-1], last_stop=row)
    elif row["kind"] == "phase":
        segment, record = segments[-1], convert(row, PhaseRecord)
        peak = raise_peak(segment.peaks.get(record.phase), record)
        segments[-1] = replace(
            segment,
            peaks={**segment.peaks, record.phase: peak},
            outside_peak=max(segment.outside_peak, record.outside_peak),
            last=record,
            last_reading=None,
        )


def _header_row(header: Header) -> dict[str, Any]:
    return {"format": FORMAT, **to_builtins(header), "t": round(header.t, 3)}


def _header(row: Mapping[str, Any]) -> Header:
    if row["format"] != FORMAT:
        raise ValueError(f"format {row['format']}, and this version of headway reads format {FORMAT}")
    return convert(row, Header)
