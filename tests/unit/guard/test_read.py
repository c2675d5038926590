"""Reading processes, from trees of files that stand for /proc."""

import os
import subprocess
import sys
from pathlib import Path

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
