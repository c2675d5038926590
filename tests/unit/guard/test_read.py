"""Reading processes, from trees of files that stand for /proc."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headway.guard.read import ProcessMemory, descendants, process_status, reset_peak, tree_rss

STATUS = """\
Name:	python
State:	S (sleeping)
VmPeak:	 9000000 kB
VmHWM:	    2048 kB
VmRSS:	    1024 kB
RssAnon:	     600 kB
RssFile:	     400 kB
RssShmem:	      24 kB
Threads:	3
"""


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def test_status_is_read_in_bytes(tmp_path: Path) -> None:
    write(tmp_path, "proc/7/status", STATUS)
    assert process_status(7, tmp_path) == ProcessMemory(
        rss=1024 << 10, peak_rss=2048 << 10, anonymous=600 << 10, file=400 << 10, shared=24 << 10
    )


def test_what_a_kernel_does_not_say_is_none(tmp_path: Path) -> None:
    write(tmp_path, "proc/7/status", "Name:	python\nVmRSS:	    1024 kB\n")
    assert process_status(7, tmp_path) == ProcessMemory(1024 << 10, None, None, None, None)


def test_ended_and_absent_processes_have_no_memory(tmp_path: Path) -> None:
    write(tmp_path, "proc/7/status", "Name:	python\nState:	Z (zombie)\n")
    assert process_status(7, tmp_path) is None
    assert process_status(8, tmp_path) is None
    assert tree_rss((7, 8), tmp_path) == 0


def test_tree_rss_sums(tmp_path: Path) -> None:
    write(tmp_path, "proc/7/status", STATUS)
    write(tmp_path, "proc/8/status", STATUS)
    assert tree_rss((7, 8, 9), tmp_path) == 2048 << 10


def forked(pid: int, flags: int, start: int) -> str:
    """A stat line; its ninth field are the flags and the 22nd the start in clock ticks."""
    return f"{pid} (python) S 7 7 7 0 -1 {flags} " + "0 " * 12 + f"{start} 0 0"


@pytest.mark.parametrize(
    ("flags", "start", "counted"),
    [
        (0x400000, 10_000, 1024 << 10),  # runs a program of its own
        (0x400040, 10_000, 3 << 10),  # a copy of its parent that stayed one
        (0x400040, 19_950, 0),  # a copy that is about to become another program
    ],
)
def test_a_copy_of_its_parent_does_not_count_twice(tmp_path: Path, flags: int, start: int, counted: int) -> None:
    write(tmp_path, "proc/8/status", STATUS)
    write(tmp_path, "proc/8/stat", forked(8, flags, start))
    write(tmp_path, "proc/8/smaps_rollup", "Rss: 1024 kB\nPrivate_Clean: 1 kB\nPrivate_Dirty: 2 kB\n")
    write(tmp_path, "proc/uptime", "200.00 300.00\n")
    assert tree_rss((8,), tmp_path) == counted


def test_a_real_fork_holds_only_what_it_wrote() -> None:
    """A child that sleeps after fork, with 64 MiB of its parent's, counts for little; once it is not young."""
    block = bytearray(64 << 20)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(reading, 1)
        os._exit(len(block) & 0)
    try:
        assert tree_rss((child,)) == 0
        time.sleep(1.1)
        status = process_status(child)
        assert status is not None
        assert status.rss > 64 << 20
        assert 0 < tree_rss((child,)) < 32 << 20
    finally:
        os.write(writing, b"x")
        os.waitpid(child, 0)


def test_descendants_by_parent_field(tmp_path: Path) -> None:
    for pid, name, parent in ((1, "init", 0), (7, "a", 1), (8, "b) (c", 7), (9, "d", 8), (10, "e", 1)):
        write(tmp_path, f"proc/{pid}/stat", f"{pid} ({name}) S {parent} {pid} {pid} 0")
    write(tmp_path, "proc/meminfo", "")
    assert sorted(descendants(7, tmp_path)) == [8, 9]
    assert descendants(10, tmp_path) == ()


def test_descendants_by_children_files(tmp_path: Path) -> None:
    """A child belongs to the thread that started it, so every thread's list counts."""
    write(tmp_path, "proc/7/task/7/children", "8 9 ")
    write(tmp_path, "proc/7/task/17/children", "10 ")
    write(tmp_path, "proc/9/task/9/children", "11 ")
    assert sorted(descendants(7, tmp_path)) == [8, 9, 10, 11]


def test_reset_peak_says_when_it_is_not_possible(tmp_path: Path) -> None:
    assert not reset_peak(7, tmp_path)
    write(tmp_path, "proc/7/clear_refs", "")
    assert reset_peak(7, tmp_path)
    assert (tmp_path / "proc/7/clear_refs").read_text() == "5"


def test_a_real_child_is_found_and_measured() -> None:
    code = "import sys; held = bytearray(64 << 20); print('ready', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert child.pid in descendants(os.getpid())
        status = process_status(child.pid)
        assert status is not None
        assert status.rss > 64 << 20
        child.communicate()
    assert child.pid not in descendants(os.getpid())
