"""Whether a process, or a control group, rose evenly to its end: a line through what was measured of it alone."""

from collections.abc import Sequence

from msgspec import Struct

from headway.guard.series import Peak
from headway.guard.trend import rises
from headway.units import format_bytes

PARTS = 20
"""Equal stretches of time of which the highest reading counts: readings come faster near a limit."""
FEWEST = 6
"""Readings below which nothing is said."""
LEAST = 0.1
"""Share of the last reading that a rise has at least."""
SHARES = (1.0, 0.75, 0.5)
"""Parts of the time up to the end in which a rise is looked for, the longest first."""
NEAR = 0.8
"""Share of a limit that was used before it was reached step by step; from less it was a jump."""
TEARDOWN, TEARDOWN_S = 2, 2.0
"""Readings, or seconds, after the highest one in which a process may give its memory back because it is ending."""
STEPS, LONG_S = 3, 30.0
"""Steps, or seconds where none are told, over which a rise is none of a start."""


class Point(Struct, frozen=True):
    """One reading: Unix time, bytes, and the step where one was told."""

    t: float
    bytes: int
    step: int | None = None


class Rise(Struct, frozen=True):
    """An even rise to the end of what was read: bytes before and after, over so many seconds and steps.

    >>> str(Rise(16 << 20, 776 << 20, 10.0, 94))
    'rose evenly from 16.0 MiB to 776.0 MiB over 94 steps'
    """

    first: int
    last: int
    seconds: float
    steps: int

    @property
    def long(self) -> bool:
        """Whether it was over steps, or for longer than a start takes."""
        return self.steps >= STEPS or self.seconds >= LONG_S

    def __str__(self) -> str:
        over = f"{self.steps} steps" if self.steps >= STEPS else f"{self.seconds:.0f} s"
        return f"rose evenly from {format_bytes(self.first)} to {format_bytes(self.last)} over {over}"


def until_peak(points: Sequence[Point]) -> Sequence[Point]:
    """Readings up to the highest one, where only what may be a teardown follows it; else all of them.

    >>> [point.bytes for point in until_peak([Point(t, size) for t, size in enumerate((1, 5, 9, 2))])]
    [1, 5, 9]
    """
    if not points:
        return points
    at = max(range(len(points)), key=lambda place: points[place].bytes)
    short = len(points) - 1 - at <= TEARDOWN or points[-1].t - points[at].t <= TEARDOWN_S
    return points[: at + 1] if short else points


def rise(points: Sequence[Point]) -> Rise | None:
    """The even rise with which readings in the order of time end; None where they end with none.

    >>> rise([Point(t, 100 + 10 * t, t) for t in range(20)]).steps
    19
    >>> rise([Point(t, 100 + 900 * (t > 18)) for t in range(20)])
    >>> rise([Point(t, 100) for t in range(20)])
    """
    for share in SHARES:
        own = points[len(points) - round(share * len(points)) :]
        if len(own) < FEWEST or own[-1].t <= own[0].t:
            return None
        peaks = _stretches(own)
        gain = own[-1].bytes - own[0].bytes
        if len(peaks) >= FEWEST and gain >= LEAST * own[-1].bytes and rises(peaks, LEAST * own[-1].bytes):
            steps = [point.step for point in own if point.step is not None]
            return Rise(own[0].bytes, own[-1].bytes, own[-1].t - own[0].t, steps[-1] - steps[0] if steps else 0)
    return None


def _stretches(points: Sequence[Point]) -> list[Peak]:
    """The highest reading of each stretch of time that has one."""
    start, length = points[0].t, (points[-1].t - points[0].t) / PARTS
    found: dict[int, Peak] = {}
    for point in points:
        place = min(PARTS - 1, int((point.t - start) / length))
        if place not in found or point.bytes > found[place].value:
            found[place] = Peak(point.t, point.t, float(point.bytes))
    return [found[place] for place in sorted(found)]
