"""The lines of a log that are worth reading, with what stands around them, in memory that does not grow with the log.

A log is read in pieces; one search finds the lines with any of the fixed texts (matcher.py). Of lines that differ
only in their numbers the first few and the last are kept, the others are counted.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import BinaryIO

from headway.diagnose.clock import read_clock
from headway.diagnose.evidence import Clock, Line, Place
from headway.diagnose.matcher import Matcher
from headway.diagnose.steps import latest_step
from headway.diagnose.text import REPEATED, clean, plain_stream, process_of

PIECE = 1 << 20
BEHIND, AHEAD = 48 << 10, 48 << 10
"""Bytes before and after a line in which its neighbours are looked for."""
LONGEST = 2000
"""Characters of a line that are kept."""
BEFORE, AFTER, BLOCK = 40, 24, 240
"""Neighbours that are kept: before a line, after it, and after the first line of a traceback or a table."""
PER_KIND = 6
MOST = 1200
"""Lines kept of the beginning, and as many of the end."""
MOST_KINDS = 50_000
MOST_NUMBERS = 4000
"""Values kept of a series; above, every second is dropped."""
DIGITS = b"0123456789"
BLOCKS = (b"Traceback (most recent call last)", b"memory users", b"MEM(GB)")


@dataclass(frozen=True)
class Source:
    """Something to read. `run` tells the attempts of a comparison apart; `open` gives its bytes."""

    name: str
    open: Callable[[], BinaryIO]
    run: int = 0


@dataclass
class Series:
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


@dataclass
class Scan:
    """What was read of one source. `steps` are (line, step) through the log; `tail` its last lines."""

    source: Source
    first_order: int = 0
    lines: list[Line] = field(default_factory=list)
    bytes: int = 0
    count: int = 0
    trouble: str = ""
    steps: list[tuple[int, int]] = field(default_factory=list)
    memory: Series = field(default_factory=Series)
    tail: tuple[tuple[int, str], ...] = ()
    head: tuple[tuple[int, str], ...] = ()


class Scanner:
    """Reads one source. `order` is the order of its first line among those of all sources."""

    def __init__(self, source: Source, matcher: Matcher, series: tuple[bytes, ...], order: int = 0) -> None:
        self._matcher, self._series, self._order = matcher, series, order
        self.scan = Scan(source, order)
        self._first: list[Line] = []
        self._last: deque[Line] = deque(maxlen=MOST)
        self._kinds: dict[int, int] = {}
        self._latest: dict[int, tuple[int, bytes, int | None]] = {}
        self._step: int | None = None
        self._clock: Clock | None = None

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
                until = len(buffer) if ended else _boundary(buffer, done, len(buffer) - AHEAD)
                if until <= done:
                    continue
                self._search(buffer, done, until, number)
                self._mark_step(buffer, done, until, number)
                if not self.scan.head:
                    self.scan.head = tuple(_following(buffer, 0, 1, AFTER))
                number += buffer.count(b"\n", done, until)
                if ended:
                    self.scan.tail = tuple(_preceding(buffer, len(buffer), number, BEFORE))
                else:
                    keep = max(0, until - BEHIND)
                    buffer, done = buffer[keep:], until - keep
            self.scan.trouble = stream.trouble
            self.scan.count = number
        kept = [*self._first, *self._last, *(self._again(kind) for kind in self._latest)]
        self.scan.lines = sorted(kept, key=lambda line: line.order)
        return self.scan

    def _again(self, kind: int) -> Line:
        """The last line of a kind that came often, with how many of it are not kept."""
        number, data, step = self._latest[kind]
        line = self._line(data, 0, len(data), number, data, alone=True)
        return replace(line, step=step, repeated=self._kinds[kind] - PER_KIND - 1)

    def _search(self, buffer: bytes, start: int, until: int, number: int) -> None:
        place, counted = start, start
        search = self._matcher.search
        while place < until:
            found = search(buffer, place, until)
            if found is None:
                return
            middle = found[1] - 1 if buffer[found[1] - 1] not in b"\r\n" else max(found[0], found[1] - 2)
            begin, end = _around(buffer, middle)
            number += buffer.count(b"\n", counted, begin)
            counted = begin
            self._take(buffer, begin, end, middle, number)
            place = max(end, place + 1)

    def _take(self, buffer: bytes, begin: int, end: int, middle: int, number: int) -> None:
        if end - begin > LONGEST:  # of a line without end, the part around the text
            begin, end = max(begin, middle - LONGEST // 2), min(end, middle + LONGEST // 2)
        data = buffer[begin:end]
        if any(needle in data for needle in self._series):
            self.scan.memory.add(number, clean(data))
            return
        kind = hash(data.translate(None, DIGITS))
        seen = self._kinds.get(kind, 0)
        if seen == 0 and len(self._kinds) >= MOST_KINDS:
            return
        self._kinds[kind] = seen + 1
        if seen >= PER_KIND:
            if kind in self._latest or len(self._latest) < MOST:
                self._latest[kind] = (number, data, self._step)
            return
        line = self._line(buffer, begin, end, number, data, alone=seen >= 3)
        if len(self._first) < MOST:
            self._first.append(line)
        else:
            self._last.append(line)

    def _line(self, buffer: bytes, begin: int, end: int, number: int, data: bytes, *, alone: bool) -> Line:
        text = clean(data)
        before = () if alone else tuple(_preceding(buffer, begin, number, BEFORE))
        many = BLOCK if any(mark in data for mark in BLOCKS) else AFTER
        after = () if alone else tuple(_following(buffer, end + 1, number + 1, many))
        clock = read_clock(text) or next((c for _, t in reversed(before) if (c := read_clock(t))), None)
        repeated = REPEATED.search(text)
        return Line(
            Place(self.scan.source.name, number, text), self._order + number, self.scan.source.run,
            process_of(text), clock,
            next((s for _, t in reversed(before) if (s := latest_step(t)) is not None), self._step),
            int(repeated[1][:9]) if repeated else 0, before, after,
        )  # fmt: skip

    def _mark_step(self, buffer: bytes, start: int, until: int, number: int) -> None:
        """The last step that a piece names, from its last lines that name one."""
        step = latest_step(buffer[max(start, until - (64 << 10)) : until].decode("utf-8", errors="replace"))
        if step is not None:
            self._step = step
            self.scan.steps.append((number, step))


def _boundary(buffer: bytes, start: int, until: int) -> int:
    """The last end of a line up to a place; of a line without end, some place in it."""
    end = buffer.rfind(b"\n", start, max(start, until)) + 1
    if end <= start:
        end = buffer.rfind(b"\r", start, max(start, until)) + 1
    return end if end > start else (until if until - start > (4 << 20) else start)


def _around(buffer: bytes, place: int) -> tuple[int, int]:
    """Begin and end of the line at a place; a carriage return begins a new one, as in a progress bar."""
    begin = max(buffer.rfind(b"\n", 0, place), buffer.rfind(b"\r", 0, place)) + 1
    end = buffer.find(b"\n", place)
    end = len(buffer) if end < 0 else end
    bar = buffer.find(b"\r", place, end)
    return begin, end if bar < 0 else bar


def _preceding(buffer: bytes, end: int, number: int, count: int) -> Iterator[tuple[int, str]]:
    """Lines before a place, in their order, as far as the buffer reaches."""
    lines = buffer[max(0, end - BEHIND // 3) : end].split(b"\n")[:-1][-count:]
    first = number - len(lines)
    for index, data in enumerate(lines):
        yield (
            first + index,
            clean(data[-LONGEST // 4 :].rsplit(b"\r", 1)[-1] if b"\r" in data[:-1] else data[: LONGEST // 4]),
        )


def _following(buffer: bytes, start: int, number: int, count: int) -> Iterator[tuple[int, str]]:
    """Lines from a place on, as far as the buffer reaches."""
    window = buffer[start : start + (AHEAD if count > AFTER else AHEAD // 4)]
    for index, data in enumerate(window.split(b"\n")[:count]):
        yield number + index, clean(data[: LONGEST // 2])
