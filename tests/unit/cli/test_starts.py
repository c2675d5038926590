"""That a run "fits" means that it starts: what `headway plan` and a dry run refuse before anything is loaded."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from headway.cli.app import app
from headway.cli.train import keep_rate
from headway.config.load import load
from headway.config.source import resolve
from headway.config.workload import to_workload
from headway.facts import machines, speeds
from headway.plan.planned import examine

SPEC = """
[model]
path = "tiny-llama"
init = "random"
dtype = "fp32"
[data]
file = "sums.jsonl"
[reward]
kind = "exact"
[output]
tensorboard = false
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "run.toml").write_text(SPEC)
    problems(tmp_path, 200)
    return tmp_path


def problems(folder: Path, count: int) -> None:
    rows = ({"prompt": f"{at} + {at} = ?", "label": str(2 * at)} for at in range(count))
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def call(*words: str) -> Result:
    return CliRunner().invoke(app, words, env={"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"})


def said(result: Result) -> str:
    problem = result.exception
    return " ".join(f"{result.output} {problem}".split())


def dry(*settings: str) -> Result:
    return call("train", "run.toml", "--dry-run", *(word for each in settings for word in ("--set", each)))


def plan(*settings: str) -> Result:
    return call("plan", "run.toml", *(word for each in settings for word in ("--set", each)))


def test_a_run_of_200_examples_with_defaults_starts(folder: Path) -> None:
    document = json.loads(call("plan", "run.toml", "--json").stdout)
    assert document["verdict"] == "fits"
    assert not document["unknown"]
    assert dry().exit_code == 0
    assert not (folder / "runs").exists()


def test_a_dry_run_says_how_long_the_run_takes(folder: Path) -> None:
    assert "Time: about" in dry().output
    done = call("train", "run.toml", "--dry-run", "--json")
    time = json.loads(done.stdout)["time"]
    assert 0 < time["step_seconds"] < time["run_seconds"]
    assert time["factor"] > 1
    assert time["basis"]


@pytest.mark.parametrize(("lines", "rates"), [([9.0, 100.0, 110.0, 0.0, 120.0], (110.0, 110.0)), ([], None)])
def test_a_finished_run_tells_the_next_plan_how_fast_it_was(folder: Path, lines: list[float], rates) -> None:
    spec = load(folder / "run.toml")
    workload = to_workload(spec, resolve(spec.model))
    planned = examine(workload, machines.by_name("cpu-64gib"))
    spec.output.dir.mkdir(parents=True)
    names = ("rollout_tokens_per_s", "train_tokens_per_s")
    rows = ({"step": at, "answer_tokens": 200.0, **dict.fromkeys(names, rate)} for at, rate in enumerate(lines))
    (spec.output.dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    keep_rate(spec, planned)
    # the first step warms up, and one without a gradient trains nothing
    assert [(each.rollout, each.train) for each in speeds.earlier()] == ([rates] if rates else [])


REFUSED = [
    (("rollout.kv_budget=20000",), "set rollout.kv_budget to at least"),
    (("rollout.prompts=181",), "there are only 180 training problems"),
    (("eval.problems=195",), "there are only 5 training problems"),
    (("data.prompt_key=question",), 'data.prompt_key = "question": is no key of'),
    (("data.max_prompt=4",), "set data.max_prompt to that or more"),
]
PASS = [("rollout.kv_budget=300000",), ("rollout.prompts=180",), ("eval.problems=192",), ("data.max_prompt=80",)]


@pytest.mark.parametrize(("settings", "text"), REFUSED)
@pytest.mark.parametrize("command", [plan, dry])
def test_what_train_refuses_is_refused_by_plan_and_dry_run(folder: Path, command, settings, text) -> None:
    found = command(*settings)
    assert text in said(found)
    assert found.exit_code != 0
    assert not (folder / "runs").exists()


@pytest.mark.parametrize("settings", PASS)
@pytest.mark.parametrize("command", [plan, dry])
def test_what_is_just_enough_is_planned(folder: Path, command, settings) -> None:
    assert command(*settings).exit_code == 0


@pytest.mark.skipif(find_spec("wandb") is not None, reason="wandb is installed")
@pytest.mark.parametrize("command", [plan, dry])
def test_a_missing_package_is_refused_with_what_asks_for_it(folder: Path, command) -> None:
    assert "output.wandb = true: the package wandb is not installed here" in said(command("output.wandb=true"))
    assert command("output.wandb=false").exit_code == 0


def test_a_plan_for_another_machine_does_not_ask_for_packages(folder: Path) -> None:
    settings = ("--set", "output.wandb=true", "--machine", "h100-80")
    assert call("plan", "run.toml", *settings).exit_code == 0


@pytest.mark.parametrize(("count", "code"), [(300, 1), (60, 0)])
def test_a_task_with_too_few_problems_is_refused_by_the_dry_run(folder: Path, count: int, code: int) -> None:
    # greatest common divisors of two numbers up to 12: at most 144 questions
    few = ("data.file=none", "data.task=gcd", "reward.kind=task", f"data.problems={count}", "eval.problems=8")
    bounds = ("data.params.min_numbers=2", "data.params.max_numbers=2", "data.params.max_value=12")
    found = dry(*few, *bounds)
    assert found.exit_code == code
    assert ("distinct problems with these data.params" in said(found)) == bool(code)


def test_a_reward_that_cannot_be_imported_is_refused_by_the_dry_run(folder: Path) -> None:
    settings = ("reward.kind=function", "reward.function=mine:score")
    (folder / "mine.py").write_text("import nothing_of_that_name\n")
    assert "nothing_of_that_name" in said(dry(*settings))
    (folder / "mine.py").write_text("def score(prompt, answer, label, response):\n    return 0.5\n")
    assert dry(*settings).exit_code == 0


def test_a_directory_that_holds_something_else_is_refused_by_the_dry_run(folder: Path) -> None:
    (folder / "runs" / "run").mkdir(parents=True)
    (folder / "runs" / "run" / "thesis.tex").write_text("mine")
    assert "is not a run of headway" in said(dry())


def test_size_promises_no_longer_answer_than_the_context_holds() -> None:
    found = json.loads(call("size", "--machine", "h100-80", "--model", "smollm2", "--json").stdout)
    assert {row["longest_answer"] for row in found["rows"] if row["trained_here"]} == {8192 - 512}
    beyond = call("size", "--machine", "h100-80", "--model", "smollm2", "--set", "rollout.max_answer=8000", "--json")
    rows = json.loads(beyond.stdout)["rows"]
    assert {row["verdict"] for row in rows if row["trained_here"]} == {"does not fit"}


@pytest.mark.parametrize(("answer", "code"), [(7680, 0), (7681, 1)])
def test_a_model_by_name_is_planned_up_to_its_context(answer: int, code: int) -> None:
    found = call("plan", "smollm2-1.7b", "--machine", "h100-80", "--set", f"rollout.max_answer={answer}")
    assert found.exit_code == code
    assert ("set rollout.max_answer = 7680 or less" in said(found)) == bool(code)


def test_a_launch_beyond_the_context_is_told_in_its_own_flags(tmp_path: Path) -> None:
    def notes(answer: int) -> str:
        script = tmp_path / "run.sh"
        script.write_text(
            "python3 train.py --hf-checkpoint HuggingFaceTB/SmolLM2-1.7B --rollout-batch-size 8 "
            f"--n-samples-per-prompt 8 --rollout-max-response-len {answer} --rollout-max-prompt-len 192 "
            "--actor-num-gpus-per-node 8 --colocate\n"
        )
        return " ".join(json.loads(call("plan", str(script), "--machine", "8xh100-80", "--json").stdout)["unknown"])

    assert "set --rollout-max-response-len 8000 or less" in notes(8001)
    assert "positions" not in notes(8000)
