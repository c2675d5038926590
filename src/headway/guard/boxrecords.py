"""The records of a black box: what a line of its files may be, how they are named, and how frames are thinned."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, TypeVar

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from headway.errors import InputError
from headway.guard.frame import Action, Frame

FORMAT = 1
"""Version of the records. A reader of one format refuses another."""
EVENTS = "events.jsonl"
PROCESSES = 10
"""Processes of a frame that is kept of older time."""


class Begun(Struct, frozen=True, tag="begun", tag_field="kind"):
    """An attempt begins: `pid` of headway, the command (empty where a process was attached to), how often before.

    `spec` is what was read of the run and `ledger` its plan, as text, where they were known before it began;
    `interval` the seconds between frames.
    `zone`: seconds by which local time was ahead of UTC, so that the output's own dates can be compared.
    """

    t: float
    command: tuple[str, ...]
    pid: int
    version: str
    attempt: int = 1
    interval: float = 1.0
    cwd: str = ""
    spec: str = ""
    ledger: str = ""
    policy: str = ""
    zone: int = 0
    format: int = FORMAT


class PlanMade(Struct, frozen=True, tag="plan", tag_field="kind"):
    """The plan of the attempt, which was ready only when it had begun: `spec` and `ledger` as in `Begun`."""

    t: float
    spec: str
    ledger: str


class Seen(Struct, frozen=True, tag="frame", tag_field="kind"):
    """One frame."""

    frame: Frame


class Span(Struct, frozen=True, tag="span", tag_field="kind"):
    """What a thinned stretch of time held at most: bytes by "pool name", of `frames` frames from `t` to `until`."""

    t: float
    until: float
    frames: int
    peaks: dict[str, int]


class Mark(Struct, frozen=True, tag="mark", tag_field="kind"):
    """The log said that a phase or step began."""

    t: float
    phase: str | None = None
    step: int | None = None


class Acted(Struct, frozen=True, tag="action", tag_field="kind"):
    """The guard decided something."""

    action: Action


class Foreseen(Struct, frozen=True, tag="forecast", tag_field="kind"):
    """What was foreseen of a pool, in a sentence, with its numbers."""

    t: float
    pool: str
    text: str
    numbers: dict[str, float] = field(default_factory=dict)


class Ended(Struct, frozen=True, tag="ended", tag_field="kind"):
    """A process of the tree ended between `since`, when it was last seen to run, and `t`, when that was noticed.

    `code` and `signal` are None where only its parent knows them.

    `why` says how that was learnt, or what keeps headway from it.
    """

    t: float
    pid: int
    name: str
    code: int | None = None
    signal: int | None = None
    why: str = ""
    rss: int | None = None
    since: float | None = None


class Sent(Struct, frozen=True, tag="signal", tag_field="kind"):
    """A signal, to whom, and by whom where that could be seen; else `why` says what keeps headway from it.

    `sender` 0 is a process of another pid namespace, such as a container's runtime; `kernel`: no process sent it.
    `inside`: the sender belongs to the run.
    """

    t: float
    signal: int
    pid: int | None
    name: str = ""
    sender: int | None = None
    sender_name: str = ""
    sender_command: str = ""
    kernel: bool = False
    inside: bool = False
    why: str = ""


class Counted(Struct, frozen=True, tag="counters", tag_field="kind"):
    """Counters of the kernel and the control group, before and after the command."""

    t: float
    when: Literal["before", "after"]
    counters: dict[str, int]


class Note(Struct, frozen=True, tag="note", tag_field="kind"):
    """Something to know about the recording itself, such as what could not be recorded and why."""

    t: float
    text: str


class Over(Struct, frozen=True, tag="over", tag_field="kind"):
    """The command ended: with a code, or by a signal; both None where only its parent knows. `errors` is the end of
    what it wrote to standard error, where that is apart from its output; on a terminal it is not."""

    t: float
    pid: int
    code: int | None
    signal: int | None = None
    errors: str = ""


Moment = Seen | Span | Mark
"""What is thinned."""
Event = Begun | PlanMade | Acted | Foreseen | Ended | Sent | Counted | Note | Over
"""What is not."""

MOMENT_LINES = msgspec.json.Decoder(Moment)
EVENT_LINES = msgspec.json.Decoder(Event)
Record = TypeVar("Record", Event, Moment)
_KINDS = frozenset({
    "begun", "plan", "frame", "span", "mark", "action", "forecast", "ended", "signal", "counters", "note", "over",
})  # fmt: skip


def segments(folder: Path) -> list[Path]:
    """The files of frames, the oldest first. Of what stands in two of them the thinned one counts: it was finished
    before the other one was to go."""
    kept: list[Path] = []
    until = 0
    for path in sorted(folder.glob("frames-*.jsonl"), key=_order):
        first, last = numbers_of(path)
        if last > until and first > 0:
            kept.append(path)
            until = last
    return kept


def _order(path: Path) -> tuple[int, int, float]:
    first, last = numbers_of(path)
    return first, -last, -every_of(path)


def numbers_of(path: Path) -> tuple[int, int]:
    """The first and last number of a file of frames, which may hold several that were put together; 0 for none.

    >>> numbers_of(Path("frames-000007.jsonl")), numbers_of(Path("frames-000001-000007.60s.jsonl"))
    ((7, 7), (1, 7))
    """
    words = path.name.split(".")[0].split("-")[1:]
    if not words or not all(word.isdigit() for word in words):
        return 0, 0
    return int(words[0]), int(words[-1])


def every_of(path: Path) -> float:
    """Seconds between the frames of a thinned file; 0 for one at full rate."""
    word = path.name.split(".")[1]
    return float(word[:-1]) if word.endswith("s") and word[:-1].isdigit() else 0.0


def peaks_of(frame: Frame) -> dict[str, int]:
    """What each gauge of a frame counts, by "pool name".

    >>> from headway.guard.frame import Gauge
    >>> peaks_of(Frame(0.0, (Gauge("node[0].host", "cgroup", 900, 1000),)))
    {'node[0].host cgroup': 900}
    """
    return {f"{gauge.pool} {gauge.name}": gauge.used for gauge in frame.gauges}


def tightest(frame: Frame) -> float:
    """The share of its limit that the fullest gauge has used; 0 without a limit."""
    return max((gauge.used / gauge.limit for gauge in frame.gauges if gauge.limit), default=0.0)


def thin(moments: Iterable[Moment], every: float) -> Iterator[Moment]:
    """Of every stretch of some seconds its tightest frame, its last mark, and what all its gauges held at most.

    >>> from headway.guard.frame import Gauge
    >>> frames = [Seen(Frame(float(t), (Gauge("p", "node", t, 100),))) for t in (0, 4, 2)]
    >>> [kept.frame.t if isinstance(kept, Seen) else kept.peaks for kept in thin(frames, 10)]
    [{'p node': 4}, 4.0]
    """
    part: list[Moment] = []
    place = None
    for each in moments:
        at = (each.frame.t if isinstance(each, Seen) else each.t) // every
        if place is not None and at != place:
            yield from _kept(part)
            part = []
        place = at
        part.append(each)
    yield from _kept(part)


def _kept(part: list[Moment]) -> Iterator[Moment]:
    frames = [each.frame for each in part if isinstance(each, Seen)]
    spans = [each for each in part if isinstance(each, Span)]
    marks = [each for each in part if isinstance(each, Mark)]
    if marks:
        yield marks[-1]
    if not frames:
        return
    peaks: dict[str, int] = {}
    for found in (*(peaks_of(frame) for frame in frames), *(span.peaks for span in spans)):
        for name, size in found.items():
            peaks[name] = max(size, peaks.get(name, size))
    first = min([frame.t for frame in frames] + [span.t for span in spans])
    last = max([frame.t for frame in frames] + [span.until for span in spans])
    # behind each span stands the frame that was kept of it, which it has counted
    yield Span(first, last, len(frames) - len(spans) + sum(span.frames for span in spans), peaks)
    best = max(frames, key=tightest)
    yield Seen(replace(best, processes=best.processes[:PROCESSES]))


def records(path: Path, decoder: "msgspec.json.Decoder[Record]") -> "Iterator[Record]":
    """The whole records of a file, torn lines passed over. InputError as of `lines`."""
    return (record for record in lines(path, decoder) if record is not None)


def lines(path: Path, decoder: "msgspec.json.Decoder[Record]") -> "Iterator[Record | None]":
    """A record a line, and None for a torn line. One is accepted where a process can have been killed or the disk was
    full: at the end, and before a record that begins an attempt or says so. InputError for any other bad line."""
    torn = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                record = decoder.decode(line)
            except msgspec.MsgspecError as error:
                kind = _kind(line)
                if kind in _KINDS:
                    raise InputError(f"{path}:{number}: not a record of a black box ({error})") from None
                if kind is None and line.strip():
                    torn = torn or number
                continue  # a kind of a later version is passed over
            if torn and not isinstance(record, Begun | Note):
                raise InputError(f"{path}:{torn}: not a line of a black box")
            if torn:
                torn = 0
                yield None
            yield record
    if torn:
        yield None


def _kind(line: bytes) -> str | None:
    """The kind that a line names; None where it is no whole record."""
    try:
        found = msgspec.json.decode(line)
    except (msgspec.MsgspecError, RecursionError):
        return None
    return found["kind"] if isinstance(found, dict) and isinstance(found.get("kind"), str) else None
