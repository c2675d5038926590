"""The lines of a log that are worth reading, with what stands around them, in memory that does not grow with the log.

A log is read in pieces; one search finds the lines with any of the fixed texts (matcher.py). Of lines that differ
only in their numbers the first few and the last are kept, the others are counted.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from msgspec import Struct, field

from headway.diagnose.clock import read_clock
from headway.diagnose.evidence import Line, Place
from headway.diagnose.matcher import Matcher
from headway.diagnose.text import REPEATED, clean, is_binary, plain_stream, process_of, spoken
from headway.guard.steps import latest_step_of

PIECE = 1 << 20
BEHIND, AHEAD, AHEAD_BLOCK = 6 << 10, 4 << 10, 32 << 10
"""Bytes before and after a line that are kept for its neighbours; more after the start of a traceback or a table."""
LONGEST = 2000
"""Characters of a line that are kept."""
BEFORE, AFTER, BLOCK = 40, 48, 240
"""Neighbours that are kept: before a line, after it, and after the first line of a traceback or a table."""
PER_KIND = 6
MOST = 1200
"""Lines kept of the beginning, and as many of the end."""
MOST_KINDS = 50_000
MOST_NUMBERS = 4000
"""Values kept of a series; above, every second is dropped."""
DIGITS = b"0123456789"
BLOCKS = (b"Traceback (most recent call last)", b"memory users", b"MEM(GB)")


class Source(Struct, frozen=True):
    """Something to read. `run` tells the attempts of a comparison apart; `open` gives its bytes."""

    name: str
    open: Callable[[], BinaryIO]
    run: int = 0


class Series(Struct):
    """Lines of one kind through a whole log, every second dropped when they become too many."""

    lines: list[tuple[int, str]] = field(default_factory=list)
    every: int = 1
    seen: int = 0

    def add(self, number: int, text: str) -> None:
        if self.seen % self.every == 0:
            self.lines.append((number, text))
            if len(self.lines) >= MOST_NUMBERS:
                self.lines, self.every = self.lines[::2], self.every * 2
        self.seen += 1


class Scan(Struct):
    """What was read of one source. `steps` are (line, step) through the log; `tail` its last lines; `binary`: its
    beginning is no text."""

    source: Source
    first_order: int = 0
    lines: list[Line] = field(default_factory=list)
    bytes: int = 0
    count: int = 0
    trouble: str = ""
    binary: bool = False
    steps: list[tuple[int, int]] = field(default_factory=list)
    memory: Series = field(default_factory=Series)
    tail: tuple[tuple[int, str], ...] = ()
    head: tuple[tuple[int, str], ...] = ()


@dataclass(slots=True)
class _Hit:
    """A line as bytes, with the bytes around it; it becomes a `Line` where it is kept to the end."""

    number: int
    data: bytes
    step: int | None
    before: bytes = b""
    after: bytes = b""
    repeated: int = 0


class Scanner:
    """Reads one source. `order` is the order of its first line among those of all sources."""

    def __init__(self, source: Source, matcher: Matcher, series: tuple[bytes, ...], order: int = 0) -> None:
        self._matcher, self._series, self._order = matcher, series, order
        self.scan = Scan(source, order)
        self._first: list[_Hit] = []
        self._last: deque[_Hit] = deque(maxlen=MOST)
        self._kinds: dict[int, int] = {}
        self._latest: dict[int, _Hit] = {}
        self._step: int | None = None
        self._stepped = 0

    def read(self) -> Scan:
        """Read it to its end."""
        with self.scan.source.open() as file:
            stream = plain_stream(file)
            buffer, done, number, ended = b"", 0, 1, False
            while not ended:
                data = stream.read(PIECE)
                ended = not data
                self.scan.bytes += len(data)
                buffer = buffer + data if buffer else data
                until = len(buffer) if ended else _boundary(buffer, done, len(buffer) - AHEAD_BLOCK)
                if until <= done:
                    continue
                self._search(buffer, done, until, number)
                self._mark_step(buffer, done, until, number)
                if not self.scan.head:
                    self.scan.binary = is_binary(buffer[:AHEAD])
                    self.scan.head = tuple(_following(buffer[:AHEAD], 1, AFTER))
                number += buffer.count(b"\n", done, until)
                if ended:
                    rest = buffer[-BEHIND:] if buffer[-1:] in (b"", b"\n") else buffer[-BEHIND:] + b"\n"
                    self.scan.tail = tuple(_preceding(rest, number + (rest[-1:] != buffer[-1:])))
                else:
                    keep = max(0, until - BEHIND)
                    buffer, done = buffer[keep:], until - keep
            self.scan.trouble = stream.trouble
            self.scan.count = number if buffer[-1:] not in (b"", b"\n") else number - 1
        hits = [*self._first, *self._last, *self._latest.values()]
        self.scan.lines = [self._line(hit) for hit in sorted(hits, key=lambda hit: hit.number)]
        return self.scan

    def _search(self, buffer: bytes, start: int, until: int, number: int) -> None:
        place = counted = self._stepped = start
        search = self._matcher.search
        while place < until:
            found = search(buffer, place, until)
            if found is None:
                return
            middle = found[1] - 1 if buffer[found[1] - 1] not in b"\r\n" else max(found[0], found[1] - 2)
            begin, end = _around(buffer, middle)
            if begin > counted:
                number += buffer.count(b"\n", counted, begin)
                counted = begin
            self._take(buffer, begin, end, middle, number)
            place = max(end, place + 1)

    def _take(self, buffer: bytes, begin: int, end: int, middle: int, number: int) -> None:
        if end - begin > LONGEST:  # of a line without end, the part around the text
            begin, end = max(begin, middle - LONGEST // 2), min(end, middle + LONGEST // 2)
        data = buffer[begin:end]
        for needle in self._series:
            if needle in data:
                self.scan.memory.add(number, clean(data))
                return
        kind = hash(data.translate(None, DIGITS))
        seen = self._kinds.get(kind, 0)
        if seen == 0 and len(self._kinds) >= MOST_KINDS:
            return
        self._kinds[kind] = seen + 1
        if seen >= PER_KIND:
            if kind in self._latest or len(self._latest) < MOST:
                self._latest[kind] = _Hit(number, data, self._step, repeated=seen - PER_KIND)
            return
        if begin > self._stepped:
            self._see_step(buffer, self._stepped, begin)
            self._stepped = begin
        hit = _Hit(number, data, self._step)
        if seen < PER_KIND // 2:
            more = AHEAD_BLOCK if any(mark in data for mark in BLOCKS) else AHEAD
            hit = _Hit(
                number, data, self._step, buffer[max(0, begin - BEHIND) : begin], buffer[end + 1 : end + 1 + more]
            )
        if len(self._first) < MOST:
            self._first.append(hit)
        else:
            self._last.append(hit)

    def _line(self, hit: "_Hit") -> Line:
        text = spoken(clean(hit.data))
        before = tuple(_preceding(hit.before, hit.number))
        many = BLOCK if len(hit.after) > AHEAD else AFTER
        after = tuple(_following(hit.after, hit.number + 1, many))
        clock = read_clock(text) or next((c for _, t in reversed(before) if (c := read_clock(t))), None)
        shown = REPEATED.search(text)
        return Line(
            Place(self.scan.source.name, hit.number, text), self._order + hit.number, self.scan.source.run,
            process_of(text), clock, hit.step, hit.repeated + (int(shown[1][:9]) if shown else 0), before, after,
        )  # fmt: skip

    def _see_step(self, buffer: bytes, start: int, end: int) -> bool:
        """Take the last step that a part of a piece names; False where it names none."""
        step = latest_step_of(buffer, start, end)
        self._step = self._step if step is None else step
        return step is not None

    def _mark_step(self, buffer: bytes, start: int, until: int, number: int) -> None:
        """Note the last step that a piece names."""
        if self._see_step(buffer, start, until) and self._step is not None:
            self.scan.steps.append((number, self._step))


def _boundary(buffer: bytes, start: int, until: int) -> int:
    """The last end of a line up to a place; of a line without end, some place in it."""
    end = buffer.rfind(b"\n", start, max(start, until)) + 1
    if end <= start:
        end = buffer.rfind(b"\r", start, max(start, until)) + 1
    return end if end > start else (until if until - start > (4 << 20) else start)


def _around(buffer: bytes, place: int) -> tuple[int, int]:
    """Begin and end of the line at a place; a carriage return begins a new one, as in a progress bar."""
    begin = buffer.rfind(b"\n", 0, place) + 1
    begin = max(begin, buffer.rfind(b"\r", begin, place) + 1)
    end = buffer.find(b"\n", place)
    end = len(buffer) if end < 0 else end
    bar = buffer.find(b"\r", place, end)
    return begin, end if bar < 0 else bar


def _preceding(data: bytes, number: int) -> Iterator[tuple[int, str]]:
    """The last lines of what stands before a line; the first of them may be cut."""
    lines = data.split(b"\n")[:-1][-BEFORE:]
    for index, line in enumerate(lines, start=number - len(lines)):
        yield index, clean(line.rstrip(b"\r").rsplit(b"\r", 1)[-1][-LONGEST // 2 :])


def _following(data: bytes, number: int, count: int) -> Iterator[tuple[int, str]]:
    """The first lines of what stands after a line."""
    for index, line in enumerate(data.split(b"\n")[:count], start=number):
        yield index, clean(line[: LONGEST // 2])
