"""A run is stopped by its own processes' ids, step by step, and nobody else is touched."""

import signal
import subprocess
import time

import pytest

from headway.guard import stop
from headway.guard.stop import Stopper, signal_member, stop_rest
from headway.guard.tree import Tree


def start(script: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(["bash", "-c", script], stdout=subprocess.DEVNULL, start_new_session=True)


@pytest.fixture
def bystander():
    other = start("exec -a worker sleep 60")
    yield other
    assert other.poll() is None
    other.kill()
    other.wait()


def until(found, seconds: float = 5.0) -> None:
    end = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < end
        time.sleep(0.02)


def members(tree: Tree, count: int) -> None:
    until(lambda: len(tree.refresh()) >= count)


def test_the_command_is_asked_first_then_all_then_force(bystander, monkeypatch):
    monkeypatch.setattr(stop, "ALL_S", 0.2)
    monkeypatch.setattr(stop, "FORCE_S", 0.5)
    root = start(
        "trap '' TERM; (trap 'exit 0' TERM; exec -a worker sleep 60) & (trap '' TERM; sleep 60 & wait) & wait"
    )
    tree = Tree(root.pid)
    members(tree, 4)
    stopper = Stopper(tree)
    assert not stopper.begun
    stopper.begin()
    stopper.go_on()
    assert root.poll() is None
    end = time.monotonic() + 10
    while tree.refresh() and time.monotonic() < end:
        stopper.go_on()
        root.poll()
        time.sleep(0.05)
    assert not tree.members
    tree.close()
    assert root.wait(5) == -signal.SIGKILL


def test_what_is_left_of_a_run_is_ended(bystander):
    root = start(
        "setsid bash -c 'exec -a worker sleep 60' & setsid bash -c \"trap '' TERM; sleep 60 & wait\" & sleep 0.5"
    )
    tree = Tree(root.pid)
    members(tree, 4)
    root.wait()
    left = stop_rest(tree, patience_s=0.5)
    assert left >= 3
    assert not tree.refresh()
    assert stop_rest(tree) == 0
    tree.close()


def test_a_pid_that_is_another_process_now_is_not_signalled(bystander):
    tree = Tree(bystander.pid)
    (member,) = tree.members
    tree.close()
    from msgspec.structs import replace

    assert not signal_member(replace(member, start=member.start + 1), signal.SIGKILL)
    assert not signal_member(replace(member, pid=999_999_999), signal.SIGKILL)
