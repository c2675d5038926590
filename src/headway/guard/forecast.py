"""When a growing gauge reaches its limit: a robust trend of like peaks, by step and by minute, with its confidence.

Like is compared with like: the peak of a phase in one step with the peak of the same phase in other steps. Where
steps are not told, or one lasts much longer than those before it, peaks of stretches of time are compared. A gauge
that does not grow, or of which too little is known, has no forecast.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import inf

from msgspec import Struct
from msgspec.structs import replace

from headway.guard.frame import Frame, Gauge, ProcessUse
from headway.guard.series import LOADING, Levels, Peak, Track
from headway.guard.trend import FEWEST, Trend, Trends, local_noise, median
from headway.units import format_bytes

SMALLEST = 0.004
"""A rise that is a smaller share of the limit is none."""

TIMES_S, RISE_S = 60.0, 25.0
"""Seconds of growth that a forecast by time needs at least, and that of a rise above all that came before."""

STEPS_SEEN, OLD_S = 2, 120.0
"""Steps, or seconds where no steps are told, after which it is known what came before."""

STANDS = 1.5
"""A step that lasts so many times the longest before it stands still, and is forecast by time."""

BAND = 2.0
"""Standard errors that a forecast's band spans on either side."""

DRIFT = 0.12
"""A band spans at least this part of the time left on either side: growth does not stay as it was to the per cent."""

WIDEST, SEEN = 0.75, 0.3
"""A band is told that is not wider than this part of the time left, or of this part of the time observed."""

OF_STEPS = 0.75
"""Growth within a step counts once this part of it stands above all peaks of the steps before."""

STARTING, NOTHING = 0.25, 0.15
"""Growth is a start where what was seen before it is shorter than this part of it, and is from nothing where its line
began below this part of its present level and it has gone on for half of the time."""

START_S, START_STEPS = 600.0, 15
"""Growth that has lasted longer is no start."""

ROSE = 0.5
"""A phase without a trend grows as another where its peaks have risen by this part of what that one's did."""

SELDOM, GONE = 1.5, 2.0
"""A phase comes seldom that is so many times as far from one time to the next as another, and comes no more where
this many such distances have passed."""

PROCESSES, KEPT = 5, 12
"""Processes of a frame that are followed, the largest first, and those that are remembered."""


class Reach(Struct, frozen=True):
    """Where a limit is reached: Unix time, and the step where steps are counted.

    >>> Reach(t=1e9, step=75).step
    75
    """

    t: float
    step: int | None


class Forecast(Struct, frozen=True):
    """Growth of one gauge (or of one process: `pool` is then its name, and there is no limit), in bytes.

    `level` is where the peaks stand now. `low`, `expected` and `high` say where `limit` is reached: with the fastest
    growth that the data allow, the trend, and the slowest (None: growth may end before). `cautious` is the expected
    one if growth that slows goes on slowing, None if it then ends below the limit. `at` is when this was made,
    `at_step` the step, `observed_s` for how long growth has been seen. `by_step`: by peaks of steps, not of time.
    `from_start`: next to nothing was seen before the growth and no step has ended, so it may be a start;
    `from_nothing`: it began near 0, so it likely is one. `confident`: the band is narrow enough to be told. `times`:
    how many times growth that comes in jumps has to come to be at the limit; None where it comes evenly.
    """

    pool: str
    gauge: str
    per_step: int | None
    per_minute: int
    level: int
    limit: int | None
    low: Reach | None
    expected: Reach | None
    high: Reach | None
    cautious: Reach | None
    at: float
    at_step: int | None
    phase: str | None
    observed_s: float
    by_step: bool
    from_start: bool
    from_nothing: bool
    confident: bool
    times: int | None = None

    @property
    def told(self) -> bool:
        """Whether it is worth telling: the first minutes of a run grow by design."""
        return self.confident and not (self.from_start and not self.by_step and self.observed_s < START_S)

    @property
    def sentence(self) -> str:
        """What it says, such as "node[0].host (cgroup) grows 1.30 GiB a step, reaches 64.00 GiB at step 71-79"."""
        each = f"{format_bytes(self.per_minute)} a minute"
        if self.per_step is not None and self.by_step:
            each = f"{format_bytes(self.per_step)} a step"
        during = f" in {self.phase}" if self.phase else ""
        text = f"{self.pool} ({self.gauge}) grows {each}{during}"
        if self.limit is None or self.low is None or self.expected is None:
            return text
        late = self.high or self.expected
        if self.by_step and self.low.step is not None and late.step is not None:
            at = f"step {_span(self.low.step, late.step)}"
        else:
            seconds = late.t - self.at < 180
            low, high = (round((reach.t - self.at) / (1 if seconds else 60)) for reach in (self.low, late))
            return f"{text}, reaches {format_bytes(self.limit)} in {_span(low, high)} {'s' if seconds else 'min'}"
        return f"{text}, reaches {format_bytes(self.limit)} at {at}"


def _span(low: int, high: int) -> str:
    return f"{low}" if high <= low else f"{low}-{high}"


class Follower:
    """One gauge or process: its track, `found`, its growth as of the last reading, and `rise`, that of the present
    step above all steps before it."""

    def __init__(self) -> None:
        self.track = Track()
        self.found: Forecast | None = None
        self.rise: Forecast | None = None
        self._phases: dict[str, Trends] = {}
        self._times: tuple[Levels, Trends] | None = None

    def see(self, gauge: Gauge, frame: Frame) -> None:
        """Take the next reading. The forecast is made anew when a step or a stretch of time has ended."""
        track, found = self.track, self.found
        cycle, stretch = track.see(frame.t, gauge.used, frame.step, frame.phase)
        other_limit = found is not None and found.limit != gauge.limit
        smallest = SMALLEST * (gauge.limit or max(gauge.used, 1))
        if stretch or cycle:
            above = len(track.steps_s) >= STEPS_SEEN and gauge.used > track.highest_of_steps
            above = above or (not track.cycles and frame.t - (track.began or frame.t) >= OLD_S)
            self.rise = self._by_time(gauge, frame, smallest, whole=False) if above else None
        if track.cycles and not _stands_still(track, frame.t):
            if cycle or other_limit or (found is not None and not found.by_step):
                self.found = self._by_step(gauge, frame, smallest)
        elif frame.phase == LOADING:
            self.found = None
        elif stretch or other_limit:
            self.found = self._by_time(gauge, frame, smallest)

    def _by_step(self, gauge: Gauge, frame: Frame, smallest: float) -> Forecast | None:
        """By the phase that reaches the limit first, or grows the fastest where there is no limit."""
        now, trends = float(self.track.step or 0), self._trends(smallest)
        if not trends:
            return None

        def first(phase: str) -> tuple[float, float]:
            trend, left = trends[phase], inf
            if gauge.limit is not None:
                left = trend.reaches(gauge.limit - trend.level, now, bend=trend.cautious_bend)
            return left, -trend.slope

        nearest = trends[min(trends, key=first)]
        trends = {**_like(nearest, self.track, trends, now), **trends}
        phase = min(trends, key=first)
        return _told(trends[phase], now, gauge, frame, self.track, phase or None)

    def _trends(self, smallest: float) -> dict[str, Trend]:
        found = {}
        for phase, levels in self.track.cycles.items():
            if phase not in self._phases or self._phases[phase].levels is not levels:
                self._phases[phase] = Trends(levels, cycles=True)
            trend = self._phases[phase].now(smallest)
            if trend is not None:
                found[phase] = trend if trend.every else _seldom(trend, levels.latest, self.track)
        return found

    def _by_time(self, gauge: Gauge, frame: Frame, smallest: float, *, whole: bool = True) -> Forecast | None:
        """By stretches of time. `whole`: a rise counts where most of it stands above all steps before."""
        levels = self.track.times
        if self._times is None or self._times[0] is not levels:
            self._times = levels, Trends(levels, cycles=False)
        trend = self._times[1].now(smallest)
        if trend is None or trend.span < (TIMES_S if whole else RISE_S):
            return None
        if whole and self.track.highest_of_steps > trend.level - OF_STEPS * trend.slope * trend.span:
            return None
        # between two cycles of a sawtooth less may be held; but what was not seen since is not taken to be there
        later = max((peak.value for level in levels.levels for peak in level if peak.t > trend.at), default=0.0)
        level = min(max(trend.level, later), trend.level + trend.slope * (frame.t - trend.at))
        return _told(replace(trend, level=level, at=frame.t), frame.t, gauge, frame, self.track, None)


class Forecaster:
    """Follows every gauge and the largest processes of the frames it sees, in bounded memory."""

    def __init__(self) -> None:
        self._gauges: dict[tuple[str, str], Follower] = {}
        self._processes: dict[tuple[int, int], Follower] = {}

    def see(self, frame: Frame) -> None:
        """Take the next frame."""
        for gauge in frame.gauges:
            key = (gauge.pool, gauge.name)
            follower = self._gauges.get(key)
            if follower is None:
                follower = self._gauges[key] = Follower()
            follower.see(gauge, frame)
        for process in frame.processes[:PROCESSES]:
            self._see_process(process, frame)

    def of(self, gauge: Gauge) -> Follower:
        """What is known of a gauge that was in a frame."""
        return self._gauges[gauge.pool, gauge.name]

    def step_of(self, pool: str) -> float:
        """Seconds that a step takes as the gauges of a pool saw it; 0: not known."""
        return max(
            (one.track.second_per_step or 0.0 for key, one in self._gauges.items() if key[0] == pool), default=0.0
        )

    @property
    def forecasts(self) -> tuple[Forecast, ...]:
        """The gauges that grow."""
        return tuple(one.found for one in self._gauges.values() if one.found is not None)

    @property
    def processes(self) -> tuple[Forecast, ...]:
        """The processes that grow, the fastest first."""
        growing = [one.found for one in self._processes.values() if one.found is not None]
        return tuple(sorted(growing, key=lambda found: -found.per_minute))

    def _see_process(self, process: ProcessUse, frame: Frame) -> None:
        key = (process.pid, process.start)
        follower = self._processes.pop(key, None) or Follower()
        self._processes[key] = follower  # the last seen stands last
        name = f"{process.role or process.name} [{process.pid}]"
        follower.see(Gauge(name, "node", process.rss, None), frame)
        while len(self._processes) > KEPT:
            del self._processes[next(iter(self._processes))]


def _stands_still(track: Track, t: float) -> bool:
    """Whether the present step lasts much longer than those before it."""
    return bool(track.steps_s) and t - track.step_began > STANDS * max(track.steps_s)


BELIEVED = 4.0
"""A growth that becomes faster is believed to go on so for at most this many times as long as it was seen."""


def _like(trend: Trend, track: Track, known: Mapping[str, Trend], now: float) -> dict[str, Trend]:
    """The phases without a trend of their own that may grow as another does: those that came too seldom to tell, and
    those whose peaks have risen too, but not evenly. A phase that comes seldom grows when it comes."""
    found = {}
    for phase, levels in track.cycles.items():
        peaks = levels.latest
        if phase in known or len(peaks) < 2 or not _rose(peaks, trend):
            continue
        last = peaks[-1]
        if now - last.x > GONE * _apart(peaks):
            continue
        noise = local_noise([peak.value for peak in peaks]) if len(peaks) >= FEWEST else 0.0
        like = replace(trend, level=last.value, at=last.x, noise=max(noise, trend.noise), every=0.0)
        found[phase] = _seldom(like, peaks, track)
    return found


def _seldom(trend: Trend, peaks: Sequence[Peak], track: Track) -> Trend:
    """The trend of a phase with when that comes, where it does not come in every step that another is seen in: steps
    that are shorter than a reading are not seen at all."""
    every = _apart(peaks)
    seen = min(_apart(levels.latest) for levels in track.cycles.values() if len(levels.latest) > 1)
    return replace(trend, every=every, last=peaks[-1].x, largest=0.0) if every >= SELDOM * seen else trend


def _apart(peaks: Sequence[Peak]) -> float:
    return median([later.x - earlier.x for earlier, later in pairwise(peaks)])


def _rose(peaks: Sequence[Peak], trend: Trend) -> bool:
    """Whether a phase's peaks have risen by half of what a trend says, since it began."""
    within = [peak for peak in peaks if peak.x > trend.since - 1]
    if len(within) < FEWEST:
        older, newer = within[:1], within[-1:]
    else:
        older, newer = within[: len(within) // 2], within[-len(within) // 4 :]
    apart = median([peak.x for peak in newer]) - median([peak.x for peak in older]) if within else 0.0
    rise = median([peak.value for peak in newer]) - median([peak.value for peak in older]) if within else 0.0
    return apart > 0 and rise > ROSE * trend.slope * apart


def _told(trend: Trend, now: float, gauge: Gauge, frame: Frame, track: Track, phase: str | None) -> Forecast:
    """The record of a trend as of `now`: the step, or the time."""
    by_step = now != frame.t
    seconds = (track.second_per_step or 1.0) if by_step else 1.0
    begun = (frame.t - track.step_began) / seconds if by_step else 0.0

    def reach(distance: float) -> Reach | None:
        if distance == inf:
            return None
        return Reach(frame.t + max(distance - begun, 0.0) * seconds, int(now + distance) if by_step else None)

    limit, low, expected, high, cautious = gauge.limit, inf, inf, inf, inf
    narrow = False
    if limit is not None:
        room = limit - trend.level
        bend = trend.bend if trend.bent else 1.0
        quick, slow = max(bend, trend.cautious_bend), (bend if bend < 1 else trend.cautious_bend)
        if trend.reaches(room, now) > BELIEVED * trend.span:
            bend, quick = min(bend, 1.0), min(quick, 1.0)

        def band(drift: float) -> tuple[float, float]:
            nearest = trend.reaches(room - BAND * trend.noise, now, errors=BAND, bend=quick, drift=drift)
            return nearest, trend.reaches(room, now, errors=-BAND, bend=slow, drift=-drift)

        expected = trend.reaches(room - trend.noise, now, bend=bend)
        cautious = trend.reaches(room - trend.noise, now, bend=trend.cautious_bend)
        low, high = band(0.0)
        narrow = high < inf and high - low <= WIDEST * max(expected, SEEN * trend.span)
        low, high = band(DRIFT)
    began = track.first_step - 1.0 if by_step else track.began or 0.0
    unseen = (trend.since - began) / trend.span
    short = trend.span <= (START_STEPS if by_step else START_S) and (by_step or not track.steps_s)
    from_nothing = short and unseen <= 1 and trend.level - trend.slope * (trend.at - began) < NOTHING * trend.level
    return Forecast(
        pool=gauge.pool, gauge=gauge.name,
        per_step=round(trend.slope) if by_step else None,
        per_minute=round(60 * trend.slope / seconds),
        level=round(trend.level if trend.every else trend.level + trend.slope * (now - trend.at)), limit=limit,
        low=reach(low), expected=reach(expected), high=reach(high), cautious=reach(cautious),
        at=frame.t, at_step=frame.step, phase=phase, observed_s=trend.span * seconds, by_step=by_step,
        from_start=not track.steps_s and unseen <= STARTING,
        from_nothing=from_nothing,
        confident=narrow,
        times=None if limit is None else trend.times(limit - trend.level, cautious, now),
    )  # fmt: skip
