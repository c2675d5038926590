"""A run that is killed or stopped and resumed is the same run."""

import signal
import time
from pathlib import Path

import pytest

import kill_resume
from headway.cli import app


def steps_done(output: Path) -> int:
    metrics = output / "metrics.jsonl"
    return len(metrics.read_text().splitlines()) if metrics.exists() else 0


def run_until(spec: Path, output: Path, steps: int, sent: signal.Signals) -> int:
    """Start or resume, send a signal once that many steps are recorded, and return the exit code."""
    process = kill_resume.start(spec, output)
    deadline = time.monotonic() + 120
    while steps_done(output) < steps and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(sent)
    return process.wait(timeout=60)


def finish_here(spec: Path, output: Path, monkeypatch: pytest.MonkeyPatch) -> kill_resume.Outcome:
    """Start or resume in this process, which has its libraries loaded, and go to the end."""
    monkeypatch.setattr("sys.argv", ["headway", "train", str(spec), "--set", f"output.dir={output}"])
    with pytest.raises(SystemExit) as ended:
        app.main()
    assert ended.value.code == 0
    return kill_resume.read(output)


def test_three_kills_and_a_sigterm_leave_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One run that goes through, and one that is killed, asked to stop, killed twice more, and each time resumed."""
    (tmp_path / "plain").mkdir()
    plain = finish_here(kill_resume.write_spec(tmp_path / "plain"), tmp_path / "plain" / "run", monkeypatch)
    spec, output = kill_resume.write_spec(tmp_path), tmp_path / "run"
    assert run_until(spec, output, 1, signal.SIGKILL) == -signal.SIGKILL
    assert run_until(spec, output, 3, signal.SIGTERM) == 128 + signal.SIGTERM
    log = (tmp_path / "run.log").read_text()
    assert "SIGTERM" in log
    assert "Traceback" not in log
    for steps in (5, 8):
        assert run_until(spec, output, steps, signal.SIGKILL) == -signal.SIGKILL
    assert kill_resume.differences(plain, finish_here(spec, output, monkeypatch)) == []
