"""What `plan` and `train --dry-run` say of a run's disk."""

import json
import sys
from pathlib import Path

import pytest

from headway.cli import app

SPEC = """
model = {path = "tiny-qwen3", init = "random", dtype = "fp32"}
data = {file = "sums.jsonl", format = "text"}
reward = {kind = "exact"}
rollout = {prompts = 2, samples = 2, max_answer = 4}
train = {steps = 50, cap = 512}
"""


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rows = ({"prompt": f"{a} + {b} =", "label": str(a + b)} for a in range(9) for b in range(9))
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "run.toml").write_text(SPEC)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run.toml"


def headway(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["headway", *words])
    with pytest.raises(SystemExit) as ended:
        app.main()
    return int(ended.value.code or 0)


@pytest.mark.parametrize("command", [("plan",), ("train", "--dry-run")])
def test_the_disk_is_in_the_plan(
    spec: Path, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert headway(monkeypatch, *command, str(spec)) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Disk: up to " in shown
    assert "(3 checkpoints of 1.5 MiB, the final model " in shown
    assert headway(monkeypatch, *command, str(spec), "--json") == 0
    disk = json.loads(capsys.readouterr().out)["disk"]
    assert disk["verdict"] == "fits"
    assert 0 < disk["expected_bytes"] < disk["free_bytes"]
    assert headway(monkeypatch, *command, str(spec), "--set", "output.keep=10000", "--set", "output.save_every=1",
                   "--set", "train.steps=10000000", "--set", "output.rollouts=1000") == 3  # fmt: skip
    assert "output.dir = " in capsys.readouterr().err


def test_another_machine_s_disk_is_not_this_one_s(
    spec: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert headway(monkeypatch, "plan", str(spec), "--machine", "gb10", "--json") == 0
    disk = json.loads(capsys.readouterr().out)["disk"]
    assert (disk["verdict"], disk["free_bytes"], disk["file_system"]) == ("cannot tell", None, None)
