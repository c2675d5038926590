"""Runs a rehearsal in a process of its own and ends it before it passes a limit of the machine."""

import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO, Any

from msgspec import Struct

from headway.facts import probe
from headway.facts.machine import Limit, Machine
from headway.guard.read import descendants, process_status, tree_rss
from headway.units import MIB

WATCH_S = 0.02
"""Seconds between two readings."""
SPARE, SPARE_SHARE = 64 * MIB, 64
"""What has to stay free of the node's memory and of its control group: this much, or one part in so many."""
STDERR_TAIL = 4000
WAITING = {"OMP_WAIT_POLICY": "passive"}
"""torch's threads sleep while they wait for each other. By default they spin, which takes the core from the thread
that they wait for where other programs compute too: on two cores under a load of 7 the same products took 10 to 13 s
spinning and 2.2 to 2.6 s sleeping. What is held in memory is the same."""


class Reached(Struct, frozen=True):
    """The limit at which a rehearsal was ended: what its processes held then and what they were allowed, in bytes."""

    limit: Limit
    used: int


class Ended(Struct, frozen=True):
    """How a rehearsal ended.

    `status` is its exit code, or minus the signal that ended it; `reached` the limit at which it was ended from here.
    `phase` and `step` are where it was then; `used` is the most that its processes were seen to hold in that phase.
    `error` is what it said, `notes` what it has to tell of itself, `dropped` the samples that it could not train.
    """

    status: int
    phase: str
    step: int
    used: int
    reached: Reached | None
    error: str
    notes: tuple[str, ...]
    dropped: int
    seconds: float


def run(command: Sequence[str], machine: Machine, tell: Callable[[str, int], None]) -> Ended:
    """Run a rehearsal to its end, or end it at the first limit that it would pass. `tell` gets each phase and step.

    The process tree is held against what the host pool's limits allowed it at the start, and the node and its control
    group against what is left of them, whoever took it.
    """
    began = time.monotonic()
    environment = {**WAITING, **os.environ, "PYTHONUNBUFFERED": "1"}
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True,
            start_new_session=True, env=environment,
        )  # fmt: skip
        assert process.stdout is not None
        watcher = _Watcher(process.pid, machine)
        try:
            events = _Events(process.stdout, watcher, tell)
            status = process.wait()
            events.join()
        finally:
            watcher.close()
            _end(process)
        errors.seek(0)
        said = errors.read()[-STDERR_TAIL:]
    return Ended(
        status, watcher.phase, watcher.step, watcher.highest, watcher.reached, events.error or said.strip(),
        tuple(events.notes), events.dropped, round(time.monotonic() - began, 3),
    )  # fmt: skip


class _Watcher:
    """Reads what the process tree holds and what the machine has left, in a thread of its own."""

    def __init__(self, pid: int, machine: Machine) -> None:
        self.phase, self.step, self.highest = "load", 0, 0
        self.reached: Reached | None = None
        self._pid = pid
        self._limits = machine.pools[0].limits if machine.pools else ()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="headway-rehearsal", daemon=True)
        self._thread.start()

    def at(self, phase: str, step: int) -> None:
        """A phase begins."""
        self.phase, self.step, self.highest = phase, step, 0

    def close(self) -> None:
        """End the thread."""
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(WATCH_S):
            status = process_status(self._pid)
            if status is None:
                continue
            below = descendants(self._pid)
            used = status.rss + tree_rss(below)
            self.highest = max(self.highest, used)
            limit = first_passed(self._limits, used) or self._nothing_left()
            if limit is not None:
                self.reached = Reached(limit, used)
                for pid in (self._pid, *below):
                    _kill(pid)
                return

    def _nothing_left(self) -> Limit | None:
        """The limit of the node or of its control group of which too little is left, whoever took it."""
        node, group = probe.node_memory(), probe.cgroup_memory()
        left = {
            "MemAvailable": None if node is None else node.available,
            "cgroup": None if group is None else group.left,
        }
        left["pod"] = left["cgroup"]
        for limit in self._limits:
            free = left.get(limit.name)
            if free is not None and free < min(limit.bytes, max(SPARE, limit.bytes // SPARE_SHARE)):
                return limit
        return None


def first_passed(limits: Sequence[Limit], used: int) -> Limit | None:
    """The lowest limit that the use is over; None where it is inside all.

    >>> limits = (Limit("MemAvailable", 900, "", ""), Limit("memory.limit", 500, "", ""))
    >>> first_passed(limits, 400), first_passed(limits, 1000).name
    (None, 'memory.limit')
    """
    return min((each for each in limits if used > each.bytes), key=lambda each: each.bytes, default=None)


class _Events:
    """Reads the events that a rehearsal tells of, in a thread of its own."""

    def __init__(self, stream: IO[str], watcher: _Watcher, tell: Callable[[str, int], None]) -> None:
        self.error, self.notes, self.dropped = "", list[str](), 0
        self._watcher, self._tell = watcher, tell
        self._thread = threading.Thread(target=self._read, args=(stream,), daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait until everything is read."""
        self._thread.join()

    def _read(self, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                try:
                    event = json.loads(line)
                except ValueError:
                    continue  # what libraries print
                if isinstance(event, dict):
                    self._take(event)

    def _take(self, event: dict[str, Any]) -> None:
        match event.get("event"):
            case "phase":
                self._watcher.at(event["phase"], event["step"])
                self._tell(event["phase"], event["step"])
            case "error":
                self.error = event["text"]
            case "note":
                self.notes.append(event["text"])
            case "step":
                self.dropped += int(event["dropped"])


def _end(process: subprocess.Popen[str]) -> None:
    """End what is left of a rehearsal: its own session, which it was started in."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
