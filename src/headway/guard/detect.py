"""What is alarming in a frame, given what came before it: pure functions, each one detector.

A detector looks at one gauge beside its limit and returns an `Alarm` or None. Without a limit there is none. Limits
are to be avoided before they are reached, so each threshold lies below the limit by a margin that grows with how much
the gauge moves.
"""

from collections.abc import Sequence
from math import inf
from statistics import median

from msgspec import Struct

from headway.guard.forecast import Forecast
from headway.guard.frame import Frame, Gauge
from headway.guard.series import Track
from headway.guard.trend import local_noise
from headway.units import format_bytes

MARGIN, UNIFIED_MARGIN, LARGEST_MARGIN = 0.01, 0.04, 0.05
"""Shares of the limit: the margin of a gauge that stands still, that of unified memory, the largest margin."""

MOVES = 3.0
"""Standard deviations of a gauge's peaks that the margin covers."""

KNOWN = 8
"""Peaks from which on it is known how much they move."""

HELD_S, HELD_READINGS = 5.0, 3
"""Seconds and readings for which a gauge must be over its threshold."""

NEAR, UNIFIED_NEAR, CLOSE = 0.17, 0.22, 0.05
"""Shares of the limit that are left when a forecast begins to alarm, and when it may look as far as it has seen."""

FAR_RATIO, CLOSE_RATIO, START_RATIO, NOTHING_RATIO = 0.30, 0.75, 0.20, 0.05
"""Time left by time of growth observed at which a forecast alarms: at NEAR, at CLOSE, of growth from the start, and
of growth from nothing."""

SOON_STEPS, SOON_RATIO = 3.0, 0.3
"""A forecast alarms at any distance from the limit where it is this near in steps and in time observed."""

AT_ONCE_USED, AT_ONCE = 0.88, 1.2
"""A fast rise whose next reading may be over the limit (it is this many readings away) is one from this share on."""

RISE_USED, JUMP_USED, START_USED = 0.90, 0.93, 0.95
"""The shares from which a slower one is, one of two readings, and the first rise of a run."""

RISE_S, RISE_READINGS = 3.0, 2.5
"""Seconds, or readings where those are farther apart, within which a fast rise reaches the limit."""

LATE_USED, LATE_S = 0.95, 5.0
"""The same of a rise that has passed this share."""

TROUGH = 0.25
"""A forecast by time waits while the gauge is below its peaks by this part of the growth: the rise may be over."""

FEW = 40
"""Readings that a fast rise is seen in at most."""

CLOSEST_S = 0.2
"""Of readings that are nearer to each other the later ones are taken: allocations come in pieces, and the kernel
counts in batches."""

IN_STEP_USED, IN_STEP_RATIO = 0.90, 0.15
"""A rise within a step above all steps before it alarms from this share of the limit on, where the limit is this part
of the time away for which it was seen."""

SLOWEST_S = 10.0
"""Readings that are farther apart show no fast rise: a phase may have begun between them."""

OFTEN_S, SUDDEN = 0.6, 8.0
"""Where readings are nearer than this, one that rises so many times as fast as that before is not believed alone."""

BEGUN, BEGUN_S = 0.25, 120.0
"""A rise is the first of a run where all that came before is below this part of what is held, or no step has ended
and the run is younger."""

NEW = 0.02
"""Share of the limit by which a fast rise must stand above all that came before it."""

PRESSURE, PRESSURE_S = 10.0, 10.0
"""Per cent of the last 10 s in which all tasks waited for memory, and for how long."""

HOST_GAUGES = ("cgroup", "node", "Ray")


class Alarm(Struct, frozen=True):
    """What a detector saw. `value` and `threshold` in bytes, `seconds`: for how long.

    `left_s` is the time until the limit (0: at it), `left_steps` the same in steps where those count. `grows`: it is
    growth from step to step, which less in flight does not end.
    """

    detector: str
    pool: str
    gauge: str
    value: int
    threshold: int
    seconds: float
    reason: str
    left_s: float
    left_steps: float | None = None
    grows: bool = False


def runs_out(forecast: Forecast, gauge: Gauge) -> Alarm | None:
    """A forecast that reaches the limit within a horizon, which is a share of the time that growth has been seen."""
    limit, cautious = gauge.limit, forecast.cautious
    if limit is None or cautious is None or not forecast.confident or forecast.observed_s <= 0:
        return None
    if forecast.times is not None and forecast.times > 1:
        return None  # whether it goes on, the next time tells
    # time that passes is no growth: the next peak says more
    left = max(cautious.t - forecast.at, 0.0)
    if not forecast.by_step and gauge.used < forecast.level - TROUGH * forecast.per_minute / 60 * forecast.observed_s:
        return None
    ratio = left / forecast.observed_s
    steps = None
    if forecast.by_step and forecast.per_step:
        step_s = 60 * forecast.per_step / forecast.per_minute
        steps = left / step_s
        if forecast.from_nothing:
            # whether a start goes on is seen when the present step has ended
            left += step_s
            ratio = left / forecast.observed_s
    soon = steps is not None and steps <= SOON_STEPS and ratio <= SOON_RATIO and not forecast.from_nothing
    if not soon and ratio > _horizon(forecast, (limit - forecast.level) / limit):
        return None
    return Alarm(
        "forecast", gauge.pool, gauge.name, gauge.used, limit, forecast.observed_s,
        f"{forecast.sentence}; seen for {_duration(forecast.observed_s)}", left, steps, grows=True,
    )  # fmt: skip


def rises_steadily(forecast: Forecast, track: Track, gauge: Gauge, planned: int | None = None) -> Alarm | None:
    """A rise of the present step that has left all steps before it below, and soon reaches the limit."""
    limit, cautious = gauge.limit, forecast.cautious
    if limit is None or cautious is None or forecast.from_start or _inside(gauge, planned):
        return None
    before = track.highest_of_steps
    if gauge.used < max(IN_STEP_USED * limit, before and before + NEW * limit):
        return None
    left = max(cautious.t - forecast.at, 0.0)
    if left > IN_STEP_RATIO * forecast.observed_s or gauge.used < forecast.level:
        return None
    reason = forecast.sentence
    if before:
        reason += f"; no step before held more than {format_bytes(round(before))}"
    return Alarm("steady rise", gauge.pool, gauge.name, gauge.used, limit, forecast.observed_s, reason, left)


def _horizon(forecast: Forecast, share: float) -> float:
    """How far a forecast may look, in the time it has observed, where such a share of the limit is left."""
    near = UNIFIED_NEAR if forecast.pool.endswith("unified") else NEAR
    if share > near:
        return 0.0
    if forecast.from_nothing:
        return NOTHING_RATIO
    if forecast.from_start:
        return START_RATIO
    part = min(1.0, max(0.0, (near - share) / (near - CLOSE)))
    return FAR_RATIO + part * (CLOSE_RATIO - FAR_RATIO)


def margin_of(track: Track, gauge: Gauge) -> int:
    """What must stay free below a limit: a small share, or what the gauge's peaks move by where that is more."""
    if gauge.limit is None:
        return 0
    unified = gauge.pool.endswith("unified")
    least = (UNIFIED_MARGIN if unified else MARGIN) * gauge.limit
    return round(max(least, min(MOVES * _moves(track), LARGEST_MARGIN * gauge.limit)))


def _moves(track: Track) -> float:
    """Standard deviation of the peaks of the phase that stands highest, or of stretches of time; 0: not known."""
    series = [levels.latest for levels in track.cycles.values()] or [track.times.latest]
    highest = max(series, key=lambda peaks: median(p.value for p in peaks) if peaks else 0.0)
    return local_noise([peak.value for peak in highest]) if len(highest) >= KNOWN else 0.0


def near_limit(track: Track, gauge: Gauge, planned: int | None = None) -> Alarm | None:
    """A gauge that has stood within its margin below the limit for some seconds."""
    limit = gauge.limit
    if limit is None or gauge.used < (1 - LARGEST_MARGIN) * limit or _inside(gauge, planned):
        return None
    threshold = limit - margin_of(track, gauge)
    held, readings = seconds_above(track.recent, threshold)
    if readings < HELD_READINGS or held < HELD_S:
        held = _held_by_peaks(track, threshold) if readings else 0.0
    if held < HELD_S:
        return None
    return Alarm(
        "near the limit", gauge.pool, gauge.name, gauge.used, threshold, held,
        f"{gauge.pool} ({gauge.name}) holds {format_bytes(gauge.used)}, over {format_bytes(threshold)} for "
        f"{held:.0f} s; the limit is {format_bytes(limit)}",
        left_s=0.0,
    )  # fmt: skip


def _held_by_peaks(track: Track, threshold: float) -> float:
    """For how many seconds the peaks of each step of a phase have been over a threshold; 0 for fewer than three."""
    held = 0.0
    for levels in track.cycles.values():
        seconds, count = seconds_above([(peak.t, peak.value) for peak in levels.latest], threshold)
        held = max(held, seconds if count >= HELD_READINGS else 0.0)
    return held


def seconds_above(readings: Sequence[tuple[float, float]], threshold: float) -> tuple[float, int]:
    """For how long the last readings (t, bytes) were over a threshold, and how many they are.

    >>> seconds_above([(0, 9), (1, 5), (2, 8), (4, 9)], 6)
    (2.0, 2)
    """
    count = 0
    for _, value in reversed(readings):
        if value <= threshold:
            break
        count += 1
    return (float(readings[-1][0] - readings[-count][0]) if count else 0.0), count


def rises_fast(track: Track, gauge: Gauge, planned: int | None = None) -> Alarm | None:
    """A rise beyond all that came before, which reaches the limit within seconds at the slope it has now.

    The slope is the smallest of the last increments, so a rise that slows down is soon none.
    """
    limit, readings = gauge.limit, _apart(track.recent)
    if limit is None or len(readings) < 3 or _inside(gauge, planned) or gauge.used < 0.5 * limit:
        return None
    slopes = _rising(readings)
    if len(slopes) < 2 or _one_reading(readings, slopes):
        return None
    old = bool(track.steps_s) or readings[-1][0] - (track.began or 0.0) >= BEGUN_S
    established = old and track.before is not None and track.before >= BEGUN * gauge.used
    interval = readings[-1][0] - readings[-2][0]
    left = (limit - gauge.used) / min(slopes[:3])
    if interval > SLOWEST_S:
        return None
    at_once = left <= AT_ONCE * interval and (interval <= RISE_S or len(slopes) >= 3)
    within = LATE_S if gauge.used >= LATE_USED * limit else RISE_S
    soon = left <= max(within, RISE_READINGS * interval) and len(slopes) >= 3
    enough = JUMP_USED if len(slopes) < 3 else AT_ONCE_USED if at_once else RISE_USED
    enough = enough if established else max(enough, START_USED)
    if not (at_once or soon) or gauge.used < enough * limit:
        return None
    ceiling = max(track.before or 0.0, track.highest_of_steps)
    if gauge.used < ceiling + NEW * limit:
        return None
    since = readings[-1][0] - readings[-1 - len(slopes)][0]
    return Alarm(
        "fast rise", gauge.pool, gauge.name, gauge.used, limit, since,
        f"{gauge.pool} ({gauge.name}) rose from {format_bytes(round(readings[-1 - len(slopes)][1]))} to "
        f"{format_bytes(gauge.used)} in {since:.0f} s and reaches {format_bytes(limit)} in {max(left, 0.0):.0f} s at "
        "its present slope",
        left_s=max(left, 0.0),
    )  # fmt: skip


def _apart(readings: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The last few readings that are some time apart, the last one among them.

    >>> _apart([(0.0, 1), (0.5, 2), (0.6, 3), (0.7, 4)])
    [(0.0, 1), (0.5, 2), (0.7, 4)]
    """
    kept: list[tuple[float, float]] = []
    for reading in reversed(readings):
        if not kept or kept[-1][0] - reading[0] >= CLOSEST_S - 1e-6:
            kept.append(reading)
        if len(kept) == FEW:
            break
    return kept[::-1]


def _rising(readings: Sequence[tuple[float, float]]) -> list[float]:
    """Slopes between the last readings while they rise and do not slow much, the last first."""
    slopes: list[float] = []
    for index in range(len(readings) - 1, 0, -1):
        (t0, before), (t1, after) = readings[index - 1], readings[index]
        if t1 <= t0 or after <= before:
            break
        slopes.append((after - before) / (t1 - t0))
    return slopes if len(slopes) < 2 or slopes[0] >= 0.5 * slopes[1] else []


def _one_reading(readings: Sequence[tuple[float, float]], slopes: Sequence[float]) -> bool:
    """Whether the rise is that of the last of many readings a second, which may be a wrong one: the next tells."""
    return readings[-1][0] - readings[-2][0] < OFTEN_S and slopes[0] > SUDDEN * slopes[1]


def _inside(gauge: Gauge, planned: int | None) -> bool:
    """Whether the plan's upper bound explains what is held, so that a peak is no alarm."""
    return planned is not None and gauge.limit is not None and gauge.used <= planned <= gauge.limit


def under_pressure(history: Sequence[tuple[float, float]], frame: Frame) -> Alarm | None:
    """All tasks wait for memory (PSI "full", per cent of 10 s) for long: reclaim no longer keeps up."""
    gauge = host_gauge(frame)
    held, readings = seconds_above(history, PRESSURE)
    if gauge is None or gauge.limit is None or readings < HELD_READINGS or held < PRESSURE_S:
        return None
    return Alarm(
        "memory pressure", gauge.pool, gauge.name, gauge.used, gauge.limit, held,
        f"all tasks waited for memory in {history[-1][1]:.0f} % of the time, over {PRESSURE:.0f} % for {held:.0f} s; "
        f"{gauge.pool} ({gauge.name}) holds {format_bytes(gauge.used)} of {format_bytes(gauge.limit)}",
        left_s=30.0,
    )  # fmt: skip


EVENTS = {
    "high": "the kernel slows the control group down at its `memory.high`",
    "oom": "an allocation of the control group failed at its limit",
    "oom_kill": "the kernel killed a process of the control group for memory",
}
"""Counters of a control group that say something when they rise, the mildest first. `max` is none: page cache alone
raises it."""

SLOWED_USED = 0.85
"""Share of the limit, without page cache, above which `high` events are more than the kernel dropping cache."""


def counted(before: Frame | None, frame: Frame) -> Alarm | None:
    """A counter of the control group that rose since the frame before; the gravest one."""
    gauge = host_gauge(frame)
    if before is None or gauge is None or gauge.limit is None:
        return None
    for name, meaning in reversed(EVENTS.items()):
        earlier, later = before.events.get(name), frame.events.get(name)
        if name == "high" and gauge.used < SLOWED_USED * gauge.limit:
            continue
        if earlier is not None and later is not None and later > earlier:
            return Alarm(
                f"{name} events", gauge.pool, gauge.name, gauge.used, gauge.limit, frame.t - before.t,
                f"{meaning} ({name} {earlier} -> {later}); {gauge.pool} ({gauge.name}) holds "
                f"{format_bytes(gauge.used)} of {format_bytes(gauge.limit)}",
                left_s=inf if name == "high" else 60.0,
            )  # fmt: skip
    return None


def host_gauge(frame: Frame) -> Gauge | None:
    """The gauge that the kernel's own signals are about: the control group's, else the node's."""
    for name in HOST_GAUGES:
        for gauge in frame.gauges:
            if gauge.name == name:
                return gauge
    return None


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
