"""The guard inside a run: what it decides is done at safe points, recorded and shown. Only memory is scripted."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from headway.cli import app
from headway.config.sections import GuardSection
from headway.facts.machine import Machine, Pool
from headway.guard.forecast import Forecast
from headway.guard.frame import Action, Frame, Gauge, ProcessUse
from headway.guard.frames import Frames
from headway.guard.tree import Tree
from headway.plan.ledger import Phase
from headway.train import guard
from headway.train.guard import Guarded, Watch
from headway.train.stop import Stop, StopRequested

MACHINE = Machine("here", (Pool("node[0].host", "host", 1000 << 20, ()),), 2)
SPEC = """
model = {path = "tiny-qwen3", init = "random", dtype = "fp32"}
data = {file = "sums.jsonl", format = "text"}
reward = {kind = "exact", extract = "first-line", format_pattern = "(?s).*[0-9].*", format_weight = 0.5}
rollout = {prompts = 2, samples = 4, max_answer = 6}
train = {steps = 40, lr = 1e-3}
eval = {problems = 0}
memory = {threads = 1}
output = {save_every = 0, tensorboard = false}
"""


class Scripted:
    """Frames of a node that stands at its limit from the first step on; ten seconds lie between two frames."""

    t: ClassVar[float] = 0.0

    def __init__(self, tree: object, machine: Machine) -> None:
        pass

    def take(self, phase: str | None, step: int | None) -> Frame:
        Scripted.t += 10.0
        used = 999 if step else 100
        return Frame(Scripted.t, (Gauge("node[0].host", "node", used << 20, 1000 << 20),), (), phase, step)

    def close(self) -> None:
        pass


def lines(output: Path, kind: str) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (output / "recording.jsonl").read_text().splitlines()]
    return [row for row in rows if row["kind"] == kind]


Train = Callable[..., int]


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Train:
    rows = ({"prompt": f"{a} + {b} =", "label": str(a + b)} for a in range(6) for b in range(6))
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "run.toml").write_text(SPEC)
    monkeypatch.chdir(tmp_path)

    def train(*settings: str) -> int:
        arguments = [part for setting in settings for part in ("--set", setting)]
        monkeypatch.setattr("sys.argv", ["headway", "train", "run.toml", *arguments])
        with pytest.raises(SystemExit) as ended:
            app.main()
        return int(ended.value.code or 0)

    return train


def test_a_run_near_a_limit_is_made_smaller_saved_and_stopped_and_goes_on(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "runs/run"
    with monkeypatch.context() as patched:
        patched.setattr(guard, "Frames", Scripted)
        assert train() == 5
    names = [action["name"] for action in lines(output, "action")]
    assert names[:5] == ["warn", "free", "checkpoint", "shrink", "stop"]
    assert all(not action["dry"] and "of its limit" not in action["reason"] for action in lines(output, "action"))
    summary = json.loads((output / "summary.json").read_text())
    assert (summary["exit_reason"], summary["signal"]) == ("guard", None)
    assert summary["guard"] == dict.fromkeys(names, 1)
    assert 0 <= summary["steps"] < 40
    assert (output / f"checkpoints/step-{summary['steps']:06d}").is_dir()
    shown = capsys.readouterr().out
    for text in ("guard: warn: ", "guard: stop: ", "micro-batches now have at most", "stopped by guard"):
        assert text in shown

    # what was made smaller stays so in a resume, until the key or memory.limit has another value
    before = [(row["key"], row["now"], row["set"]) for row in lines(output, "smaller")]
    assert [key for key, _, _ in before] == ["train.cap", "rollout.kv_budget"]
    assert all(0 < now < was for _, now, was in before)
    assert train(f"train.steps={summary['steps'] + 1}", "output.save_every=1") == 0
    assert [(row["key"], row["now"], row["set"]) for row in lines(output, "smaller")] == 2 * before
    assert train(f"train.steps={summary['steps'] + 2}", "output.save_every=1", f"train.cap={before[0][2] - 1}") == 0
    assert [row["key"] for row in lines(output, "smaller")][4:] == ["rollout.kv_budget"]
    assert train(f"train.steps={summary['steps'] + 3}", "output.save_every=1", "memory.limit=900GB") == 0
    assert len(lines(output, "smaller")) == 5

    # the summary counts over all processes of the run
    last = json.loads((output / "summary.json").read_text())
    assert last["guard"] == summary["guard"]
    assert [each["guard"] for each in last["attempts"]] == [summary["guard"], {}, {}, {}]


def test_an_observing_guard_and_a_dry_one_end_nothing(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "Frames", Scripted)
    assert train("guard.policy=observe", "output.dir=observed", "train.steps=3") == 0
    assert {action["name"] for action in lines(tmp_path / "observed", "action")} <= {"warn"}
    assert train("guard.dry=true", "output.dir=dry", "train.steps=60") == 0
    actions = lines(tmp_path / "dry", "action")
    assert actions
    assert all(action["dry"] for action in actions)
    assert not any(json.loads((tmp_path / "dry/summary.json").read_text())["guard"].values())


class Told:
    """Who is called by a watch."""

    def __init__(self) -> None:
        self.actions: list[Action] = []
        self.forecasts: list[Forecast] = []
        self.stop = Stop()

    def watch(self, limit: int | None = None, policy: str = "protect") -> Watch:
        section = GuardSection.model_validate({"policy": policy})
        return Watch(section, MACHINE, Guarded(limit, {}), self.actions.append, self.forecasts.append, self.stop.ask)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_tree_is_held_against_the_memory_limit_and_the_reward_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Growing(Scripted):
        """The reward's process grows by 20 MiB a step; its limit is reached in step 30."""

        def take(self, phase: str | None, step: int | None) -> Frame:
            Scripted.t += 10.0
            processes = (
                ProcessUse(7, 1, "python", rss=(100 + 20 * (step or 0)) << 20),
                ProcessUse(8, 1, "python", rss=300 << 20, role="command"),
            )
            return Frame(Scripted.t, (Gauge("node[0].host", "node", 1, 1000 << 20),), processes, phase, step)

    monkeypatch.setattr(guard, "Frames", Growing)
    monkeypatch.setattr(guard, "FASTEST_S", 0.01)
    told = Told()
    watch = told.watch(limit=1000 << 20)
    watch.rewards = lambda: (7,)
    with watch:
        for step in range(1, 29):
            watch.at(Phase.ROLLOUT, step)
            seen = Scripted.t
            wait_for(lambda seen=seen: seen < Scripted.t)
        wait_for(lambda: told.stop.reason is not None)
    assert told.stop.reason == "guard"
    with pytest.raises(StopRequested, match="guard"):
        told.stop.check()
    assert {forecast.gauge for forecast in told.forecasts} == {"memory.limit"}
    assert [forecast.expected.step for forecast in told.forecasts if forecast.expected] == pytest.approx(
        [30] * len(told.forecasts), abs=1
    )
    assert "reward [7] grows" in told.actions[0].reason
    assert [action.name for action in watch.take()] == ["free", "checkpoint"]
    assert watch.take() == []


def test_what_ends_the_thread_is_raised_and_not_taken_for_calm(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Scripted):
        def take(self, phase: str | None, step: int | None) -> Frame:
            raise ValueError("unreadable")

    monkeypatch.setattr(guard, "Frames", Broken)
    watch = Told().watch()
    with pytest.raises(ValueError, match="unreadable"), watch:
        wait_for(lambda: watch.take() != [])


def test_the_real_sensor_sees_this_process() -> None:
    """The first gauge is the tree's memory against `memory.limit`, this process in it."""
    watch = Told().watch(limit=64 << 30)
    tree = Tree(os.getpid())
    frames = Frames(tree, machine=MACHINE)
    try:
        frame = watch._with_own(frames.take("train", 1))
    finally:
        frames.close()
        tree.close()
    own = frame.gauges[0]
    assert (own.pool, own.name, own.limit) == ("node[0].host", "memory.limit", 64 << 30)
    assert own.used >= 50 << 20
    assert own.used == sum(process.rss for process in frame.processes)
    assert os.getpid() in {process.pid for process in frame.processes}
    assert {gauge.name for gauge in frame.gauges} > {"memory.limit", "node"}
