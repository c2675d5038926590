"""The sampling thread: what it finds, and that it never dies unseen."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from headway.guard.sample import Highest, Reading, Sampler, raise_to, take


def test_highest_takes_each_value_on_its_own() -> None:
    highest = None
    for reading in (Reading(1.0, 5, 90, None, 7), Reading(2.0, 8, 10, 3, None), Reading(3.0, 2, 2, 1, 6)):
        highest = raise_to(highest, reading)
    assert highest == Highest(rss=8, children=90, node_used=3, cgroup=7)


def test_a_process_that_is_gone_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ProcessLookupError):
        take(7, None, tmp_path)


def test_windows_leave_no_moment_out() -> None:
    """A child that lives inside the first window only is in the first, and not in the second."""
    sampler = Sampler(os.getpid(), interval=0.02)
    sampler.start()
    before = sampler.window()
    code = "import sys; held = bytearray(64 << 20); print('ready', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        first = sampler.window()
        child.communicate()
    sampler.window()
    time.sleep(0.05)
    after = sampler.window()
    sampler.stop()
    assert first.children - before.children > 64 << 20
    assert after.children <= before.children
    assert after.rss > 1 << 20


def test_readings_come_while_it_runs_and_end_with_it() -> None:
    readings: list[Reading] = []
    third = threading.Event()

    def keep(reading: Reading) -> None:
        readings.append(reading)
        if len(readings) == 3:
            third.set()

    sampler = Sampler(os.getpid(), interval=0.01, on_reading=keep)
    sampler.start()
    assert third.wait(10)
    sampler.stop()
    count = len(readings)
    time.sleep(0.05)
    assert len(readings) == count
    assert [reading.t for reading in readings] == sorted(reading.t for reading in readings)


def test_an_exception_in_the_thread_is_raised_at_stop() -> None:
    called = threading.Event()

    def broken(reading: Reading) -> None:
        called.set()
        raise ZeroDivisionError("in the callback")

    sampler = Sampler(os.getpid(), interval=0.01, on_reading=broken)
    sampler.start()
    assert called.wait(10)
    with pytest.raises(ZeroDivisionError, match="in the callback"):
        sampler.stop()
