"""A run is stopped by its own processes' ids, step by step, and nobody else is touched."""

import os
import signal
import subprocess
import sys
import time
from math import inf

import pytest

from headway.guard import stop
from headway.guard.blackbox import BlackBox, read_blackbox
from headway.guard.boxrecords import Begun
from headway.guard.frame import Action
from headway.guard.policies import Guard
from headway.guard.stop import Stopper, patience, programs, signal_member, stop_rest
from headway.guard.tree import Member, Tree
from headway.guard.watch import View, Watch


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


def stopped(root: "subprocess.Popen[bytes]", tree: Tree, left_s: float = inf) -> list[tuple[str, int]]:
    """Stop a run to its end; the signals that were sent, by name of the process."""
    sent: list[tuple[str, int]] = []
    stopper = Stopper(tree, lambda member, number: sent.append(((member.command or member.name).split()[0], number)))
    assert not stopper.begun
    stopper.begin()
    end = time.monotonic() + 15
    while tree.refresh() and time.monotonic() < end:
        stopper.go_on(left_s)
        root.poll()
        time.sleep(0.05)
    assert not tree.members
    tree.close()
    return sent


def test_a_shell_s_programs_are_asked_first_then_all_then_force(bystander, monkeypatch):
    monkeypatch.setattr(stop, "LEAST_S", 0.3)
    root = start(
        "trap '' TERM; (trap 'exit 0' TERM; exec -a worker sleep 60) & (trap '' TERM; exec -a deaf sleep 60) & wait"
    )
    tree = Tree(root.pid)
    until(lambda: {"worker", "deaf"} <= {each.command.split()[0] for each in tree.refresh() if each.command})
    sent = stopped(root, tree, left_s=0.0)
    assert {name for name, _ in sent[:2]} == {"worker", "deaf"}
    assert [number for _, number in sent] == [15, 15, 15, 9, 9]
    assert root.wait(5) == -signal.SIGKILL


def test_a_program_that_saves_is_told_once_and_its_shell_ends_by_itself(bystander, tmp_path):
    code = (
        "import signal, sys, time\n"
        "def save(n, f): time.sleep(1.5); print('saved', flush=True); sys.exit(3)\n"
        "signal.signal(signal.SIGTERM, save); print('up', flush=True); time.sleep(60)"
    )
    root = start(f'set -o pipefail; {sys.executable} -c "{code}" | exec -a tee cat > {tmp_path}/log; exit $?')
    tree = Tree(root.pid)
    until(lambda: (tmp_path / "log").exists() and (tmp_path / "log").read_text() == "up\n")
    sent = stopped(root, tree)
    assert [(name, number) for name, number in sent if name == "tee" or number != 15] == []
    assert len(sent) == 1
    assert (tmp_path / "log").read_text() == "up\nsaved\n"
    assert root.wait(5) == 3


def test_what_a_shell_starts_while_it_is_stopped_is_told_too(bystander):
    root = start("exec -a first sleep 60 & wait $!; (exec -a second sleep 60); exit 4")
    tree = Tree(root.pid)
    members(tree, 2)
    sent = stopped(root, tree)
    assert [number for _, number in sent] == [15, 15]
    assert root.wait(5) == 4


@pytest.mark.parametrize("left", [10.0, 40.0, 2.5])
def test_all_is_over_before_the_limit_is_reached(left):
    for most in (stop.ALL_S, stop.FORCE_S):
        waited = 0.0
        while waited < patience(left - waited, most):
            waited += 0.1
        left -= waited
        assert left > 0


def test_without_a_limit_in_sight_there_is_time_for_a_save():
    assert (patience(inf, stop.ALL_S), patience(1800.0, stop.ALL_S), patience(inf, stop.FORCE_S)) == (300, 300, 60)


def test_what_no_signal_ends_does_not_hold_the_watcher(tmp_path, monkeypatch):
    """A process that waits in the kernel for a disk or device stays, whatever is sent to it."""
    for name, value in (("LEAST_S", 0.1), ("ALL_S", 0.1), ("FORCE_S", 0.1), ("SETTLE_S", 0.1), ("GONE_S", 0.3)):
        monkeypatch.setattr(stop, name, value)
    monkeypatch.setattr(stop, "signal_member", lambda *_: True)
    root = start("(exec -a stuck sleep 60) & exec sleep 60")
    box = BlackBox(tmp_path, Begun(0.0, ("stuck",), 1, "0.1.0"))
    watch = Watch(root.pid, box, Guard("observe"), every=0.1).start()
    until(lambda: len(watch.tree.members) == 2)
    watch.stopper.begin()
    root.kill()
    began = time.monotonic()
    watch.stop(root.wait())
    assert time.monotonic() - began < 5
    os.killpg(root.pid, signal.SIGKILL)
    watch.close()
    box.close()
    assert any("could not be ended" in note for note in read_blackbox(tmp_path).notes)


def test_somebody_who_asks_again_does_not_wait_for_minutes(bystander, monkeypatch):
    monkeypatch.setattr(stop, "LEAST_S", 0.2)
    root = start("trap '' TERM; exec -a deaf sleep 60")
    tree = Tree(root.pid)
    until(lambda: tree.refresh()[0].command.startswith("deaf"))
    stopper = Stopper(tree)
    stopper.begin()
    time.sleep(0.5)
    stopper.go_on()
    assert root.poll() is None
    stopper.hurry()
    until(lambda: stopper.go_on() or root.poll() is not None)
    assert root.wait() == -signal.SIGKILL
    tree.close()


def test_a_last_look_that_fails_is_written_down_and_ends_nothing(tmp_path):
    def fails(view: View, actions: tuple[Action, ...]) -> None:
        if view.frame is not None and root.poll() is not None:
            raise OSError("no more descriptors")

    root = start("sleep 60")
    box = BlackBox(tmp_path, Begun(0.0, ("sleep",), 1, "0.1.0"))
    watch = Watch(root.pid, box, Guard("observe"), every=60.0, on_frame=fails).start()
    root.kill()
    watch.stop(root.wait())
    watch.close()
    box.close()
    assert read_blackbox(tmp_path).notes[-1] == "the last look failed: OSError: no more descriptors"


def ray_tree() -> list[Member]:
    rows = (
        (1, 0, "bash", "bash run.sh", "root"),
        (2, 1, "ray", "/venv/bin/python3 /venv/bin/ray job submit --address=http://127.0.0.1:8265 -- python3 a.py"),
        (3, 9, "raylet", "/ray/raylet --node_ip_address=1", "Ray session"),
        (4, 3, "ray::JobSuperv", "ray::JobSupervisor"),
        (5, 4, "sh", "/bin/sh -c cd /a && python3 train.py"),
        (6, 5, "python3", "python3 train.py"),
        (7, 4, "sh", "/bin/sh -c while kill -s 0 4; do sleep 1; done; kill -9 -5"),
        (8, 7, "sleep", "sleep 1"),
        (9, 3, "ray::Trainer.t", "ray::Trainer.train"),
    )
    return [Member(row[0], 1, row[1], row[2], row[3], row[4] if len(row) > 4 else "child") for row in rows]


def test_of_a_job_of_ray_its_driver_is_told_and_not_what_shows_it():
    def streams(pid: int) -> tuple[str, ...]:
        return ()

    assert [each.command for each in programs(ray_tree(), 1, streams)] == ["python3 train.py"]
    elsewhere = [each for each in ray_tree() if each.pid < 3]
    assert [each.pid for each in programs(elsewhere, 1, streams)] == [2]


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
