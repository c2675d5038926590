"""`headway train` from end to end on tiny models, in this process."""

import json
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from headway.cli import app
from headway.cli.doctor import diagnosed
from headway.guard.recorder import read_recording
from headway.train import loop, optim, update

BASE = """
model = {path = "tiny-qwen3", init = "random", dtype = "fp32"}
data = {file = "sums.jsonl", format = "text"}
reward = {kind = "exact", extract = "first-line", format_pattern = "(?s).*[0-9].*", format_weight = 0.5}
rollout = {prompts = 2, samples = 4, max_answer = 6}
train = {steps = 2, lr = 1e-3}
eval = {problems = 5}
memory = {threads = 1}
"""

Train = Callable[..., tuple[int, Path]]


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Train:
    """Run BASE with `--set` arguments; gives the exit code and the output directory."""
    rows = ({"prompt": f"{a} + {b} =", "label": str(a + b)} for a in range(6) for b in range(6))
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "run.toml").write_text(BASE)
    monkeypatch.chdir(tmp_path)

    def train(*settings: str, options: tuple[str, ...] = ()) -> tuple[int, Path]:
        arguments = [part for setting in settings for part in ("--set", setting)]
        monkeypatch.setattr("sys.argv", ["headway", "train", "run.toml", *arguments, *options])
        with pytest.raises(SystemExit) as ended:
            app.main()
        return int(ended.value.code or 0), tmp_path / "runs/run"

    return train


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_run_leaves_what_the_page_promises(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    code, output = train()
    assert code == 0
    page = (Path(__file__).parents[1] / "docs/train.md").read_text()
    promised = {name.rstrip("/") for name in _first_column(page, "| file | holds |")}
    left = {path.name for path in output.iterdir()}
    assert left <= promised
    assert promised - left <= {"reward.log"}  # only where reward code prints
    told = diagnosed([str(output)], [], None, None, live=False).answer
    assert (told.outcome, told.sentence) == ("finished", "The run finished (step 2): nothing ended it early.")

    summary = json.loads((output / "summary.json").read_text())
    assert (summary["steps"], summary["exit_reason"]) == (2, "finished")
    assert summary["eval_before"]["problems"] == summary["eval_after"]["problems"] == 5
    assert summary["peak_measured_bytes"] > 100 << 20
    assert set(summary["phases"]) == {"load", "eval", "rollout", "train", "step", "save"}
    assert all(phase["measured_bytes"] > 100 << 20 for phase in summary["phases"].values())

    metrics = rows(output / "metrics.jsonl")
    assert [row["step"] for row in metrics] == [1, 2]
    documented = set(_first_column(page, "| name | is |"))
    undocumented = {name for name in metrics[0] if name not in documented and not name.startswith("memory_")}
    assert undocumented == set()
    kept = [row["phase"] for row in rows(output / "rollouts.jsonl")]
    assert (kept.count("rollout"), kept.count("eval")) == (2 * 4, 2 * 4)
    assert [path.name for path in (output / "checkpoints").iterdir()] == ["step-000002"]
    assert next(iter(read_recording(output / "recording.jsonl").segments[0].peaks)) == "load"

    shown = capsys.readouterr().out
    for text in ("expected", "upper bound", "measured", "step 2/2"):
        assert text in shown


def _first_column(page: str, header: str) -> list[str]:
    """Every name in backticks in the first column of the table below `header`."""
    table = page.split(header)[1].split("\n\n")[0].splitlines()[2:]
    return [part for line in table for part in line.split("|")[1].split("`")[1::2]]


def test_the_final_model_loads_and_is_what_was_trained(train: Train) -> None:
    _, output = train("train.checkpointing=false")
    model = AutoModelForCausalLM.from_pretrained(output / "final")
    tokenizer = AutoTokenizer.from_pretrained(output / "final")
    (sample, *_) = rows(output / "rollouts.jsonl")
    assert tokenizer.decode(sample["prompt_ids"]).endswith(" =")
    assert sum(parameter.numel() for parameter in model.parameters()) > 100_000


def test_adapters_alone_are_trained_saved_and_loaded(train: Train) -> None:
    code, output = train("lora.rank=4", "objective.kl_coef=0.1", "train.updates=2")
    assert code == 0
    assert {path.name for path in (output / "final").iterdir()} >= {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    assert all(row["kl"] >= 0 for row in rows(output / "metrics.jsonl"))
    assert rows(output / "metrics.jsonl")[-1]["kl"] > 0
    assert "score" in json.loads((output / "summary.json").read_text())["phases"]


def test_several_samples_give_pass_at_k(train: Train) -> None:
    _, output = train("eval.samples=3", "eval.every=1")
    evaluations = rows(output / "evaluations.jsonl")
    assert [row["step"] for row in evaluations] == [0, 1, 2]
    assert all(row["pass@3"] >= row["reward"] for row in evaluations)


def test_bf16_with_every_term_of_the_objective(train: Train) -> None:
    code, output = train(
        "model.dtype=bf16", "objective.kl_coef=0.1", "objective.kl_kind=k2", "objective.entropy_coef=0.01",
        "objective.std_normalise=false", "objective.normalise=constant", "train.updates=2", "train.schedule=linear",
        "rollout.top_p=0.9", "rollout.top_k=50",
    )  # fmt: skip
    assert code == 0
    last = rows(output / "metrics.jsonl")[-1]
    assert last["entropy"] > 0
    assert torch.isfinite(torch.tensor(list(last.values()))).all()


def test_rewards_of_ones_own_count_their_failures(train: Train, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "calls = iter(range(100))\n\n"
        "def score(prompt, answer, label, response):\n    return 1.0 if next(calls) % 3 else 1 / 0\n"
    )
    code, output = train("reward.kind=function", "reward.function=mine:score", "reward.extract=whole")
    assert code == 0
    assert json.loads((output / "summary.json").read_text())["reward_failures"]["exception"] > 0


def test_a_finished_run_goes_on_with_more_steps_and_says_what_changed(
    train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    train()
    capsys.readouterr()
    code, output = train("train.steps=3", "output.keep=1")
    shown = capsys.readouterr().out
    assert code == 0
    assert "from step 3 on: train.steps 2 -> 3, output.keep 2 -> 1" in shown
    assert [row["step"] for row in rows(output / "metrics.jsonl")] == [1, 2, 3]


def test_a_torn_checkpoint_is_refused_by_name(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    _, output = train()
    (output / "checkpoints/step-000002/model.safetensors").write_bytes(b"torn")
    code, _ = train("train.steps=3")
    error = capsys.readouterr().err
    assert code == 2
    assert "step-000002" in error
    assert "model.safetensors has 4 of" in error
    assert json.loads((output / "summary.json").read_text())["steps"] == 2


def test_other_data_under_the_same_name_is_another_run(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train()
    text = (tmp_path / "sums.jsonl").read_text()
    (tmp_path / "sums.jsonl").write_text(text.replace('"0 + 0 ="', '"0 + 00 ="'))
    code, _ = train("train.steps=3")
    assert code == 2
    assert "sums.jsonl (data.file) has changed since step 2" in capsys.readouterr().err


def test_dry_run_writes_nothing_and_prints_json(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    code, output = train(options=("--dry-run", "--json"))
    printed = capsys.readouterr()
    assert code == 0
    plan = json.loads(printed.out)
    assert (plan["verdict"], plan["pools"][0]["verdict"]) == ("fits", "fits")
    assert {line["phase"] for line in plan["lines"]} >= {"load", "rollout", "train", "step"}
    assert "[rollout]" in printed.err
    assert not output.exists()


def test_json_prints_the_summary_alone(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    code, output = train(options=("--json",))
    assert code == 0
    assert json.loads(capsys.readouterr().out) == json.loads((output / "summary.json").read_text())


def test_force_starts_what_does_not_fit(train: Train) -> None:
    assert train("memory.limit=100MiB", "guard.policy=observe", options=("--force",))[0] == 0


def test_what_is_forced_is_guarded(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    code, output = train("memory.limit=100MiB", "train.steps=2000", "output.save_every=0", options=("--force",))
    assert code == 5
    summary = json.loads((output / "summary.json").read_text())
    assert summary["exit_reason"] == "guard"
    assert summary["guard"]["stop"] == 1
    assert (output / f"checkpoints/step-{summary['steps']:06d}").is_dir()
    assert "memory.limit" in capsys.readouterr().out


def test_an_allocation_that_fails_names_the_phase_and_the_key(
    train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    size = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmSize"))
    resource.setrlimit(resource.RLIMIT_AS, (int(size.split()[1]) * 1024 + (2 << 30), before[1]))
    try:
        code, _ = train(
            "rollout.max_answer=10000000", "rollout.kv_budget=1TiB", "eval.problems=0", options=("--force",)
        )  # fmt: skip
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    error = capsys.readouterr().err
    assert code == 5
    assert "phase rollout: memory ran out" in error
    assert "rollout.kv_budget" in error
    assert error.strip().splitlines()[-1].startswith("A request for host memory was refused")


def test_after_a_mistake_of_ours_the_doctor_has_the_last_word(
    train: Train, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(loop, "group_advantages", fails)
    code, _ = train("eval.problems=0")
    assert code == 1
    *text, last = capsys.readouterr().err.strip().splitlines()
    assert "ZeroDivisionError: division by zero" in text
    assert last.startswith("An exception of Python ended")
    assert "step" in last


def test_when_memory_runs_out_for_good_what_is_whole_is_saved(
    train: Train, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the second step every sample fails, each alone; then the optimizer cannot take its memory, half way."""
    with monkeypatch.context() as patched:
        patched.setattr(update, "response_logprobs", _from_the_second_step(update.response_logprobs))
        code, output = train("output.save_every=0", "eval.problems=0")
    assert code == 5
    assert "memory ran out over every sample of an optimizer step" in capsys.readouterr().err
    assert [path.name for path in (output / "checkpoints").iterdir()] == ["step-000001"]

    state = optim.State.of
    monkeypatch.setattr(optim.State, "of", lambda parameter: state(parameter) if parameter.ndim > 1 else _exhaust())
    code, output = train("output.save_every=0", "eval.problems=0", "output.dir=half")
    assert code == 5
    assert "phase step: memory ran out (a tensor of " in capsys.readouterr().err
    assert not (Path("half/checkpoints").exists() and list(Path("half/checkpoints").iterdir()))


def _exhaust() -> None:
    torch.empty(1 << 60)


def _from_the_second_step(function: Callable[..., Any]) -> Callable[..., Any]:
    """Out of memory once the first step is written."""

    def scarce(*arguments: Any, **options: Any) -> Any:
        if Path("runs/run/metrics.jsonl").exists():
            _exhaust()
        return function(*arguments, **options)

    return scarce
