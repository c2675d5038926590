"""Which processes belong to a run, also those that left its process group, and how each of them ended.

`ray start` detaches what it starts, so that a job script keeps only `ray job submit` as a child. What belongs is
therefore told by more signs than descent, and each member says by which. A sign is something that a process inherits
or that only Ray writes; a name such as `raylet` or `python` is none.
"""

import ctypes
import fcntl
import os
import re
import select
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from headway.errors import InputError
from headway.facts.probe import ROOT, asks_psutil
from headway.guard.read import ProcessFiles, Stat

MARKER = "HEADWAY_WATCH"
"""The variable that the watcher sets for what it starts; all that is started under it inherits it."""
Sign = Literal["root", "child", "adopted", "group", "marker", "Ray session"]
"""Why a process belongs: it is the watched one; a member's child; an orphan of the tree that became the watcher's
child; an orphan in a process group that a member led; the marker is in its environment; it serves a Ray session that
the run started."""
TITLE_S = 5.0
"""How often command lines are read again: workers of Ray write there what they do."""
_YOUNG_S = 3.0
"""For so long a copy of its parent is expected to become a program of its own."""


class Member(Struct, frozen=True):
    """A process of the run. `start` in clock ticks since boot; `command` is its command line, or the title it set.

    `forked`: a copy of its parent that runs no program of its own (yet), and shares its parent's memory.
    """

    pid: int
    start: int
    parent: int
    name: str
    command: str
    sign: Sign
    forked: bool = False


class Ended(Struct, frozen=True):
    """A process of the run that is gone, and when that was noticed (`t`, Unix time).

    Where neither `code` nor `signal` is known, the kernel told them to its parent only.

    >>> python = Member(7, 100, 1, "python", "python a.py", "child")
    >>> end_of(python, t=0.0, status=9).signal, end_of(python, t=0.0, status=3 << 8).code
    (9, 3)
    """

    pid: int
    start: int
    name: str
    command: str
    t: float
    code: int | None = None
    signal: int | None = None


def end_of(member: Member, t: float, status: int | None) -> Ended:
    """How a member ended; `status` as `os.wait` gives it, None where it is not known."""
    by_signal = status is not None and os.WIFSIGNALED(status)
    return Ended(
        member.pid, member.start, member.name, member.command, t,
        code=None if status is None or by_signal else os.WEXITSTATUS(status),
        signal=os.WTERMSIG(status) if status is not None and by_signal else None,
    )  # fmt: skip


def become_subreaper(on: bool = True) -> bool:
    """Make orphans of this process's descendants its children, instead of init's; False where that is not possible.

    Linux: PR_SET_CHILD_SUBREAPER. Call it before the command is started, so that no early orphan is missed.
    """
    if not sys.platform.startswith("linux"):
        return False
    return bool(ctypes.CDLL(None).prctl(36, ctypes.c_ulong(on), 0, 0, 0) == 0)


class Tree:
    """The processes of a run, from a root process on. Call `refresh` about once a second.

    `marker` is the value of `HEADWAY_WATCH` that was set for the root. Children that the watcher starts for its own
    needs are told to `exclude`; those that it has already are none of the run. Where the root is the watcher's child,
    orphans of the run become its children from then on. InputError if there is no process `root_pid`, and on a system
    without Linux's /proc.

    A process is taken up only if it started no earlier than the root did and shows one of the signs.
    """

    def __init__(self, root_pid: int, root: Path = ROOT, *, marker: str | None = None) -> None:
        self.root_pid, self.marker = root_pid, marker
        self._files, self._live = ProcessFiles(root), root == ROOT
        if asks_psutil(root):
            raise InputError("watching a tree of processes needs Linux's /proc, which this system does not have")
        stat = self._files.stat(root_pid)
        if stat is None:
            raise InputError(f"process {root_pid}: there is no such process")
        self._start = stat.start
        self._reapers = {1, *self._ancestors(stat.parent)}
        self._watcher = os.getpid() if stat.parent == os.getpid() else None
        if self._watcher is not None and self._live:
            become_subreaper()
        self._members: dict[int, Member] = {}
        self._inodes: dict[int, int] = {}
        self._gone: dict[int, int] = {}
        self._ever: set[int] = set()
        self._groups: set[int] = set()
        self._ended: list[Ended] = []
        self._pidfds = _Pidfds(self._live)
        self._seen: dict[int, int] = {}
        self._copies: dict[int, float] = {}
        self._titles_read = time.monotonic()
        self._ray = _RaySessions(self._files, self._start, self._ever)
        listed = self._files.listing()
        self._excluded = self._children_of_watcher(listed) - {root_pid}
        self._add(stat, listed.get(root_pid, 0), "root")
        self.refresh()

    @property
    def members(self) -> tuple[Member, ...]:
        """As of the last `refresh`."""
        return tuple(self._members.values())

    @property
    def sessions(self) -> tuple[str, ...]:
        """Folders of the Ray sessions that the run started, as far as they are known."""
        return tuple(sorted(self._ray.ours))

    def exclude(self, pid: int) -> None:
        """A child that the watcher started for itself: not of the run, and not waited for here."""
        self._excluded.add(pid)

    def ended(self) -> tuple[Ended, ...]:
        """The members that were found to be gone since the last call."""
        ended, self._ended = tuple(self._ended), []
        return ended

    def note_end(self, pid: int, status: int) -> None:
        """Tell how a member ended where its parent waited for it elsewhere; `status` as `os.wait` gives it."""
        if pid in self._members:
            self._drop(self._members[pid], status)

    def refresh(self, *, titles: bool = True) -> tuple[Member, ...]:
        """Look at all processes again: who is gone, who is new. Orphans that ended are waited for.

        `titles`: read command lines again now and then. That waits for a process which is stuck in its memory.
        """
        for pid in self._pidfds.exited(self._members):
            self._note_exited(self._members[pid])
        listed = self._files.listing()
        for member in self.members:
            self._check(member, listed.get(member.pid))
        self._gone = {pid: start for pid, start in self._gone.items() if pid in listed}
        self._excluded &= listed.keys()
        self._admit(listed)
        if titles:
            self._read_titles()
        return self.members

    def close(self) -> None:
        """Let the descriptors go. Processes are left as they are."""
        self._pidfds.close()

    # -- who is gone

    def _check(self, member: Member, inode: int | None) -> None:
        """Drop a member that is gone. A living one may show a new inode: the start decides who it is."""
        if inode == self._inodes[member.pid]:
            return
        stat = None if inode is None else self._files.stat(member.pid)
        if stat is None or inode is None or stat.start != member.start:
            self._drop(member, self._pidfds.status(member.pid))
        else:
            self._inodes[member.pid] = inode

    def _note_exited(self, member: Member) -> None:
        """A member that has exited, and whose status may wait to be fetched: by us if it is an orphan."""
        if self._live and self._watcher is not None and member.pid != self.root_pid and self._reap(member):
            return
        stat = self._files.stat(member.pid)
        if stat is None or stat.start != member.start:
            self._drop(member, self._pidfds.status(member.pid))
        elif stat.ended:
            own = self._live and stat.parent == os.getpid()
            self._drop(member, _peek(member.pid) if own else stat.status)

    def _reap(self, member: Member) -> bool:
        """Fetch the exit status of an orphan that became ours; False if it is not ours to fetch."""
        try:
            reaped, status = os.waitpid(member.pid, os.WNOHANG)
        except ChildProcessError:
            return False
        if reaped:
            self._drop(member, status)
        return bool(reaped)

    def _drop(self, member: Member, status: int | None) -> None:
        del self._members[member.pid], self._inodes[member.pid]
        self._gone[member.pid] = member.start
        self._pidfds.remove(member.pid)
        self._ended.append(end_of(member, time.time(), status))

    # -- who is new

    def _admit(self, listed: dict[int, int]) -> None:
        waiting = list(self._candidates(listed))
        self._seen = listed
        # a member may make the sign of another one valid: as its parent, its group's leader, its Ray session
        while waiting:
            left = []
            for stat in waiting:
                sign = self._sign(stat)
                if sign is None:
                    left.append(stat)
                else:
                    self._add(stat, listed[stat.pid], sign)
            if len(left) == len(waiting):
                break
            waiting = left
        now = time.monotonic()
        for stat in waiting:
            self._ever.discard(stat.pid)  # the number of a former member, used again by a stranger
            self._groups.discard(stat.pid)
            if stat.forked and now - self._copies.setdefault(stat.pid, now) < _YOUNG_S:
                del self._seen[stat.pid]
        self._copies = {pid: since for pid, since in self._copies.items() if now - since < _YOUNG_S}

    def _candidates(self, listed: dict[int, int]) -> Iterator[Stat]:
        """Processes that were not looked at yet, and all of them where a Ray session became known."""
        everyone = self._ray.fresh()
        for pid, inode in listed.items():
            if (everyone or self._seen.get(pid) != inode) and pid not in self._members and pid not in self._excluded:
                stat = self._files.stat(pid)
                if stat is not None and stat.start >= self._start and stat.start != self._gone.get(pid):
                    yield stat

    def _sign(self, stat: Stat) -> Sign | None:
        if stat.parent in self._members:
            return "child"
        if self._watcher is not None and stat.parent == self._watcher and self._is_orphan_of_ours(stat):
            return "adopted"
        if stat.group in self._groups and stat.parent in self._reapers and stat.pid != stat.group:
            return "group"  # a new leader is a stranger: the number of a group is free once all of it are gone
        if self._has_marker(stat.pid):
            return "marker"
        return "Ray session" if self._ray.serves(self._files.command(stat.pid)) else None

    def _has_marker(self, pid: int) -> bool:
        return self.marker is not None and self._files.environment(pid).get(MARKER) == self.marker

    def _is_orphan_of_ours(self, stat: Stat) -> bool:
        """As process 1, a container's first, the watcher is given everybody's orphans; else only its own tree's."""
        if self._watcher != 1 or self.marker is None or stat.ended:
            return True
        return self._has_marker(stat.pid) or stat.group in self._groups

    def _add(self, stat: Stat, inode: int, sign: Sign) -> None:
        command = "" if stat.ended else self._files.command(stat.pid)
        member = Member(stat.pid, stat.start, stat.parent, stat.name, command, sign, stat.forked)
        self._members[stat.pid], self._inodes[stat.pid] = member, inode
        if stat.ended:  # it lived between two looks, and only its status is left
            self._note_exited(member)
            return
        self._ever.add(stat.pid)
        if stat.group in self._members:
            self._groups.add(stat.group)
        self._pidfds.add(stat.pid)
        self._ray.learn(command, self._files.environment(stat.pid))

    def _read_titles(self) -> None:
        now = time.monotonic()
        due = now - self._titles_read >= TITLE_S
        if due:
            self._titles_read = now
        for member in self.members:
            if due or member.forked:
                self._read_title(member)

    def _read_title(self, member: Member) -> None:
        command = self._files.command(member.pid)
        if command == member.command and not member.forked:
            return
        stat = self._files.stat(member.pid)
        if stat is not None and command:
            self._members[member.pid] = replace(member, command=command, name=stat.name, forked=stat.forked)
            self._ray.learn(command, {})

    def _ancestors(self, pid: int) -> Iterator[int]:
        """Above a process: where orphans go. It itself is left out: the shell of a pipeline has more children in the
        root's process group."""
        while (stat := self._files.stat(pid)) is not None and stat.parent > 0:
            pid = stat.parent
            yield pid

    def _children_of_watcher(self, listed: dict[int, int]) -> set[int]:
        if self._watcher is None:
            return set()
        stats = (self._files.stat(pid) for pid in listed)
        return {stat.pid for stat in stats if stat is not None and stat.parent == self._watcher}


_SERVES = re.compile(r"--[\w-]+=(/[^\s=,'\"]*/session_\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d_\d+_(\d+))(?=[/\s]|$)")
"""A session's folder as Ray's own programs are told it (ray 2.49 to 2.60). Its last number is the process that made
it: `ray start`, or a driver."""
_ADDRESS = re.compile(r"(?:^|\s)--address[= ](\S+)")
_HOST_PORT = re.compile(r"^(?:https?://|ray://)?([\w.-]+):(\d+)")
_GCS = re.compile(r"--gcs-address=(\S+)")
_HERE = {"127.0.0.1", "localhost", "0.0.0.0"}


class _RaySessions:
    """Which sessions of Ray the run started: one that a member made or serves, or that listens where a member calls.

    None is ours of which a process is older than the run: that is a cluster which the run only uses.
    """

    def __init__(self, files: ProcessFiles, start: int, ever: set[int]) -> None:
        self.ours: set[str] = set()
        self._files, self._start, self._ever = files, start, ever
        self._others: set[str] = set()
        self._addresses: set[tuple[str, str]] = set()
        self._gcs: set[str] = set()
        self._fresh = False

    def learn(self, command: str, environment: dict[str, str]) -> None:
        """What a member says of sessions and addresses."""
        for folder, _ in _SERVES.findall(command):
            self._decide(folder)
            if folder in self.ours:
                self._gcs.update(_GCS.findall(command))
        named = _ADDRESS.findall(command)
        named += [environment[name] for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS") if name in environment]
        found = {(match[1], match[2]) for match in map(_HOST_PORT.match, named) if match is not None}
        self._fresh |= not found <= self._addresses
        self._addresses |= found

    def fresh(self) -> bool:
        """Whether something became known since the last call, so that everybody has to be looked at again."""
        fresh, self._fresh = self._fresh, False
        return fresh

    def serves(self, command: str) -> bool:
        """Whether a process that is no member yet serves one of our sessions."""
        if " ray.util.client.server " in command:  # of all that Ray starts, this alone is told no folder
            return not self._gcs.isdisjoint(_ADDRESS.findall(command))
        for folder, maker in _SERVES.findall(command):
            if folder not in self.ours and (int(maker) in self._ever or self._listens(command)):
                self._decide(folder)
            if folder in self.ours:
                return True
        return False

    def _listens(self, command: str) -> bool:
        for host, port in self._addresses:
            if host in _HERE or re.search(rf"={re.escape(host)}(?=[:\s]|$)", command):
                option = r"--port" if "/dashboard.py " in command else r"--gcs_server_port"
                if re.search(rf"{option}={port}(?=\s|$)", command):
                    return True
        return False

    def _decide(self, folder: str) -> None:
        if folder in self.ours or folder in self._others:
            return
        older = False
        for pid in self._files.listing():
            stat = self._files.stat(pid)
            if stat is not None and stat.start < self._start and folder in self._files.command(pid):
                older = True
        (self._others if older else self.ours).add(folder)
        self._fresh |= not older


class _Pidfds:
    """A descriptor per member, through which the kernel tells that it exited and, from Linux 6.15 on, its status."""

    _GET_INFO = 0xC040FF0B
    """PIDFD_GET_INFO of include/uapi/linux/pidfd.h for its first 64 bytes: the mask at 0, the exit status at 60."""
    _EXIT = 1 << 3

    def __init__(self, live: bool) -> None:
        self._live = live and hasattr(os, "pidfd_open")
        self._fds: dict[int, int] = {}
        self._pids: dict[int, int] = {}
        self._poll = select.poll()

    def add(self, pid: int) -> None:
        if not self._live:
            return
        try:
            fd = os.pidfd_open(pid)
        except OSError:  # gone, an old kernel, or no descriptor left: then its line of stat is asked
            return
        self._fds[pid], self._pids[fd] = fd, pid
        self._poll.register(fd, select.POLLIN)

    def exited(self, members: dict[int, Member]) -> tuple[int, ...]:
        """Members that have exited, and those of which no descriptor tells."""
        blind = [pid for pid in members if pid not in self._fds]
        return (*(self._pids[fd] for fd, _ in self._poll.poll(0)), *blind)

    def status(self, pid: int) -> int | None:
        """The exit status of a process that its parent waited for, as `os.wait` gives it."""
        fd = self._fds.get(pid)
        if fd is None:
            return None
        info = bytearray(64)
        struct.pack_into("=Q", info, 0, self._EXIT)
        try:
            fcntl.ioctl(fd, self._GET_INFO, info, True)
        except OSError:
            return None
        (mask,) = struct.unpack_from("=Q", info, 0)
        return int(struct.unpack_from("=i", info, 60)[0]) if mask & self._EXIT else None

    def remove(self, pid: int) -> None:
        fd = self._fds.pop(pid, None)
        if fd is not None:
            del self._pids[fd]
            self._poll.unregister(fd)
            os.close(fd)

    def close(self) -> None:
        for pid in tuple(self._fds):
            self.remove(pid)


def _peek(pid: int) -> int | None:
    """The status of our own child that has exited, left for whoever waits for it."""
    try:
        info = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    if info is None:
        return None
    return info.si_status << 8 if info.si_code == os.CLD_EXITED else info.si_status
