"""The guard as a whole: which actions come when, and that made-up runs are judged right."""

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import process_time

import pytest

from guard_series import HEALTHY, SICK, make
from guard_traces import main, read, replay
from headway.errors import InputError
from headway.guard.frame import Action, Frame, Gauge, ProcessUse
from headway.guard.policies import DUE, ORDER, POLICIES, Guard
from headway.units import GIB, MIB

ROOT = Path(__file__).parents[3]
SERIES = ROOT / "tests" / "data" / "guard"
TRUTH = json.loads((SERIES / "truth.json").read_text())
POOL = "node[0].host"
STEP_S = 30


def frames(steps: int, leak: int, *, limit: int | None = 2 * GIB, helped_at: int | None = None):
    """Frames, one a second, of a run that leaks so many bytes a step, up to the step at which something helped."""
    for step in range(steps):
        grown = (step if helped_at is None else min(step, helped_at)) * leak
        if helped_at is not None and step >= helped_at:
            grown //= 2
        for second in range(STEP_S):
            used = 600 * MIB + (second >= STEP_S // 2) * 200 * MIB + grown
            phase = "train" if second >= STEP_S // 2 else "rollout"
            yield Frame(1e9 + step * STEP_S + second, (Gauge(POOL, "cgroup", used, limit),), (), phase, step)


def see(guard: Guard, moments) -> list[Action]:
    return [action for frame in moments for action in guard.see(frame)]


class TestActions:
    leak = 20 * MIB
    full_step = (2048 - 800) / 20

    def test_protect_goes_through_its_actions_in_order_and_stops_before_the_limit(self) -> None:
        actions = see(Guard("protect"), frames(70, self.leak))
        first = {name: next((a for a in actions if a.name == name), None) for name in ORDER}
        assert [a.name for a in actions if a.name != "warn"] == ["free", "checkpoint", "stop"]
        assert first["shrink"] is None, "less in flight does not end a leak"
        times = [first[name].t for name in ("warn", "free", "checkpoint", "stop")]
        assert times == sorted(times)
        assert first["warn"].step == pytest.approx(0.75 * self.full_step, abs=6)
        assert self.full_step - 11 <= first["checkpoint"].step < self.full_step - 6
        assert self.full_step - 4 <= first["stop"].step < self.full_step - 2
        assert actions[-1].name == "stop"
        assert not any(action.dry for action in actions)

    def test_every_action_has_value_threshold_duration_and_reason(self) -> None:
        for action in see(Guard("protect"), frames(70, self.leak)):
            assert 0 < action.value < action.threshold == 2 * GIB
            assert action.seconds > 300
            assert "grows 20.0 MiB a step in train, reaches 2.00 GiB at step 6" in action.reason
            assert action.detector == "forecast"
            assert (action.pool, action.gauge) == (POOL, "cgroup")

    def test_observe_only_warns(self) -> None:
        actions = see(Guard("observe"), frames(62, self.leak))
        assert {action.name for action in actions} == {"warn"}
        assert 1 <= len(actions) <= 6

    def test_strict_shrinks_and_stops_earlier(self) -> None:
        actions = see(Guard("strict"), frames(70, self.leak))
        assert [a.name for a in actions if a.name != "warn"] == ["free", "checkpoint", "shrink", "stop"]
        protect = see(Guard("protect"), frames(70, self.leak))
        stops = [next(a.step for a in found if a.name == "stop") for found in (actions, protect)]
        assert stops[0] < stops[1] - 1

    def test_an_action_that_helps_is_the_last(self) -> None:
        warned = see(Guard("protect"), frames(70, self.leak))[0].step
        actions = see(Guard("protect"), frames(80, self.leak, helped_at=warned + 2))
        assert [action.name for action in actions] == ["warn", "free"]

    def test_a_new_alarm_after_a_calm_time_begins_with_a_warning(self) -> None:
        guard = Guard("protect")
        burst = [50.0, 50.2] * 70 + [60, 70, 80, 90] + [50.0, 50.2] * 60 + [62, 74, 86, 98]
        names = []
        for second, value in enumerate(burst):
            frame = Frame(1e9 + second, (Gauge(POOL, "cgroup", round(value * GIB), 100 * GIB),))
            names.append([action.name for action in guard.see(frame)])
        alarmed = [(second, found) for second, found in enumerate(names) if found]
        assert alarmed[0] == (143, ["warn", "free", "checkpoint", "shrink"])
        assert alarmed[1][1][0] == "warn"
        assert alarmed[1][0] > 260

    def test_between_two_actions_there_is_a_cooldown(self) -> None:
        actions = see(Guard("protect"), frames(70, self.leak))
        waits = [later.t - earlier.t for earlier, later in pairwise(actions)]
        assert min(waits) >= 12
        assert waits[0] >= STEP_S

    def test_with_less_than_a_second_left_the_stop_comes_before_half_of_that_has_gone(self) -> None:
        used = [50.0 + index % 2 for index in range(130)] + [50.0 + 5 * index for index in range(1, 10)]
        times = [1e9 + index for index in range(130)] + [1e9 + 129 + 0.25 * index for index in range(1, 10)]
        actions = see(
            Guard("strict"),
            (Frame(t, (Gauge(POOL, "cgroup", round(u * GIB), 100 * GIB),)) for t, u in zip(times, used, strict=True)),
        )
        assert "stop" in [action.name for action in actions]

    def test_dry_actions_are_marked(self) -> None:
        actions = see(Guard("protect", dry=True), frames(70, self.leak))
        assert actions
        assert all(action.dry for action in actions)

    def test_without_a_limit_nothing_is_done(self) -> None:
        assert not see(Guard("strict"), frames(70, self.leak, limit=None))
        assert not see(Guard("strict"), frames(70, self.leak, limit=0))

    def test_the_process_that_grows_is_named(self) -> None:
        guard = Guard("protect")
        actions = []
        for frame in frames(70, self.leak):
            process = ProcessUse(42, 7, "ray::Reward", rss=frame.gauges[0].used // 2)
            actions += guard.see(Frame(frame.t, frame.gauges, (process,), frame.phase, frame.step))
        assert "ray::Reward [42] grows" in actions[0].reason

    def test_several_gauges_of_one_pool_are_one_alarm(self) -> None:
        single = see(Guard("protect"), frames(70, self.leak))
        doubled = (
            Frame(f.t, (Gauge(POOL, "node", f.gauges[0].used, 3 * GIB), *f.gauges), (), f.phase, f.step)
            for f in frames(70, self.leak)
        )
        assert [(a.t, a.name, a.gauge) for a in see(Guard("protect"), doubled)] == [
            (a.t, a.name, "cgroup") for a in single
        ]

    def test_a_peak_inside_the_plan_is_no_alarm(self) -> None:
        moments = [
            Frame(1e9 + second, (Gauge(POOL, "cgroup", round(value * GIB), 100 * GIB),))
            for second, value in enumerate([50.0, 50.2] * 20 + [60, 70, 80, 90, 97] + [97.5] * 30)
        ]
        assert see(Guard("protect"), moments)
        assert not see(Guard("protect", planned={POOL: 98 * GIB}), moments)

    def test_an_unknown_policy_is_refused(self) -> None:
        with pytest.raises(InputError, match="'brave': must be one of observe, protect, strict"):
            Guard("brave")

    def test_the_table_of_policies(self) -> None:
        assert set(POLICIES) == {"observe", "protect", "strict"}
        assert list(DUE) == list(ORDER)
        steps = [due.steps for due in DUE.values()]
        assert steps == sorted(steps, reverse=True), "a stronger action is due later"


def steps_of(levels, *, peak=0.0, every=0, limit=2 * GIB):
    """Frames of a run whose steps hold these shares of the limit, and so much more in a save that comes so often."""
    for step, level in enumerate(levels):
        for second in range(STEP_S):
            saves = every and step % every == 0 and second >= STEP_S - 5
            phase = "save" if saves else "train" if second >= STEP_S // 2 else "rollout"
            used = level - 0.1 * (phase == "rollout") + peak * (phase == "save")
            yield Frame(
                1e9 + step * STEP_S + second, (Gauge(POOL, "cgroup", round(used * limit), limit),), (), phase, step
            )


class TestGrowthInJumps:
    def test_a_disk_that_keeps_the_last_checkpoints_is_full_enough_and_no_more(self) -> None:
        kept = [0.40 + 0.11 * min(step // 8, 4) for step in range(90)]
        assert see(Guard("protect"), steps_of(kept)) == []

    def test_jumps_that_go_on_are_stopped_before_the_one_that_is_too_much(self) -> None:
        actions = see(Guard("protect"), steps_of([min(0.40 + 0.11 * (step // 8), 1.0) for step in range(48)]))
        assert [each.name for each in actions if each.name != "warn"] == ["free", "checkpoint", "stop"]
        assert all(40 <= each.step < 48 for each in actions), "the next jump, at 48, is the one"

    def test_a_save_reaches_the_limit_when_one_comes(self) -> None:
        guard, found = Guard("observe"), []
        for frame in steps_of([0.51 + 0.004 * step for step in range(99)], peak=0.1, every=20):
            guard.see(frame)
            found += [each for each in guard.forecasts if each.at == frame.t and (frame.step or 0) > 60]
        assert found
        assert {each.expected.step for each in found if each.expected} == {100}
        assert {each.phase for each in found} == {"save"}


def ramp(highest):
    """Frames of eight steps of four minutes, and of a ninth in which the use rises, to this share of the limit."""
    for at in range(9 * 240):
        step, second = divmod(at, 240)
        share = 0.5 if step < 8 else min(0.42 + 0.58 * second / 240, highest)
        yield Frame(1e9 + at, (Gauge(POOL, "cgroup", round(share * 2 * GIB), 2 * GIB),), (), "train", step)


class TestRises:
    def test_a_ramp_of_minutes_within_a_step(self) -> None:
        first = see(Guard("protect"), ramp(1.0))[0]
        assert first.detector == "steady rise"
        assert "; no step before held more than 1.00 GiB" in first.reason
        assert 10 < 1e9 + 8 * 240 + 240 - first.t < 60

    def test_one_that_ends_at_90_percent_is_none(self) -> None:
        assert see(Guard("protect"), ramp(0.9)) == []

    def test_one_wrong_reading_of_many_a_second_is_none(self) -> None:
        used = [0.5 + 0.001 * at for at in range(300)]
        used[200] = 0.999
        moments = [
            Frame(1e9 + at / 5, (Gauge(POOL, "cgroup", round(share * 2 * GIB), 2 * GIB),))
            for at, share in enumerate(used)
        ]
        assert see(Guard("protect"), moments) == []

    def test_of_steps_that_are_shorter_than_a_reading_no_phase_is_seldom(self) -> None:
        """Each reading is two steps after the last: growth that is seen in every one is even."""
        guard = Guard("strict")
        for index in range(60):
            gauge = Gauge("node[0].host", "cgroup", (220 + index) << 20, 320 << 20)
            guard.see(Frame(1000.0 + 0.1 * index, (gauge,), step=2 * index))
        (found,) = guard.forecasts
        assert (found.by_step, found.times) == (True, None)

    def test_a_slow_leak_is_stopped_though_no_phase_stays_near_the_limit_for_long(self) -> None:
        actions = see(Guard("protect"), steps_of([0.97 + 0.00002 * step for step in range(1500)], peak=0.0))
        assert actions[-1].name == "stop"


class TestSeries:
    @pytest.mark.parametrize("name", sorted(TRUTH))
    def test_stored_series(self, name: str) -> None:
        found, planned = read(SERIES / name)
        actions, _ = replay(found, planned=planned)
        begins, full = TRUTH[name]["sick_from"], TRUTH[name]["full_at"]
        if begins is None:
            assert not actions
        else:
            assert begins < actions[0].t < full

    def test_the_stored_series_are_what_the_generator_makes(self) -> None:
        for kind in HEALTHY[:3] + SICK[:3]:
            assert make(kind, 5).rows == make(kind, 5).rows
        stored = {path.stem.partition("_")[2] for path in SERIES.glob("*.csv")}
        assert stored == {kind.__name__ for kind in HEALTHY + SICK} | {"linear_leak_beside_sawtooth"}

    def test_the_benchmark_prints_alarms_and_forecasts(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main([str(SERIES / "sick_linear_leak.csv"), "--json"]) == 0
        printed = json.loads(capsys.readouterr().out)
        (file,) = printed["files"]
        assert printed["summary"]["with_alarms"] == ["sick_linear_leak.csv"]
        assert set(file["alarms"][0]) >= {"t", "step", "pool", "action", "reason"}
        assert set(file["forecasts"][0]["reaches"]) == {"low", "expected", "high"}
        full = TRUTH["sick_linear_leak.csv"]["full_at"]
        assert file["forecasts"][-1]["reaches"]["expected"]["t"] == pytest.approx(full, rel=0.1)
        assert main([str(SERIES / "healthy_sawtooth.csv")]) == 0
        assert "1 files, 0 with alarms, policy protect" in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("a,b\n1,2\n", "has no column t, step, phase, pool, used, limit"),
            ("t,step,phase,pool,used,limit\n1,2,train,node[0].host,many,9\n", "line 2"),
            ("t,step,phase,pool,used,limit\n1,2\n", "line 2"),
            ("t,step,phase,pool,used,limit\n,,,,,\n", "line 2"),
            ("t,step,phase,pool,used,limit\n1,1e999,,p,1,2\n", "line 2"),
        ],
    )
    def test_bad_files_are_named(
        self, text: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "bad.csv").write_text(text)
        assert main([str(tmp_path)]) == 2
        assert problem in capsys.readouterr().err

    def test_a_folder_without_series_is_refused(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main([str(tmp_path)]) == 2
        assert "holds no .csv file" in capsys.readouterr().err

    def test_empty_cells_and_a_plan(self, tmp_path: Path) -> None:
        path = tmp_path / "plan.csv"
        path.write_text("t,step,phase,pool,used,limit,planned\n2,,,node[0].device[0],5,,\n1,3,train,p,7,9,8\n")
        found, planned = read(path)
        assert [(f.t, f.step, f.phase, f.gauges[0].name, f.gauges[0].limit) for f in found] == [
            (1.0, 3, "train", "cgroup", 9),
            (2.0, None, None, "device", None),
        ]
        assert planned == {"p": 8}


def test_a_frame_costs_well_under_a_millisecond() -> None:
    guard, costs = Guard("protect"), []
    for second in range(600):
        gauges = tuple(
            Gauge(f"node[0].device[{index}]", "device", (30 + index) * GIB + second * MIB, 80 * GIB)
            for index in range(10)
        )
        processes = tuple(ProcessUse(pid, 1, "python", GIB + second * MIB - pid) for pid in range(50))
        frame = Frame(1e9 + second, gauges, processes, "train", second // 30, {"full": 0.0}, {"oom_kill": 0})
        before = process_time()
        guard.see(frame)
        costs.append(process_time() - before)
    assert median(costs) < 0.5e-3
    assert sum(costs) / len(costs) < 2e-3


def test_the_guard_loads_no_file_and_no_library() -> None:
    code = (
        "import builtins, sys\n"
        "from headway.guard.policies import Guard\n"
        "from headway.guard.frame import Frame, Gauge\n"
        "def refuse(*a, **k): raise AssertionError('opened a file')\n"
        "builtins.open = refuse\n"
        "guard = Guard('protect')\n"
        "for t in range(200):\n"
        "    guard.see(Frame(1e9 + t, (Gauge('node[0].host', 'cgroup', 500 + 2 * t, 1000),)))\n"
        "assert guard.forecasts\n"
        "assert not {'numpy', 'torch', 'psutil', 'rich'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
