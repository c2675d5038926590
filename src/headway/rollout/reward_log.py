"""reward.log: what reward code prints, up to a size."""

import os
from contextlib import suppress
from pathlib import Path

from headway.units import format_bytes

LARGEST_LOG = 10 << 20
"""Bytes of prints that are kept: a function that prints on every answer would fill a disk over a long run."""

CHUNKS = 16
"""Reads at a time: a process that prints without end must not keep its reader from looking at the clock."""


class RewardLog:
    """Takes what the reward process writes out of a pipe and keeps it, until the file has `LARGEST_LOG` bytes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._most = LARGEST_LOG

    def take(self, source: int) -> bool:
        """Keep what is in `source` now, a pipe that does not block; False where it is at its end.

        Beyond the bound it is read all the same, so that the process that prints never waits.
        """
        for _ in range(CHUNKS):
            try:
                found = os.read(source, 1 << 16)
            except BlockingIOError:
                return True
            if not found:
                return False
            self._keep(found)
        return True

    def _keep(self, found: bytes) -> None:
        with suppress(OSError):  # a print for which the disk has no room must not end a run
            self._write(found)

    def _write(self, found: bytes) -> None:
        size = self._path.stat().st_size if self._path.exists() else 0
        room = self._most - size
        if room <= 0:
            return
        with self._path.open("ab") as log:
            log.write(found[:room])
            if len(found) >= room:
                text = f"\nheadway: this file has {format_bytes(self._most)}; later prints are not kept\n"
                log.write(text.encode())
