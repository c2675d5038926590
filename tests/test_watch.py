"""`headway watch` with real commands: nothing of the command changes, and the black box survives every kill."""

import contextlib
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headway.cli import doctor
from headway.guard.blackbox import is_written, read_blackbox
from headway.guard.senders import SignalTrace

HEADWAY = [sys.executable, "-m", "headway"]


def watch(folder: Path, *words: str, **how: object) -> "subprocess.Popen[str]":
    """A watch in a session of its own; its words are options, then -- and the command."""
    return subprocess.Popen(
        [*HEADWAY, "watch", "--out", str(folder), *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True, **how,
    )  # type: ignore[call-overload, no-any-return]  # fmt: skip


def until(found: Callable[[], object], seconds: float = 15.0) -> None:
    end = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def says(folder: Path, text: str) -> Callable[[], bool]:
    def found() -> bool:
        log = folder / "log.0.txt"
        return log.exists() and text in log.read_text()

    return found


def alive(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


@pytest.fixture
def bystanders() -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Processes of the same names that are nobody's business."""
    names = ("sleep 60", "exec -a ray::Trainer sleep 60", "exec -a raylet sleep 60")
    others = [subprocess.Popen(["bash", "-c", name], start_new_session=True) for name in names]
    yield others
    for other in others:
        assert other.poll() is None, "a bystander was touched"
        os.killpg(other.pid, signal.SIGKILL)
        other.wait()


def test_output_and_exit_code_pass_through_and_the_doctor_answers_on_standard_error(tmp_path):
    script = "echo out; echo err >&2; cat; python3 -c 'raise KeyError(7)'"
    done = subprocess.run(
        [*HEADWAY, "watch", "--out", tmp_path / "box", "--", "bash", "-c", script],
        input="given\n", capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "out\ngiven\n")
    assert done.stderr.startswith("err\nTraceback")
    assert "python-exception (proven)" in done.stderr
    box = read_blackbox(tmp_path / "box")
    assert (box.begun.command, box.over is not None and box.over.code) == (("bash", "-c", script), 1)
    assert {"out", "err", "given", "KeyError: 7"} <= set(box.log)


def test_each_signal_is_passed_on_once_and_its_sender_is_recorded(tmp_path):
    numbers = [signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGQUIT, signal.SIGINT, signal.SIGTERM]
    code = (
        "import signal, time\n"
        f"for n in {[int(n) for n in numbers]}: signal.signal(n, lambda n, f: print('got', n, flush=True))\n"
        "print('ready', flush=True)\nend = time.time() + 20\n"
        "while time.time() < end: signal.sigtimedwait([], 0.05)\n"
    )
    process = watch(tmp_path, "--quiet", "--", sys.executable, "-c", code)
    until(says(tmp_path, "ready"))
    for number in numbers:
        process.send_signal(number)
        until(says(tmp_path, f"got {int(number)}\n"))
    box = read_blackbox(tmp_path)
    assert [(each.signal, each.sender) for each in box.sent] == [(int(number), os.getpid()) for number in numbers]
    os.kill(box.recent[-1].processes[0].pid, signal.SIGKILL)
    out, _ = process.communicate(timeout=15)
    assert process.returncode == 128 + signal.SIGKILL
    assert out.split("\n")[1:-1] == [f"got {int(number)}" for number in numbers]


def test_ctrl_c_is_no_death(tmp_path):
    code = "import time\nprint('ready', flush=True)\ntime.sleep(30)\n"
    process = watch(tmp_path, "--quiet", "--", sys.executable, "-c", code)
    until(says(tmp_path, "ready"))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=15)
    found = doctor.diagnosed([str(tmp_path)], [], None, None, live=False)
    assert (found.answer.outcome, found.exit_code) == ("stopped", 0)


def test_what_a_command_leaves_behind_goes_on_printing(tmp_path):
    go, done = tmp_path / "go", tmp_path / "done"
    late = f"until [ -e {go} ]; do sleep 0.05; done; echo late; echo later; touch {done}"
    with watch(tmp_path / "box", "--quiet", "--", "bash", "-c", f"({late}) & echo first") as run:
        assert run.wait(20) == 0
        go.touch()
        assert run.communicate(timeout=20)[0] == "first\nlate\nlater\n"
    until(done.exists)


def test_on_a_terminal_the_command_has_one_too(tmp_path):
    code = "stty size; test -t 0 && test -t 2 && tty; echo $COLUMNS; echo -e 'bar 1\\rbar 2'; cat; echo not reached"
    pid, terminal = pty.fork()
    if pid == 0:
        time.sleep(0.2)  # until the size is set
        os.environ["TERM"] = "dumb"
        os.execv(sys.executable, [*HEADWAY, "watch", "--out", str(tmp_path), "--", "bash", "-c", code])
    import termios

    termios.tcsetwinsize(terminal, (40, 100))
    before = termios.tcgetattr(terminal)
    seen = b""

    def read(wanted: bytes) -> bytes:
        nonlocal seen
        until(lambda: (select.select([terminal], [], [], 0.1)[0] and more()) or wanted in seen)
        return seen

    def more() -> bool:
        nonlocal seen
        seen += os.read(terminal, 4096)
        return False

    read(b"bar 2")
    os.write(terminal, b"typed\r")
    read(b"typed\r\ntyped\r\n")
    os.write(terminal, b"\x03")
    with contextlib.suppress(OSError):
        while data := os.read(terminal, 4096):
            seen += data
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 128 + signal.SIGINT
    assert b"/dev/pts/" in seen
    assert b"not reached" not in seen
    assert b"40 100" in seen
    assert termios.tcgetattr(terminal) == before
    os.close(terminal)


def test_a_kill_of_everything_leaves_the_last_second(tmp_path, bystanders):
    script = (
        "echo step 41 done; setsid bash -c 'exec -a ray::Trainer sleep 50' & "
        "python3 -c \"import time; held = b'x' * (200 << 20); print('step 42 done', flush=True); time.sleep(50)\""
    )
    process = watch(tmp_path, "--quiet", "--", "bash", "-c", script)
    until(says(tmp_path, "step 42"))
    until(lambda: (last := read_blackbox(tmp_path).last) and last.step == 42 and len(last.processes) >= 3)
    time.sleep(0.5)
    pids = [each.pid for each in read_blackbox(tmp_path).last.processes]  # type: ignore[union-attr]
    for pid in (process.pid, *pids):
        os.kill(pid, signal.SIGKILL)
    killed = time.time()
    process.communicate()
    until(lambda: not any(map(alive, pids)))
    box = read_blackbox(tmp_path)
    assert not is_written(tmp_path)
    assert box.over is None
    assert box.last is not None
    assert killed - box.last.t < 1.5
    assert (box.last.step, box.log[-1]) == (42, "step 42 done")
    assert box.last.processes[0].rss > 200 << 20
    answer = doctor.diagnosed([str(tmp_path)], [], None, None, live=False).answer
    assert (answer.mechanism, answer.mechanism_grade, answer.step) == ("sigkill-class", "supported", 42)


def test_a_killed_worker_is_named_and_so_is_who_killed_it(tmp_path, bystanders):
    code = (
        "import multiprocessing, time\n"
        "def work(): time.sleep(50)\n"
        "worker = multiprocessing.Process(target=work); worker.start(); print('worker', worker.pid, flush=True)\n"
        "worker.join(); print('worker ended', worker.exitcode, flush=True); raise SystemExit(3)\n"
    )
    process = watch(tmp_path, "--quiet", "--interval", "0.2", "--", sys.executable, "-c", code)
    until(says(tmp_path, "worker "))
    pid = int((tmp_path / "log.0.txt").read_text().split()[1])
    until(lambda: (last := read_blackbox(tmp_path).last) and pid in [each.pid for each in last.processes])
    time.sleep(0.3)
    sender = subprocess.Popen(["bash", "-c", f"kill -9 {pid}; sleep 1.5; true"])
    _, err = process.communicate(timeout=20)
    sender.wait()
    assert process.returncode == 3
    box = read_blackbox(tmp_path)
    assert {each.pid: each.signal for each in box.ended}[pid] == signal.SIGKILL
    assert "sigkill" in err.lower() or "no program can answer" in err
    answer = doctor.diagnosed([str(tmp_path)], [], None, None, live=False).answer
    assert (answer.mechanism, answer.mechanism_grade) == ("sigkill-class", "proven")
    with SignalTrace.open() as trace:
        traced = trace.why_not is None
    if traced:
        assert [(each.sender, each.sender_name) for each in box.sent if each.pid == pid] == [(sender.pid, "bash")]
        assert (answer.cause, answer.cause_grade) == ("outside-signal", "proven")
        assert f"process {sender.pid} (bash)" in answer.because
    else:
        assert any("who sends signals" in note for note in box.notes)


def test_a_terminated_command_names_the_sender_and_leaves_kubernetes_a_message(tmp_path, monkeypatch):
    code = (
        "import sys; from pathlib import Path; from headway.cli import watching;"
        f"watching.TERMINATION_LOG = Path({str(tmp_path / 'message')!r});"
        "from headway.cli.app import main; sys.argv[0] = 'headway'; main()"
    )
    (tmp_path / "message").write_text("")
    box = tmp_path / "box"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "watch", "--quiet", "--out", str(box), "--", "bash", "-c", "echo up; sleep 50"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    until(says(box, "up"))
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 128 + signal.SIGTERM
    message = (tmp_path / "message").read_text()
    assert message.startswith("SIGTERM ended ")
    assert f"process {os.getpid()}" in message
    assert message in err


LEAKY = """
import signal, sys, time
def leave(number, frame):
    open(sys.argv[1], "a").write(f"{len(held)}\\n")
    print("saved", flush=True)
    sys.exit(7)
held = [b"w" * (220 << 20)]
signal.signal(signal.SIGTERM, leave)
for step in range(1000):
    held.append(b"x" * (1 << 20))
    time.sleep(0.05)
    print(f"step {step}: {{'loss': 1}}", flush=True)
"""


def test_under_strict_a_leak_is_stopped_before_the_limit_and_told_as_that(tmp_path, bystanders, limited_group):
    limit, box = 320 << 20, tmp_path / "box"
    enter = limited_group(limit)
    (tmp_path / "leaky.py").write_text(LEAKY)
    script = f"set -o pipefail; {sys.executable} leaky.py saved 2>&1 | tee log"
    words = ("--quiet", "--policy", "strict", "--", "bash", "-c", script)
    process = watch(box, *words, cwd=tmp_path, preexec_fn=enter)
    out, err = process.communicate(timeout=40)
    assert process.returncode == 7
    assert out.splitlines()[-1] == "saved"
    assert (tmp_path / "saved").read_text().count("\n") == 1
    assert int((tmp_path / "saved").read_text()) > 20
    found = read_blackbox(box)
    (stop,) = [each for each in found.actions if each.name == "stop"]
    assert (stop.dry, stop.gauge, stop.threshold) == (False, "cgroup", limit)
    assert [(each.signal, each.name, each.sender) for each in found.sent] == [
        (15, f"{Path(sys.executable).name} leaky.py", process.pid)
    ]
    assert found.counters["after"].get("oom_kill") == found.counters["before"].get("oom_kill")
    answer = doctor.diagnosed([str(box)], [], None, None, live=False).answer
    assert (answer.mechanism, answer.cause, answer.cause_grade) == ("sigterm", "host-memory-growth", "proven")
    assert err.startswith("headway's guard stopped the run before a limit, with SIGTERM (step ")
    assert "(cgroup) grows" in answer.because


SCRIPTS = Path(__file__).parent / "data" / "scripts"
TRAINER = """import sys, time
for timer in ("generate", "train"):
    print(f"Timer {timer} start", flush=True)
    time.sleep(0.6)
raise KeyError(len(sys.argv))
"""
RAY = """#!/bin/bash
[ "$1" = job ] || exit 0
while [ "$1" != -- ]; do shift; done
shift; exec "$@"
"""
"""Stands in for Ray: what is submitted runs at once."""


def launch(folder: Path) -> dict[str, str]:
    """A slime script that fails after two phases, run.sh, and the environment to run it in."""
    lines = (SCRIPTS / "slime-arrays.sh").read_text().splitlines(keepends=True)
    script = "".join(line for line in lines if not line.startswith(("pkill", "sleep", "ray stop")))
    (folder / "run.sh").write_text(script)
    shutil.copytree(SCRIPTS / "models", folder / "models")
    (folder / "train.py").write_text(TRAINER)
    (folder / "bin").mkdir()
    (folder / "bin" / "ray").write_text(RAY)
    (folder / "bin" / "ray").chmod(0o755)
    return {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}"}


def patient(wait_s: float) -> list[str]:
    """headway that holds a command back for its plan for so long."""
    code = (
        f"import sys; from headway.cli import watch_plan; watch_plan.WAIT_S = {wait_s};"
        "from headway.cli.app import main; sys.argv[0] = 'headway'; main()"
    )
    return [sys.executable, "-c", code]


@pytest.mark.parametrize(
    "wait_s", [60.0, pytest.param(0.0, marks=pytest.mark.slow)], ids=["before the run", "as soon as it is ready"]
)
def test_a_launch_is_planned_and_doctor_and_report_know_its_plan(tmp_path, wait_s):
    path = launch(tmp_path)
    words = [*patient(wait_s), "watch", "--out", "box", "--machine", "8xh100-80", "--", "bash", "run.sh"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path, env=path)
    says = (
        "headway: planned on 8xh100-80: fits: node[0].device[0] 63.83 GiB at most of 79.11 GiB (device memory), phase"
    )
    assert done.returncode == 1
    assert done.stderr.count(says) == 1
    assert done.stderr.startswith(says) is (wait_s > 0)
    assert "the plan before the run, on 8xh100-80: fits" in done.stderr
    events = (tmp_path / "box" / "events.jsonl").read_text()
    assert events.count('"kind":"plan"') == (0 if wait_s else 1)
    box = read_blackbox(tmp_path / "box")
    assert json.loads(box.begun.spec)["settings"]["tp"] == 2
    found = subprocess.run(
        [*HEADWAY, "report", "box", "--json"], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    host = next(each for each in json.loads(found.stdout)["comparisons"] if each["pool"] == "node[0].host")
    measured = {row["phase"]: row["measured"] for row in host["rows"]}
    assert 0 < measured["train"] < host["predicted"] / 4


@pytest.mark.slow
def test_a_plan_that_comes_late_has_a_line_of_its_own_on_a_terminal(tmp_path):
    """The command has the terminal in raw mode, where a line feed alone does not go back to the first column."""
    environment = launch(tmp_path) | {"TERM": "dumb"}
    words = [*patient(0.0), "watch", "--out", "box", "--machine", "8xh100-80", "--", "bash", "run.sh"]
    waits = "printf half\nfor n in {1..150}; do sleep 0.1; test -e told && break; done\n"
    (tmp_path / "run.sh").write_text(waits + (tmp_path / "run.sh").read_text())
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execve(sys.executable, words, environment)
    seen = b""
    with contextlib.suppress(OSError):
        while data := os.read(terminal, 4096):
            seen += data
            if b"phase rollout" in seen:
                (tmp_path / "told").touch()
    os.waitpid(pid, 0)
    assert re.search(rb"half\r\nheadway: planned on 8xh100-80: fits: [^\r\n]*phase rollout\r\n", seen), seen


@pytest.mark.slow
def test_a_rehearsal_that_is_run_is_planned_as_any_launch(tmp_path):
    words = [*patient(60.0), "rehearse", "run.sh", "--out", "full", "--run"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path, env=launch(tmp_path))
    assert done.returncode == 1
    assert json.loads(read_blackbox(tmp_path / "full" / "watch").begun.spec)["settings"]["tp"] == 2


def test_words_that_are_no_text_reach_the_command_as_they_are(tmp_path):
    done = subprocess.run(
        [*HEADWAY, "watch", "--quiet", "--out", tmp_path, "--", "printf", b"caf\xe9"],
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, b"caf\xe9")
    assert read_blackbox(tmp_path).begun.command == ("printf", "caf\ufffd")


@pytest.mark.slow
def test_a_running_process_is_watched_and_left_alone(tmp_path):
    with subprocess.Popen(["bash", "-c", "sleep 50 & wait"], start_new_session=True) as other:
        process = watch(tmp_path, "--pid", str(other.pid))
        until(lambda: (tmp_path / "frames-000001.jsonl").exists() and read_blackbox(tmp_path).last)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=15)
        assert process.returncode == 0
        assert "no longer watched" in err
        assert other.poll() is None
        again = watch(tmp_path, "--pid", str(other.pid))
        until(lambda: len(read_blackbox(tmp_path).recent) > 0 and read_blackbox(tmp_path).attempts == 2)
        os.killpg(other.pid, signal.SIGKILL)
    _, err = again.communicate(timeout=15)
    assert f"process {other.pid} is gone" in err


@pytest.mark.slow
def test_a_doctor_reads_the_folder_as_json(tmp_path):
    process = watch(tmp_path, "--quiet", "--", "bash", "-c", "echo step 5; kill -SEGV $$")
    process.communicate(timeout=20)
    assert process.returncode == 139
    done = subprocess.run([*HEADWAY, "doctor", tmp_path, "--json"], capture_output=True, text=True, check=False)
    answer = json.loads(done.stdout)["answer"]
    assert (answer["mechanism"], answer["mechanism_grade"], answer["step"]) == ("native-crash", "proven", 5)
