"""Every kind of bad input ends with exit code 2, one clear error, no traceback, and nothing left behind."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.cli import app
from headway.train.output import RunFolder

GOOD = {
    "model.path": '"tiny-llama"',
    "model.init": '"random"',
    "data.task": '"chain_sum"',
    "data.problems": "20",
    "eval.problems": "4",
    "rollout.prompts": "2",
    "rollout.samples": "2",
    "rollout.max_answer": "4",
    "train.steps": "1",
    "output.tensorboard": "false",
}

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `headway train` on GOOD with some keys changed; gives the exit code and standard error."""
    monkeypatch.chdir(tmp_path)

    def run(options: tuple[str, ...] = (), **changed: str | None) -> tuple[int, str]:
        keys = {**GOOD, **{key.replace("__", "."): value for key, value in changed.items()}}
        lines = [f"{key} = {value}\n" for key, value in keys.items() if value is not None]
        (tmp_path / "run.toml").write_text("".join(lines))
        monkeypatch.setattr("sys.argv", ["headway", "train", "run.toml", *options])
        with pytest.raises(SystemExit) as ended:
            app.main()
        return int(ended.value.code or 0), capsys.readouterr().err

    return run


def test_the_good_run_is_good(run: Run, tmp_path: Path) -> None:
    code, error = run()
    assert (code, error) == (0, "")
    assert json.loads((tmp_path / "runs/run/summary.json").read_text())["exit_reason"] == "finished"


def write_rows(path: Path, rows: list[dict[str, str]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return json.dumps(str(path))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"train__stepz": "3"}, ["train.stepz", "train.steps"]),
        ({"train__lr": '"fast"'}, ["train.lr", "fast"]),
        ({"train__lr": '"fast"', "rollout__samplez": "3"}, ["train.lr", "rollout.samples"]),
        ({"data__task": None, "data__file": '"nowhere.jsonl"'}, ["nowhere.jsonl"]),
        ({"data__task": '"chain_summ"'}, ["chain_summ", "chain_sum"]),
        ({"data__params": "{min_trems = 1}"}, ["min_trems"]),
        ({"reward__kind": '"function"', "reward__function": '"no_such_module:f"'}, ["no_such_module"]),
        ({"reward__kind": '"function"', "reward__function": '"json:no_such_name"'}, ["no_such_name"]),
        ({"rollout__kv_budget": "1024"}, ["rollout.kv_budget", "1024"]),
        ({"model__path": '"tiny-lama"'}, ["tiny-lama", "tiny-llama"]),
        ({"rollout__prompts": "50"}, ["rollout.prompts"]),
    ],
)
def test_wrong_values(run: Run, tmp_path: Path, changed: dict[str, str | None], said: list[str]) -> None:
    code, error = run(**changed)
    assert code == 2, error
    assert "Traceback" not in error
    for text in said:
        assert text in error
    assert not (tmp_path / "runs/run").exists()


def test_missing_runspec(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["headway", "train", "nowhere.toml"])
    with pytest.raises(SystemExit) as ended:
        app.main()
    assert ended.value.code == 2
    assert "nowhere.toml" in capsys.readouterr().err


def test_files_without_problems(run: Run, tmp_path: Path) -> None:
    empty = write_rows(tmp_path / "empty.jsonl", [])
    code, error = run(data__task=None, data__file=empty, reward__kind='"exact"')
    assert code == 2
    assert "empty.jsonl" in error
    rows = write_rows(tmp_path / "rows.jsonl", [{"prompt": f"p{i}", "answer": "1"} for i in range(30)])
    code, error = run(data__task=None, data__file=rows, reward__kind='"exact"')
    assert code == 2
    assert "label" in error
    assert "answer" in error


def test_a_model_folder_without_weights(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    config = {
        "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 160,
        "num_attention_heads": 4, "vocab_size": 264,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    code, error = run(model__path=json.dumps(str(folder)), model__init=None)
    assert code == 2
    assert "weights" in error or "safetensors" in error


def test_the_output_directory_of_another_run(run: Run, tmp_path: Path) -> None:
    assert run()[0] == 0
    before = {path: path.read_bytes() for path in (tmp_path / "runs/run").rglob("*") if path.is_file()}
    code, error = run(train__seed="7")
    assert code == 2
    assert "train.seed 0 -> 7" in error
    assert {path: path.read_bytes() for path in (tmp_path / "runs/run").rglob("*") if path.is_file()} == before


def test_an_output_directory_that_is_no_run(run: Run, tmp_path: Path) -> None:
    (tmp_path / "runs/run").mkdir(parents=True)
    (tmp_path / "runs/run/thesis.txt").write_text("dear")
    code, error = run()
    assert code == 2
    assert "output.dir" in error
    assert [path.name for path in (tmp_path / "runs/run").iterdir()] == ["thesis.txt"]


def test_a_plan_over_the_limit_does_not_start(run: Run, tmp_path: Path) -> None:
    code, error = run(memory__limit='"100MiB"')
    assert code == 3
    assert "memory.limit" in error
    assert not (tmp_path / "runs/run").exists()


def test_an_output_directory_that_cannot_be_written(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file/run", Path("/proc/headway")):
        code, error = run(output__dir=json.dumps(str(path)))
        assert code == 2
        assert f"output.dir = {path}" in error
    assert (tmp_path / "file").read_text() == "x"


def test_two_processes_cannot_share_an_output_directory(run: Run, tmp_path: Path) -> None:
    other = RunFolder(tmp_path / "runs/run")
    with other.lock():
        code, error = run()
    assert code == 2
    assert "another headway is running" in error
    assert run()[0] == 0


def test_a_dry_run_that_does_not_fit_says_so_with_its_exit_code(run: Run) -> None:
    code, error = run(memory__limit='"100MiB"', options=("--dry-run",))
    assert code == 3
    assert "does not fit in node[0].host" in error
    assert "memory.limit (100.0 MiB) is below what the processes hold" in error
    assert "smaller model" not in error
