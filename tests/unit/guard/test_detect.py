"""Each detector: what it is for, and the near miss."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from headway.guard import detect
from headway.guard.forecast import Forecast, Reach
from headway.guard.frame import Frame, Gauge
from headway.guard.series import Track
from headway.units import GIB

POOL = "node[0].host"
LIMIT = 100 * GIB


def gauge(used: float, *, limit: int | None = LIMIT, pool: str = POOL) -> Gauge:
    return Gauge(pool, "cgroup", round(used * GIB), limit)


def track_of(values: Sequence[float], *, dt: float = 1.0, steps_of: int | None = None) -> Track:
    """The track of readings in GiB, `dt` seconds apart, and so many of them a step."""
    track = Track()
    for index, value in enumerate(values):
        track.see(1e9 + dt * index, value * GIB, None if steps_of is None else index // steps_of, None)
    return track


FORECAST = Forecast(
    pool=POOL, gauge="cgroup", per_step=GIB, per_minute=6 * GIB, level=85 * GIB, limit=LIMIT,
    low=Reach(1e9 + 130, 73), expected=Reach(1e9 + 150, 75), high=Reach(1e9 + 180, 78), cautious=Reach(1e9 + 150, 75),
    at=1e9, at_step=60, phase="train", observed_s=600.0, by_step=True,
    from_start=False, from_nothing=False, confident=True,
)  # fmt: skip


class TestRunsOut:
    def test_value_threshold_and_duration_are_told(self) -> None:
        alarm = detect.runs_out(FORECAST, gauge(80))
        assert alarm is not None
        assert (alarm.value, alarm.threshold, alarm.seconds) == (80 * GIB, LIMIT, 600)
        assert alarm.left_s == 150
        assert alarm.left_steps == pytest.approx(15)
        assert alarm.grows
        assert alarm.reason == (
            "node[0].host (cgroup) grows 1.00 GiB a step in train, reaches 100.00 GiB at step 73-78; seen for 10 min"
        )

    @pytest.mark.parametrize(
        "changes",
        [
            {"confident": False},
            {"cautious": None},
            {"observed_s": 150.0},
            {"level": 70 * GIB},
            {"from_nothing": True, "observed_s": 1500.0},
            {"by_step": False, "from_start": True, "observed_s": 600.0},
            {"by_step": False, "level": 105 * GIB, "observed_s": 600.0},
        ],
        ids=["not sure", "ends below", "seen too short", "far from it", "a start", "may be a start", "in a trough"],
    )
    def test_near_misses(self, changes: dict[str, object]) -> None:
        assert detect.runs_out(replace(FORECAST, **changes), gauge(80)) is None

    def test_a_few_steps_are_near_at_any_room(self) -> None:
        soon = replace(FORECAST, level=70 * GIB, cautious=Reach(1e9 + 25, 62), observed_s=100.0)
        assert detect.runs_out(soon, gauge(70)) is not None

    def test_close_to_the_limit_it_looks_farther(self) -> None:
        near = replace(FORECAST, level=96 * GIB, observed_s=210.0)
        assert detect.runs_out(near, gauge(96)) is not None
        assert detect.runs_out(replace(near, level=85 * GIB), gauge(85)) is None

    def test_unified_memory_alarms_with_more_room(self) -> None:
        early = replace(FORECAST, pool="node[0].unified", level=80 * GIB, observed_s=600.0)
        assert detect.runs_out(early, gauge(80, pool="node[0].unified")) is not None
        assert detect.runs_out(replace(early, pool=POOL), gauge(80)) is None

    def test_no_alarm_without_a_limit(self) -> None:
        assert detect.runs_out(FORECAST, gauge(99, limit=None)) is None


class TestNearLimit:
    def test_a_gauge_that_stays_in_its_margin(self) -> None:
        alarm = detect.near_limit(track_of([98] * 20 + [99.5] * 6), gauge(99.5))
        assert alarm is not None
        assert alarm.seconds == 5
        assert alarm.threshold == 99 * GIB
        assert alarm.left_s == 0

    @pytest.mark.parametrize(
        ("values", "used"), [([98] * 30, 98), ([98] * 20 + [99.5] * 5, 99.5), ([99.5] * 20 + [98], 98)]
    )
    def test_near_misses(self, values: list[float], used: float) -> None:
        assert detect.near_limit(track_of(values), gauge(used)) is None

    def test_the_margin_grows_with_how_much_the_peaks_move(self) -> None:
        still = track_of([90] * 100, steps_of=5)
        moving = track_of([90 + 2 * ((index // 5) % 2) for index in range(100)], steps_of=5)
        assert detect.margin_of(still, gauge(90)) == GIB
        assert 2 * GIB < detect.margin_of(moving, gauge(90)) <= 5 * GIB

    def test_unified_memory_keeps_more_free(self) -> None:
        pool = "node[0].unified"
        assert detect.margin_of(track_of([90] * 9), gauge(90, pool=pool)) == 4 * GIB
        assert detect.near_limit(track_of([97] * 9), gauge(97, pool=pool)) is not None

    def test_inside_the_plan_it_is_none(self) -> None:
        track = track_of([99.5] * 20)
        assert detect.near_limit(track, gauge(99.5), planned=round(99.8 * GIB)) is None
        assert detect.near_limit(track, gauge(99.5), planned=90 * GIB) is not None
        assert detect.near_limit(track, gauge(99.5), planned=101 * GIB) is not None

    def test_no_alarm_without_a_limit(self) -> None:
        assert detect.near_limit(track_of([99.5] * 20), gauge(99.5, limit=None)) is None
        assert detect.margin_of(track_of([1]), gauge(1, limit=None)) == 0


class TestRisesFast:
    before = [50.0, 50.4] * 60

    def test_a_burst(self) -> None:
        alarm = detect.rises_fast(track_of([*self.before, 60, 70, 80, 90]), gauge(90))
        assert alarm is not None
        assert alarm.left_s == pytest.approx(1)
        assert alarm.seconds == pytest.approx(5)
        assert "reaches 100.00 GiB in 1 s" in alarm.reason

    def test_a_burst_in_pieces_that_frames_in_quick_order_see_now_and_then(self) -> None:
        track = track_of(self.before)
        for index in range(18):
            track.see(track.recent[-1][0] + 0.1, (60 + 4 * (index // 2)) * GIB, None, None)
        alarm = detect.rises_fast(track, gauge(92))
        assert alarm is not None
        assert alarm.left_s == pytest.approx(0.4)

    @pytest.mark.parametrize(
        "values",
        [
            [*before, 60, 70, 80],
            [*before, 75, 90],
            [*before, 89, 90, 91],
            [*before, 60, 80, 91, 92],
            [*before, 60, 70, 80, 90, 89],
            [10, 30, 50, 70, 90],
            [*before, 95, *before, 60, 70, 80, 90],
        ],
        ids=["far", "a jump", "slow", "slows down", "over", "the first rise of a run", "was there before"],
    )
    def test_near_misses(self, values: list[float]) -> None:
        assert detect.rises_fast(track_of(values), gauge(values[-1])) is None

    def test_inside_the_plan_it_is_none(self) -> None:
        track = track_of([*self.before, 60, 70, 80, 90])
        assert detect.rises_fast(track, gauge(90), planned=95 * GIB) is None

    def test_readings_far_apart_show_none(self) -> None:
        assert detect.rises_fast(track_of([*self.before, 60, 70, 80, 90], dt=30), gauge(90)) is None

    def test_no_alarm_without_a_limit(self) -> None:
        assert detect.rises_fast(track_of([*self.before, 60, 70, 80, 90]), gauge(90, limit=None)) is None


class TestTheKernelsSignals:
    frame = Frame(1e9, (Gauge(POOL, "node", 40 * GIB, 120 * GIB), gauge(90)))

    def test_pressure_that_lasts(self) -> None:
        history = [(1e9 + second, 25.0) for second in range(11)]
        alarm = detect.under_pressure(history, self.frame)
        assert alarm is not None
        assert alarm.gauge == "cgroup"
        assert alarm.seconds == 10
        assert "25 % of the time" in alarm.reason

    def test_pressure_that_passes(self) -> None:
        assert detect.under_pressure([(1e9 + second, 25.0) for second in range(9)], self.frame) is None
        assert detect.under_pressure([(1e9 + second, 9.0) for second in range(60)], self.frame) is None
        assert detect.under_pressure([], self.frame) is None

    def test_pressure_without_a_limit_is_none(self) -> None:
        history = [(1e9 + second, 25.0) for second in range(11)]
        assert detect.under_pressure(history, Frame(1e9, (gauge(90, limit=None),))) is None
        assert detect.under_pressure(history, Frame(1e9, ())) is None

    def frames(self, used: float, before: dict[str, int], after: dict[str, int]) -> tuple[Frame, Frame]:
        return Frame(1e9, (gauge(used),), events=before), Frame(1e9 + 1, (gauge(used),), events=after)

    def test_a_kill_is_told_before_slowing(self) -> None:
        alarm = detect.counted(*self.frames(90, {"high": 1, "oom_kill": 0}, {"high": 5, "oom_kill": 1}))
        assert alarm is not None
        assert alarm.detector == "oom_kill events"
        assert "oom_kill 0 -> 1" in alarm.reason

    def test_slowing_counts_near_the_limit_only(self) -> None:
        assert detect.counted(*self.frames(90, {"high": 1}, {"high": 5})) is not None
        assert detect.counted(*self.frames(50, {"high": 1}, {"high": 5})) is None

    def test_counters_that_stand_or_are_new_say_nothing(self) -> None:
        assert detect.counted(*self.frames(90, {"oom_kill": 3}, {"oom_kill": 3})) is None
        assert detect.counted(*self.frames(90, {}, {"oom_kill": 3})) is None
        assert detect.counted(*self.frames(90, {"max": 3}, {"max": 9})) is None
        assert detect.counted(None, Frame(1e9, (gauge(90),), events={"oom_kill": 3})) is None
