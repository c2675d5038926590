"""Stops a run's own processes, by pid and start: first its programs, then all of them, at last by force."""

import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from math import inf

from headway.guard.frames import role_of
from headway.guard.read import ProcessFiles
from headway.guard.tree import Member, Tree

ALL_S, FORCE_S = 300.0, 60.0
"""Seconds that the programs have before all processes are told to go, and those have before they are killed."""
SETTLE_S, SERVICE_S = 10.0, 10.0
"""Seconds that what waited for the programs has to end by itself, and that Ray's own services have, where nothing
else is left: its `gcs_server` may never go by itself."""
LEAST_S = 1.0
"""Seconds that each stage has at least."""
GONE_S = 10.0
"""Seconds after SIGKILL in which a process is gone, unless it waits in the kernel for a disk or device (state D)."""
SERVICES = frozenset({"raylet", "GCS", "Ray dashboard", "Ray monitor", "idle worker", "job"})
"""Roles of processes that have nothing to save."""
SMALLEST = 0.001
"""A rise that is no larger share of the limit since a run was told to go is none. What was foreseen before then says
nothing any more: a run that saves does not grow as it did."""
SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh", "busybox"})
_SUBMITS = re.compile(r"(?:^|/)ray job submit(?:\s|$)")
_SUPERVISES = re.compile(r"^ray::\S*JobSupervisor")
_WAITS = re.compile(r"while kill -s 0 \d+; do sleep 1; done; kill -9 ")
"""Of a job of Ray (2.49 to 2.60): what only shows it, what starts its driver, and what waits beside that."""


def patience(left_s: float, most_s: float) -> float:
    """Seconds that processes which were told to go are given, where the limit is `left_s` away: as many as are left
    after them, so half of all that there are, but `most_s` at most.

    >>> patience(5.0, 300.0), patience(0.0, 300.0), patience(inf, 60.0)
    (5.0, 1.0, 60.0)
    """
    return max(LEAST_S, min(most_s, left_s))


def programs(members: Iterable[Member], root_pid: int, streams: Callable[[int], Sequence[str]]) -> tuple[Member, ...]:
    """Those of a run that can save and leave: who has to be told to go, and before anybody else is.

    A shell that is told ends at once and leaves what it runs alone, so it is what it runs that is told. So is the
    driver of a job of Ray instead of `ray job submit`, without which the job goes on, and nothing that reads what
    another one prints (`| tee log`), without which that one cannot print. `streams` gives a process's three streams.
    """
    by_parent: dict[int, list[Member]] = {}
    alive = tuple(members)
    for member in alive:
        by_parent.setdefault(member.parent, []).append(member)
    supervisors = [member for member in alive if _SUPERVISES.search(member.command)]
    waiting = [member for member in alive if member.pid == root_pid]
    waiting += [each for supervisor in supervisors for each in by_parent.get(supervisor.pid, [])]
    found: dict[int, Member] = {}
    while waiting:
        member = waiting.pop()
        if _WAITS.search(member.command) or (supervisors and _SUBMITS.search(member.command)):
            continue
        below = by_parent.get(member.pid, [])
        if member.name in SHELLS and below:
            waiting += below
        else:
            found[member.pid] = member
    return _without_readers(tuple(found.values()), alive, streams)


def _without_readers(
    found: tuple[Member, ...], alive: tuple[Member, ...], streams: Callable[[int], Sequence[str]]
) -> tuple[Member, ...]:
    """Without those whose input is a pipe into which another member prints; all, where that would be none."""
    of = {member.pid: streams(member.pid) for member in alive}
    kept = tuple(
        member
        for member in found
        if not any(
            of[member.pid] and of[member.pid][0].startswith("pipe:") and of[member.pid][0] in of[other.pid][1:]
            for other in alive
            if other.pid != member.pid
        )
    )
    return kept or found


def signal_member(member: Member, number: int, files: ProcessFiles | None = None) -> bool:
    """Send a signal to a member; False where it is gone. Its start is looked at, because pids are used again."""
    if not is_alive(member, files or ProcessFiles()):
        return False
    try:
        os.kill(member.pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def is_alive(member: Member, files: ProcessFiles) -> bool:
    """Whether a member still runs."""
    stat = files.stat(member.pid)
    return stat is not None and stat.start == member.start and not stat.ended


class Stopper:
    """Stops a run step by step. `begin` asks its programs to go, as a scheduler does; call `go_on` often.

    Each process is told to go once. When the programs and what waited for them have ended, or their time is over, all
    others are told too, and when that time is over all are killed. `on_sent` learns of each signal that was sent.
    """

    def __init__(self, tree: Tree, on_sent: Callable[[Member, int], object] | None = None) -> None:
        self._tree, self._on_sent, self._files = tree, on_sent, ProcessFiles()
        self._programs: tuple[Member, ...] = ()
        self._done: set[tuple[int, int, int]] = set()
        self._began: float | None = None
        self._began_ticks = 0
        self._ended: float | None = None
        self._all: float | None = None
        self._killed: float | None = None
        self._hurried = False

    @property
    def given_up(self) -> bool:
        """Whether what is left of the run was killed long ago and stays all the same: nobody can end it."""
        return self._killed is not None and time.monotonic() - self._killed >= GONE_S

    @property
    def begun(self) -> bool:
        """Whether the run was asked to stop."""
        return self._began is not None

    def begin(self) -> None:
        """SIGTERM to the programs of the run."""
        if self._began is None:
            self._began, self._began_ticks = time.monotonic(), self._files.uptime_ticks()
            self._tree.refresh()
            self._programs = self._found()
            self._send(self._programs, signal.SIGTERM)

    def hurry(self) -> None:
        """Wait no longer than each stage has at least."""
        self._hurried = True

    def go_on(self, left_s: float = inf) -> None:
        """What is due since, where the limit is now `left_s` away."""
        if self._began is None:
            return
        left_s = 0.0 if self._hurried else left_s
        now = time.monotonic()
        if self._all is None and self._is_over(now, left_s):
            self._all = now
        if self._all is not None:
            self._send(self._tree.members, signal.SIGTERM)
            services = all(role_of(member) in SERVICES for member in self._tree.members)
            if now - self._all >= patience(left_s, SERVICE_S if services else FORCE_S):
                self._killed = self._killed or now
                self._send(self._tree.members, signal.SIGKILL)

    def _is_over(self, now: float, left_s: float) -> bool:
        """Whether the programs' time is over, or they have ended and nothing of what waited for them goes on."""
        new = tuple(each for each in self._found() if each.start >= self._began_ticks)
        self._programs = tuple(dict.fromkeys((*self._programs, *new)))
        self._send(new, signal.SIGTERM)
        if any(is_alive(member, self._files) for member in self._programs):
            self._ended = None
            return now - (self._began or now) >= patience(left_s, ALL_S)
        self._ended = self._ended or now
        root = [member for member in self._tree.members if member.pid == self._tree.root_pid]
        return not root or now - self._ended >= patience(left_s, SETTLE_S)

    def _found(self) -> tuple[Member, ...]:
        return programs(self._tree.members, self._tree.root_pid, self._files.streams)

    def _send(self, members: Iterable[Member], number: int) -> None:
        """To each at most once: a handler that saves is not begun a second time."""
        for member in members:
            key = member.pid, member.start, number
            if key not in self._done:
                self._done.add(key)
                if signal_member(member, number, self._files) and self._on_sent is not None:
                    self._on_sent(member, number)


def stop_rest(tree: Tree, patience_s: float = 10.0) -> int:
    """End what is left of a run whose command has ended; how many processes that were.

    They are asked by SIGTERM, and killed after `patience_s` seconds. It takes as long as they do.
    """
    tree.refresh()
    files, asked = ProcessFiles(), 0
    for member in tree.members:
        asked += signal_member(member, signal.SIGTERM, files)
    until = time.monotonic() + patience_s
    while tree.refresh() and time.monotonic() < until:
        time.sleep(0.1)
    for member in tree.members:
        signal_member(member, signal.SIGKILL, files)
    until = time.monotonic() + patience_s
    while tree.refresh() and time.monotonic() < until:
        time.sleep(0.1)
    return asked
