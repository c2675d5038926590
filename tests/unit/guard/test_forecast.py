"""Trends and forecasts: growth is found early and right, and what is no growth has none."""

import random
from collections.abc import Callable, Iterator
from math import inf

import pytest

from headway.guard.forecast import KEPT, Forecast, Forecaster
from headway.guard.frame import Frame, Gauge, ProcessUse
from headway.guard.series import POINTS, Levels, Peak, Track
from headway.guard.trend import Trend, local_noise, rises, slope_of
from headway.units import GIB, MIB

POOL = "node[0].host"
STEP_S = 20
PHASES = (("rollout", 8, 0), ("train", 8, 150 * MIB), ("step", 4, 60 * MIB))
"""Name, seconds and what is held beyond the base."""


def run(
    leak: Callable[[int, str], float], steps: int, *, noise: float = 0, seed: int = 0, limit: int | None = 2 * GIB
) -> Iterator[Frame]:
    """Frames of a run, one a second, that holds 500 MiB, what its phases need, and what leaks (bytes)."""
    rng = random.Random(seed)
    for step in range(steps):
        within = 0
        for name, seconds, held in PHASES:
            shift = rng.gauss(0, noise)
            for second in range(seconds):
                used = (
                    500 * MIB + min(1.0, (second + 1) / 3) * (held + shift) + leak(step, name) + rng.gauss(0, noise)
                )
                t = 1e9 + step * STEP_S + within + second
                yield Frame(t, (Gauge(POOL, "cgroup", round(used), limit),), phase=name, step=step)
            within += seconds


def forecasts(frames: Iterator[Frame]) -> list[Forecast]:
    """The confident forecasts, each time one was made."""
    forecaster, found = Forecaster(), []
    for frame in frames:
        forecaster.see(frame)
        found += [one for one in forecaster.forecasts if one.confident and one.at == frame.t]
    return found


@pytest.mark.parametrize("seed", range(10))
def test_a_leak_of_20_mb_a_step_is_forecast_within_15_percent_at_a_third_of_the_way(seed: int) -> None:
    leak = 20_000_000
    limit = round(500 * MIB + 150 * MIB + 72 * leak)
    found = forecasts(run(lambda step, _: step * leak, 25, noise=4 * MIB, seed=seed, limit=limit))
    last = found[-1]
    assert last.at_step == 24
    assert last.expected is not None
    assert last.expected.step == pytest.approx(72, rel=0.15)
    assert last.low is not None
    assert last.high is not None
    assert last.low.step <= last.expected.step <= last.high.step
    assert last.per_step == pytest.approx(leak, rel=0.15)
    assert last.per_minute == pytest.approx(3 * leak, rel=0.15)
    assert last.expected.t == pytest.approx(1e9 + 72 * STEP_S, abs=0.15 * 72 * STEP_S)


def test_what_a_forecast_says() -> None:
    found = forecasts(run(lambda step, _: step * 20 * MIB, 20, limit=2 * GIB))
    assert found[-1].sentence == f"{POOL} (cgroup) grows 20.0 MiB a step in train, reaches 2.00 GiB at step 64-76"


def test_the_phase_that_leaks_is_named() -> None:
    found = forecasts(run(lambda step, phase: (phase == "step") * step * 20 * MIB, 20))
    assert {one.phase for one in found} == {"step"}
    assert found[-1].per_step == pytest.approx(20 * MIB, rel=0.01)
    assert found[-1].expected is not None
    assert found[-1].expected.step == pytest.approx((2048 - 560) / 20, abs=1.5)


@pytest.mark.parametrize(
    "leak",
    [
        lambda step, phase: 0.0,
        lambda step, phase: 400.0 * MIB * (step >= 17),
        lambda step, phase: 300.0 * MIB * (step >= 9) + 200.0 * MIB * (step >= 21),
        lambda step, phase: 500.0 * MIB * (step % 5 == 4 and phase == "step"),
        lambda step, phase: 900.0 * MIB * (step == 23 and phase == "train"),
    ],
    ids=["flat", "one save", "two changes of level", "every fifth step", "one long sample"],
)
@pytest.mark.parametrize("noise", [0, 5 * MIB, 40 * MIB])
def test_what_does_not_grow_has_no_forecast(leak: Callable[[int, str], float], noise: float) -> None:
    assert not forecasts(run(leak, 40, noise=noise, seed=1))


def test_growth_that_ends_has_no_forecast_any_more() -> None:
    found = forecasts(run(lambda step, _: min(step, 20) * 30.0 * MIB, 60, noise=2 * MIB))
    assert found
    assert found[-1].at_step is not None
    assert found[-1].at_step < 34


def test_growth_that_slows_enough_to_stay_below_the_limit_reaches_nothing() -> None:
    forecaster = Forecaster()
    for frame in run(lambda step, _: 900.0 * MIB * (1 - 0.9**step), 14, noise=MIB):
        forecaster.see(frame)
    (found,) = forecaster.forecasts
    assert found.per_step is not None
    assert found.per_step > 20 * MIB
    assert found.cautious is None
    assert not found.confident


def test_growth_that_speeds_up_is_forecast_earlier_than_its_mean_slope_says() -> None:
    found = forecasts(run(lambda step, _: 1400.0 * MIB * (step / 60) ** 3, 50, noise=MIB))
    assert found[-1].expected is not None
    assert found[-1].expected.step == pytest.approx(60, abs=4)


def test_time_alone_is_enough() -> None:
    """No step and no phase is told: 1 MiB a second, reached after 1548 s."""
    frames = (Frame(1e9 + t, (Gauge(POOL, "cgroup", (500 + t) * MIB, 2 * GIB),)) for t in range(600))
    found = forecasts(frames)
    assert found[-1].per_step is None
    assert found[-1].per_minute == pytest.approx(60 * MIB, rel=0.01)
    assert found[-1].expected is not None
    assert found[-1].expected.t == pytest.approx(1e9 + 1548, abs=60)
    assert found[-1].expected.step is None
    assert found[0].at < 1e9 + 120


def test_a_step_that_stands_still_is_forecast_by_time() -> None:
    frames = list(run(lambda *_: 0.0, 5))
    last = frames[-1]
    frames += [
        Frame(last.t + t, (Gauge(POOL, "cgroup", (650 + 2 * t) * MIB, 2 * GIB),), phase="step", step=4)
        for t in range(1, 400)
    ]
    found = forecasts(iter(frames))
    assert not found[-1].by_step
    assert found[-1].expected is not None
    assert found[-1].expected.t == pytest.approx(last.t + 699, abs=30)


def test_a_forecast_follows_the_limit() -> None:
    forecaster = Forecaster()
    frames = list(run(lambda step, _: step * 20.0 * MIB, 20))
    for frame in frames:
        forecaster.see(frame)
    first = forecaster.forecasts[0]
    last = frames[-1]
    forecaster.see(
        Frame(last.t + 1, (Gauge(POOL, "cgroup", last.gauges[0].used, 1536 * MIB),), phase="step", step=19)
    )
    second = forecaster.forecasts[0]
    assert first.expected is not None
    assert second.expected is not None
    assert first.expected.step is not None
    assert second.expected.step == pytest.approx(first.expected.step - 512 / 20, abs=1)


def test_without_a_limit_growth_is_told_and_no_end() -> None:
    forecaster = Forecaster()
    for frame in run(lambda step, _: step * 20.0 * MIB, 20, limit=None):
        forecaster.see(frame)
    (found,) = forecaster.forecasts
    assert found.per_step == pytest.approx(20 * MIB, rel=0.01)
    assert found.low is found.expected is found.high is None
    assert found.sentence.startswith(f"{POOL} (cgroup) grows 20.0 MiB a step in ")
    assert "reaches" not in found.sentence


def test_a_run_that_starts_again_is_a_new_run() -> None:
    first = list(run(lambda step, _: step * 20.0 * MIB, 20))
    shifted = [
        Frame(frame.t + 400, frame.gauges, phase=frame.phase, step=frame.step) for frame in run(lambda *_: 0.0, 12)
    ]
    found = forecasts(iter(first + shifted))
    assert max(one.at for one in found) < first[-1].t + 1


def test_processes_that_grow_are_told_the_fastest_first() -> None:
    forecaster = Forecaster()
    for step in range(12):
        for second in range(5):
            processes = (
                ProcessUse(7, 1, "ray::Trainer", rss=(900 + 10 * step) * MIB),
                ProcessUse(8, 1, "python", rss=(500 + 30 * step) * MIB, role="reward"),
                ProcessUse(9, 1, "raylet", rss=100 * MIB),
            )
            forecaster.see(Frame(1e9 + 5 * step + second, (), processes, "train", step))
    assert [(one.pool, one.per_step) for one in forecaster.processes] == [
        ("reward [8]", 30 * MIB),
        ("ray::Trainer [7]", 10 * MIB),
    ]


def test_memory_of_the_forecaster_is_bounded() -> None:
    forecaster = Forecaster()
    for index in range(3000):
        process = ProcessUse(index, 1, "short-lived", rss=GIB)
        forecaster.see(
            Frame(1e9 + index, (Gauge(POOL, "cgroup", GIB, 2 * GIB),), (process,), f"phase {index}", index)
        )
    assert len(forecaster._processes) <= KEPT
    assert len(forecaster.of(Gauge(POOL, "cgroup", 0, None)).track.cycles) <= 17


class TestTheParts:
    def test_levels_keep_little_and_reach_far(self) -> None:
        levels = Levels("highest")
        for x in range(100_000):
            levels.add(Peak(x, x, x % 7))
        assert all(len(level) <= POINTS for level in levels.levels)
        assert levels.levels[-1][0].x < 50_000
        assert {peak.value for peak in levels.levels[-1]} == {6}

    def test_a_track_closes_a_step_when_the_next_begins(self) -> None:
        track = Track()
        for t, value, step, phase in [(0, 5, 0, "train"), (1, 9, 0, "train"), (2, 4, 0, "save"), (3, 6, 0, "train")]:
            assert track.see(t, value, step, phase)[0] is False
        assert track.see(10, 1, 1, "train")[0] is True
        assert {phase: [peak.value for peak in levels.latest] for phase, levels in track.cycles.items()} == {
            "train": [9],
            "save": [4],
        }
        assert track.second_per_step == 10

    def test_loading_is_no_growth(self) -> None:
        track = Track()
        for t in range(0, 100, 5):
            track.see(t, t, None, "load")
        assert not track.times.latest

    def test_slope_is_not_moved_by_outliers(self) -> None:
        peaks = [Peak(x, x, 10.0 * x + (500 if x % 4 == 0 else 0)) for x in range(24)]
        assert slope_of(peaks) == pytest.approx(10, rel=0.1)
        assert slope_of([]) == 0

    def test_noise_knows_no_trend(self) -> None:
        rng = random.Random(3)
        assert local_noise([5.0 * x + rng.gauss(0, 2) for x in range(400)]) == pytest.approx(2, rel=0.2)

    def test_rises(self) -> None:
        stairs = [Peak(x, x, 10.0 * (x // 4)) for x in range(32)]
        assert rises(stairs, 1)
        assert not rises(stairs, 1000)
        assert not rises([Peak(x, x, 10.0 * (x > 10) + 10.0 * (x > 20)) for x in range(32)], 1)

    @pytest.mark.parametrize(
        ("bend", "room", "expected"),
        [(1.0, 100.0, 10.0), (0.5, 1000.0, inf), (1.0, -5.0, 0.0)],
    )
    def test_reaches(self, bend: float, room: float, expected: float) -> None:
        trend = Trend(
            slope=10, level=0, at=0, noise=0, error=0, span=20, since=0, bend=1, bend_error=0
        )  # fmt: skip
        assert trend.reaches(room, trend.at, bend=bend) == expected

    def test_a_bend_moves_the_end(self) -> None:
        trend = Trend(slope=10, level=0, at=0, noise=0, error=1, span=20, since=0, bend=1, bend_error=0)
        assert trend.reaches(50, 0, bend=0.8) > trend.reaches(50, 0) == 5 > trend.reaches(50, 0, bend=1.5)
        assert trend.reaches(50, 0, errors=2) < 5 < trend.reaches(50, 0, errors=-2)
        assert trend.reaches(50, 0, errors=-10) == inf
        assert trend.reaches(50, 3) == 2

    def test_growth_that_comes_now_and_then_reaches_the_limit_when_it_comes(self) -> None:
        trend = Trend(
            slope=10, level=0, at=20, noise=0, error=0, span=20, since=0, bend=1, bend_error=0, every=8, last=18
        )  # fmt: skip
        assert trend.reaches(50, 20) == 6
        assert trend.reaches(90, 20) == 14
        assert trend.reaches(50, 27) == 7, "what was due at 26 did not come"
        assert (trend.times(50, 6, 20), trend.times(90, 14, 20)) == (1, 2)
