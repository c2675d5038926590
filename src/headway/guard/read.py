"""What processes hold now. With `facts/probe.py`, which reads the node and its groups, all that asks the machine.

Every reader takes the root of /proc, so that a test can show it another machine. Absent is None, never 0.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from headway.facts.probe import (
    ROOT,
    CgroupMemory,
    NodeMemory,
    asks_psutil,
    cgroup_memory,
    node_memory,
    read_fields,
    read_text,
)
from headway.guard.frame import Wall

__all__ = [
    "FORKED", "YOUNG_TICKS", "CgroupMemory", "NodeMemory", "OwnSizes", "ProcessFiles", "ProcessMemory", "Stat",
    "cgroup_memory", "descendants", "node_memory", "process_status", "reset_peak", "tree_rss",
]  # fmt: skip


class ProcessMemory(Struct, frozen=True):
    """Resident memory of one process, in bytes: VmRSS, VmHWM, RssAnon, RssFile, RssShmem of /proc/<pid>/status.

    `rss` = `anonymous` + `file` + `shared`. The kernel counts per CPU and adds up late, so a value may be off by
    some pages per CPU. `peak_rss` is the highest `rss` since the start or since `reset_peak`.
    """

    rss: int
    peak_rss: int | None
    anonymous: int | None
    file: int | None
    shared: int | None


def process_status(pid: int, root: Path = ROOT) -> ProcessMemory | None:
    """Resident memory of a process; None where there is no such process, or only its exit code is left."""
    text = read_text(root / f"proc/{pid}/status")
    if text is None:
        return _psutil_status(pid) if asks_psutil(root) else None
    fields = read_fields(text)
    if "VmRSS" not in fields:
        return None
    return ProcessMemory(
        rss=fields["VmRSS"],
        peak_rss=fields.get("VmHWM"),
        anonymous=fields.get("RssAnon"),
        file=fields.get("RssFile"),
        shared=fields.get("RssShmem"),
    )


class OwnSizes:
    """What this process holds, read in microseconds: the file stays open. Linux alone; close it at the end."""

    def __init__(self) -> None:
        self._file = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        self._page = os.sysconf("SC_PAGE_SIZE")

    def read(self) -> tuple[int, int]:
        """Bytes that are resident, and bytes of private writable mappings, touched or not."""
        fields = os.pread(self._file, 256, 0).split()
        return int(fields[1]) * self._page, int(fields[5]) * self._page

    def close(self) -> None:
        os.close(self._file)


def _psutil_status(pid: int) -> ProcessMemory | None:
    import psutil  # type: ignore[import-untyped]  # here, because Linux never needs it

    try:
        return ProcessMemory(psutil.Process(pid).memory_info().rss, None, None, None, None)
    except psutil.Error:
        return None


def reset_peak(pid: int, root: Path = ROOT) -> bool:
    """Start the peak (VmHWM) of a process again from its present size; False where that is not possible.

    Linux: writing 5 to /proc/<pid>/clear_refs, see proc_pid_clear_refs(5). It touches no page.
    """
    try:
        with (root / f"proc/{pid}/clear_refs").open("r+") as file:
            file.write("5")
    except OSError:
        return False
    return True


def die_first(root: Path = ROOT) -> bool:
    """Let the kernel's OOM killer take this process and its children to come first; False where it cannot.

    Linux: oom_score_adj 1000, see proc_pid_oom_score_adj(5). Raising it needs no privilege.
    """
    try:
        (root / "proc/self/oom_score_adj").write_text("1000")
    except OSError:
        return False
    return True


def descendants(pid: int, root: Path = ROOT) -> tuple[int, ...]:
    """The children of a process, their children, and so on, without the process itself."""
    if asks_psutil(root):
        return _psutil_descendants(pid)
    listed = any((root / f"proc/{pid}/task").glob("*/children"))
    children = None if listed else _children_by_parent(root)
    found: list[int] = []
    waiting = [pid]
    while waiting:
        parent = waiting.pop()
        own = _listed_children(parent, root) if children is None else children.get(parent, [])
        found += own
        waiting += own
    return tuple(found)


def _listed_children(pid: int, root: Path) -> list[int]:
    """Children from /proc/<pid>/task/*/children, which only some kernels have but which reads no other process."""
    return [
        int(child)
        for task in (root / f"proc/{pid}/task").glob("*/children")
        for child in (read_text(task) or "").split()
    ]


def _children_by_parent(root: Path) -> dict[int, list[int]]:
    """Children by parent, from the fourth field of each /proc/<pid>/stat."""
    children: dict[int, list[int]] = {}
    for pid, parent in _parents(root):
        children.setdefault(parent, []).append(pid)
    return children


def _parents(root: Path) -> Iterator[tuple[int, int]]:
    for folder in (root / "proc").iterdir():
        text = read_text(folder / "stat") if folder.name.isdigit() else None
        if text is not None:
            # the second field is the name in parentheses, and a name may hold spaces and parentheses
            yield int(folder.name), int(text.rpartition(")")[2].split()[1])


def _psutil_descendants(pid: int) -> tuple[int, ...]:
    import psutil

    try:
        return tuple(child.pid for child in psutil.Process(pid).children(recursive=True))
    except psutil.Error:
        return ()


FORKED = 0x40
"""PF_FORKNOEXEC of the kernel's include/linux/sched.h: a copy of its parent that runs no program of its own yet."""
YOUNG_TICKS = 100
"""Clock ticks (1/100 s) within which a copy of its parent is taken to be on the way to its own program."""


def tree_rss(pids: tuple[int, ...], root: Path = ROOT) -> int:
    """Sum of the resident memory of these processes; one that has ended holds nothing.

    Pages that several of them share count once for each, so the sum is an upper bound. But a process that was forked
    and runs no program of its own has its parent's pages, which count there: of it only private pages count, and
    nothing in its first second, when a starting program looks like a second trainer for some milliseconds.
    """
    return sum(_own_bytes(pid, root) for pid in pids)


def _own_bytes(pid: int, root: Path) -> int:
    forked = _forked_ticks_ago(pid, root)
    if forked is None:
        status = process_status(pid, root)
        return 0 if status is None else status.rss
    if forked < YOUNG_TICKS:
        return 0
    fields = read_fields(read_text(root / f"proc/{pid}/smaps_rollup") or "")
    return fields.get("Private_Clean", 0) + fields.get("Private_Dirty", 0)


def _forked_ticks_ago(pid: int, root: Path) -> int | None:
    """Age of a forked process without a program of its own; None for every other one. Fields 9 and 22 of its stat."""
    text = read_text(root / f"proc/{pid}/stat")
    fields = [] if text is None else text.rpartition(")")[2].split()
    if len(fields) < 20 or not int(fields[6]) & FORKED:
        return None
    uptime = (read_text(root / "proc/uptime") or "0").split()[0]
    return int(float(uptime) * 100) - int(fields[19])


class Stat(Struct, frozen=True):
    """What /proc/<pid>/stat says: `start` in clock ticks since boot, `status` as `wait` gives it once it has ended.

    `status` is None while it runs, and where this process may not know it.
    """

    pid: int
    name: str
    state: str
    parent: int
    group: int
    flags: int
    start: int
    status: int | None = None

    @property
    def forked(self) -> bool:
        """Whether it is a copy of its parent that runs no program of its own (yet)."""
        return bool(self.flags & FORKED)

    @property
    def ended(self) -> bool:
        """Whether only its exit status is left, for its parent to fetch."""
        return self.state in "ZX"


def parse_stat(text: str) -> Stat | None:
    """The fields of a stat line, see proc_pid_stat(5); None where it is not whole.

    >>> parse_stat("7 (a) b) Z 1 5 5 0 -1 64 " + "0 " * 12 + "99 " + "0 " * 29 + "9").start
    99
    """
    before, _, after = text.rpartition(")")
    pid, _, name = before.partition(" (")
    fields = after.split()
    if len(fields) < 20:
        return None
    ended = fields[0] in "ZX" and len(fields) >= 50
    return Stat(
        pid=int(pid), name=name, state=fields[0], parent=int(fields[1]), group=int(fields[2]), flags=int(fields[6]),
        start=int(fields[19]), status=int(fields[49]) if ended else None,
    )  # fmt: skip


_PAGE = os.sysconf("SC_PAGE_SIZE")
_LIMITS = re.compile(rb"^(Max address space|Max data size) +(\d+) ", re.MULTILINE)
_WALLS = (
    (b"Max address space", 0, "address space (ulimit -v)"), (b"Max data size", 5, "data (ulimit -d)"),
)  # fmt: skip
"""A line of /proc/<pid>/limits, the field of statm that counts towards it, and what it is called here."""


class ProcessFiles:
    """The files of /proc about processes, read many times a minute: no objects for paths, no more files than needed.

    What is gone or forbidden reads as None or empty.
    """

    def __init__(self, root: Path = ROOT) -> None:
        self._base = f"{root / 'proc'}/"

    def listing(self) -> dict[int, int]:
        """All processes, each with the number of its folder's inode: another number is another process."""
        with os.scandir(self._base) as entries:
            return {int(entry.name): entry.inode() for entry in entries if entry.name.isdecimal()}

    def stat(self, pid: int) -> Stat | None:
        """Its line of stat."""
        return parse_stat(self._read(pid, "stat").decode(errors="replace"))

    def resident(self, pid: int) -> tuple[int, int] | None:
        """Resident bytes, and those of them that are file or shared memory. Takes no lock of the process."""
        fields = self._read(pid, "statm").split()
        return (int(fields[1]) * _PAGE, int(fields[2]) * _PAGE) if len(fields) > 2 else None

    def wall(self, pid: int) -> Wall | None:
        """The limit of its own that it is nearest to; None where it has none. Takes no lock of the process."""
        limits = {name: int(soft) for name, soft in _LIMITS.findall(self._read(pid, "limits"))}
        fields = self._read(pid, "statm").split() if limits else []
        if len(fields) < 6:
            return None
        walls = [
            Wall(name, int(fields[place]) * _PAGE, limits[key])
            for key, place, name in _WALLS if limits.get(key)
        ]  # fmt: skip
        return max(walls, key=lambda each: each.used / each.limit, default=None)

    def command(self, pid: int) -> str:
        """Its command line, or the title that it gave itself.

        As everything below it takes a lock of the process's memory, so it waits where the process is stuck in it.
        """
        return self._read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()

    def environment(self, pid: int) -> dict[str, str]:
        """The variables it was started with, where it did not write over them (as a title longer than argv does)."""
        pairs = (each.partition(b"=") for each in self._read(pid, "environ").split(b"\0"))
        return {name.decode(errors="replace"): value.decode(errors="replace") for name, _, value in pairs if name}

    def proportional(self, pid: int) -> int | None:
        """Pss in bytes: shared pages count by their share. It walks all pages, seconds for 100 GB."""
        found = re.search(rb"^Pss: +(\d+) kB", self._read(pid, "smaps_rollup"), re.MULTILINE)
        return None if found is None else int(found[1]) << 10

    def process_of(self, thread: int) -> int | None:
        """The process that a thread is of; None where it is gone."""
        found = re.search(rb"^Tgid:\s+(\d+)", self._read(thread, "status"), re.MULTILINE)
        return None if found is None else int(found[1])

    def streams(self, pid: int) -> tuple[str, ...]:
        """What its standard input, output and error are, such as "pipe:[4711]"; "" where that cannot be read."""
        return tuple(_link(f"{self._base}{pid}/fd/{number}") for number in range(3))

    def uptime_ticks(self) -> int:
        """Clock ticks since boot, the unit of `Stat.start`; 0 where that cannot be read."""
        words = read_bytes(f"{self._base}uptime").split()
        return int(float(words[0]) * 100) if words else 0

    def _read(self, pid: int, name: str) -> bytes:
        return read_bytes(f"{self._base}{pid}/{name}")


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def read_bytes(path: str) -> bytes:
    """All of a small file of the kernel; empty where it is absent, forbidden, or its subject is gone."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        parts = []
        while part := os.read(descriptor, 1 << 16):
            parts.append(part)
            if len(part) < 4096:  # the kernel fills a page before it stops
                break
        return b"".join(parts)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
