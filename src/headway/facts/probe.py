"""Asks this machine what it has: memory, its limits, devices, cores. No torch.

Every reader takes the root of /proc and /sys, so that a test can show it another machine. What cannot be
read is None, never 0.
"""

import math
import os
import platform
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from headway.facts import calibration, ray_memory, speeds
from headway.facts.found import CgroupMemory, Device, NodeMemory, SharedMemory, as_ray_counts, describe
from headway.facts.machine import Machine

__all__ = [
    "MEMORY_FILES", "ROOT", "CgroupMemory", "Device", "NodeMemory", "SharedMemory", "asks_psutil", "bf16_arithmetic",
    "cgroup_memory", "cgroup_usage_file", "cpu_quota", "describe", "detect", "memory_levels", "node_memory",
    "nvml_answering", "nvml_device", "nvml_devices", "pod_sign", "ray_object_store", "read_fields", "read_number",
    "read_text", "shared_memory", "usable_cores", "visible",
]  # fmt: skip

ROOT = Path("/")

_NO_LIMIT = 2**60
"""Control groups v1 write "no limit" as the largest multiple of the page size below 2^63."""


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


def node_memory(root: Path = ROOT, *, device_nodes: bool = False) -> NodeMemory | None:
    """Memory of the node from /proc/meminfo, from psutil where there is no /proc; None if neither says.

    `device_nodes`: memory of nodes without CPUs is a device's, and is taken off (see `Device.is_node`).
    """
    text = read_text(root / "proc/meminfo")
    if text is None:
        return _psutil_memory() if asks_psutil(root) else None
    fields = read_fields(text)
    if "MemTotal" not in fields or "MemAvailable" not in fields:
        return None
    total, free = _device_nodes(root) if device_nodes else (0, 0)
    return NodeMemory(
        total=max(0, fields["MemTotal"] - total),
        available=max(0, fields["MemAvailable"] - free),
        swap_total=fields.get("SwapTotal", 0),
        swap_free=fields.get("SwapFree", 0),
    )


def _device_nodes(root: Path) -> tuple[int, int]:
    """Total and free bytes of the memory nodes that have no CPUs."""
    total = free = 0
    for folder in sorted((root / "sys/devices/system/node").glob("node[0-9]*")):
        if (read_text(folder / "cpulist") or "?").strip():
            continue
        lines = (read_text(folder / "meminfo") or "").splitlines()
        fields = read_fields(
            "\n".join(line.split(maxsplit=2)[-1] for line in lines if line)
        )  # "Node 1 MemTotal: ..."
        total, free = total + fields.get("MemTotal", 0), free + fields.get("MemFree", 0)
    return total, free


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
    files = (level / MEMORY_FILES[version].current for level in levels)
    return next((file for file in files if file.exists()), None)


def cgroup_memory(root: Path = ROOT) -> CgroupMemory | None:
    """Memory of the control groups around this process, v1 or v2; None where no memory controller is mounted.

    Nested groups count: a container may have no limit while the pod or the slice above it has one.
    """
    version, levels = _levels("memory", root)
    names = MEMORY_FILES[version]
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
        root_limit=read_number(levels[-1] / names.limit),
        root_used=_used(levels[-1], names),
    )


class MemoryFiles(Struct, frozen=True):
    """Names of a control group's files, and of the file pages in its memory.stat."""

    current: str
    limit: str
    peak: str
    cache: tuple[str, str]


MEMORY_FILES = {
    1: MemoryFiles(
        "memory.usage_in_bytes", "memory.limit_in_bytes", "memory.max_usage_in_bytes",
        ("total_active_file", "total_inactive_file"),
    ),
    2: MemoryFiles("memory.current", "memory.max", "memory.peak", ("active_file", "inactive_file")),
}  # fmt: skip


def read_number(path: Path) -> int | None:
    """The number in a file of a control group; None for "max" and for v1's "no limit"."""
    text = read_text(path)
    if text is None or not text.strip().isdigit() or int(text) >= _NO_LIMIT:
        return None
    return int(text)


def _left(level: Path, limit: int, names: MemoryFiles) -> int | None:
    """What a group may still take."""
    used = _used(level, names)
    return None if used is None else max(0, limit - used)


def _used(level: Path, names: MemoryFiles) -> int | None:
    """What a group holds, without file pages: the kernel drops them before it kills for memory."""
    current = read_number(level / names.current)
    if current is None:
        return None
    stat = read_fields(read_text(level / "memory.stat") or "")
    cache = sum(stat.get(name, 0) for name in names.cache)
    return max(0, current - cache)


def memory_levels(root: Path = ROOT, process: int | str = "self") -> tuple[int, tuple[Path, ...]]:
    """Version (1 or 2) of the hierarchy that counts memory, and the directories of a process's groups in it.

    Its own group comes first and the root of the mount last; () where no such hierarchy is mounted.
    """
    return _levels("memory", root, process)


def _levels(controller: str, root: Path, process: int | str = "self") -> tuple[int, tuple[Path, ...]]:
    """Version of the hierarchy that has the controller, and the directories of a process's groups.

    Its own group comes first and the root of the mount last. A v1 hierarchy of the controller wins over a v2
    mount beside it (hybrid), because then the v2 side does not have the controller.
    """
    entries = _own_groups(root, process)
    version, key = (1, controller) if controller in entries else (2, "")
    if key not in entries:
        return version, ()
    for filesystem, options, mount_root, mount_point in _mounts(root):
        if filesystem == ("cgroup" if version == 1 else "cgroup2") and (not key or key in options):
            base = root / mount_point.lstrip("/")
            return version, tuple(_upwards(base, _below(entries[key], mount_root)))
    return version, ()


def _own_groups(root: Path, process: int | str = "self") -> dict[str, str]:
    """Group path by controller from /proc/<process>/cgroup; the v2 hierarchy has the key ""."""
    entries = {}
    for line in (read_text(root / f"proc/{process}/cgroup") or "").splitlines():
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


def pod_sign(root: Path = ROOT, environment: Mapping[str, str] = os.environ) -> str | None:
    """What tells that this process runs in a Kubernetes pod; None where nothing does.

    Looked for: the group's path (kubepods), mounts that the kubelet makes in every container, and the variable
    that every container gets. The limit of the groups is then the pod's, or its container's.
    """
    groups = list(_own_groups(root).values())
    for _, _, mount_root, mount_point in _mounts(root):
        if mount_point.startswith("/sys/fs/cgroup"):
            groups.append(mount_root)
        elif "/kubelet/pods/" in mount_root and "/kubelet/pods/" not in mount_point:
            return f"{mount_point} is mounted from the kubelet"
    if any("kubepods" in group for group in groups):
        return "kubepods in the group's path"
    return "KUBERNETES_SERVICE_HOST is set" if "KUBERNETES_SERVICE_HOST" in environment else None


def shared_memory(
    root: Path = ROOT, usage: Callable[[Path], tuple[int, int, int]] = shutil.disk_usage
) -> SharedMemory | None:
    """The size of /dev/shm and what is free there; None where no memory is mounted there.

    `usage` gives total, used and free bytes of the file system of a path, as `shutil.disk_usage` does.
    """
    if not any(kind == "tmpfs" and point == "/dev/shm" for kind, _, _, point in _mounts(root)):
        return None
    try:
        total, _, free = usage(root / "dev/shm")
    except OSError:
        return None
    return SharedMemory(total, free)


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


def nvml_devices(environment: Mapping[str, str] = os.environ, nvml: Any = None) -> tuple[Device, ...]:
    """CUDA devices by their index in this process; () without NVML (extra `cuda`) or without a driver.

    `nvml`: a module with the functions of `pynvml`, in place of it.
    """
    if nvml is None:
        try:
            import pynvml
        except ImportError:
            return ()
        nvml = pynvml
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return ()
    try:
        devices = tuple(nvml_answering(nvml).values())
    finally:
        nvml.nvmlShutdown()
    return visible(devices, environment.get("CUDA_VISIBLE_DEVICES"))


def nvml_answering(nvml: Any) -> dict[int, Device]:
    """The devices that answer, by NVML's index. One that has fallen off the bus is still counted, and is left out."""
    found: dict[int, Device] = {}
    try:
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError:
        return found
    for index in range(count):
        try:
            found[index] = nvml_device(nvml, index)
        except nvml.NVMLError:
            continue
    return found


_UNIFIED_NAMES = re.compile(r"\b(GB10|N1X?|Thor|Orin|Xavier|Jetson|Tegra)\b", re.IGNORECASE)
"""Chips whose GPU has no memory of its own. Grace superchips (GH200, GB200, GB300) have theirs beside the CPU's."""


def nvml_device(nvml: Any, index: int) -> Device:
    """One device, asked through the module `pynvml`."""
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    uuid, name = nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle)
    unified = _UNIFIED_NAMES.search(name) is not None
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    except nvml.NVMLError as error:
        # GB10 and its kind answer "not supported"; others may forbid the question, on a part of a GPU for example
        return Device(uuid, name, None, None, unified or isinstance(error, nvml.NVMLError_NotSupported))
    return Device(uuid, name, memory.total, memory.free, unified)


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


def ray_object_store(root: Path = ROOT, environment: Mapping[str, str] = os.environ) -> int | None:
    """The size in bytes of the object store that Ray would start with here by default; None without memory's size."""
    node = node_memory(root)
    if node is None:
        return None
    total, used = as_ray_counts(node, cgroup_memory(root))
    shm = shared_memory(root)
    settings = ray_memory.from_environment(environment)
    return settings.object_store(max(0, total - used), None if shm is None else shm.free)


def detect(
    limit: int | None = None,
    root: Path = ROOT,
    *,
    ray: bool = False,
    environment: Mapping[str, str] = os.environ,
    nvml: Any = None,
) -> Machine:
    """This machine as it is now, with the user's own `limit` in bytes (the RunSpec's `memory.limit`).

    `ray`: the run uses Ray, so Ray's limits count; InputError where `environment` sets them to what is no number.
    Devices are asked of `nvml`, or of the driver where `root` is this machine's.
    """
    devices = nvml_devices(environment, nvml) if root == ROOT or nvml is not None else ()
    machine = describe(
        node=node_memory(root, device_nodes=any(device.is_node for device in devices)),
        cgroup=cgroup_memory(root),
        devices=devices,
        limit=limit,
        cores=usable_cores(root),
        name=platform.node() or "this machine",
        shm=shared_memory(root),
        pod=pod_sign(root, environment),
        ray=ray_memory.from_environment(environment) if ray else None,
    )
    if root != ROOT:
        return machine
    return replace(machine, calibrated=calibration.read(), rates=speeds.earlier())
