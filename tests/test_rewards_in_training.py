"""What rewards do to a run of `headway train`, end to end on tiny models: failures, ranges, groups without spread."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headway.cli import app

BASE = """
model = {path = "tiny-qwen3", init = "random", dtype = "fp32"}
data = {file = "sums.jsonl", format = "text"}
reward = {kind = "function", function = "mine:score", extract = "whole"}
rollout = {prompts = 2, samples = 4, max_answer = 6}
train = {steps = 2, lr = 1e-3}
eval = {problems = 4}
memory = {threads = 1}
"""

COUNTED = """
from pathlib import Path

def calls():
    path = Path(__file__).with_name("calls")
    count = int(path.read_text()) if path.exists() else 0
    path.write_text(str(count + 1))
    return count

"""
"""`calls()` is how often it was called before, also by an earlier process. With 4 held-out problems the first step's
answers are calls 4 to 11, the second's 12 to 19."""

Run = Callable[..., tuple[int, Path]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Train with the body of a reward function that knows `at`, its call's number; exit code and output directory."""
    rows = ({"prompt": f"{a} + {b} =", "label": str(a + b)} for a in range(6) for b in range(6))
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "run.toml").write_text(BASE)
    monkeypatch.chdir(tmp_path)

    def run(body: str, *settings: str) -> tuple[int, Path]:
        text = f"{COUNTED}def score(prompt, answer, label, response):\n    at = calls()\n    {body}\n"
        (tmp_path / "mine.py").write_text(text)
        arguments = [part for setting in settings for part in ("--set", setting)]
        monkeypatch.setattr("sys.argv", ["headway", "train", "run.toml", *arguments])
        with pytest.raises(SystemExit) as ended:
            app.main()
        return int(ended.value.code or 0), tmp_path / "runs/run"

    return run


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise KeyError('grade')", "exception: KeyError: 'grade' (mine.py:12)"),
        ("return json.loads(answer + '}')", "exception: JSONDecodeError"),
        ("return None", "result: returned None: not a number"),
        ("return float('nan')", "result: returned NaN"),
        ("return 'good'", "result: returned the string 'good': not a number"),
        ("import os; os._exit(3)", "died: died (exit code 3)"),
    ],
)
def test_a_run_whose_rewards_fail_stops_at_once_and_says_why(
    run: Run, capsys: pytest.CaptureFixture[str], body: str, said: str
) -> None:
    code, output = run(body.replace("return json.", "import json; return json."))
    shown = capsys.readouterr()
    assert code == 6
    told = " ".join(shown.err.split())
    assert 'reward.function = "mine:score": 4 of 4 answers of the evaluation after 0 steps' in told
    assert said in told
    assert "mine.py:12" in told or "exception" not in told  # the user's own line, not the library's below it
    assert "finished" not in shown.out + shown.err
    summary = json.loads((output / "summary.json").read_text())
    assert (summary["steps"], summary["exit_reason"]) == (0, "failed rewards")
    assert said in summary["problem"]
    assert not (output / "metrics.jsonl").exists()
    assert not (output / "final").exists()


def test_failing_from_the_first_step_on_stops_there(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    code, output = run("return 1 / (at < 4) if at < 9 else at", "eval.problems=4")
    assert code == 6
    assert "5 of 8 answers of step 1 could not be scored" in " ".join(capsys.readouterr().err.split())
    assert not (output / "checkpoints").exists()


def test_an_evaluation_of_which_most_fail_is_a_warning(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    code, _ = run("return 1 / (at > 2) if at < 4 else at % 3")
    assert code == 0
    assert "the evaluation after 0 steps: 3 of 4 answers could not be scored" in " ".join(
        capsys.readouterr().out.split()
    )


def test_the_same_command_goes_on_once_the_function_is_mended(run: Run) -> None:
    assert run("return at / (at < 4)")[0] == 6  # after an evaluation that it could score
    code, output = run("return at % 3 + 5")
    assert code == 0
    assert rows(output / "evaluations.jsonl")[0]["reward"] >= 5
    assert [row["step"] for row in rows(output / "evaluations.jsonl")] == [0, 2]


def test_exactly_half_failing_goes_on_with_a_warning(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    code, output = run("return at / (at % 2)")
    assert code == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "step 1: 4 of 8 answers could not be scored; mostly exception: ZeroDivisionError" in shown
    for row in rows(output / "metrics.jsonl"):
        assert (row["reward_failures"], row["reward_failures/exception"]) == (4, 4)
        assert row["trained_tokens"] > 0


def test_one_failure_goes_on_without_a_warning_and_is_counted_in_its_step(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    code, output = run("return None if at == 14 else at % 5")
    assert code == 0
    assert "could not be scored" not in capsys.readouterr().out
    first, second = rows(output / "metrics.jsonl")
    assert first["reward_failures"] == 0
    assert (second["reward_failures"], second["reward_failures/result"]) == (1, 1)
    failed = [row for row in rows(output / "rollouts.jsonl") if row["failure"] is not None]
    assert [row["reward"] for row in failed] == [None]


def test_a_later_step_that_fails_is_a_warning(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    code, output = run("return at % 3 if at < 12 else float('inf')")
    assert code == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "step 2: 8 of 8 answers could not be scored; mostly result: returned inf" in shown
    assert "nothing to learn from" in shown
    second = rows(output / "metrics.jsonl")[1]
    assert (second["reward_failures/result"], second["frac_reward_zero_std"], second["trained_tokens"]) == (8, 1, 0)
    assert "reward" not in second


def test_rewards_below_0_and_above_1_train_and_nothing_is_called_correct(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    code, output = run("return -1 + 3 * (at % 4) / 3")
    assert code == 0
    first = rows(output / "metrics.jsonl")[0]
    assert first["reward"] == pytest.approx(0.5)
    assert first["trained_tokens"] > 0
    assert "correct" not in first
    assert "correct" not in rows(output / "evaluations.jsonl")[0]
    assert {row["correct"] for row in rows(output / "rollouts.jsonl")} == {None}
    shown = capsys.readouterr().out
    assert "evaluation after 0 steps: reward 0.500" in " ".join(shown.split())
    assert " correct " not in shown


def test_partial_credit_is_no_right_answer(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    _, output = run("return (0.5, 1, 0.5, 0)[at % 4]")
    assert rows(output / "metrics.jsonl")[0]["correct"] == 0.25
    before = rows(output / "evaluations.jsonl")[0]
    assert (before["reward"], before["correct"]) == (0.5, 0.25)
    assert "correct 0.250, reward 0.500" in " ".join(capsys.readouterr().out.split())
    kept = rows(output / "rollouts.jsonl")
    assert {(row["score"], row["correct"]) for row in kept} == {(0.5, False), (1.0, True), (0.0, False)}


def test_groups_without_spread_are_a_metric_and_a_step_that_learns_nothing_says_why(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    code, output = run("return at % 2 if 4 <= at < 8 or at >= 12 and at % 8 == 7 else -0.5", "train.steps=3")
    assert code == 0
    shares = [row["frac_reward_zero_std"] for row in rows(output / "metrics.jsonl")]
    assert shares[0] == 0.5
    shown = " ".join(capsys.readouterr().out.split())
    assert "50% of groups with equal rewards" in shown
    assert "No step trained" not in shown


def test_equal_rewards_in_every_group_do_not_stop_a_run(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    code, output = run("return -0.25")
    assert code == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "train 0/s (all groups had equal rewards: nothing to learn from)" in shown
    assert "No step trained: all groups had equal rewards in each" in shown
    assert [row["frac_reward_zero_std"] for row in rows(output / "metrics.jsonl")] == [1, 1]


def test_samples_stand_beside_their_problems_in_files_and_trackers(run: Run) -> None:
    code, output = run("return at % 3 - 1", "output.tensorboard=true")
    assert code == 0
    for row in rows(output / "rollouts.jsonl"):
        a, _, b, _ = row["prompt"].split()
        assert row["label"] == str(int(a) + int(b))
        assert isinstance(row["response"], str)
    events = b"".join(path.read_bytes() for path in (output / "tensorboard").iterdir())
    assert b"samples/rollout" in events
    assert rows(output / "rollouts.jsonl")[-1]["prompt"].encode() in events
