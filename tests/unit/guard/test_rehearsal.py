"""A rehearsal's process is ended before it passes a limit, and what it told is kept. The processes here are real."""

import os
import sys
import time
from pathlib import Path

import pytest

from headway.facts import probe
from headway.facts.machine import Limit, Machine, Pool
from headway.guard.rehearsal import Ended, run
from headway.units import MIB

TELL = "import json, sys\ndef tell(**row): print(json.dumps(row), flush=True)\n"


def limited(size: int) -> Machine:
    limit = Limit("memory.limit", size, "headway does not start the run", "RunSpec")
    return Machine("here", (Pool("node[0].host", "host", size, (limit,)),), 1)


def rehearse(code: str, size: int) -> tuple[Ended, list[tuple[str, int]]]:
    told: list[tuple[str, int]] = []
    ended = run([sys.executable, "-c", TELL + code], limited(size), lambda phase, step: told.append((phase, step)))
    return ended, told


def test_one_that_stays_inside_its_limits_ends_by_itself() -> None:
    code = (
        'print("a library says hello")\ntell(event="phase", phase="train", step=2)\n'
        'tell(event="step", step=2.0, dropped=3.0)\ntell(event="note", text="half a note")\n'
    )
    ended, told = rehearse(code, 1 << 40)
    assert (ended.status, ended.reached, ended.phase, ended.step) == (0, None, "train", 2)
    assert (told, ended.dropped, ended.notes) == ([("train", 2)], 3, ("half a note",))


def test_one_that_grows_is_ended_at_the_limit() -> None:
    code = (
        "import time\n"
        'tell(event="phase", phase="rollout", step=1)\nkept = []\n'
        'tell(event="phase", phase="train", step=2)\n'
        "for _ in range(300):\n    kept.append(bytearray(b'x' * (2 << 20)))\n    time.sleep(0.005)\n"
        "time.sleep(60)\n"
    )
    began = time.monotonic()
    ended, _ = rehearse(code, 150 * MIB)
    assert time.monotonic() - began < 30
    assert ended.reached is not None
    assert ended.reached.limit.name == "memory.limit"
    assert ended.status == -9
    assert (ended.phase, ended.step) == ("train", 2)
    assert 150 * MIB < ended.reached.used < 250 * MIB
    assert ended.used >= ended.reached.used


def test_its_children_count_and_end_with_it(tmp_path: Path) -> None:
    child = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); " + (
        "x = bytearray(b'x' * (200 << 20)); time.sleep(60)"
    )
    code = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}])\n"
    ended, _ = rehearse(code, 150 * MIB)
    assert ended.reached is not None
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 5
    while Path(f"/proc/{pid}/status").exists() and "Z (zombie)" not in Path(f"/proc/{pid}/status").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.skipif(not probe.node_memory(), reason="this system does not say how much memory it has")
def test_it_ends_where_others_have_left_nothing() -> None:
    """The node's memory counts whoever took it: a limit whose share to be kept free is more than there is."""
    node = probe.node_memory()
    assert node is not None
    limit = Limit("MemAvailable", node.total * 1000, "the kernel kills", "meminfo")
    machine = Machine("here", (Pool("node[0].host", "host", node.total, (limit,)),), 1)
    ended = run([sys.executable, "-c", "import time; time.sleep(60)"], machine, lambda phase, step: None)
    assert ended.reached is not None
    assert ended.reached.limit.name == "MemAvailable"
    assert ended.reached.used < node.total


def test_what_it_says_at_its_end_is_kept() -> None:
    ended, _ = rehearse('import sys\ntell(event="error", text="train.lr: bad")\nsys.exit(2)\n', 1 << 40)
    assert (ended.status, ended.error) == (2, "train.lr: bad")
    ended, _ = rehearse("raise ValueError('ours')\n", 1 << 40)
    assert ended.status == 1
    assert ended.error.endswith("ValueError: ours")


@pytest.mark.parametrize(("own", "seen"), [(None, "passive"), ("active", "active")])
def test_threads_sleep_while_they_wait_unless_the_user_says_otherwise(
    own: str | None, seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    if own is not None:
        monkeypatch.setenv("OMP_WAIT_POLICY", own)
    ended, _ = rehearse('import os\ntell(event="note", text=os.environ["OMP_WAIT_POLICY"])\n', 1 << 40)
    assert ended.notes == (seen,)


def test_bystanders_stay(tmp_path: Path) -> None:
    import subprocess

    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        rehearse("x = bytearray(b'x' * (300 << 20))\nimport time\ntime.sleep(60)\n", 100 * MIB)
        assert other.poll() is None
        assert os.getpgid(other.pid) == os.getpgid(0)
    finally:
        other.kill()
        other.wait()
