"""The guard: which alarm leads to which action, under one of three named policies. It decides and does nothing."""

from collections import deque
from collections.abc import Iterable, Mapping
from math import inf
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from headway.errors import InputError
from headway.guard import detect
from headway.guard.detect import Alarm
from headway.guard.forecast import Forecast, Forecaster
from headway.guard.frame import Action, ActionName, Frame
from headway.units import format_bytes

ORDER: tuple[ActionName, ...] = ("warn", "free", "checkpoint", "shrink", "stop")
"""The mildest first."""


class Due(Struct, frozen=True):
    """How near the limit must be before an action is taken: in steps, or in seconds where steps do not count.

    Where steps are short, `least_s` seconds before it: it takes time to come to a safe point.
    """

    steps: float
    seconds: float
    least_s: float


DUE: Mapping[ActionName, Due] = MappingProxyType({
    "warn": Due(inf, inf, inf),
    "free": Due(inf, inf, inf),
    "checkpoint": Due(10, 180, 10),
    "shrink": Due(6, 120, 10),
    "stop": Due(3, 45, 5),
})  # fmt: skip


class Policy(Struct, frozen=True):
    """What a guard may do. `caution` multiplies each distance of `DUE`. `shrink_growth`: it shrinks also where memory
    grows from step to step, which a smaller batch only delays."""

    name: str
    actions: frozenset[ActionName]
    caution: float = 1.0
    shrink_growth: bool = False


POLICIES: Mapping[str, Policy] = MappingProxyType({
    policy.name: policy
    for policy in (
        Policy("observe", frozenset({"warn"})),
        Policy("protect", frozenset(ORDER)),
        Policy("strict", frozenset(ORDER), caution=2.0, shrink_growth=True),
    )
})  # fmt: skip

COOLDOWN_S, SHORTEST_S = 30.0, 1.0
"""Seconds that an action has to help before a stronger one, or one step where that is longer; and at least."""

PART, MOST = 0.2, 0.5
"""The cooldown is never a larger part of the time that is left, and where that would be under a second, it is this
part of it."""

HELPED = 1.5
"""An action has helped where the time left has grown by this factor."""

EMERGENCY_S = 10.0
"""With less time than this every action that is due comes at once, a stop excepted."""

LAST_S = 3.0
"""With less time than this before growth reaches a limit all that is due comes at once, a stop too."""

CALM_S, CALM_STEPS, LONGEST_CALM_S = 60.0, 3, 36000.0
"""An alarm is over when it has not been seen for so long, for so many steps, and for a part (PART) of the time that
was left then, or of the last of these where that is less."""

AGAIN = 0.5
"""A warning is repeated where the time left has fallen to this part of what it was."""


class _Incident:
    """What was done about one pool since its alarm began."""

    def __init__(self) -> None:
        self.done: set[ActionName] = set()
        self.acted = -inf
        self.left_then = inf
        self.warned = -inf
        self.left_warned = inf
        self.seen = -inf


class Guard:
    """Sees frames in the order of time and says what to do; whoever runs it does the actions.

    `policy` is a name of `POLICIES`. `dry`: actions are decided and marked as not to be done. `planned`: the upper
    bound of the plan by pool, in bytes; what stays inside it and below the limit is no alarm unless it grows from
    step to step. Raises InputError for an unknown policy.

    >>> Guard("observe").policy.actions
    frozenset({'warn'})
    """

    def __init__(self, policy: str, dry: bool = False, planned: Mapping[str, int] | None = None) -> None:
        if policy not in POLICIES:
            raise InputError(f"guard policy {policy!r}: must be one of {', '.join(POLICIES)}")
        self.policy, self.dry, self.planned = POLICIES[policy], dry, dict(planned or {})
        self._forecaster = Forecaster()
        self._incidents: dict[str, _Incident] = {}
        self._pressure: deque[tuple[float, float]] = deque(maxlen=64)
        self._last: Frame | None = None

    @property
    def forecasts(self) -> tuple[Forecast, ...]:
        """The gauges that grow, those without a confident forecast included."""
        return self._forecaster.forecasts

    @property
    def processes(self) -> tuple[Forecast, ...]:
        """The processes that grow, the fastest first."""
        return self._forecaster.processes

    def see(self, frame: Frame) -> tuple[Action, ...]:
        """Take the next frame; the actions that are due now, the mildest first."""
        self._forecaster.see(frame)
        if "full" in frame.pressure:
            self._pressure.append((frame.t, frame.pressure["full"]))
        alarms = _nearest(self._alarms(frame))
        self._last = frame
        self._end_calm(frame.t)
        return tuple(action for alarm in alarms for action in self._answer(alarm, frame))

    def _alarms(self, frame: Frame) -> Iterable[Alarm]:
        for gauge in frame.gauges:
            if not gauge.limit or gauge.limit <= 0:
                continue
            follower, planned = self._forecaster.of(gauge), self.planned.get(gauge.pool)
            forecast, track = follower.found, follower.track
            yield from filter(None, (
                None if forecast is None else detect.runs_out(forecast, gauge),
                detect.near_limit(track, gauge, planned),
                _growing(detect.rises_fast(track, gauge, planned), forecast),
                None if follower.rise is None else detect.rises_steadily(follower.rise, track, gauge, planned),
            ))  # fmt: skip
        yield from filter(None, (detect.under_pressure(self._pressure, frame), detect.counted(self._last, frame)))

    def _answer(self, alarm: Alarm, frame: Frame) -> list[Action]:
        incident = self._incidents.setdefault(alarm.pool, _Incident())
        incident.seen = frame.t
        names = self._due(alarm, incident, frame.t)
        if not names and self._warns_again(alarm, incident, frame.t):
            names = ["warn"]
        elif names:
            incident.acted, incident.left_then = frame.t, alarm.left_s
        incident.done.update(names)
        if "warn" in names:
            incident.warned, incident.left_warned = frame.t, alarm.left_s
        return [self._action(name, alarm, frame) for name in names]

    def _due(self, alarm: Alarm, incident: _Incident, t: float) -> list[ActionName]:
        """The next stronger action that is due, all but a stop where only seconds are left; nothing after a stop."""
        if "stop" in incident.done:
            return []
        tried = max((ORDER.index(name) for name in incident.done), default=-1)
        open_ = [name for name in ORDER[tried + 1 :] if self._allows(name, alarm)]
        if not incident.done:
            return open_[: self._at_once(open_, alarm)]
        waited, wait = t - incident.acted, self._cooldown(alarm)
        if waited < wait:
            return []
        if alarm.left_s > HELPED * incident.left_then:
            return []
        return open_[: self._at_once(open_, alarm)]

    def _warns_again(self, alarm: Alarm, incident: _Incident, t: float) -> bool:
        nearer = 0 < alarm.left_s <= AGAIN * incident.left_warned
        return nearer and t - incident.warned >= COOLDOWN_S and "stop" not in incident.done

    def _at_once(self, open_: list[ActionName], alarm: Alarm) -> int:
        if alarm.grows and alarm.left_s < LAST_S:
            return max(1, len(open_))
        if alarm.left_s >= EMERGENCY_S or alarm.grows:
            return 1
        return max(1, sum(name != "stop" for name in open_))

    def _allows(self, name: ActionName, alarm: Alarm) -> bool:
        if name not in self.policy.actions:
            return False
        if name == "shrink" and alarm.grows and not self.policy.shrink_growth:
            return False
        due, caution = DUE[name], self.policy.caution
        if alarm.left_steps is not None:
            return alarm.left_steps <= due.steps * caution or alarm.left_s <= due.least_s * caution
        return alarm.left_s <= due.seconds * caution

    def _cooldown(self, alarm: Alarm) -> float:
        step = alarm.left_s / alarm.left_steps if alarm.left_steps else 0.0
        return max(min(SHORTEST_S, MOST * alarm.left_s), min(max(COOLDOWN_S, step), PART * alarm.left_s))

    def _end_calm(self, t: float) -> None:
        for pool, incident in list(self._incidents.items()):
            steps_s = CALM_STEPS * self._forecaster.step_of(pool)
            if t - incident.seen > max(CALM_S, steps_s, PART * min(incident.left_warned, LONGEST_CALM_S)):
                del self._incidents[pool]

    def _action(self, name: ActionName, alarm: Alarm, frame: Frame) -> Action:
        reason = alarm.reason
        if alarm.grows and self.processes:
            fastest = self.processes[0]
            reason += f"; {fastest.pool} grows {format_bytes(fastest.per_minute)} a minute"
        return Action(
            t=frame.t, name=name, detector=alarm.detector, pool=alarm.pool, gauge=alarm.gauge, value=alarm.value,
            threshold=alarm.threshold, seconds=alarm.seconds, reason=reason, dry=self.dry, step=frame.step,
        )  # fmt: skip


def _growing(alarm: Alarm | None, forecast: Forecast | None) -> Alarm | None:
    """A fast rise as it is, or as a part of the growth from step to step where that is known."""
    if alarm is None or forecast is None or not forecast.confident or not forecast.by_step:
        return alarm
    return replace(alarm, grows=True)


def _nearest(alarms: Iterable[Alarm]) -> list[Alarm]:
    """One alarm for each pool: the one with the least time left."""
    nearest: dict[str, Alarm] = {}
    for alarm in alarms:
        if alarm.pool not in nearest or alarm.left_s < nearest[alarm.pool].left_s:
            nearest[alarm.pool] = alarm
    return list(nearest.values())
