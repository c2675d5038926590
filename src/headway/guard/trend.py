"""A robust trend through peaks: whether they grow, how fast, and whether the growth itself slows or speeds up.

Pure functions. What is no growth: a level that changed once (a save, an eval, the optimizer's first step), noise, and
growth that has ended.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import ceil, inf, log, sqrt

from msgspec import Struct
from msgspec.structs import replace

from headway.guard.series import Levels, Peak

BLOCKS = 5
"""Parts of a window, each of which must stand above the one before: one or two changes of level are no growth."""

ONE_STEP, TWO_STEPS = 0.6, 0.8
"""Parts of the whole rise that the largest step between two blocks may be, and the two largest together."""

FEWEST = 6
"""Peaks that a trend needs at least."""

CLEAR = 5.0
"""How many times the noise a rise must have been."""

BEND = 2.0
"""Standard errors by which two halves must differ in slope before the growth counts as bent."""

LARGEST_BEND = 8.0
"""The largest factor between the slopes of two halves that is believed, either way."""

OLD, RARE = 0.25, 0.1
"""Growth is new where at most this part (RARE) of the earlier peaks stands above the first quarter (OLD) of it."""

LATEST = 4
"""Peaks that say where a line stands now."""

RECORD = 0.02
"""Part of a window's rise by which a peak must pass all before it to be a new highest one."""

FEWEST_JUMPS, LARGE, OF_JUMPS, SPARSE, FLAT = 3, 0.3, 0.8, 4.5, 0.25
"""Growth is by jumps where at least so many rises of the highest peak, each this part of the largest, make up this
part of it, are this many peaks apart, and what moves between them is at most this part of one."""

SCALE = 1.4826
"""The standard deviation of normal noise in median absolute deviations."""

Points = Sequence[Peak]


def median(values: Sequence[float]) -> float:
    """The middle value. That of the library checks more and takes three times as long."""
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2


def median_low(values: Sequence[float]) -> float:
    """The middle value, the lower of two."""
    return sorted(values)[(len(values) - 1) // 2]


class Trend(Struct, frozen=True):
    """Growth through a window of peaks, in bytes and the peaks' own unit of x (steps, or seconds).

    `level` is where the line stands at the last of the latest peaks (`at`); `noise` the standard deviation around it,
    `error` that of `slope`; `span` the length of the window in x, and `since` its beginning. `bend` is the second
    half's slope by the first's, and `bend_error` its standard error. Where growth comes `every` so much x (a save
    that leaves something behind, a phase of every tenth step), it came `last` there, by `largest` at most; 0: at any
    x. `over`: it is overdue, so it has ended or pauses.
    """

    slope: float
    level: float
    at: float
    noise: float
    error: float
    span: float
    since: float
    bend: float
    bend_error: float
    every: float = 0.0
    last: float = 0.0
    largest: float = 0.0
    over: bool = False

    @property
    def bent(self) -> bool:
        """Whether the halves differ in slope beyond what noise does."""
        return abs(self.bend - 1) > BEND * self.bend_error

    @property
    def cautious_bend(self) -> float:
        """The bend as far as noise does not explain it: growth that slows is believed early, that speeds up late."""
        if self.bend < 1:
            return min(1.0, self.bend + self.bend_error)
        return max(1.0, self.bend - self.bend_error) if self.bent else 1.0

    def reaches(
        self, room: float, now: float, *, errors: float = 0.0, bend: float = 1.0, drift: float = 0.0
    ) -> float:
        """How far beyond `now` the level at `at` has grown by `room`; inf: never.

        The slope may be off by so many standard `errors`, and by this part (`drift`) of itself. With a `bend` it goes
        on changing by that factor each half window.
        """
        distance = self._smoothly(room, errors, bend) / (1 + drift)
        if not self.every or distance == inf:
            return max(self.at + distance - now, 0.0)
        times = max(ceil(distance / self.every - 1e-6), self._passed(now))
        return max(self.last + times * self.every - now, 0.0)

    def times(self, room: float, distance: float, now: float) -> int | None:
        """How many times growth has to come to be at the limit, `room` and `distance` from `now`; None: it comes at
        any time."""
        if not self.every or distance == inf:
            return None
        if room <= self.largest:
            return 1
        return round((now + distance - self.last) / self.every) - self._passed(now) + 1

    def _passed(self, now: float) -> int:
        """The first time that is not over: 1 until the next one is due."""
        return max(ceil((now - self.last) / self.every - 1e-6), 1)

    def _smoothly(self, room: float, errors: float, bend: float) -> float:
        if room <= 0:
            return 0.0
        slope = self.slope + errors * self.error
        if slope <= 0 or bend <= 0:
            return inf
        rate = -2 * log(bend) / self.span
        if abs(rate) * self.span < 1e-3:
            return room / slope
        now = slope * 2 * bend / (1 + bend) * sqrt(bend)
        left = 1 - room * rate / now
        return inf if left <= 0 else -log(left) / rate


class Trends:
    """The growth that goes on in peaks at several resolutions, worked out anew only where peaks were added.

    `smallest`: a rise that is smaller is none. `cycles`: the peaks are of like cycles, so that the last few of the
    finest resolution say where the line stands now; peaks of stretches of time may lie between two cycles.
    """

    def __init__(self, levels: Levels, *, cycles: bool) -> None:
        self.levels, self._cycles = levels, cycles
        self._known: dict[int, tuple[int, float, Trend | None]] = {}

    def now(self, smallest: float) -> Trend | None:
        """The longest straight window that grows; where each is bent, the shortest; None where nothing grows."""
        bent = None
        for level in reversed(range(len(self.levels.levels))):
            trend = self._of_level(level, smallest)
            bent = trend or bent
            if trend is not None and not trend.bent:
                break
        found = None if bent is None else self._by_jumps(bent)
        return None if found is None or found.over else found

    def _of_level(self, level: int, smallest: float) -> Trend | None:
        # coarse levels change seldom; whether their growth still goes on, each new cycle of the finest says anew
        count = self.levels.counts[0 if self._cycles else level]
        known = self._known.get(level)
        if known is not None and known[:2] == (count, smallest):
            return known[2]
        found, usual = None, -1.0
        whole = list(self.levels.levels[level])
        for window in _windows(whole):
            if not rises(window, smallest):
                continue
            if usual < 0:
                usual = local_noise([peak.value for peak in whole])
            last = list(self.levels.latest)[-LATEST:] if self._cycles else window[-LATEST:]
            trend = _trend(window, last, usual)
            if trend is None or trend.slope * trend.span < max(CLEAR * trend.noise, smallest):
                continue
            if not self._new(window, trend):
                continue
            found = trend
            if not trend.bent:
                break
        self._known[level] = (count, smallest, found)
        return found

    def _by_jumps(self, trend: Trend) -> Trend:
        """The trend with when its growth comes, where that is in a few jumps."""
        jumps = [jump for jump in self.levels.jumps if jump.x > trend.since]
        large = [jump for jump in jumps if jump.gain >= LARGE * max(jump.gain for jump in jumps)]
        if len(large) < FEWEST_JUMPS or sum(jump.gain for jump in large) < OF_JUMPS * trend.slope * trend.span:
            return trend
        latest = self.levels.latest
        gaps = [later.x - earlier.x for earlier, later in pairwise(large)]
        every, since = median(gaps), latest[-1].x - large[-1].x
        noise = min(trend.noise, local_noise([peak.value for peak in latest]))
        spacing = median([later.x - earlier.x for earlier, later in pairwise(latest)])
        if every < SPARSE * spacing or noise > FLAT * median([jump.gain for jump in large]):
            return trend
        largest = max(jump.gain for jump in large)
        return replace(
            trend, every=every, last=large[-1].x, largest=largest, over=since >= max(gaps), noise=noise
        )  # fmt: skip

    def _new(self, window: list[Peak], trend: Trend) -> bool:
        """Whether it goes beyond what was there before: a rise that comes again and again is a sawtooth."""
        start = trend.level - trend.slope * (trend.at - trend.since)
        high = start + OLD * (trend.level - start) + trend.noise
        earlier = [peak for level in self.levels.levels for peak in level if peak.t < window[0].t]
        return sum(peak.value > high for peak in earlier) <= RARE * len(earlier)


def rises(window: Points, smallest: float) -> bool:
    """Whether each fifth of the window stands above the one before, by more than noise.

    >>> rises([Peak(x, x, 10.0 * x) for x in range(10)], 1)
    True
    >>> rises([Peak(x, x, 100.0 * (x > 4)) for x in range(10)], 1)
    False
    """
    values = [peak.value for peak in window]
    size = len(values)
    cuts = [size * part // BLOCKS for part in range(BLOCKS + 1)]
    if median_low(values[cuts[-2] :]) - median_low(values[: cuts[1]]) < smallest / 2:
        return False
    blocks: list[float] = []
    for start, end in pairwise(cuts):
        block = median_low(values[start:end])
        if blocks and block <= blocks[-1]:
            return False
        blocks.append(block)
    steps = sorted(later - earlier for earlier, later in pairwise(blocks))
    whole = blocks[-1] - blocks[0]
    if steps[-1] > ONE_STEP * whole or steps[-1] + steps[-2] > TWO_STEPS * whole:
        return False
    return steps[0] > 0.5 * local_noise(values) / sqrt(size / BLOCKS)


def local_noise(values: Sequence[float]) -> float:
    """Standard deviation of what changes from one value to the next, without any trend; at least 0.

    >>> local_noise([1.0, 2.0, 3.0, 4.0])
    0.0
    """
    seconds = [abs(a - 2 * b + c) for a, b, c in zip(values, values[1:], values[2:], strict=False)]
    return SCALE * median(seconds) / sqrt(6) if seconds else 0.0


def slope_of(window: Points) -> float:
    """The median of the slopes between all pairs (Theil-Sen): up to 29 % of the peaks may be anything."""
    points = [(peak.x, peak.value) for peak in window]
    slopes = [(v1 - v0) / (x1 - x0) for i, (x1, v1) in enumerate(points) for x0, v0 in points[:i] if x1 > x0]
    return median(slopes) if slopes else 0.0


def _windows(whole: list[Peak]) -> Iterator[list[Peak]]:
    """Windows that end at the last peak, the longest first."""
    sizes = {len(whole) * part // 8 for part in (8, 6, 4, 3, 2)}
    return (whole[-size:] for size in sorted(sizes, reverse=True) if size >= FEWEST)


def _trend(window: list[Peak], last: list[Peak], usual: float) -> Trend | None:
    """The line through a window, brought up to the last peaks; None where those have left it downwards.

    `usual` is the noise of a longer time: a few peaks may lie on a line by chance.
    """
    slope, span = slope_of(window), window[-1].x - window[0].x
    if slope <= 0 or span <= 0:
        return None
    base = median([peak.value - slope * peak.x for peak in window])
    half = len(window) // 2
    first, second = window[: len(window) - half], window[-half:]
    older, newer = slope_of(first), slope_of(second)
    # around each half's own line, so that a bend is no noise
    noise = max(usual, SCALE * median(_off(first, older) + _off(second, newer)))
    ahead = median([peak.value - slope * peak.x - base for peak in last])
    if ahead < -max(2.5 * noise, 0.1 * slope * span) or last[-1].value <= last[0].value - noise - 1:
        return None
    gaps = record_gaps(window, max(noise, RECORD * slope * span))
    floor = max(older, 0.05 * slope)
    bend = min(max(newer, 0.0) / floor, LARGEST_BEND)
    return Trend(
        slope=slope,
        level=min(base + slope * last[-1].x + ahead, max(peak.value for peak in (*window, *last))),
        at=last[-1].x,
        noise=noise,
        error=_error(window, noise),
        span=span,
        since=window[0].x,
        bend=max(bend, 1 / LARGEST_BEND),
        bend_error=sqrt((_error(second, noise) / floor) ** 2 + (bend * _error(first, noise) / floor) ** 2),
        over=overdue(gaps),
    )


def record_gaps(points: Points, least: float) -> list[float]:
    """How far apart in x the new highest peaks are; the last entry is how far the last peak is from the last of them.

    A peak is a new highest one where it passes those before it by `least`.

    >>> record_gaps([Peak(x, x, float(x // 3)) for x in range(8)], 0.5)
    [3, 3, 1]
    """
    highest, at, gaps = points[0].value, points[0].x, []
    for peak in points[1:]:
        if peak.value > highest + least:
            gaps.append(peak.x - at)
            highest, at = peak.value, peak.x
    return [*gaps, points[-1].x - at]


def overdue(gaps: Sequence[float]) -> bool:
    """Whether no new highest peak has come for as long as one ever took before: the growth has ended, or pauses.

    >>> overdue([3, 3, 1]), overdue([1, 1, 1, 1]), overdue([2, 1, 0])
    (False, True, False)
    """
    return len(gaps) > 1 and gaps[-1] >= max(gaps[:-1])


def _off(window: list[Peak], slope: float) -> list[float]:
    """How far each peak is from the line of that slope through the middle of them."""
    rests = [peak.value - slope * peak.x for peak in window]
    middle = median(rests)
    return [abs(rest - middle) for rest in rests]


def _error(window: Points, noise: float) -> float:
    """Standard error of the slope through a window with such noise."""
    middle = sum(peak.x for peak in window) / len(window)
    spread = sqrt(sum((peak.x - middle) ** 2 for peak in window))
    return 1.1 * noise / spread if spread else inf
