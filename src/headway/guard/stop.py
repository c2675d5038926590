"""Stops a run's own processes, by pid and start: first its command, then all of them, at last by force."""

import os
import signal
import time
from collections.abc import Iterable

from headway.guard.read import ProcessFiles
from headway.guard.tree import Member, Tree

ALL_S, FORCE_S = 30.0, 60.0
"""Seconds after which all processes of the run are told to go too, and after which they are killed."""


def signal_member(member: Member, number: int, files: ProcessFiles | None = None) -> bool:
    """Send a signal to a member; False where it is gone. Its start is looked at, because pids are used again."""
    stat = (files or ProcessFiles()).stat(member.pid)
    if stat is None or stat.start != member.start or stat.ended:
        return False
    try:
        os.kill(member.pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


class Stopper:
    """Stops a run step by step. `begin` asks the command to go, as a scheduler does; call `go_on` now and then."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._began: float | None = None
        self._told = self._forced = False

    @property
    def begun(self) -> bool:
        """Whether the run was asked to stop."""
        return self._began is not None

    def begin(self) -> None:
        """SIGTERM to the command."""
        if self._began is None:
            self._began = time.monotonic()
            self._send((each for each in self._tree.members if each.sign == "root"), signal.SIGTERM)

    def go_on(self) -> None:
        """What is due since."""
        if self._began is None:
            return
        passed = time.monotonic() - self._began
        if passed > ALL_S and not self._told:
            self._told = True
            self._send(self._tree.members, signal.SIGTERM)
        if passed > FORCE_S:
            self._send(self._tree.members, signal.SIGKILL)

    def _send(self, members: Iterable[Member], number: int) -> None:
        files = ProcessFiles()
        for member in members:
            signal_member(member, number, files)


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
