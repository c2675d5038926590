"""What was read: one record per thing that a text says, with the place where it says it."""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct, field

Grade = Literal["proven", "supported", "open"]
"""proven: the text can have no other reason. supported: it fits and something else is unlikely. open: it may be."""

RANK: dict[Grade, int] = {"proven": 0, "supported": 1, "open": 2}

Role = Literal["end", "well", "why", "symptom", "benign", "context"]
"""end: says how a process ended. well: says that a run came to its end by itself. why: says what was wrong. symptom:
follows from an earlier end. benign: printed in healthy runs too, or a constant sentence. context: a fact to weigh,
such as a number."""


class Place(Struct, frozen=True):
    """Where a text stands; `line` is from 1, and `text` is the line as it is, colours removed, cut at some length.

    >>> str(Place("job.log", 7, "Killed"))
    'job.log:7'
    """

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class Process(Struct, frozen=True):
    """Who printed a line, as far as its prefix says: an actor's or program's name, process id, host, rank."""

    name: str = ""
    pid: int | None = None
    host: str = ""
    rank: int | None = None

    def __str__(self) -> str:
        parts = [self.name, f"pid {self.pid}" if self.pid is not None else ""]
        parts += [f"rank {self.rank}" if self.rank is not None else "", f"on {self.host}" if self.host else ""]
        return " ".join(part for part in parts if part)


class Clock(Struct, frozen=True):
    """When a line was printed. `seconds` count from an origin that only clocks of the same `base` share: "wall" (a
    date without a zone), "utc" (with one), or "boot" (a kernel's seconds, per file).

    >>> Clock(20.0, "wall").after(Clock(5.0, "wall")), Clock(20.0, "utc").after(Clock(5.0, "wall"))
    (15.0, None)
    """

    seconds: float
    base: str

    def after(self, other: "Clock") -> float | None:
        """Seconds by which this is later; None where the two cannot be compared."""
        return self.seconds - other.seconds if self.base == other.base else None


class Line(Struct, frozen=True):
    """A line worth reading, with what stands around it. `repeated` counts further ones of its kind that are not kept.

    `before` and `after` are (number, text) of neighbours. `order` counts over all files of all runs.
    """

    place: Place
    order: int
    run: int = 0
    process: Process = field(default_factory=Process)
    clock: Clock | None = None
    step: int | None = None
    repeated: int = 0
    before: tuple[tuple[int, str], ...] = ()
    after: tuple[tuple[int, str], ...] = ()

    @property
    def text(self) -> str:
        return self.place.text


class Evidence(Struct, frozen=True):
    """One thing that a line says.

    >>> line = Line(Place("a.log", 3, "The process receives a SIGTERM."), 0)
    >>> found = Evidence("ray-sigterm", "end", line)
    >>> found.kind, found.place.line
    ('ray-sigterm', 3)
    """

    kind: str
    role: Role
    line: Line
    fields: Mapping[str, str] = field(default_factory=dict)

    @property
    def place(self) -> Place:
        return self.line.place

    def number(self, name: str) -> float | None:
        """A field as a number; None where it is absent or no number."""
        try:
            return float(self.fields[name])
        except (KeyError, ValueError):
            return None
