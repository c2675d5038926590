"""A small thread that reads memory a few times a second, for what keeps no peak of its own."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from headway.facts.probe import ROOT, cgroup_usage_file, read_number
from headway.guard.read import descendants, node_memory, process_status, tree_rss


class Reading(Struct, frozen=True):
    """Memory at one moment (`t`, Unix time), in bytes: the process, its descendants, the node, its control group.

    >>> Reading(t=0.0, rss=700, children=200, node_used=5000, cgroup=None).tree
    900
    """

    t: float
    rss: int
    children: int
    node_used: int | None
    cgroup: int | None

    @property
    def tree(self) -> int:
        """The process and its descendants."""
        return self.rss + self.children


class Highest(Struct, frozen=True):
    """The highest value of each kind over some readings. They need not have been reached at the same moment."""

    rss: int
    children: int
    node_used: int | None
    cgroup: int | None


def take(pid: int, group: Path | None, root: Path = ROOT) -> Reading:
    """One reading; `group` is the control group's usage file. ProcessLookupError if the process is gone."""
    status = process_status(pid, root)
    if status is None:
        raise ProcessLookupError(f"process {pid} has no resident memory to read")
    node = node_memory(root)
    return Reading(
        t=time.time(),
        rss=status.rss,
        children=tree_rss(descendants(pid, root), root),
        node_used=None if node is None else node.used,
        cgroup=None if group is None else read_number(group),
    )


def larger(left: int | None, right: int | None) -> int | None:
    """The larger of two values where None is unknown."""
    known = [value for value in (left, right) if value is not None]
    return max(known, default=None)


def raise_to(highest: Highest | None, reading: Reading) -> Highest:
    """`highest` with one more reading taken into account."""
    if highest is None:
        return Highest(reading.rss, reading.children, reading.node_used, reading.cgroup)
    return Highest(
        rss=max(highest.rss, reading.rss),
        children=max(highest.children, reading.children),
        node_used=larger(highest.node_used, reading.node_used),
        cgroup=larger(highest.cgroup, reading.cgroup),
    )


class Sampler:
    """Reads the memory of a process tree every `interval` seconds between `start` and `stop`.

    `on_reading` is called in the sampling thread with each reading that it took. An exception in the thread,
    the callback's included, ends the sampling and is raised by `stop`.
    """

    def __init__(
        self,
        pid: int,
        interval: float,
        on_reading: Callable[[Reading], None] | None = None,
        root: Path = ROOT,
    ) -> None:
        self._pid, self._interval, self._on_reading, self._root = pid, interval, on_reading, root
        self._group = cgroup_usage_file(root)
        self._lock = threading.Lock()
        self._highest: Highest | None = None
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="headway-sampler", daemon=True)

    def start(self) -> None:
        """Begin. A sampler runs once."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread and wait for it; raises what ended it early."""
        self._ended.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def window(self) -> Highest:
        """The highest values since the last call, or since the start, with a reading of now.

        That reading also begins the next window, so no moment falls between two windows.
        """
        reading = take(self._pid, self._group, self._root)
        with self._lock:
            highest = raise_to(self._highest, reading)
            self._highest = raise_to(None, reading)
        return highest

    def _run(self) -> None:
        try:
            while not self._ended.wait(self._interval):
                try:
                    reading = take(self._pid, self._group, self._root)
                except MemoryError:  # the process stands at a limit of its own for a moment
                    continue
                with self._lock:
                    self._highest = raise_to(self._highest, reading)
                if self._on_reading is not None:
                    self._on_reading(reading)
        except BaseException as error:  # noqa: BLE001 - kept for `stop`: a dead sampler must not pass for a calm one
            self._error = error
