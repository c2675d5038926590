"""What was found out about a machine, and the `Machine` that it makes. Pure: `probe` does the asking."""

import re
from collections.abc import Iterator

from msgspec import Struct

from headway.facts.machine import Limit, Machine, Pool
from headway.facts.ray_memory import RayMemory


class NodeMemory(Struct, frozen=True):
    """The memory of the whole node, in bytes. `available` can be had without swapping (MemAvailable)."""

    total: int
    available: int
    swap_total: int
    swap_free: int

    @property
    def used(self) -> int:
        """What cannot be had: total less available. Page cache that the kernel can drop is not use."""
        return self.total - self.available


class CgroupMemory(Struct, frozen=True):
    """What the control groups around this process say of its memory, in bytes.

    `current` and `peak` are of its own group and count page cache. `limit` is the lowest on the path from
    there to the root of the mount; `left` is the least that any limit on the path leaves, page cache that can
    be dropped counted as free. `source` is the file of the limit that leaves the least. `root_limit` and
    `root_used` (without such page cache) are of the root of the mount, the only group that Ray looks at.
    """

    version: int
    current: int | None
    peak: int | None
    limit: int | None
    left: int | None
    source: str
    root_limit: int | None = None
    root_used: int | None = None


class Device(Struct, frozen=True):
    """A CUDA device as NVML sees it. `total` and `free` are None where NVML does not tell.

    `unified`: it has no memory of its own, because CPU and GPU share one. `free` then says nothing, even where it
    is told: the driver counts page cache as used.
    """

    uuid: str
    name: str
    total: int | None
    free: int | None
    unified: bool = False

    @property
    def is_node(self) -> bool:
        """Whether the kernel counts its memory as the machine's: HBM beside a Grace CPU is a node without CPUs."""
        return re.search(r"G[HB][23]00", self.name) is not None


class SharedMemory(Struct, frozen=True):
    """The file system at /dev/shm, in bytes. What is written there is host memory as well."""

    total: int
    free: int


def describe(
    node: NodeMemory | None,
    cgroup: CgroupMemory | None,
    devices: tuple[Device, ...],
    limit: int | None,
    cores: int,
    name: str,
    *,
    shm: SharedMemory | None = None,
    pod: str | None = None,
    ray: RayMemory | None = None,
) -> Machine:
    """The Machine of these facts. A pool of which no size is known is left out.

    A limit's bytes are the most that this run may hold: what others hold now is already taken off, so the pools
    have no floor. The user's own `limit` holds for every pool. `pod` is what tells that the groups are those of a
    Kubernetes pod; with `ray` the limits of a run under Ray are shown too.
    """
    own: tuple[Limit, ...] = ()
    if limit is not None:
        own = (Limit("memory.limit", limit, "headway does not start the run", "RunSpec"),)
    pools = []
    if node is not None:
        limits = (*_node_limits(node, cgroup, pod), *_ray_limits(node, cgroup, ray), *own)
        if any(device.unified for device in devices):
            pools.append(Pool("node[0].unified", "unified", node.total, limits))
        else:
            pools.append(Pool("node[0].host", "host", node.total, limits))
    for index, device in enumerate(devices):
        if not device.unified and device.total is not None and device.free is not None:
            free = Limit("device free", device.free, "CUDA reports out of memory", f"NVML, {device.name}")
            pools.append(Pool(f"node[0].device[{index}]", "device", device.total, (free, *own)))
    if shm is not None:
        full = Limit("shm free", shm.free, "who writes there dies of a bus error", "/dev/shm")
        pools.append(Pool("node[0].shm", "shm", shm.total, (full,)))
    return Machine(name, tuple(pools), cores)


def _node_limits(node: NodeMemory, cgroup: CgroupMemory | None, pod: str | None) -> Iterator[Limit]:
    yield Limit("MemAvailable", node.available, "the kernel swaps, then kills a process", "meminfo of the kernel")
    if cgroup is None or cgroup.left is None:
        return
    if pod is None:
        yield Limit("cgroup", cgroup.left, "the kernel kills a process of the group", cgroup.source)
    else:
        kills = "the kernel kills a process of the pod (OOMKilled)"
        yield Limit("pod", cgroup.left, kills, f"{cgroup.source}; a pod, as {pod}")


def _ray_limits(node: NodeMemory, cgroup: CgroupMemory | None, ray: RayMemory | None) -> Iterator[Limit]:
    """Where Ray's monitor kills, less what is in use now by Ray's own count."""
    if ray is None:
        return
    total, used = as_ray_counts(node, cgroup)
    for limit in ray.limits(total):
        yield Limit(limit.name, max(0, limit.bytes - used), limit.consequence, limit.source)


def as_ray_counts(node: NodeMemory, cgroup: CgroupMemory | None) -> tuple[int, int]:
    """(total, used): of the group at the root of the mount where its limit is under the node's memory, else of the
    node. A limit further down the path is not seen, so there the kernel kills before Ray does."""
    if cgroup is not None and cgroup.root_limit is not None and cgroup.root_limit <= node.total:
        return cgroup.root_limit, cgroup.root_used or 0
    return node.total, node.used
