"""Hypothesis tries fewer examples than by its own default; `--hypothesis-profile=default` tries as many as that.

What more than one file of tests needs.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from headway.facts.probe import memory_levels

settings.register_profile("quick", max_examples=40)
settings.load_profile("quick")


@pytest.fixture
def limited_group() -> Iterator[Callable[[int], Callable[[], None]]]:
    """Makes control groups of so many bytes: gives what a new process does to be in one. Skips where that is not
    permitted."""
    made: list[Path] = []

    def make(limit: int) -> Callable[[], None]:
        version, folders = memory_levels()
        group = (folders[-1] if folders else Path("/sys/fs/cgroup")) / f"headway-test-{os.getpid()}-{len(made)}"
        try:
            group.mkdir()
            made.append(group)
            (group / {1: "memory.limit_in_bytes", 2: "memory.max"}[version]).write_text(str(limit))
        except (OSError, KeyError):
            pytest.skip("no control group can be made here")
        return lambda: enter(group)

    def enter(group: Path) -> None:
        (group / "cgroup.procs").write_text(str(os.getpid()))

    yield make
    for group in made:
        for pid in (group / "cgroup.procs").read_text().split():
            os.kill(int(pid), signal.SIGKILL)
        end = time.monotonic() + 5
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.05)
