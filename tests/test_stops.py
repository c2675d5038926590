"""How a run ends before its end: asked once or twice, on a full disk, or because it is done already."""

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import kill_resume
import planted_leak

REWARD = """
import pathlib, time

def score(prompt, answer, label, response):
    time.sleep(float(pathlib.Path(__file__).with_name("pause").read_text()))
    return float(len(response) % 2)
"""
SPEC = """
model = {path = "tiny-qwen3", init = "random", dtype = "fp32"}
data = {file = "sums.jsonl", format = "text"}
reward = {kind = "function", function = "slow:score"}
rollout = {prompts = 4, samples = 4, max_answer = 4}
train = {steps = 4, lr = 1e-3, cap = 512}
eval = {problems = 4, every = 2}
memory = {threads = 1}
output = {save_every = 2, tensorboard = false}
"""


@dataclass
class Run:
    """A run in a process of its own; `said` has each line of its standard error with when it came."""

    spec: Path
    output: Path
    more: tuple[str, ...] = ()
    said: list[tuple[float, str]] = field(default_factory=list)
    sent: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        settings = [part for each in (f"output.dir={self.output}", *self.more) for part in ("--set", each)]
        with (self.spec.parent / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "headway", "train", str(self.spec), *settings],
                stdout=log, stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
            )  # fmt: skip
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append((time.monotonic(), line.rstrip()))

    def until(self, step: int) -> "Run":
        """Wait until a step is recorded, and a little longer."""
        end = time.monotonic() + 120
        while time.monotonic() < end and self.process.poll() is None:
            metrics = self.output / "metrics.jsonl"
            if metrics.exists() and len(metrics.read_text().splitlines()) >= step:
                time.sleep(0.2)
                break
            time.sleep(0.01)
        return self

    def send(self, number: signal.Signals = signal.SIGINT) -> None:
        self.sent.append(time.monotonic())
        self.process.send_signal(number)

    def ended(self) -> int:
        code = self.process.wait(timeout=120)
        self.reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    """A run whose steps spend 0.8 s in the reward."""
    rows = ({"prompt": f"{a} + {b} =", "label": str(a + b)} for a in range(6) for b in range(6))
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "slow.py").write_text(REWARD)
    (tmp_path / "pause").write_text("0.05")
    path = tmp_path / "run.toml"
    path.write_text(SPEC)
    return path


def left_over(output: Path) -> list[str]:
    """Files and folders under a temporary name."""
    return [path.name for path in output.rglob(".*")]


def test_ctrl_c_once_or_twice_says_at_once_what_is_kept_and_the_run_is_the_same(spec: Path, tmp_path: Path) -> None:
    plain = Run(spec, tmp_path / "plain")
    assert plain.ended() == 0

    run = Run(spec, tmp_path / "run").until(1)
    run.send()
    assert run.ended() == 130
    at, text = run.said[0]
    assert text == "Ctrl-C: stopping after this token, saving step 1; Ctrl-C again: stop now; step 1 is lost"
    assert at - run.sent[0] < 1
    assert [path.name for path in (run.output / "checkpoints").iterdir()] == ["step-000001"]
    assert json.loads((run.output / "summary.json").read_text())["exit_reason"] == "SIGINT"

    run = Run(spec, tmp_path / "run").until(3)
    (tmp_path / "pause").write_text("2")  # a stop waits for the answer that is being scored
    time.sleep(0.2)
    run.send(signal.SIGTERM)
    time.sleep(0.35)
    run.send(signal.SIGTERM)
    assert run.ended() == 143
    assert run.said[0][1].endswith("Ctrl-C again: stop now; step 3 is lost, step 2 is kept")
    assert run.said[0][0] - run.sent[0] < 1
    assert left_over(run.output) in ([], [".reserve"])
    assert not any(name.endswith(".tmp") for name in left_over(run.output))

    (tmp_path / "pause").write_text("0")
    run = Run(spec, tmp_path / "run")
    assert run.ended() == 0
    assert kill_resume.differences(kill_resume.read(plain.output), kill_resume.read(run.output)) == []


def test_a_stop_in_the_load_takes_away_what_it_made(spec: Path, tmp_path: Path) -> None:
    run = Run(spec, tmp_path / "run")
    time.sleep(0.8)
    run.send()
    assert run.ended() == 130
    assert run.said[0][1] == "Ctrl-C: stopping now; nothing is lost"
    assert "Traceback" not in "".join(text for _, text in run.said)
    assert not run.output.exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system for two checkpoints and not three; skips where none may be mounted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4600k", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("no file system may be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def doctor(path: Path, *more: str) -> str:
    command = [sys.executable, "-m", "headway", "doctor", str(path), *more]
    return " ".join(subprocess.run(command, capture_output=True, text=True, check=False).stdout.split())


def train(spec: Path, output: Path, *more: str, largest_file: int | None = None) -> subprocess.CompletedProcess[str]:
    def limit() -> None:
        if largest_file is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))

    command = [sys.executable, "-m", "headway", "train", str(spec), "--set", f"output.dir={output}", *more]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, preexec_fn=limit,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def test_a_full_disk_is_refused_or_ends_with_words_and_a_checkpoint(tmp_path: Path, small_disk: Path) -> None:
    spec = kill_resume.write_spec(tmp_path)
    refused = train(spec, small_disk / "run")
    assert refused.returncode == 3
    assert "output.dir" in refused.stderr
    assert not (small_disk / "run").exists()

    full = train(spec, small_disk / "run", "--force")
    assert full.returncode == 7, full.stderr
    assert "the checkpoint of step 6 (1.5 MiB) could not be written: No space left on device" in full.stderr
    assert f"free on {small_disk} (tmpfs). The checkpoint of step 4 is kept" in full.stderr
    assert "output.keep" in full.stderr
    summary = json.loads((small_disk / "run/summary.json").read_text())
    assert (summary["exit_reason"], summary["steps"]) == ("full disk", 6)
    assert left_over(small_disk / "run") == []
    assert sorted(path.name for path in (small_disk / "run/checkpoints").iterdir()) == ["step-000002", "step-000004"]

    (tmp_path / "log").write_text(full.stderr)
    for path in (tmp_path / "log", small_disk / "run"):
        assert json.loads(doctor(path, "--json"))["answer"]["cause"] == "disk-full", path
    assert doctor(small_disk / "run/recording.jsonl").startswith("The disk was full, and the run stopped")

    fits = train(spec, small_disk / "run", "--set", "output.keep=1")
    assert fits.returncode == 0, fits.stderr
    # what the plan said of it beside what it was
    disk = json.loads((small_disk / "run/plan.json").read_text())["disk"]
    saved = next((small_disk / "run/checkpoints").iterdir())
    written = sum(path.stat().st_size for path in saved.iterdir())
    assert written <= disk["checkpoint_bytes"] < 1.2 * written
    final = sum(path.stat().st_size for path in (small_disk / "run/final").iterdir())
    assert disk["final_bytes"] == pytest.approx(final, rel=0.2)
    assert disk["verdict"] == "fits"


def test_a_log_that_cannot_be_written_leaves_whole_lines(tmp_path: Path, small_disk: Path) -> None:
    spec = kill_resume.write_spec(tmp_path)
    run = Run(spec, small_disk / "run", ("output.keep=1", "output.save_every=0")).until(1)
    with (small_disk / "others").open("wb") as file:
        file.write(bytes(2 << 20))
        while True:
            try:
                os.write(file.fileno(), bytes(256))
            except OSError:
                break
    assert run.ended() == 7
    for path in (small_disk / "run").glob("*.jsonl"):
        assert all(json.loads(line) for line in path.read_text().splitlines())
    assert json.loads((small_disk / "run/summary.json").read_text())["problem"].startswith("disk full: ")


def test_a_limit_on_a_file_s_size_is_told_from_a_full_disk(tmp_path: Path) -> None:
    found = train(kill_resume.write_spec(tmp_path), tmp_path / "run", largest_file=800 << 10)
    assert found.returncode == 7, found.stderr
    assert "ulimit -f" in found.stderr
    assert left_over(tmp_path / "run") == []


def test_a_finished_run_has_nothing_to_do_and_one_with_a_step_left_goes_on(tmp_path: Path) -> None:
    spec, output = kill_resume.write_spec(tmp_path), tmp_path / "run"
    two, constant = ("--set", "train.steps=2"), ("--set", "train.schedule=constant")
    first = train(spec, output, *two, *constant)
    assert first.returncode == 0, first.stderr
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in output.rglob("*") if path.is_file()}
    again = train(spec, output, *two, *constant, "--json")
    assert again.returncode == 0
    assert "nothing to do: 2 of 2 steps are done; set train.steps to go on" in again.stderr
    assert json.loads(again.stdout)["steps"] == 2
    after = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in output.rglob("*") if path.is_file()}
    assert after == before
    other = train(spec, output, *two, *constant, "--set", "model.dtype=bf16")
    assert other.returncode == 2, "another run's directory is refused as ever"
    more = train(spec, output, "--set", "train.steps=3", *constant)
    assert more.returncode == 0, more.stderr
    assert json.loads((output / "summary.json").read_text())["steps"] == 3


def test_doctor_tells_why_the_guard_stopped_a_run(tmp_path: Path) -> None:
    spec = planted_leak.write(tmp_path / "leak", 60, 160_000_000, 0.4)
    stopped = train(spec, tmp_path / "run", "--set", "memory.limit=1600MB")
    assert stopped.returncode == 5, stopped.stderr
    answer = json.loads(doctor(tmp_path / "run", "--json"))["answer"]
    assert (answer["cause"], answer["cause_grade"], answer["family"]) == (
        "host-memory-growth",
        "proven",
        "host-memory",
    )
    assert "headway's guard stopped the run before a limit, with a checkpoint" in answer["sentence"]
    assert "memory.limit" in answer["because"]
    assert not any("dmesg" in each["command"] for each in answer["would_settle"])
    # a guard that only would have stopped it has stopped nothing
    observed = train(spec, tmp_path / "seen", "--set", "memory.limit=1600MB", "--set", "guard.policy=observe",
                     "--set", "train.steps=3")  # fmt: skip
    assert observed.returncode == 0, observed.stderr
    assert json.loads(doctor(tmp_path / "seen", "--json"))["answer"]["outcome"] == "finished"
