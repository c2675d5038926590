"""Asks this machine what it has: memory, its limits, devices, cores. No torch.

Every reader takes the root of /proc and /sys, so that a test can show it another machine. What cannot be
read is None, never 0.
"""

import math
import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from headway.facts.machine import Limit, Machine, Pool

ROOT = Path("/")

_NO_LIMIT = 2**60
"""Control groups v1 write "no limit" as the largest multiple of the page size below 2^63."""


@dataclass(frozen=True)
class NodeMemory:
    """The memory of the whole node, in bytes. `available` can be had without swapping (MemAvailable)."""

    total: int
    available: int
    swap_total: int
    swap_free: int

    @property
    def used(self) -> int:
        """What cannot be had: total less available. Page cache that the kernel can drop is not use."""
        return self.total - self.available


@dataclass(frozen=True)
class CgroupMemory:
    """What the control groups around this process say of its memory, in bytes.

    `current` and `peak` are of its own group and count page cache. `limit` is the lowest on the path from
    there to the root of the mount; `left` is the least that any limit on the path leaves, page cache that can
    be dropped counted as free. `source` is the file of the limit that leaves the least.
    """

    version: int
    current: int | None
    peak: int | None
    limit: int | None
    left: int | None
    source: str


@dataclass(frozen=True)
class Device:
    """A CUDA device as NVML sees it. `total` and `free` are None where NVML does not tell.

    `unified`: it has no memory of its own, because CPU and GPU share one.
    """

    uuid: str
    name: str
    total: int | None
    free: int | None
    unified: bool = False


def read_text(path: Path) -> str | None:
    """The text of a file of /proc or /sys; None where it is absent, forbidden, or its subject is gone."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return None


def read_fields(text: str) -> dict[str, int]:
    """Numbers of a "Name: 123 kB" or "name 123" file such as /proc/meminfo, in bytes.

    >>> read_fields("MemTotal:  2 kB\\nactive_file 4096\\nName: python\\n")
    {'MemTotal': 2048, 'active_file': 4096}
    """
    fields = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) in (2, 3) and words[1].isdigit():
            fields[words[0].rstrip(":")] = int(words[1]) * (1024 if words[2:] == ["kB"] else 1)
    return fields


def node_memory(root: Path = ROOT) -> NodeMemory | None:
    """Memory of the node from /proc/meminfo, from psutil where there is no /proc; None if neither says."""
    text = read_text(root / "proc/meminfo")
    if text is None:
        return _psutil_memory() if asks_psutil(root) else None
    fields = read_fields(text)
    if "MemTotal" not in fields or "MemAvailable" not in fields:
        return None
    return NodeMemory(
        fields["MemTotal"], fields["MemAvailable"], fields.get("SwapTotal", 0), fields.get("SwapFree", 0)
    )


def asks_psutil(root: Path) -> bool:
    """True on a real machine without /proc (macOS, BSD), where psutil knows what files do not say."""
    return root == ROOT and not (root / "proc/self").exists()


def _psutil_memory() -> NodeMemory:
    import psutil  # type: ignore[import-untyped]  # here, because Linux never needs it

    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    return NodeMemory(memory.total, memory.available, swap.total, swap.free)


def cgroup_usage_file(root: Path = ROOT) -> Path | None:
    """The file that holds what this process's control group uses now; `read_number` reads it."""
    version, levels = _levels("memory", root)
    files = (level / _FILES[version].current for level in levels)
    return next((file for file in files if file.exists()), None)


def cgroup_memory(root: Path = ROOT) -> CgroupMemory | None:
    """Memory of the control groups around this process, v1 or v2; None where no memory controller is mounted.

    Nested groups count: a container may have no limit while the pod or the slice above it has one.
    """
    version, levels = _levels("memory", root)
    names = _FILES[version]
    present = [level for level in levels if (level / names.current).exists()]
    if not present:
        return None
    own = present[0]
    limits = [(level, limit) for level in present if (limit := read_number(level / names.limit)) is not None]
    room = [(left, level) for level, limit in limits if (left := _left(level, limit, names)) is not None]
    least = min(room, default=None)
    return CgroupMemory(
        version=version,
        current=read_number(own / names.current),
        peak=read_number(own / names.peak),
        limit=min((limit for _, limit in limits), default=None),
        left=least[0] if least else None,
        source=str((least[1] if least else own) / names.limit),
    )


@dataclass(frozen=True)
class _Files:
    current: str
    limit: str
    peak: str
    cache: tuple[str, str]


_FILES = {
    1: _Files(
        "memory.usage_in_bytes", "memory.limit_in_bytes", "memory.max_usage_in_bytes",
        ("total_active_file", "total_inactive_file"),
    ),
    2: _Files("memory.current", "memory.max", "memory.peak", ("active_file", "inactive_file")),
}  # fmt: skip


def read_number(path: Path) -> int | None:
    """The number in a file of a control group; None for "max" and for v1's "no limit"."""
    text = read_text(path)
    if text is None or not text.strip().isdigit() or int(text) >= _NO_LIMIT:
        return None
    return int(text)


def _left(level: Path, limit: int, names: _Files) -> int | None:
    """What a group may still take: the kernel drops its file pages before it kills for memory."""
    current = read_number(level / names.current)
    if current is None:
        return None
    stat = read_fields(read_text(level / "memory.stat") or "")
    cache = sum(stat.get(name, 0) for name in names.cache)
    return max(0, limit - max(0, current - cache))


def _levels(controller: str, root: Path) -> tuple[int, tuple[Path, ...]]:
    """Version of the hierarchy that has the controller, and the directories of this process's groups.

    Its own group comes first and the root of the mount last. A v1 hierarchy of the controller wins over a v2
    mount beside it (hybrid), because then the v2 side does not have the controller.
    """
    entries = _own_groups(root)
    version, key = (1, controller) if controller in entries else (2, "")
    if key not in entries:
        return version, ()
    for filesystem, options, mount_root, mount_point in _mounts(root):
        if filesystem == ("cgroup" if version == 1 else "cgroup2") and (not key or key in options):
            base = root / mount_point.lstrip("/")
            return version, tuple(_upwards(base, _below(entries[key], mount_root)))
    return version, ()


def _own_groups(root: Path) -> dict[str, str]:
    """Group path by controller from /proc/self/cgroup; the v2 hierarchy has the key ""."""
    entries = {}
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        entries.update(dict.fromkeys(controllers.split(","), path))
    return entries


def _mounts(root: Path) -> Iterator[tuple[str, tuple[str, ...], str, str]]:
    """(filesystem, options, root inside the filesystem, mount point) of each mount of this process."""
    for line in (read_text(root / "proc/self/mountinfo") or "").splitlines():
        before, _, after = line.partition(" - ")
        fields, filesystem = before.split(), after.split()
        if len(fields) >= 5 and len(filesystem) >= 3:
            yield filesystem[0], tuple(filesystem[2].split(",")), fields[3], fields[4].replace("\\040", " ")


def _below(path: str, mount_root: str) -> PurePosixPath:
    """A group's path below the mount. A container may mount only its own group, and see itself at "/"."""
    group = PurePosixPath(path)
    if group.is_relative_to(mount_root):
        return group.relative_to(mount_root)
    return PurePosixPath("." if ".." in group.parts else path.lstrip("/"))


def _upwards(base: Path, below: PurePosixPath) -> Iterator[Path]:
    yield base / below
    for parent in below.parents:
        yield base / parent


def cpu_quota(root: Path = ROOT) -> float | None:
    """CPUs' worth of time that the control groups allow, the lowest on the path; None without a quota."""
    version, levels = _levels("cpu", root)
    quotas = []
    for level in levels:
        if version == 1:
            words = [read_text(level / name) or "" for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")]
        else:
            words = (read_text(level / "cpu.max") or "").split()
        if len(words) == 2 and all(word.strip().isdigit() for word in words):
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def usable_cores(root: Path = ROOT) -> int:
    """CPU threads that can run at once: those this process may use, and no more than its quota, at least 1.

    A part of a CPU does not count: threads beyond the quota are stopped in turn while the others wait.
    """
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    allowed = len(affinity(0)) if affinity else (os.cpu_count() or 1)
    quota = cpu_quota(root)
    return allowed if quota is None else max(1, min(allowed, math.floor(quota)))


def bf16_arithmetic(root: Path = ROOT) -> bool | None:
    """Whether the CPU multiplies bf16 itself (AVX512-BF16, AMX or Arm BF16); None where the kernel does not say."""
    text = read_text(root / "proc/cpuinfo")
    lines = [] if text is None else [line for line in text.splitlines() if line.startswith(("flags", "Features"))]
    if not lines:
        return None
    return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(lines[0].split())


def nvml_devices(environment: Mapping[str, str] = os.environ) -> tuple[Device, ...]:
    """CUDA devices by their index in this process; () without NVML (extra `cuda`) or without a driver."""
    try:
        import pynvml
    except ImportError:
        return ()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        devices = tuple(nvml_device(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount()))
    finally:
        pynvml.nvmlShutdown()
    return visible(devices, environment.get("CUDA_VISIBLE_DEVICES"))


def nvml_device(nvml: Any, index: int) -> Device:
    """One device, asked through the module `pynvml`."""
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    uuid, name = nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle)
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    except nvml.NVMLError as error:
        # GB10 and its kind answer "not supported"; others may forbid the question, on a part of a GPU for example
        return Device(uuid, name, None, None, unified=isinstance(error, nvml.NVMLError_NotSupported))
    return Device(uuid, name, memory.total, memory.free)


def visible(devices: tuple[Device, ...], chosen: str | None) -> tuple[Device, ...]:
    """The devices that CUDA_VISIBLE_DEVICES leaves, in its order; NVML itself does not heed it.

    As in CUDA, entries are indices or beginnings of a UUID, and the first that is neither ends the list.
    """
    if chosen is None:
        return devices
    found: list[Device] = []
    for entry in (word.strip() for word in chosen.split(",")):
        if entry.isdigit() and int(entry) < len(devices):
            found.append(devices[int(entry)])
            continue
        matches = [device for device in devices if entry and device.uuid.startswith(entry)]
        if len(matches) != 1:
            break
        found += matches
    return tuple(found)


def describe(
    node: NodeMemory | None,
    cgroup: CgroupMemory | None,
    devices: tuple[Device, ...],
    limit: int | None,
    cores: int,
    name: str,
) -> Machine:
    """The Machine of these facts. A pool of which no size is known is left out.

    A limit's bytes are the most that this run may hold: what others hold now is already taken off. The user's
    own `limit` holds for every pool.
    """
    own: tuple[Limit, ...] = ()
    if limit is not None:
        own = (Limit("memory.limit", limit, "headway does not start the run", "RunSpec"),)
    pools = []
    if node is not None:
        kernel = "the kernel swaps, then kills a process"
        limits = [Limit("MemAvailable", node.available, kernel, "/proc/meminfo")]
        if cgroup is not None and cgroup.left is not None:
            kills = "the kernel kills a process of the group"
            limits.append(Limit("cgroup", cgroup.left, kills, cgroup.source))
        if any(device.unified for device in devices):
            pools.append(Pool("node[0].unified", "unified", node.total, (*limits, *own)))
        else:
            pools.append(Pool("node[0].host", "host", node.total, (*limits, *own)))
    for index, device in enumerate(devices):
        if device.total is not None and device.free is not None:
            free = Limit("device free", device.free, "CUDA reports out of memory", f"NVML, {device.name}")
            pools.append(Pool(f"node[0].device[{index}]", "device", device.total, (free, *own)))
    return Machine(name, tuple(pools), cores)


def detect(limit: int | None = None, root: Path = ROOT) -> Machine:
    """This machine as it is now, with the user's own `limit` in bytes (the RunSpec's `memory.limit`)."""
    return describe(
        node=node_memory(root),
        cgroup=cgroup_memory(root),
        devices=nvml_devices() if root == ROOT else (),
        limit=limit,
        cores=usable_cores(root),
        name=platform.node() or "this machine",
    )
