"""What this machine shows now, read only: the kernel's log, the control group's counters, Ray's latest session."""

import re
import subprocess
from collections.abc import Collection
from pathlib import Path

from headway.diagnose.lines import Source
from headway.diagnose.sources import opener, text_source
from headway.facts.probe import ROOT

GROUP_FILES = ("memory.events", "memory.peak", "memory.current", "memory/memory.oom_control", "memory/memory.failcnt")
RAY_LOGS = "tmp/ray/session_latest/logs"
RAY_FILES = ("raylet.out", "raylet.err", "gcs_server.out", "monitor.log")
LINES = 4000
"""Lines of the kernel's log that are kept."""
_KILLED = re.compile(r"(?:\bKilled process |\boom-kill:.*\bpid=)(\d+)\b")


def live_sources(run: int = 0, root: Path = ROOT) -> list[Source]:
    """The sources that can be read here; what needs rights that this process has not is left out."""
    found = []
    kernel = _kernel_log() if root == ROOT else ""
    if kernel:
        found.append(text_source("dmesg", kernel, run))
    for name in GROUP_FILES:
        path = root / "sys/fs/cgroup" / name
        if path.is_file():
            found.append(Source(str(path), opener(path), run))
    logs = root / RAY_LOGS
    for path in (
        *(logs / name for name in RAY_FILES),
        *sorted(logs.glob("worker-*.err")),
        *sorted(logs.glob("job-driver-*.log")),
    ):
        if path.is_file():
            found.append(Source(str(path), opener(path), run))
    return found


def kernel_lines(pids: Collection[int], log: str | None = None) -> tuple[str, ...]:
    """The lines of the kernel's log about memory kills of these processes; none where it may not be read.

    >>> kernel_lines({7}, "[1] Out of memory: Killed process 7 (python) x\\n[1] Killed process 77 (x)")
    ('[1] Out of memory: Killed process 7 (python) x',)
    """
    lines = (_kernel_log() if log is None else log).splitlines()
    return tuple(line for line in lines if any(int(match[1]) in pids for match in _KILLED.finditer(line)))


def _kernel_log() -> str:
    """dmesg with dates; empty where it may not be read."""
    try:
        done = subprocess.run(
            ["dmesg", "-T"], capture_output=True, text=True, errors="replace", timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "\n".join(done.stdout.splitlines()[-LINES:]) if done.returncode == 0 else ""
