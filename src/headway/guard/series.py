"""What the forecast remembers of one gauge or process: peaks of cycles and of stretches of time, bounded."""

from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import Literal, NamedTuple

POINTS, LEVELS = 32, 12
"""Peaks that a resolution keeps, and resolutions."""

BUCKET_S = 5.0
"""Seconds of the finest stretch of time."""

RECENT, RECENT_S, MOST_RECENT = 8, 15.0, 64
"""Readings that are kept as they came: at least so many, those of so many seconds, at most so many."""

JUMPS = 12
"""The largest rises of the highest peak that are remembered."""

PHASES = 16
"""Phases of one gauge that are followed; more are one."""

LOADING = "load"


class Peak(NamedTuple):
    """The highest value (bytes) of one cycle or one stretch of time; `x` is its step, or its time in seconds."""

    x: float
    t: float
    value: float


class Jump(NamedTuple):
    """A peak that was higher than all before it, and by how much (bytes)."""

    x: float
    gain: float


Join = Literal["median", "highest"]

JOINED: dict[Join, int] = {"median": 4, "highest": 2}
"""Peaks that become one of the next resolution."""


class Levels:
    """Peaks at several resolutions: the last 32 as they are, the last 32 joined by so many, and so on.

    `counts` has how many each resolution has had. Peaks of like cycles are joined by their median (a rare high one is
    none of the trend), stretches of time by the highest, as one may hold less than a cycle. `jumps` are the largest
    rises of the highest peak, however long ago.

    >>> levels = Levels("median")
    >>> for step in range(100):
    ...     levels.add(Peak(step, 10.0 * step, 5.0))
    >>> [len(level) for level in levels.levels]
    [32, 25, 6, 1]
    """

    def __init__(self, join: Join) -> None:
        self.levels: list[deque[Peak]] = []
        self.counts: list[int] = []
        self.jumps: list[Jump] = []
        self._highest: float | None = None
        self._open: list[list[Peak]] = []
        self._join = join

    def add(self, peak: Peak, level: int = 0) -> None:
        """Take one more peak, later than those before."""
        if level == LEVELS:
            return
        if level == 0:
            self._note_jump(peak)
        if level == len(self.levels):
            self.levels.append(deque(maxlen=POINTS))
            self.counts.append(0)
            self._open.append([])
        self.levels[level].append(peak)
        self.counts[level] += 1
        joined = self._open[level]
        joined.append(peak)
        if len(joined) == JOINED[self._join]:
            self.add(self._one_of(joined), level + 1)
            joined.clear()

    @property
    def latest(self) -> Sequence[Peak]:
        """The last peaks, at the finest resolution."""
        return self.levels[0] if self.levels else ()

    def _note_jump(self, peak: Peak) -> None:
        if self._highest is not None and peak.value > self._highest:
            self.jumps.append(Jump(peak.x, peak.value - self._highest))
            if len(self.jumps) > JUMPS:
                self.jumps.remove(min(self.jumps, key=lambda jump: jump.gain))
        self._highest = max(peak.value, self._highest or 0.0)

    def _one_of(self, peaks: list[Peak]) -> Peak:
        if self._join == "highest":
            return max(peaks, key=lambda peak: peak.value)
        return Peak(*(median(values) for values in zip(*peaks, strict=True)))


class Track:
    """The history of one counter: `see` takes readings in the order of time.

    `cycles` has by phase ("" where none is told) the peak of each step; a step's peaks are closed when the next step
    begins. `times` has the peaks of stretches of time since the present step began, or since the start where no
    steps are told; loading is left out, as what is being loaded grows by design. `before` is the highest value
    before the last few readings, `began` the time of the first.
    """

    def __init__(self) -> None:
        self.cycles: dict[str, Levels] = {}
        self.times = Levels("highest")
        self.recent: deque[tuple[float, float]] = deque()
        self.before: float | None = None
        self.began: float | None = None
        self.step: int | None = None
        self.first_step = 0
        self.step_began = 0.0
        self.steps_s: deque[float] = deque(maxlen=POINTS)
        self.highest_of_steps = 0.0
        self._open: dict[str, Peak] = {}
        self._bucket: Peak | None = None

    def see(self, t: float, value: float, step: int | None, phase: str | None) -> tuple[bool, bool]:
        """Take a reading (Unix time, bytes). Returns whether a cycle was closed, and a stretch of time."""
        if self.began is None:
            self.began = t
        self._see_recent(t, value)
        closed = step is not None and step != self.step and self._begin_step(step, t)
        if step is not None:
            key = phase or ""
            if key not in self._open and key not in self.cycles and len(self.cycles) >= PHASES:
                key = ""
            was = self._open.get(key)
            if was is None or value > was.value:
                self._open[key] = Peak(step, t, value)
        return closed, self._see_time(t, value, phase)

    @property
    def second_per_step(self) -> float | None:
        """The usual length of a step; None before one has ended."""
        return median(self.steps_s) if self.steps_s else None

    def _see_recent(self, t: float, value: float) -> None:
        recent = self.recent
        recent.append((t, value))
        while len(recent) > RECENT and (recent[0][0] < t - RECENT_S or len(recent) > MOST_RECENT):
            oldest = recent.popleft()[1]
            self.before = oldest if self.before is None else max(self.before, oldest)

    def _begin_step(self, step: int, t: float) -> bool:
        if self.step is not None and step < self.step:
            # it was started again: what the process before it held says nothing
            self.cycles, self._open, self.highest_of_steps, self.first_step = {}, {}, 0.0, step
        elif self.step is None:
            self.first_step = step
        else:
            self.steps_s.append((t - self.step_began) / (step - self.step))
        for phase, peak in self._open.items():
            self.cycles.setdefault(phase, Levels("median")).add(peak)
            self.highest_of_steps = max(self.highest_of_steps, peak.value)
        closed = bool(self._open)
        self._open.clear()
        self.step, self.step_began = step, t
        self.times, self._bucket = Levels("highest"), None
        return closed

    def _see_time(self, t: float, value: float, phase: str | None) -> bool:
        if phase == LOADING:
            self.times, self._bucket = Levels("highest"), None
            return False
        bucket = self._bucket
        if bucket is None or t - bucket.x >= BUCKET_S:
            self._bucket = Peak(t, t, value)
            if bucket is not None:
                self.times.add(Peak(bucket.t, bucket.t, bucket.value))
            return bucket is not None
        if value > bucket.value:
            self._bucket = Peak(bucket.x, t, value)
        return False
