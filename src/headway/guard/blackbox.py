"""The black box: what a run held, did and said until its last moment, in a folder that a killed process leaves whole.

frames-000001.jsonl ...   frames and phase marks, a file for some minutes; older files are thinned, the oldest dropped
events.jsonl              what is never thinned: beginnings, actions, forecasts, ends of processes, signals, counters
log.0.txt                 the first lines of the command's output, in this attempt
log.1.txt, log.2.txt      the last lines, at least 500, log.2.txt the latest; attempt-N.log those of earlier attempts

Every record is one JSON line with its `kind`, written at once: SIGKILL of everything loses at most the record that
was being written. A folder may be read while it is written.
"""

import fcntl
import os
import re
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from headway.errors import InputError
from headway.guard.boxlog import LogTail, ends_unfinished, last_lines, move_old_logs, replace_file, write_all
from headway.guard.boxplan import run_use
from headway.guard.boxrecords import (
    EVENT_LINES,
    EVENTS,
    FORMAT,
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
    every_of,
    lines,
    numbers_of,
    peaks_of,
    records,
    segments,
    thin,
)  # fmt: skip
from headway.guard.frame import Action, Frame

SIZE = 64 << 20
"""Bytes of all frames together."""
TOGETHER_BYTES = 256 << 10
"""Thinned files up to this size are put together with the next one."""
SEGMENT_BYTES, SEGMENT_S = 1 << 20, 120.0
"""A file of frames is closed at one of these."""
TIERS: tuple[tuple[float, float], ...] = ((600.0, 10.0), (3600.0, 60.0), (86400.0, 600.0))
"""Age in seconds -> seconds between the frames that are kept of what is older."""
EVENT_BYTES = 4 << 20
_OWN = re.compile(
    r"\.lock|events\.jsonl|frames-[^/]*|log\.\d\.txt|attempt-\d+\.log|restart-\d+-[^/]*|report\.html|lost\+found"
)
"""Names that a black box has, or a fresh volume: what is left of one that was ended before its first record."""
_BEGINS = re.compile(rb'"kind":"(?:begun|plan)"')
"""What an attempt begins with, in a line of its events."""
LOCK = ".lock"
RECENT = 600
"""Frames that a summary keeps."""


class BlackBox:
    """Writes one attempt into a folder, from any thread. A full disk stops the recording, never the run.

    InputError where the folder cannot be written, or another headway writes there.
    """

    def __init__(
        self, folder: Path, begun: Begun, *, size: int = SIZE, tiers: Iterable[tuple[float, float]] = TIERS
    ) -> None:
        self.folder, self.trouble, self.lost = folder, "", 0
        self._unsaid = False
        self._size, self._tiers = size, tuple(tiers)
        self._lock = threading.RLock()
        self._encoder = msgspec.json.Encoder()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _check_ours(folder)
            self._guard = _locked(folder)
            before = _attempts(folder)
            self._events = _open_to_append(folder / EVENTS)
            move_old_logs(folder, before)
            self._log = LogTail(folder)
            self._number = max((numbers_of(path)[1] for path in segments(folder)), default=0)
        except BlockingIOError:
            raise InputError(f"{folder}: another headway writes its recording there; name another folder") from None
        except OSError as error:
            raise InputError(f"{folder}: no recording can be written there ({error.strerror})") from None
        self._segment: BinaryIO | None = None
        self._opened = self._written = 0.0
        self.attempt = before + 1
        self.add(replace(begun, attempt=self.attempt))

    def add(self, record: Event | Moment | Frame) -> None:
        """Write one record."""
        if isinstance(record, Frame):
            record = Seen(record)
        data = self._encoder.encode(record) + b"\n"
        with self._lock:
            try:
                if isinstance(record, Seen | Span | Mark):
                    self._add_moment(data)
                else:
                    self._add_event(data)
            except OSError as error:
                self._lose(error)

    def log(self, data: bytes, stream: int = 1) -> None:
        """Keep a piece of the command's output; `stream` tells its two outputs apart."""
        with self._lock:
            try:
                self._log.write(data, stream)
            except OSError as error:
                self._lose(error)

    def close(self) -> None:
        """End the recording; another headway may then write there."""
        with self._lock:
            if self._segment is not None:
                self._segment.close()
            self._log.close()
            self._events.close()
            self._guard.close()

    def _lose(self, error: OSError) -> None:
        """Remember that a record could not be written whole; the next one goes to a new file, or after a note."""
        self.trouble, self.lost, self._unsaid = f"{error.strerror}", self.lost + 1, True
        if self._segment is not None:
            self._segment.close()
            self._segment = None

    def _add_event(self, data: bytes) -> None:
        if self._unsaid:
            note = Note(time.time(), f"{self.lost} records could not be written so far ({self.trouble})")
            data = b"\n" + self._encoder.encode(note) + b"\n" + data
        write_all(self._events, data)
        self._unsaid = False
        if self._events.tell() > EVENT_BYTES:
            self._bound_events()

    def _add_moment(self, data: bytes) -> None:
        now = time.monotonic()
        if self._segment is not None and (now - self._opened > SEGMENT_S or self._written > SEGMENT_BYTES):
            self._segment.close()
            self._segment = None
            self._thin()
        if self._segment is None:
            self._number += 1
            self._segment = (self.folder / f"frames-{self._number:06d}.jsonl").open("ab", buffering=0)
            self._opened, self._written = now, 0
        write_all(self._segment, data)
        self._written += len(data)

    def _thin(self) -> None:
        """Thin the closed files that are old enough, and the oldest further until all fit."""
        now = time.time()
        before: Path | None = None
        for path in segments(self.folder):
            age = now - path.stat().st_mtime
            every = max((every for after, every in self._tiers if age > after), default=0.0)
            before = _rewrite(path, every, before) if every > every_of(path) else path
        while (closed := segments(self.folder)) and sum(map(_size, closed)) > self._size:
            place = next((at for at, path in enumerate(closed) if every_of(path) < self._tiers[-1][1]), None)
            if place is None:
                closed[0].unlink()
                continue
            coarser = next(every for _, every in self._tiers if every > every_of(closed[place]))
            _rewrite(closed[place], coarser, closed[place - 1] if place else None)

    def _bound_events(self) -> None:
        """Drop the ends of processes that ended well, then the middle."""
        self._events.close()
        path = self.folder / EVENTS
        lines = path.read_bytes().splitlines(keepends=True)
        kept = [line for line in lines if not (b'"kind":"ended"' in line and b'"code":0' in line)]
        if sum(map(len, kept)) > EVENT_BYTES // 2:
            middle = [line for line in kept[len(kept) // 8 : -len(kept) // 8] if _BEGINS.search(line)]
            kept = [*kept[: len(kept) // 8], *middle[-8:], *kept[-len(kept) // 8 :]]
        replace_file(path, b"".join(kept))
        self._events = _open_to_append(path)


def _check_ours(folder: Path) -> None:
    """InputError for a folder of other things: a black box would mix with them."""
    if is_blackbox(folder):
        return
    others = sorted(name for each in folder.iterdir() if not _OWN.fullmatch(name := each.name))
    if others:
        named = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
        raise InputError(
            f"{folder}: the folder holds other things ({named}) and no black box; name a new folder, or an empty one"
        )


def _locked(folder: Path) -> BinaryIO:
    """The lock of a folder. BlockingIOError where another process has it."""
    file = (folder / LOCK).open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        file.close()
        raise
    return file


def _open_to_append(path: Path) -> BinaryIO:
    """Open a file of records, and end a line that a killed process left unfinished."""
    torn = ends_unfinished(path)
    opened = path.open("ab", buffering=0)
    if torn:
        write_all(opened, b"\n")
    return opened


def _attempts(folder: Path) -> int:
    """How many attempts the folder has."""
    path = folder / EVENTS
    if not path.exists():
        return 0
    return max((each.attempt for each in records(path, EVENT_LINES) if isinstance(each, Begun)), default=0)


def _rewrite(path: Path, every: float, before: Path | None) -> Path:
    """Thin a closed file, and put it together with the one before it where that is as thin and both are small.

    The new file appears whole, then the old ones go.
    """
    together = before is not None and every_of(before) == every and _size(before) < TOGETHER_BYTES
    parts = [before, path] if together and before is not None else [path]
    moments = (each for part in parts for each in records(part, MOMENT_LINES))
    first, last = numbers_of(parts[0])[0], numbers_of(path)[1]
    name = f"{first:06d}" if first == last else f"{first:06d}-{last:06d}"
    new = path.with_name(f"frames-{name}.{every:.0f}s.jsonl")
    when = path.stat().st_mtime
    replace_file(new, b"".join(msgspec.json.encode(each) + b"\n" for each in thin(moments, every)))
    os.utime(new, (when, when))
    for part in parts:
        if part != new:
            part.unlink()
    return new


def _size(path: Path) -> int:
    return path.stat().st_size


class Top(Struct, frozen=True):
    """The most that a gauge counted, and where the run stood then, as far as that was known."""

    bytes: int
    t: float
    phase: str | None = None
    step: int | None = None


class Box(Struct, frozen=True):
    """One attempt of a black box, summed up: the last frames at full rate, peaks of all, and every event.

    `peaks` are by "pool name", `phases` the same for each phase, `uses` what the run held of each pool at most.
    `over` is None where the end was not recorded: then headway itself was killed, or still runs. `log` are the last
    lines of the output. `torn` counts lines that were not finished.
    """

    folder: Path
    begun: Begun
    attempts: int
    frames: int
    recent: tuple[Frame, ...]
    peaks: Mapping[str, Top]
    phases: Mapping[str, Mapping[str, int]]
    actions: tuple[Action, ...]
    forecasts: tuple[Foreseen, ...]
    ended: tuple[Ended, ...]
    sent: tuple[Sent, ...]
    counters: Mapping[str, Mapping[str, int]]
    notes: tuple[str, ...]
    over: Over | None
    log: tuple[str, ...]
    torn: int
    uses: Mapping[str, Top] = field(default_factory=dict)

    @property
    def last(self) -> Frame | None:
        """The last frame."""
        return self.recent[-1] if self.recent else None


def is_blackbox(path: Path) -> bool:
    """Whether a folder holds a black box."""
    try:
        with (path / EVENTS).open("rb") as file:
            return file.read(16).startswith(b'{"kind":"begun"')
    except OSError:
        return False


def is_written(path: Path) -> bool:
    """Whether a headway is writing to a folder now."""
    try:
        with (path / LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def read_blackbox(path: Path) -> Box:
    """The latest attempt of a black box, in memory that does not grow with the run.

    InputError where there is none, or one that cannot be read.
    """
    try:
        events, torn = _parted(lines(path / EVENTS, EVENT_LINES))
        begun = [index for index, each in enumerate(events) if isinstance(each, Begun)]
        if not begun:
            raise InputError(f"{path}: no black box of headway: it has no beginning")
        first = events[begun[-1]]
        assert isinstance(first, Begun)
        if first.format != FORMAT:
            raise InputError(f"{path}: its format is {first.format}, and this version of headway reads {FORMAT}")
        seen = _Sum(first.t)
        for each in moments(path, first.t):
            seen.add(each)
        log = last_lines(path)
    except OSError as error:
        raise InputError(f"{path}: no black box can be read there ({error.strerror})") from None
    own = events[begun[-1] :]
    for late in own:
        if isinstance(late, PlanMade):
            first = replace(first, spec=late.spec, ledger=late.ledger)
    return Box(
        folder=path, begun=first, attempts=len(begun), frames=seen.frames, recent=tuple(seen.recent),
        peaks=seen.peaks, phases=seen.phases, log=log, torn=torn + seen.torn, uses=seen.uses,
        actions=tuple(each.action for each in own if isinstance(each, Acted)),
        forecasts=tuple(each for each in own if isinstance(each, Foreseen)),
        ended=tuple(each for each in own if isinstance(each, Ended)),
        sent=tuple(each for each in own if isinstance(each, Sent)),
        counters={each.when: each.counters for each in own if isinstance(each, Counted)},
        notes=tuple(each.text for each in own if isinstance(each, Note)),
        over=next((each for each in reversed(own) if isinstance(each, Over)), None),
    )  # fmt: skip


def moments(path: Path, since: float = 0.0) -> Iterator[Moment | None]:
    """Frames, spans and marks from a time on, in their order; None for a torn line. InputError for any other."""
    for segment in segments(path):
        if segment.stat().st_mtime < since:
            continue
        try:
            for each in lines(segment, MOMENT_LINES):
                if each is None or (each.frame.t if isinstance(each, Seen) else each.t) >= since:
                    yield each
        except FileNotFoundError:
            continue  # thinned while we read: its stretch is short


def _parted(lines: Iterable[Event | None]) -> tuple[list[Event], int]:
    """Events, and how many lines were torn."""
    found = list(lines)
    return [each for each in found if each is not None], found.count(None)


class _Sum:
    """Sums up frames as they are read."""

    def __init__(self, since: float) -> None:
        self.since, self.frames, self.torn = since, 0, 0
        self.recent: deque[Frame] = deque(maxlen=RECENT)
        self.peaks: dict[str, Top] = {}
        self.phases: dict[str, dict[str, int]] = {}
        self.uses: dict[str, Top] = {}
        self._spanned = 0

    def add(self, moment: Moment | None) -> None:
        if moment is None:
            self.torn += 1
        elif isinstance(moment, Span):
            self.frames, self._spanned = self.frames + moment.frames, self._spanned + 1
            for name, size in moment.peaks.items():
                self._raise(name, Top(size, moment.t))
        elif isinstance(moment, Seen):
            self._frame(moment.frame)

    def _frame(self, frame: Frame) -> None:
        if self._spanned:
            self._spanned = 0  # the frame that its span has counted
        else:
            self.frames += 1
        self.recent.append(frame)
        for name, size in peaks_of(frame).items():
            self._raise(name, Top(size, frame.t, frame.phase, frame.step))
            if frame.phase is not None:
                held = self.phases.setdefault(frame.phase, {})
                held[name] = max(size, held.get(name, size))
        for name, size in run_use(frame).items():
            if name not in self.uses or size > self.uses[name].bytes:
                self.uses[name] = Top(size, frame.t, frame.phase, frame.step)

    def _raise(self, name: str, top: Top) -> None:
        old = self.peaks.get(name)
        if old is None or top.bytes > old.bytes or (top.bytes == old.bytes and old.phase is None):
            self.peaks[name] = top
