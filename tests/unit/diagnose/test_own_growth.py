"""Growth up to a limit is told from the own rise of what ended: its process or its group, never another's."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec import to_builtins
from msgspec.structs import replace

from headway.cli.doctor import diagnosed
from headway.diagnose.finding import Finding
from headway.diagnose.rises import Point, rise
from headway.facts.machine import Limit
from headway.facts.machines import by_name
from headway.guard.blackbox import BlackBox
from headway.guard.boxrecords import Acted, Begun, Ended, Event, Note, Over
from headway.guard.frame import Action, Frame, Gauge, ProcessUse, Wall
from headway.guard.read import ProcessFiles

T = 1_700_000_000.0
MIB = 1 << 20
FRAMES = 40
EVEN = [100 + 10 * n for n in range(FRAMES)]
FLAT = [200] * FRAMES
JUMP = [200] * (FRAMES - 1) + [490]
STAIR = [200] * (FRAMES // 2) + [480] * (FRAMES // 2)
REFUSED = b"step 39: x\nMemoryError\n"
KERNEL = (
    "kernel: [1] Memory cgroup out of memory: Killed process 7 (python) total-vm:1kB, anon-rss:900kB, file-rss:0kB"
)


def ended(
    folder: Path, own: list[int], other: list[int], *events: Event, limit: int | None = 500, over: Over | None = None,
    group: int | None = None, steps: bool = True, phase: str | None = None, log: bytes = REFUSED,
) -> Finding:  # fmt: skip
    """The answer about process 7, which held `own` MiB and ends badly, beside process 8; `limit` is that of its
    address space and `group` of their control group."""
    box = BlackBox(folder, Begun(T, ("bash", "run.sh"), 1, "0.1.0"))
    box.log(log)
    for n, (mine, theirs) in enumerate(zip(own, other, strict=True)):
        wall = None if limit is None else Wall("address space (ulimit -v)", mine * MIB, limit * MIB)
        uses = (ProcessUse(7, 1, "python train.py", mine * MIB, wall=wall), ProcessUse(8, 1, "other", theirs * MIB))
        both = (mine + theirs) * MIB
        gauges = (Gauge("node[0].host", "node", both + (n << 30), 64 << 30),)
        gauges += () if group is None else (Gauge("node[0].host", "cgroup", both, group * MIB),)
        box.add(Frame(T + n, gauges, uses, phase, n if steps else None))
    bad = Ended(T + FRAMES, 7, "python train.py", code=1, rss=own[-1] * MIB)
    for each in (*events, *(() if over is not None else (bad,)), over or Over(T + FRAMES + 0.1, 7, 1)):
        box.add(each)
    box.close()
    return diagnosed([str(folder)], [], None, None, live=False).answer


GROWTH = ("host-memory-growth", "supported")


@pytest.mark.parametrize("steps", [True, False])
def test_a_process_that_rose_evenly_to_a_limit_of_its_own(tmp_path, steps):
    found = ended(tmp_path, EVEN, FLAT, steps=steps)
    assert (found.mechanism, found.cause, found.cause_grade) == ("host-allocation-failure", *GROWTH)
    assert "process 7 rose evenly from 100.0 MiB to 490.0 MiB over 39 s" in found.because
    assert "490.0 MiB of the 500.0 MiB of address space (ulimit -v)" in found.because


def test_a_reading_while_it_was_ending_is_no_fall(tmp_path):
    found = ended(tmp_path / "ending", [*EVEN[1:], 40], FLAT)
    assert (found.cause, found.cause_grade) == GROWTH
    freed = [*EVEN[10:], *[100] * 10]
    assert ended(tmp_path / "freed", freed, FLAT).cause == "not-established"


@pytest.mark.parametrize(
    ("own", "other", "limit"),
    [
        (JUMP, FLAT, 500),
        (STAIR, FLAT, 500),
        (FLAT, EVEN, 500),
        (FLAT, EVEN, None),
        (FLAT, FLAT, 500),
        (EVEN, FLAT, 900),
    ],
    ids=["jump", "stair", "another", "another, no limit", "flat", "far from its limit"],
)
def test_what_is_no_rise_of_its_own_to_its_limit(tmp_path, own, other, limit):
    why = "node[0].host (node) grows 1.0 GiB a step, reaches 64.00 GiB at step 60-70"
    node = Acted(Action(T + FRAMES - 1, "warn", "forecast", "node[0].host", "node", 9, 10, 5.0, why))
    found = ended(tmp_path, own, other, node, limit=limit)
    assert (found.mechanism, found.cause) == ("host-allocation-failure", "not-established")


def test_without_a_limit_that_is_known_or_at_a_start_it_is_likely_and_no_more(tmp_path):
    assert ended(tmp_path / "a", EVEN, FLAT, limit=None).cause_grade == "open"
    loading = b"Loading checkpoint shards: 3/4\nMemoryError\n"
    short = ended(tmp_path / "b", EVEN[:20], FLAT[:20], steps=False, log=loading, limit=310)
    assert (short.cause, short.cause_grade) == ("host-memory-growth", "open")
    assert ended(tmp_path / "c", EVEN, FLAT, phase="load").cause == "not-established"


def test_a_request_for_far_more_is_no_growth(tmp_path):
    huge = b"step 39: x\nMemoryError: Unable to allocate 50.0 GiB for an array with shape (6710886400,)\n"
    asked = b"step 39: x\nRuntimeError: [enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: "
    for n, log in enumerate((huge, asked + b"can't allocate memory: you tried to allocate 53687091200 bytes.\n")):
        assert ended(tmp_path / str(n), EVEN, FLAT, log=log).cause_grade != "supported"


KILLED = Over(T + FRAMES + 0.1, 7, None, 9)


def killed(folder: Path, own: list[int], other: list[int], group: int) -> Finding:
    signalled = Ended(T + FRAMES, 7, "python train.py", signal=9, since=T + FRAMES - 1, rss=own[-1] * MIB)
    return ended(
        folder, own, other, signalled, Note(T + FRAMES, KERNEL), over=KILLED, group=group, log=b"step 39: x\n"
    )


def test_a_group_that_rose_evenly_to_its_limit(tmp_path):
    found = killed(tmp_path, EVEN, FLAT, 700)
    assert (found.mechanism, found.cause, found.cause_grade) == ("cgroup-oom-kill", *GROWTH)
    assert "the control group rose evenly from 300.0 MiB to 690.0 MiB over 39 steps, of 700.0 MiB" in found.because
    assert "most of it in process 7 (390.0 MiB)" in found.because
    another = killed(tmp_path / "another", FLAT, EVEN, 700)
    assert (another.cause, "most of it in process 8" in another.because) == ("host-memory-growth", True)


@pytest.mark.parametrize(
    ("own", "other", "group"), [(JUMP, FLAT, 700), (FLAT, FLAT, 410), (EVEN, FLAT, 1500)], ids=["jump", "flat", "far"]
)
def test_a_group_that_jumped_or_was_full_all_the_time(tmp_path, own, other, group):
    found = killed(tmp_path, own, other, group)
    assert (found.mechanism, found.cause) == ("cgroup-oom-kill", "not-established")


# -- for real

LEAK = "import time\nheld = []\nfor n in range(99):\n    held.append(bytearray(b'x') * {mib}_000_000)\n    print('step', n, flush=True)\n    time.sleep(0.05)\n"  # noqa: E501


@pytest.mark.parametrize(("at_once", "cause"), [(False, "host-memory-growth"), (True, "not-established")])
def test_a_real_process_under_ulimit_v(tmp_path, at_once, cause):
    code = LEAK.format(mib=1 if at_once else 12)
    code += "held.append(bytearray(b'x') * 2_000_000_000)\n"
    command = ["bash", "-c", f'ulimit -v 900000; exec "{sys.executable}" -c "$CODE"']
    words = [sys.executable, "-m", "headway", "watch", "--quiet", "--interval", "0.2", "--out", str(tmp_path), "--"]
    subprocess.run([*words, *command], capture_output=True, check=False, env={**os.environ, "CODE": code})
    found = diagnosed([str(tmp_path)], [], None, None, live=False).answer
    assert (found.mechanism, found.cause) == ("host-allocation-failure", cause)


def test_the_limits_of_a_process_are_read():
    sleeping = "ulimit -v 500000; ulimit -d 400000; echo; exec sleep 20"
    with subprocess.Popen(["bash", "-c", sleeping], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        wall = ProcessFiles().wall(process.pid)
        process.kill()
    assert wall is not None
    assert wall.limit in (500_000 << 10, 400_000 << 10)
    assert 0 < wall.used < wall.limit
    assert ProcessFiles().wall(1 << 22) is None


# -- a recording of headway train


def recording(folder: Path, peaks: list[int], limit: int) -> Path:
    machine = by_name("cpu-16gib")
    group = Limit("cgroup", limit * MIB, "the kernel kills a process of the group", "memory.max")
    pools = (replace(machine.pools[0], limits=(group, *machine.pools[0].limits)), *machine.pools[1:])
    header = {"kind": "header", "format": 1, "t": T, "version": "0", "pid": 7, "expected": {}}
    rows = [header | {"machine": to_builtins(replace(machine, pools=pools))}]
    for step, mib in enumerate(peaks):
        rows.append({
            "kind": "phase", "t": T + 9 * step, "phase": "train", "step": step, "seconds": 1.0, "rss_start": 9,
            "rss_peak": mib * MIB, "rss_end": 9, "children_peak": 0, "tree_peak": mib * MIB, "node_used_peak": None,
            "cgroup_current_peak": None, "outside_peak": 9,
        })  # fmt: skip
    folder.mkdir(parents=True)
    (folder / "recording.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return folder


@pytest.mark.parametrize(
    ("end", "mechanism"), [("MemoryError", "host-allocation-failure"), (KERNEL, "cgroup-oom-kill")]
)
def test_a_recording_of_a_run_shows_its_own_rise(tmp_path, end, mechanism):
    for name, peaks, cause in (("even", EVEN, "host-memory-growth"), ("flat", FLAT, "not-established")):
        folder = recording(tmp_path / name, peaks, 500)
        (folder / "train.log").write_text(f"step 39: x\n{end.removeprefix('kernel: ')}\n")
        found = diagnosed([str(folder)], [], None, None, live=False).answer
        assert (found.mechanism, found.cause) == (mechanism, cause)
    (recording(tmp_path / "far", EVEN, 5000) / "train.log").write_text(f"step 39: x\n{KERNEL[8:]}\n")
    far = diagnosed([str(tmp_path / "far")], [], None, None, live=False).answer
    assert far.cause == "not-established"


def test_readings_that_come_faster_near_the_limit_are_no_bend():
    slow = [Point(float(t), 100 * t + 1000) for t in range(10)]
    fast = [Point(9 + t / 50, round(100 * (9 + t / 50)) + 1000) for t in range(1, 50)]
    found = rise([*slow, *fast])
    assert found is not None
    assert found.first == 1000
    late = [Point(float(t), 1000 if t < 60 else 1000 + 50 * (t - 60)) for t in range(120)]
    assert rise(late) is not None
    assert rise(late[:63]) is None
