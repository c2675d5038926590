"""The counters that a frame is made of, read often and cheaply: the node, its control groups, devices, file systems.

With `facts/probe.py` and `guard/read.py` one of the few modules that ask this machine. What is read every second is
kept open; what may hang, a file system of another machine, is asked in a thread of its own. Absent is None, never 0.
"""

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from headway.facts.found import CgroupMemory, NodeMemory
from headway.facts.probe import MEMORY_FILES, ROOT, asks_psutil, memory_levels, node_memory, nvml_answering, visible
from headway.facts.probe import shared_memory as mounted_shm
from headway.guard.frame import Gauge

Usage = Callable[[Path], tuple[int, int, int]]
"""Total, used and free bytes of the file system of a path, as `shutil.disk_usage` gives them."""
_NO_LIMIT = 2**60


class KeptFile:
    """A small file of the kernel that stays open between reads. Empty where it is absent or its subject is gone."""

    def __init__(self, path: Path | str) -> None:
        self._path, self._descriptor = str(path), -1

    def read(self) -> bytes:
        """All of it as it is now."""
        try:
            if self._descriptor < 0:
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            text = os.pread(self._descriptor, 1 << 16, 0)
            while part := os.pread(self._descriptor, 1 << 16, len(text)):
                text += part
            return text
        except OSError:
            self.close()
            return b""

    def number(self) -> int | None:
        """The number in it; None for "max" and for the "no limit" of control groups v1."""
        text = self.read().strip()
        return int(text) if text.isdigit() and int(text) < _NO_LIMIT else None

    def close(self) -> None:
        """Let the descriptor go; the next read opens the file again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def field(text: bytes, name: bytes) -> int | None:
    """A number of a "name 123" or "Name: 123 kB" file, in bytes where it has a unit.

    >>> field(b"MemTotal: 5 kB\\nactive_file 7\\n", b"active_file"), field(b"MemTotal: 5 kB\\n", b"MemTotal:")
    (7, 5120)
    """
    at = 0 if text.startswith(name + b" ") else text.find(b"\n" + name + b" ") + 1
    if at == 0 and not text.startswith(name + b" "):
        return None
    words = text[at + len(name) :].split(b"\n", 1)[0].split()
    if not words or not words[0].isdigit():
        return None
    return int(words[0]) * (1024 if words[1:] == [b"kB"] else 1)


def pressure(text: bytes, prefix: str = "") -> dict[str, float]:
    """Of the kernel's PSI the shares of the last 10 s, in per cent, in which some and in which all tasks waited.

    >>> pressure(b"some avg10=1.50 avg60=0.10 avg300=0.00 total=1\\nfull avg10=0.25 avg60=0.00 avg300=0.00 total=1")
    {'some': 1.5, 'full': 0.25}
    """
    found = {}
    for line in text.decode().splitlines():
        kind, _, rest = line.partition(" avg10=")
        if kind in ("some", "full"):
            found[prefix + kind] = float(rest.split()[0])
    return found


class Node:
    """Memory of the whole node. `device_nodes`: NUMA nodes without CPUs are a device's memory and taken off."""

    def __init__(self, root: Path = ROOT, *, device_nodes: bool = False) -> None:
        self._root, self._whole = root, device_nodes or asks_psutil(root)
        self._device_nodes = device_nodes
        self._meminfo = KeptFile(root / "proc/meminfo")
        self._pressure = KeptFile(root / "proc/pressure/memory")
        self._vmstat = KeptFile(root / "proc/vmstat")
        self.cache: int | None = None

    def memory(self) -> NodeMemory | None:
        """As it is now; `cache` then has the file pages that the kernel can drop."""
        text = self._meminfo.read()
        active, inactive = field(text, b"Active(file):"), field(text, b"Inactive(file):")
        self.cache = None if active is None or inactive is None else active + inactive
        if self._whole:
            return node_memory(self._root, device_nodes=self._device_nodes)
        total, available = field(text, b"MemTotal:"), field(text, b"MemAvailable:")
        if total is None or available is None:
            return None
        return NodeMemory(total, available, field(text, b"SwapTotal:") or 0, field(text, b"SwapFree:") or 0)

    def pressure(self) -> dict[str, float]:
        """Its PSI of memory; empty where the kernel keeps none."""
        return pressure(self._pressure.read())

    def close(self) -> None:
        """Let the descriptors go."""
        for file in (self._meminfo, self._pressure, self._vmstat):
            file.close()

    def oom_kills(self) -> int | None:
        """Processes that the kernel killed for memory since boot, in any control group or none."""
        return field(self._vmstat.read(), b"oom_kill")


class Level(Struct, frozen=True):
    """A control group: what it holds without file pages, those pages, and its limit, in bytes."""

    used: int
    cache: int
    limit: int | None


class _GroupFiles:
    def __init__(self, folder: Path, version: int) -> None:
        names = MEMORY_FILES[version]
        self._names = tuple(name.encode() for name in names.cache)
        self._current = KeptFile(folder / names.current)
        self._limit = KeptFile(folder / names.limit)
        self._stat = KeptFile(folder / "memory.stat")
        self.pressure = KeptFile(folder / "memory.pressure")
        self.counts = [KeptFile(folder / name) for name in _COUNTS[version]]

    def read(self) -> Level | None:
        current = self._current.number()
        if current is None:
            return None
        stat = self._stat.read()
        cache = min(current, sum(field(stat, name) or 0 for name in self._names))
        return Level(current - cache, cache, self._limit.number())

    def close(self) -> None:
        for file in (self._current, self._limit, self._stat, self.pressure, *self.counts):
            file.close()


_COUNTS = {1: ("memory.oom_control", "memory.failcnt"), 2: ("memory.events",)}
_NOT_COUNTS = {"oom_kill_disable", "under_oom"}


class Groups:
    """The control groups around a process, nested ones too: which of them leaves the least, and what Ray looks at."""

    def __init__(self, pid: int, root: Path = ROOT) -> None:
        self._pid, self._root = pid, root
        self._folders: tuple[Path, ...] = ()
        self._has_root = False
        self._files: list[_GroupFiles] = []
        self.version = 0
        self.find()

    def find(self) -> None:
        """Look again in which groups the process is; when it is gone, the groups that it was in stay."""
        version, folders = memory_levels(self._root, self._pid)
        present = tuple(folder for folder in folders if (folder / MEMORY_FILES[version].current).exists())
        if not folders or present == self._folders:
            return
        self.close()
        self.version, self._folders = version, present
        self._files = [_GroupFiles(folder, version) for folder in present]
        self._has_root = bool(present) and present[-1] == folders[-1]

    def levels(self) -> tuple[Level, ...]:
        """All of them that count memory, the process's own first."""
        return tuple(level for files in self._files if (level := files.read()) is not None)

    def at_the_root(self, levels: tuple[Level, ...]) -> CgroupMemory | None:
        """The root of the mount alone, in the form that `as_ray_counts` takes."""
        if not levels or not self._has_root:
            return None
        return CgroupMemory(self.version, None, None, None, None, "", levels[-1].limit, levels[-1].used)

    def pressure(self) -> dict[str, float]:
        """PSI of the process's own group as "cgroup some" and "cgroup full"; v1 has none."""
        return pressure(self._files[0].pressure.read(), "cgroup ") if self._files else {}

    def events(self) -> dict[str, int]:
        """Counters of the process's own group: of memory.events, or of v1's memory.oom_control and memory.failcnt."""
        found: dict[str, int] = {}
        for file in self._files[0].counts if self._files else ():
            words = file.read().decode().split()
            if len(words) == 1:
                found["failcnt"] = int(words[0])
            else:
                found |= dict(zip(words[::2], map(int, words[1::2]), strict=False))
        return {name: count for name, count in found.items() if name not in _NOT_COUNTS}

    def close(self) -> None:
        """Let the descriptors go."""
        for files in self._files:
            files.close()
        self._files = []


def tightest(levels: tuple[Level, ...]) -> Level | None:
    """The group that leaves the least; the process's own where none has a limit.

    >>> tightest((Level(4, 0, 10), Level(8, 1, 12))).limit
    12
    """
    limited = [level for level in levels if level.limit is not None]
    if not limited:
        return levels[0] if levels else None
    return min(limited, key=lambda level: (level.limit or 0) - level.used)


class Devices:
    """CUDA devices through NVML, held open. None without NVML (extra `cuda`) or a driver.

    Their pools are numbered as `environment`'s CUDA_VISIBLE_DEVICES numbers them. On unified memory NVML knows no
    memory of the device, but what each process holds of it.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ, nvml: Any = None) -> None:
        self._nvml = nvml if nvml is not None else _pynvml()
        self._handles: list[tuple[str, Any]] = []
        self.unified = self.are_nodes = False
        if self._nvml is None:
            return
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError:
            self._nvml = None
            return
        self._list(environment)

    def _list(self, environment: Mapping[str, str]) -> None:
        found = nvml_answering(self._nvml)
        at = {device.uuid: index for index, device in found.items()}
        chosen = visible(tuple(found.values()), environment.get("CUDA_VISIBLE_DEVICES"))
        self.unified = any(device.unified for device in chosen)
        self.are_nodes = any(device.is_node for device in chosen)
        for number, device in enumerate(chosen):
            pool = "node[0].unified" if device.unified else f"node[0].device[{number}]"
            try:
                self._handles.append((pool, self._nvml.nvmlDeviceGetHandleByIndex(at[device.uuid])))
            except self._nvml.NVMLError:  # lost a moment ago
                continue

    def gauges(self) -> list[Gauge]:
        """What is in use of each device by whomever; one that does not tell is left out."""
        found = []
        for pool, handle in self._handles:
            if pool != "node[0].unified":
                try:
                    memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
                except self._nvml.NVMLError:
                    continue
                found.append(Gauge(pool, "device", memory.total - memory.free, memory.total))
        return found

    def processes(self) -> dict[int, dict[str, int]]:
        """Bytes by process and device pool, where the driver tells. In a container it names the host's processes."""
        found: dict[int, dict[str, int]] = {}
        for pool, handle in self._handles:
            for each in self._running(handle):
                if each.usedGpuMemory is not None:
                    held = found.setdefault(each.pid, {})
                    held[pool] = max(held.get(pool, 0), each.usedGpuMemory)
        return found

    def _running(self, handle: Any) -> Iterator[Any]:
        for kind in ("Compute", "Graphics"):
            try:
                yield from getattr(self._nvml, f"nvmlDeviceGet{kind}RunningProcesses")(handle)
            except self._nvml.NVMLError:
                continue

    def close(self) -> None:
        """Let NVML go."""
        if self._nvml is not None:
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()
            self._nvml = None
        self._handles = []


def _pynvml() -> Any:
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml


DISKS_S = 10.0
"""How often disks are asked."""


class Disks:
    """File systems of some folders, and /dev/shm.

    Disks are asked in a thread, as one behind a network may never answer; it is left out after a minute without one.
    """

    def __init__(self, folders: Sequence[Path], root: Path = ROOT, usage: Usage = shutil.disk_usage) -> None:
        self._folders, self._root, self._usage = tuple(folders), root, usage
        self._shm = mounted_shm(root, usage) is not None
        self._known: dict[Path, tuple[float, Gauge]] = {}
        self._asked = -DISKS_S
        self._thread: threading.Thread | None = None

    def shm(self) -> Gauge | None:
        """/dev/shm; None where no memory is mounted there."""
        if not self._shm:
            return None
        try:
            total, _, free = self._usage(self._root / "dev/shm")
        except OSError:
            return None
        return Gauge("node[0].shm", "shm", total - free, total)

    def gauges(self, wait_s: float = 0.0) -> list[Gauge]:
        """The disks as they answered last; `wait_s` for an answer that is due now."""
        now = time.monotonic()
        busy = self._thread is not None and self._thread.is_alive()
        if self._folders and not busy and now - self._asked >= DISKS_S:
            self._asked = now
            self._thread = threading.Thread(target=self._ask, name="headway-disks", daemon=True)
            self._thread.start()
        if self._thread is not None and wait_s:
            self._thread.join(wait_s)
        return [gauge for t, gauge in tuple(self._known.values()) if time.monotonic() - t < 6 * DISKS_S]

    def _ask(self) -> None:
        for folder in self._folders:
            try:
                total, _, free = self._usage(folder)
            except OSError:
                self._known.pop(folder, None)
                continue
            self._known[folder] = time.monotonic(), Gauge(f"disk:{folder}", "disk", total - free, total)
