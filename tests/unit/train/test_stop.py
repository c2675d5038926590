"""Signals that ask a run to stop."""

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from headway.plan.ledger import Phase
from headway.train.stop import SAME_S, EndRequested, Place, Stop, StopRequested, on_signals


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_a_request_and_the_handlers_come_back(sent: signal.Signals) -> None:
    stop, before = Stop(), signal.getsignal(sent)
    with on_signals(stop):
        os.kill(os.getpid(), sent)
        with pytest.raises(StopRequested, match=sent.name):
            stop.check()
    assert stop.signal == sent
    assert signal.getsignal(sent) is before


def test_under_nohup_a_closed_terminal_ends_nothing() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        stop = Stop()
        with on_signals(stop):
            os.kill(os.getpid(), signal.SIGHUP)
            stop.check()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_is_answered_while_a_long_native_call_runs() -> None:
    """The main thread is in C, where no Python handler can run; the answer comes from a thread."""
    said: list[tuple[float, str]] = []
    stop = Stop(place=Place(Phase.TRAIN, done=2, kept=1, answers=True))
    with on_signals(stop, lambda text: said.append((time.monotonic(), text))):
        sent: list[float] = []

        def send() -> None:
            sent.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

        timer = threading.Timer(0.2, send)
        timer.start()
        hashlib.pbkdf2_hmac("sha256", b"a", b"b", 4_000_000)
        ended = time.monotonic()
        timer.join()
    assert len(said) == 1
    at, text = said[0]
    assert at - sent[0] < 1
    assert at < ended - 0.1, "the call was over before the answer: it shows nothing"
    assert text == (
        "Ctrl-C: stopping after this micro-batch, saving step 2 and step 3's answers; Ctrl-C again: stop now; "
        "step 2 is lost, step 1 is kept"
    )


WAITS = """
import sys, time
from headway.plan.ledger import Phase
from headway.train.stop import Place, Stop, on_signals
stop = Stop(place=Place(Phase(sys.argv[1]), done=2, kept=1))
with on_signals(stop, lambda text: print(text, flush=True), lambda: print("left", flush=True)):
    print("ready", flush=True)
    end = time.monotonic() + 8
    while time.monotonic() < end and not (stop.signal and len(sys.argv) > 2):
        time.sleep(0.05)
    time.sleep(float(sys.argv[2]) if len(sys.argv) > 2 else 0)
print("done", flush=True)
"""


def waits(phase: str, *more: str) -> subprocess.Popen[str]:
    """A process that is in `phase` until it is told to stop, or for 8 s."""
    process = subprocess.Popen(
        [sys.executable, "-c", WAITS, phase, *more], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_the_process_at_once(sent: signal.Signals) -> None:
    process = waits("train")
    process.send_signal(sent)
    time.sleep(SAME_S + 0.2)
    process.send_signal(sent)
    said, _ = process.communicate(timeout=5)
    assert process.returncode == 128 + sent
    assert "step 2 is lost, step 1 is kept" in said.splitlines()[0]
    assert "stopped now" in said
    assert said.endswith("left\n")


def test_a_signal_that_a_wrapper_passes_on_is_no_second_one() -> None:
    process = waits("train", "0.5")
    process.send_signal(signal.SIGINT)
    time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=10)
    assert (process.returncode, said.splitlines()[-1]) == (0, "done")


def test_a_second_signal_lets_a_save_be_finished_and_a_third_does_not() -> None:
    process = waits("save", "2")
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(SAME_S + 0.1)
    said, _ = process.communicate(timeout=10)
    assert (process.returncode, said.splitlines()[-1]) == (0, "done")
    assert "it is saved all the same" in said
    assert "is finished first" in said
    process = waits("save")
    for _ in range(3):
        process.send_signal(signal.SIGINT)
        time.sleep(SAME_S + 0.1)
    process.communicate(timeout=5)
    assert process.returncode == 130


def test_another_signal_is_none_of_its_business() -> None:
    said: list[str] = []
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        with on_signals(Stop(), said.append):
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(0.1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert said == []


def test_where_nothing_is_done_yet_a_signal_ends_the_load_itself() -> None:
    stop = Stop(at_once=True)
    with on_signals(stop), pytest.raises(EndRequested):
        os.kill(os.getpid(), signal.SIGTERM)
    assert stop.signal == signal.SIGTERM
    with on_signals(Stop()):  # not so once a run can save what is done
        os.kill(os.getpid(), signal.SIGTERM)
