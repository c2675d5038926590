"""A run may be moved, and some of it may be changed: what is the same, what is said, what is refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headway.cli import app

SPEC = """
model = {path = "tiny-qwen3", init = "random", dtype = "fp32"}
lora = {rank = 4}
data = {file = "sums.jsonl", format = "text"}
reward = {kind = "function", function = "mine:score"}
rollout = {prompts = 2, samples = 4, max_answer = 6}
train = {steps = 2, lr = 1e-3, schedule = "linear"}
eval = {problems = 5}
memory = {threads = 1}
output = {tensorboard = false}
"""
REWARD = """from helper import odd


def score(prompt, answer, label, response):
    return odd(response)
"""
HELPER = "def odd(text):\n    return float(len(text) % 2)\n"

Command = Callable[..., tuple[int, str]]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a RunSpec, its data and its reward; the current directory."""
    folder = tmp_path / "project"
    folder.mkdir()
    rows = ({"prompt": f"{a} + {b} =", "label": str(a + b)} for a in range(6) for b in range(6))
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "run.toml").write_text(SPEC)
    (folder / "mine.py").write_text(REWARD)
    (folder / "helper.py").write_text(HELPER)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """`headway train`: gives the exit code and all that is printed."""

    def train(run: str | Path, *settings: str, options: tuple[str, ...] = ()) -> tuple[int, str]:
        arguments = [part for setting in settings for part in ("--set", setting)]
        monkeypatch.setattr("sys.argv", ["headway", "train", str(run), *arguments, *options])
        with pytest.raises(SystemExit) as ended:
            app.main()
        printed = capsys.readouterr()
        return int(ended.value.code or 0), " ".join((printed.out + printed.err).split())

    return train


def steps(run: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def summary(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return found


def rates(run: Path) -> list[float]:
    return [json.loads(line)["lr"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_speed_and_length_change_in_one_line_and_a_finished_run_goes_on(project: Path, train: Command) -> None:
    assert train("run.toml")[0] == 0
    assert summary(project / "runs/run")["changes"] == []
    code, shown = train("run.toml", "train.steps=3", "train.lr=2e-3", "train.schedule=constant", "eval.every=1")
    assert code == 0
    assert (
        "from step 3 on: train.steps 2 -> 3, train.lr 0.001 -> 0.002, train.schedule 'linear' -> 'constant', "
        "eval.every 0 -> 1" in shown
    )
    assert rates(project / "runs/run") == pytest.approx([1e-3, 5e-4, 2e-3])
    kept = [(each["step"], each["key"], each["now"]) for each in summary(project / "runs/run")["changes"]]
    assert kept == [
        (3, "train.steps", 3), (3, "train.lr", 2e-3), (3, "train.schedule", "constant"), (3, "eval.every", 1),
    ]  # fmt: skip
    _, shown = train("run.toml", "train.steps=4", "train.lr=2e-3", "train.schedule=constant", "eval.every=1")
    assert "from step 4 on: train.steps 3 -> 4" in shown
    assert [each["step"] for each in summary(project / "runs/run")["changes"]] == [3, 3, 3, 3, 4]


def test_more_steps_say_where_the_schedule_goes_on(project: Path, train: Command) -> None:
    train("run.toml")
    _, shown = train("run.toml", "train.steps=4")
    assert "from step 3 on: train.steps 2 -> 4; the next learning rate is 0.0005 instead of 0" in shown
    assert rates(project / "runs/run") == pytest.approx([1e-3, 5e-4, 5e-4, 2.5e-4])


def test_what_may_not_change_is_refused_before_anything_is_written(project: Path, train: Command) -> None:
    train("run.toml")
    before = {path: path.stat().st_mtime_ns for path in (project / "runs/run").iterdir()}
    code, shown = train("run.toml", "lora.rank=8", "train.seed=1", "train.steps=3")
    assert code == 2
    assert "is at step 2 and cannot go on with lora.rank 4 -> 8, train.seed 0 -> 1; set them back" in shown
    assert "headway export" in shown
    assert {path: path.stat().st_mtime_ns for path in (project / "runs/run").iterdir()} == before


def test_a_moved_project_goes_on_from_its_runspec_and_from_its_run(
    project: Path, train: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train("run.toml")
    moved = tmp_path / "elsewhere"
    project.rename(moved)
    monkeypatch.chdir(moved)
    code, shown = train("run.toml", "train.steps=3")
    assert code == 0
    assert f"the same content as before: data.file {moved / 'sums.jsonl'}, reward.folder {moved}" in shown
    assert [each["key"] for each in summary(moved / "runs/run")["changes"]] == ["train.steps"]
    again = tmp_path / "again"
    moved.rename(again)
    monkeypatch.chdir(tmp_path)
    code, _ = train(again / "runs/run", "train.steps=4")
    assert code == 0
    assert steps(again / "runs/run") == [1, 2, 3, 4]
    assert summary(again / "runs/run")["output"] == str(again / "runs/run")


def test_a_copied_run_goes_on_and_the_first_stays(project: Path, train: Command) -> None:
    train("run.toml")
    shutil.copytree("runs/run", "copy")
    assert train("copy/runspec.toml", "train.steps=3")[0] == 0
    assert (steps(project / "copy"), steps(project / "runs/run")) == ([1, 2, 3], [1, 2])
    assert train("run.toml", "train.steps=3", "output.dir=copy")[0] == 0


def test_the_same_data_under_another_path_is_the_same_and_one_byte_is_not(project: Path, train: Command) -> None:
    train("run.toml")
    (project / "data").mkdir()
    (project / "sums.jsonl").rename(project / "data/all.jsonl")
    code, shown = train("run.toml", "train.steps=3", "data.file=data/all.jsonl")
    assert code == 0
    assert "the same content as before: data.file" in shown
    text = (project / "data/all.jsonl").read_text()
    (project / "data/all.jsonl").write_text(text.replace('"label": "7"', '"label": "8"', 1))
    code, shown = train("run.toml", "train.steps=4", "data.file=data/all.jsonl")
    assert code == 2
    assert "all.jsonl (data.file) has changed since step 3" in shown
    code, shown = train("run.toml", "train.steps=4", "data.file=data/all.jsonl", options=("--accept-changes", "data"))
    assert code == 0
    assert "all.jsonl (data.file)" in shown
    assert summary(project / "runs/run")["changes"][-1]["file"] == "all.jsonl"


@pytest.mark.parametrize("file", ["mine.py", "helper.py"])
def test_a_comment_in_the_rewards_code_is_noticed(project: Path, train: Command, file: str) -> None:
    train("run.toml")
    with (project / file).open("a") as opened:
        opened.write("# stricter\n")
    code, shown = train("run.toml", "train.steps=3")
    assert code == 2
    assert f"{file} (reward) has changed since step 2 of the run in it; put it back to resume, or add" in shown
    code, shown = train("run.toml", "train.steps=3", options=("--accept-changes", "reward"))
    assert code == 0
    assert f"from step 3 on: train.steps 2 -> 3, {file} (reward)" in shown
    (changed,) = [each for each in summary(project / "runs/run")["changes"] if each["key"] == "reward"]
    assert (changed["step"], changed["file"]) == (3, file)
    assert train("run.toml", "train.steps=4")[0] == 0  # accepted once is accepted


def test_a_file_that_the_reward_does_not_import_may_change(project: Path, train: Command) -> None:
    (project / "notes.py").write_text("A = 1\n")
    train("run.toml")
    (project / "notes.py").write_text("A = 2\n")
    assert train("run.toml", "train.steps=3")[0] == 0


def test_evaluation_shrinks_and_training_stays_as_it_was(project: Path, train: Command) -> None:
    train("run.toml", "eval.every=1")
    code, shown = train("run.toml", "train.steps=3", "eval.problems=2")
    assert code == 0
    assert "eval.problems 5 -> 2" in shown
    rows = [json.loads(line) for line in (project / "runs/run/evaluations.jsonl").read_text().splitlines()]
    assert [(row["step"], row["problems"]) for row in rows] == [(0, 5), (1, 5), (2, 5), (3, 2)]
    assert train("run.toml", "train.steps=4", "eval.problems=5")[0] == 0
    code, shown = train("run.toml", "train.steps=5", "eval.problems=6")
    assert code == 2
    assert "eval.problems = 6: 5 problems were held out when the run began" in shown


def test_a_file_to_evaluate_on_may_be_set_later(project: Path, train: Command) -> None:
    train("run.toml")
    (project / "held.jsonl").write_text('{"prompt": "7 + 7 =", "label": "14"}\n')
    code, _ = train("run.toml", "train.steps=3", "eval.file=held.jsonl")
    assert code == 0
    (project / "held.jsonl").write_text((project / "sums.jsonl").read_text())
    code, shown = train("run.toml", "train.steps=4", "eval.file=held.jsonl")
    assert code == 2
    assert "of its problems are in the training data" in shown
