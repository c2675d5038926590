"""What a run can run out of: pools and their limits."""

from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from headway.facts.calibration import ProcessBase
from headway.facts.speeds import Rate
from headway.units import format_bytes

PoolKind = Literal["host", "device", "unified", "shm"]

RAY_LIMIT = "Ray"
"""The first word in the name of every limit that only a run under Ray has."""
RAY_THRESHOLD = 0.95
"""The share of memory in use above which Ray kills workers, unless `RAY_memory_usage_threshold` says otherwise."""


class Limit(Struct, frozen=True):
    """A size at which something happens to a pool.

    >>> Limit("cgroup", 8 << 30, "the kernel kills a process of the group", "memory.max").name
    'cgroup'
    """

    name: str
    bytes: int
    consequence: str
    source: str


class Pool(Struct, frozen=True):
    """One thing that can run out, such as `node[0].host`, `node[0].device[0]`, `node[0].unified` or `node[0].shm`.

    `total_bytes` is 0 where nobody said how large it is; such a pool has no limits. `floor_bytes` is what the
    operating system and other programs are expected to hold of what the limits count, and `floor_upper` the most
    they were seen to hold. Both are 0 where the limits are what is left beside them, as on a detected machine.

    >>> kernel = Limit("memory", 16 << 30, "the kernel kills a process", "MemTotal")
    >>> pool = Pool("node[0].host", "host", 16 << 30, (kernel, *ray_limits(16 << 30)), floor_bytes=1 << 30)
    >>> pool.lowest.name, (pool.lowest.bytes - pool.floor_bytes) >> 20
    ('Ray 0.95', 14540)
    """

    name: str
    kind: PoolKind
    total_bytes: int
    limits: tuple[Limit, ...]
    floor_bytes: int = 0
    floor_upper: int = 0

    @property
    def lowest(self) -> Limit:
        """The limit that is reached first. ValueError where the pool has none."""
        return min(self.limits, key=lambda limit: limit.bytes)


class Machine(Struct, frozen=True):
    """The machine of a run: its pools, and how many CPU threads torch uses on a node (0: not known).

    `calibrated` is what a trainer's process was measured to hold on it, one record a device, and `rates` how fast
    earlier runs on it were.

    >>> memory = Limit("memory", 1 << 37, "the kernel kills a process", "MemTotal")
    >>> machine = Machine("gb10", (Pool("node[0].unified", "unified", 1 << 37, (memory,)),), 20)
    >>> machine.unified, machine.device_count, machine.nodes
    (True, 1, 1)
    """

    name: str
    pools: tuple[Pool, ...]
    cores: int
    calibrated: tuple[ProcessBase, ...] = ()
    rates: tuple[Rate, ...] = ()

    def pool(self, name: str) -> Pool:
        """The pool of that name; KeyError if the machine has none."""
        for pool in self.pools:
            if pool.name == name:
                return pool
        raise KeyError(name)

    @property
    def unified(self) -> bool:
        """Whether CPU and GPU share one memory, so that moving something to the host frees nothing."""
        return any(pool.kind == "unified" for pool in self.pools)

    @property
    def nodes(self) -> int:
        """How many nodes it has, at least 1."""
        return max(1, len({pool.name.partition(".")[0] for pool in self.pools}))

    @property
    def device_count(self) -> int:
        """Devices of all nodes together. A unified pool stands for one device; 0 on a machine of CPUs alone."""
        return sum(pool.kind in ("device", "unified") for pool in self.pools)

    def without_ray(self) -> "Machine":
        """The same machine for a run that does not use Ray: the limits that only Ray sets are left out."""
        pools = (replace(pool, limits=tuple(each for each in pool.limits if not is_ray(each))) for pool in self.pools)
        return replace(self, pools=tuple(pools))


def is_ray(limit: Limit) -> bool:
    """Whether a limit holds only for a run under Ray."""
    return limit.name.split()[0] == RAY_LIMIT


def ray_limits(
    total_bytes: int, threshold: float = RAY_THRESHOLD, min_free_bytes: int | None = None
) -> tuple[Limit, ...]:
    """Where Ray's memory monitor kills a worker, in bytes in use of `total_bytes` (the group's limit or the node's).

    The larger of two sizes: `threshold` x total, and total less `min_free_bytes` where that is set (ray 2.60,
    src/ray/common/memory_monitor_utils.cc; settings RAY_memory_usage_threshold, RAY_min_memory_free_bytes).

    >>> (limit,) = ray_limits(130_661_023_744)
    >>> limit.name, f"{limit.bytes / 2**30:.1f} GiB"
    ('Ray 0.95', '115.6 GiB')
    """
    size = int(total_bytes * threshold)
    if min_free_bytes is not None:
        size = max(size, total_bytes - min_free_bytes)
    source = f"RAY_memory_usage_threshold: {threshold:g} of {format_bytes(total_bytes)}"
    return (Limit(f"{RAY_LIMIT} {threshold:g}", size, "Ray kills a worker", source),)
