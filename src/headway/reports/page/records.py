"""What a page shows. Bytes are integers, times are seconds since the run began, and every text is as it was found."""

from typing import Any, Literal

from msgspec import Struct

Point = tuple[float, float]
"""A time, or a step, and a value."""

Shape = Literal["line", "steps", "points"]
"""What holds between two points: what is on the way from one to the other, the first until the second, nothing."""

Tone = Literal["good", "warn", "bad", "plain"]


class Curve(Struct, frozen=True):
    """One series of a chart.

    >>> Curve("process tree", ((0.0, 700.0), (1.5, 900.0))).last
    900.0
    """

    name: str
    points: tuple[Point, ...]
    shape: Shape = "line"
    planned: bool = False
    about: str = ""

    @property
    def last(self) -> float | None:
        """The latest value; None of an empty series."""
        return self.points[-1][1] if self.points else None

    @property
    def top(self) -> float:
        """The largest value, 0 of an empty series."""
        return max((value for _, value in self.points), default=0.0)


class Band(Struct, frozen=True):
    """A stretch of time in one phase; `finished` is False where the recording stops inside it."""

    phase: str
    step: int | None
    start: float
    end: float
    finished: bool = True


class Ceiling(Struct, frozen=True):
    """A size at which something happens to a pool. `curve` names the series that counts towards it."""

    name: str
    bytes: int
    consequence: str
    curve: str = ""


class Forecast(Struct, frozen=True):
    """Where a series was seen to go: from a moment and a size to another, and what was said of it."""

    curve: str
    start: Point
    end: Point
    text: str


class PoolChart(Struct, frozen=True):
    """The memory of one pool over time."""

    pool: str
    title: str
    curves: tuple[Curve, ...]
    ceilings: tuple[Ceiling, ...] = ()
    forecasts: tuple[Forecast, ...] = ()


class Stack(Struct, frozen=True):
    """Several series on one time axis, to be put on top of each other: `parts` has a size for each of `times`."""

    shape: Shape = "line"
    names: tuple[str, ...] = ()
    times: tuple[float, ...] = ()
    parts: tuple[tuple[int, ...], ...] = ()


class Part(Struct, frozen=True):
    """A named share of a bar, in bytes."""

    name: str
    bytes: int


class PhaseRow(Struct, frozen=True):
    """Predicted, bound and measured bytes of one phase, with what they are made of. None: the phase did not come."""

    phase: str
    predicted: int
    upper: int
    measured: int | None
    items: tuple[Part, ...]
    held: tuple[Part, ...]


class Comparison(Struct, frozen=True):
    """The ledger of one pool beside what was measured of it."""

    pool: str
    counted: str
    rows: tuple[PhaseRow, ...]
    predicted: int
    upper: int
    measured: int | None


class ActionRow(Struct, frozen=True):
    """What a guard did, or would have done (`dry`)."""

    t: float
    step: int | None
    name: str
    pool: str
    value: int
    threshold: int
    seconds: float
    dry: bool
    reason: str


class MetricChart(Struct, frozen=True):
    """Series over steps, with the unit of their values."""

    title: str
    unit: str
    curves: tuple[Curve, ...]


class Tile(Struct, frozen=True):
    """A number that stands at the head of the page."""

    label: str
    value: str
    about: str = ""
    tone: Tone = "plain"


class Ending(Struct, frozen=True):
    """How a run ended, in a word and in a sentence. `bad`: a doctor should look at it."""

    word: str
    tone: Tone
    sentence: str
    bad: bool


class Sample(Struct, frozen=True):
    """An answer of the model beside its problem, each text cut to a readable length; empty where it is not known.

    `failure` says why there is no reward.
    """

    step: int
    phase: str
    reward: float | None
    finish: str
    text: str
    prompt: str = ""
    label: str = ""
    failure: str = ""


class FileRow(Struct, frozen=True):
    """A file or folder of the run."""

    name: str
    bytes: int
    about: str


class Start(Struct, frozen=True):
    """When a process began to record: on the page's time axis, and in Unix time."""

    t: float
    unix: float
    pid: int | None = None


class History(Struct, frozen=True):
    """What a recording or a black box tells over time, in bounded size.

    `held` has the most that each phase held in bytes ("": none that is known), by what was counted: "tree",
    "rss", "children", a device's quantities, or a pool. `stopped` says where the recording ends, where that is inside
    a phase or in an exception. `exit` is how the command ended, where that was recorded. `ledger` is the plan as JSON
    text, where it holds one.
    """

    machine: str = ""
    starts: tuple[Start, ...] = ()
    seconds: float = 0.0
    bands: tuple[Band, ...] = ()
    pools: tuple[PoolChart, ...] = ()
    processes: Stack = Stack()
    pressure: tuple[Curve, ...] = ()
    actions: tuple[ActionRow, ...] = ()
    held: dict[str, dict[str, int]] = {}
    passes: dict[str, int] = {}
    phase_seconds: dict[str, float] = {}
    peak: int | None = None
    stopped: str = ""
    exit: str = ""
    exit_code: int | None = None
    command: str = ""
    ledger: str = ""
    facts: tuple[tuple[str, str], ...] = ()
    log: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Doctor(Struct, frozen=True):
    """The answer of `headway doctor`, or why there is none."""

    answer: dict[str, Any] | None
    why_not: str = ""


class Page(Struct, frozen=True):
    """Everything on the page, in its order."""

    title: str
    kind: Literal["train", "watch"]
    made: float
    ending: Ending
    tiles: tuple[Tile, ...]
    history: History
    comparisons: tuple[Comparison, ...]
    metrics: tuple[MetricChart, ...]
    doctor: Doctor | None
    samples: tuple[Sample, ...]
    files: tuple[FileRow, ...]
    missing: tuple[str, ...]
