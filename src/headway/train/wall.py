"""`memory.limit` as a wall: while a phase computes, an allocation that would go beyond it fails.

A reading once a second sees growth, and nothing that comes and goes between two readings; a failed allocation can be
split and tried again, and a machine without memory cannot. The kernel counts private writable mappings (RLIMIT_DATA),
touched or not, so the wall stands as far above what is mapped now as `memory.limit` is above what is resident.
"""

import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import torch

from headway.guard.read import OwnSizes

LEAST = 32 << 20
"""Bytes that are left to the process in any case: small objects, and the way to a clean stop."""
GRAIN = 32768
"""Elements that torch gives to one thread at least (at::internal::GRAIN_SIZE)."""


class Wall:
    """Holds this process and the processes beside it, of `others()` bytes, to `limit` bytes of resident memory.

    The reward's processes, `pids()`, may each map as much as the limit: one that asks for more at once gets a
    MemoryError, which scores its answer as failed. Without a limit, and outside Linux, there is no wall. One that was
    there before (`ulimit -d`) stays the lower.
    """

    def __init__(
        self, limit: int | None, others: Callable[[], int], pids: Callable[[], tuple[int, ...]] = tuple
    ) -> None:
        self._limit = limit if sys.platform == "linux" else None
        self._others, self._pids = others, pids
        self._before = resource.getrlimit(resource.RLIMIT_DATA)
        if self._limit is not None:
            _start_threads()

    @contextmanager
    def around(self) -> Iterator[None]:
        """The wall stands while inside."""
        if self._limit is None:
            yield
            return
        self._sizes = OwnSizes()
        for pid in self._pids():
            with suppress(ProcessLookupError, PermissionError):
                soft, hard = resource.prlimit(pid, resource.RLIMIT_DATA)
                resource.prlimit(pid, resource.RLIMIT_DATA, (_lowest(self._limit, soft, hard), hard))
        try:
            self.move()
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, self._before)
            self._sizes.close()

    def move(self) -> None:
        """Inside `around`: put it where the limit is by what is held now. Takes microseconds."""
        if self._limit is None:
            return
        resident, mapped = self._sizes.read()
        soft, hard = self._before
        wall = mapped + max(LEAST, self._limit - resident - self._others())
        resource.setrlimit(resource.RLIMIT_DATA, (_lowest(wall, soft, hard), hard))


def _start_threads() -> None:
    """Start the threads that torch computes with, by a sum that is large enough for all of them.

    Each maps a stack of 8 MiB, and libgomp ends the whole process where one cannot be started.
    """
    torch.zeros(torch.get_num_threads() * GRAIN).add_(1)


def _lowest(*limits: int) -> int:
    """The lowest of some limits, one of which is finite."""
    return min(each for each in limits if each != resource.RLIM_INFINITY)
