"""`headway watch -- bash run.sh` on a script that does `ray start` and `ray job submit`, killed in each way.

Slow: run with `pytest -m slow tests/test_watch_ray.py`, with `ray` (extra `ray`, 2.49 to 2.60) on the PATH or beside
the Python that runs the tests. It uses ports of its own and a folder of its own, and stops only what it started.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headway.cli import doctor
from headway.diagnose.finding import Finding
from headway.facts.probe import node_memory
from headway.guard.blackbox import Box, read_blackbox
from headway.guard.senders import SignalTrace

RAY = shutil.which("ray") or shutil.which("ray", path=str(Path(sys.executable).parent))
pytestmark = [pytest.mark.slow, pytest.mark.skipif(RAY is None, reason="needs the command `ray`")]
HEADWAY = [sys.executable, "-m", "headway"]

JOB = """
import os, signal, sys, time
import ray

ray.init(address=os.environ["RAY_AT"])

@ray.remote
class Trainer:
    def train(self, step, leak):
        kept.append(b"x" * leak)
        time.sleep(0.2)
        return step

def leave(number, frame):
    print("saved before step", step, flush=True)
    open(os.path.join(save, "saved"), "a").write(f"{step}\\n")
    sys.exit(7)

kept = []
leak = int(sys.argv[sys.argv.index("--leak") + 1]) if "--leak" in sys.argv else 0
if leak:
    signal.signal(signal.SIGTERM, leave)
trainer = Trainer.remote()
save = sys.argv[sys.argv.index("--save") + 1]
tracker = os.path.join(save, "latest_checkpointed_iteration.txt")
first = int(open(tracker).read()) + 1 if "--load" in sys.argv else 0
print("starts from", first, flush=True)
for step in range(first, int(sys.argv[sys.argv.index("--num-rollout") + 1])):
    ray.get(trainer.train.remote(step, leak))
    print(f"rollout {step}: {{'rollout/reward': 0.5}}", flush=True)
    if step % 5 == 4:
        folder = os.path.join(save, f"iter_{step:07d}")
        os.makedirs(folder, exist_ok=True)
        open(os.path.join(folder, "common.pt"), "w").write("weights")
        open(tracker, "w").write(str(step))
"""
SCRIPT = """#!/bin/bash
DIR="$(cd "$(dirname "${{BASH_SOURCE[0]}}")" && pwd)"
export RAY_AT=127.0.0.1:{port} RAY_AUTH_MODE=disabled
ray start --head --port={port} --dashboard-host=127.0.0.1 --dashboard-port={dashboard} --temp-dir={temporary} \\
  --num-cpus=2 --object-store-memory=80000000 --node-manager-port={manager} --object-manager-port={objects} \\
  --ray-client-server-port={client} --dashboard-agent-listen-port={agent} --disable-usage-stats || exit 9
ray job submit --address=http://127.0.0.1:{dashboard} -- python3 "$DIR/train.py" --num-rollout {steps} \\
  --rollout-batch-size 8 --save {save} {more}
"""


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens at now."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class Run:
    """A watched script of its own, and what the black box saw of it."""

    def __init__(self, folder: Path, steps: int, more: str = "") -> None:
        self.box_folder, self.temporary = (
            folder / "box",
            Path("/tmp") / f"hw{os.getpid()}-{time.monotonic_ns() % 10**6}",
        )
        names = ("port", "dashboard", "manager", "objects", "client", "agent")
        ports = dict(zip(names, free_ports(len(names)), strict=True))
        (folder / "train.py").write_text(JOB)
        (folder / "ckpt").mkdir()
        self.script = folder / "run.sh"
        self.script.write_text(
            SCRIPT.format(**ports, temporary=self.temporary, steps=steps, save=folder / "ckpt", more=more)
        )
        self.seen: dict[int, str] = {}

    def start(self, *options: str, enter: Callable[[], None] | None = None) -> None:
        path = os.pathsep.join([str(Path(RAY or "").parent), os.environ["PATH"]])
        self.process = subprocess.Popen(
            [*HEADWAY, "watch", "--out", str(self.box_folder), *options, "--", "bash", str(self.script)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
            env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}, preexec_fn=enter,
        )  # fmt: skip

    def box(self) -> Box:
        box = read_blackbox(self.box_folder)
        self.seen |= {use.pid: use.name for frame in box.recent for use in frame.processes}
        return box

    def wait_for(self, text: str, seconds: float = 90.0) -> None:
        end = time.monotonic() + seconds
        while not any(text in line for line in self.log()):
            assert time.monotonic() < end, f"{text!r} was not printed: {self.log()[-5:]}"
            assert self.process.poll() is None, self.process.communicate()[0][-3000:]
            time.sleep(0.1)

    def log(self) -> tuple[str, ...]:
        with contextlib.suppress(Exception):
            return read_blackbox(self.box_folder).log
        return ()

    def pid_of(self, name: str) -> int:
        end = time.monotonic() + 20
        while True:
            last = self.box().last
            found = [use.pid for use in (last.processes if last else ()) if name in use.name]
            if found:
                return found[0]
            assert time.monotonic() < end, f"no process {name}: {last and [use.name for use in last.processes]}"
            time.sleep(0.2)

    def answer(self) -> Finding:
        return doctor.diagnosed([str(self.box_folder)], [], self.script, None, live=False).answer

    def left(self) -> list[int]:
        """The processes that carry this run's own folder in their command line."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                if str(self.temporary) in path.read_text():
                    found.append(int(path.parent.name))
        return found

    def stop(self) -> None:
        """Only what is the run's own."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.communicate()
        for pid in {*self.left(), *self.seen}:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.temporary, ignore_errors=True)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path, steps=400)
    yield made
    made.stop()


@pytest.fixture
def bystanders() -> Iterator[None]:
    names = ("exec -a raylet sleep 300", "exec -a ray::Trainer.train sleep 300", "exec -a gcs_server sleep 300")
    others = [subprocess.Popen(["bash", "-c", name], start_new_session=True) for name in names]
    yield
    touched = [other.args for other in others if other.poll() is not None]
    for other in others:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(other.pid, signal.SIGKILL)
        other.wait()
    assert not touched


def send(number: int, *pids: int) -> int:
    """Send a signal from a shell of its own, which lives a moment longer; the pid of that shell."""
    kills = "; ".join(f"kill -{number} {pid}" for pid in pids)
    shell = subprocess.Popen(["bash", "-c", f"{kills}; sleep 2; true"], start_new_session=True)
    shell.wait()
    return shell.pid


KILLS = [
    ("ray::Trainer", signal.SIGKILL, "sigkill-class"),
    ("ray::Trainer", signal.SIGTERM, "sigterm"),
    ("train.py", signal.SIGKILL, "sigkill-class"),
    ("raylet", signal.SIGKILL, "raylet-lost"),
]


@pytest.mark.parametrize(("victim", "number", "mechanism"), KILLS)
def test_a_death_is_recorded_and_named(run, bystanders, victim, number, mechanism):
    run.start()
    run.wait_for("rollout 6:")
    pid = run.pid_of(victim)
    sender = send(number, pid)
    out, _ = run.process.communicate(timeout=150)
    assert "black box: " in out
    assert run.process.returncode != 0 or victim == "raylet", out[-3000:]  # `ray job submit` ends with 0 then
    box, answer = run.box(), run.answer()
    assert box.over is not None
    assert pid in [each.pid for each in box.ended]
    assert answer.mechanism == mechanism, out[-3000:]
    with SignalTrace.open() as trace:
        traced = trace.why_not is None
    if traced:
        assert sender in [each.sender for each in box.sent if each.pid == pid]
        assert f"process {sender} (bash)" in answer.because
    else:
        assert any("who sends signals" in note for note in box.notes)


def test_a_kill_of_the_whole_tree_leaves_its_last_second(run, bystanders):
    run.start()
    run.wait_for("rollout 6:")
    run.pid_of("ray::Trainer")
    box = run.box()
    pids = [use.pid for use in box.last.processes]
    os.kill(run.process.pid, signal.SIGKILL)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    killed = time.time()
    box = run.box()
    assert killed - box.last.t < 1.5
    assert box.over is None
    assert any(use.name.startswith("ray::Trainer") for use in box.last.processes)
    assert run.answer().mechanism == "sigkill-class"


def test_what_the_console_never_showed_is_kept_and_read(tmp_path, bystanders, monkeypatch):
    memory = node_memory()
    assert memory is not None
    monkeypatch.setenv("RAY_memory_usage_threshold", f"{(memory.used + (2500 << 20)) / memory.total:.4f}")
    run = Run(tmp_path, steps=4000, more=f"--leak {40 << 20} > /dev/null 2>&1")
    try:
        run.start("--quiet")
        run.process.communicate(timeout=150)
        shutil.rmtree(run.temporary)
        answer = run.answer()
        assert not any("memory" in line for line in run.log())
        assert (answer.mechanism, answer.mechanism_grade) == ("ray-memory-monitor", "proven")
        assert answer.evidence[0].file.startswith(str(run.box_folder / "ray"))
    finally:
        run.stop()


def test_under_strict_a_job_that_grows_is_stopped_whole_before_the_limit(tmp_path, bystanders, limited_group):
    limit = 3 << 30
    run = Run(tmp_path, steps=4000, more=f"--leak {12 << 20}")
    try:
        run.start("--policy", "strict", enter=limited_group(limit))
        out, _ = run.process.communicate(timeout=280)
        box = run.box()
        assert "saved before step" in out
        assert (tmp_path / "ckpt/saved").read_text().count("\n") == 1
        first = box.sent[0]
        assert (first.name, first.signal, first.sender) == ("python3 train.py", 15, run.process.pid)
        assert max(frame.gauges[1].used for frame in box.recent) < limit
        assert box.counters["after"]["oom_kill"] == box.counters["before"]["oom_kill"]
        assert run.process.returncode == 1  # `ray job submit` of a job that failed
        assert run.left() == []
        answer = run.answer()
        assert (answer.mechanism, answer.cause, answer.cause_grade) == ("sigterm", "host-memory-growth", "proven")
    finally:
        run.stop()


def test_a_restart_finishes_the_run(tmp_path, bystanders):
    run = Run(tmp_path, steps=100)
    try:
        run.start("--restart", "1")
        run.wait_for("rollout 12:")
        send(signal.SIGKILL, run.pid_of("ray::Trainer"))
        out, _ = run.process.communicate(timeout=200)
        assert run.process.returncode == 0, out[-4000:]
        box = run.box()
        assert box.attempts == 2
        assert "goes on from checkpoint" in out
        first = int(next(line for line in box.log if "starts from" in line).split()[-1])
        assert first in range(10, 100, 5)
        assert any("rollout 99:" in line for line in box.log)
        copy = next(run.box_folder.glob("restart-1-*"))
        assert "--load" in copy.read_text()
        assert "--load" not in run.script.read_text()
    finally:
        run.stop()
