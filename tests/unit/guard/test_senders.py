"""Who sent a signal: from texts of the kernel's trace, and live where the kernel permits it."""

import os
import signal
import subprocess
import sys
import time

import pytest

from headway.guard import senders
from headway.guard.senders import Sent, SignalTrace, parse_trace, signal_name

TRACE = """\
    bash-23766   [001] d..1.  2531.250000: signal_generate: sig=15 errno=0 code=0 comm=sleep pid=23765 grp=1 res=0
  python-23767   [000] d..1.  2532.000000: signal_generate: sig=11 errno=0 code=1 comm=python pid=23767 grp=0 res=0
 ray::Trainer-x-88 (   4242) [012] dN.2. 2533.5: signal_generate: sig=9 errno=0 code=128 comm=a (b) pid=9 grp=1 res=0
           <...>-77      [003] d..1.  2534.000000: signal_generate: sig=6 errno=0 code=-6 comm=x pid=77 grp=0 res=2
CPU:1 [LOST 12 EVENTS]
    bash-23766   [001] d..1.  2535.000000: signal_deliver: sig=15 errno=0 code=0 sa_handler=0 sa_flags=0
"""


def test_the_kernel_s_lines_are_read_and_others_passed_over() -> None:
    found = list(parse_trace(TRACE, offset=1000.0))
    assert found == [
        Sent(3531.25, 15, 23765, 23766, "bash", "sleep", 0),
        Sent(3532.0, 11, 23767, 23767, "python", "python", 1),
        Sent(3533.5, 9, 9, 88, "ray::Trainer-x", "a (b)", 128),
        Sent(3534.0, 6, 77, 77, None, "x", -6),
    ]
    assert [sent.by_kernel for sent in found] == [False, False, True, False]


@pytest.mark.parametrize(
    ("sent", "sentence"),
    [
        (
            Sent(0.0, 15, 7, 8, "bash", "python", 0, "bash stop.sh"),
            "SIGTERM to process 7 (python), sent by process 8 (bash: bash stop.sh)",
        ),
        (Sent(0.0, 15, 7, None), "SIGTERM to process 7, sender not known"),
        (
            Sent(0.0, 9, 7, 8, "python", None, 128),
            "SIGKILL to process 7, sent by the kernel itself, while process 8 (python) ran",
        ),
        (Sent(0.0, 11, 7, 7, "python", None, 1), "SIGSEGV to process 7, for a fault of its own"),
        (Sent(0.0, 6, 7, 7, "python", None, -6), "SIGABRT to process 7, sent by itself"),
    ],
)
def test_a_signal_in_words(sent: Sent, sentence: str) -> None:
    assert sent.sentence == sentence


def test_a_number_without_a_name() -> None:
    assert signal_name(99) == "signal 99"


def test_without_rights_a_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with SignalTrace.open() as trace:
        assert trace.why_not is not None
        assert "only root" in trace.why_not
        assert trace.read() == ()


def test_in_a_container_a_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "readlink", lambda path: "pid:[4026532000]")
    with SignalTrace.open() as trace:
        assert trace.why_not is not None
        assert "container" in trace.why_not


@pytest.fixture
def trace():
    with SignalTrace.open() as trace:
        if trace.why_not is not None:
            pytest.skip(trace.why_not)
        yield trace


def wait_for(trace: SignalTrace, target: int) -> Sent:
    end = time.monotonic() + 5
    while time.monotonic() < end:
        for sent in trace.read():
            if sent.target == target:
                return sent
        time.sleep(0.01)
    raise AssertionError(f"no signal to {target} was traced")


def test_the_sender_of_a_kill_is_known_by_pid_and_name(trace: SignalTrace) -> None:
    with subprocess.Popen(["sleep", "1000"]) as target:
        script = f"kill -TERM {target.pid}; read line"
        with subprocess.Popen(["bash", "-c", script], stdin=subprocess.PIPE) as sender:
            sent = wait_for(trace, target.pid)
            assert target.wait() == -signal.SIGTERM
            assert (sent.signal, sent.sender, sent.sender_name) == (signal.SIGTERM, sender.pid, "bash")
            assert sent.sender_command == f"bash -c {script}"
            assert abs(sent.t - time.time()) < 5
            assert not sent.by_kernel
            sender.communicate()


def test_a_thread_is_named_by_its_process(trace: SignalTrace) -> None:
    with subprocess.Popen(["sleep", "1000"]) as target:
        code = f"import os, sys, threading; t = threading.Thread(target=os.kill, args=({target.pid}, 9)); t.start()"
        code += "; t.join(); sys.stdin.read()"
        code = code.replace("target=os.kill, args=", "target=lambda *a: (os.kill(*a), sys.stdin.read()), args=")
        with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as sender:
            assert wait_for(trace, target.pid).sender == sender.pid
            sender.communicate()
        assert target.wait() == -signal.SIGKILL


def test_signals_that_end_nothing_are_not_traced(trace: SignalTrace) -> None:
    with subprocess.Popen(["sleep", "1000"]) as target:
        os.kill(target.pid, signal.SIGCHLD)
        os.kill(target.pid, signal.SIGTERM)
        assert wait_for(trace, target.pid).signal == signal.SIGTERM


def instances(trace: SignalTrace) -> list[str]:
    return senders._listdir(trace._folder, "instances")


def test_the_instance_is_removed_and_that_of_a_killed_headway_too(trace: SignalTrace) -> None:
    code = (
        "import sys\nfrom headway.guard.senders import SignalTrace\nt = SignalTrace.open()\nprint('open', flush=True)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code + "\nsys.stdin.read()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout.readline() == b"open\n"
        left = f"headway-{other.pid}"
        assert {left, f"headway-{os.getpid()}"} <= set(instances(trace))
        other.kill()
        other.communicate()
    assert left in instances(trace)
    trace.close()
    with SignalTrace.open() as again:
        assert left not in instances(again)
        assert f"headway-{os.getpid()}" in instances(again)
        folder = os.dup(again._folder)
    assert f"headway-{os.getpid()}" not in senders._listdir(folder, "instances")
    os.close(folder)


OWN = """
import os, signal, subprocess, sys, time
from headway.guard.senders import OwnSignals
got = []
with OwnSignals(got.append) as own:
    if own.why_not is not None:
        sys.exit(own.why_not)
    sender = subprocess.Popen(["bash", "-c", f"kill -TERM {os.getpid()}; exec sleep 1000"], preexec_fn=own.unblock)
    while not got:
        time.sleep(0.01)
    sender.terminate()
    assert sender.wait() == -signal.SIGTERM, "the child is not deaf to the signal"
    sent = got[0]
    assert (sent.signal, sent.sender, sent.target, sent.code) == (15, sender.pid, os.getpid(), 0), sent
os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.skipif(
    not hasattr(signal, "sigtimedwait"), reason="this system does not tell a process who sent a signal"
)
def test_a_signal_to_this_process_names_its_sender_and_afterwards_works_as_before() -> None:
    done = subprocess.run([sys.executable, "-c", OWN], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (-signal.SIGTERM, "")
