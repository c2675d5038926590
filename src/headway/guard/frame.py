"""What the sampler, the black box, the forecast, the guard and the report speak of: one moment of a run."""

from math import inf
from typing import Literal

from msgspec import Struct, field

GaugeName = Literal["node", "cgroup", "Ray", "device", "shm", "disk", "memory.limit"]
"""Who counts: the kernel for the node or for a control group, Ray's monitor, a device's driver, a file system; or
headway itself, which holds a run's process tree against the RunSpec's `memory.limit`."""


class Gauge(Struct, frozen=True):
    """A counter of one pool beside the size at which something happens by that count, in bytes.

    `pool` is named as in the ledger, `limit` None where there is none. `used` is without page cache that the kernel
    can drop, which is `cache` where it is known.

    >>> Gauge("node[0].host", "cgroup", used=900, limit=1000).room
    100
    """

    pool: str
    name: GaugeName
    used: int
    limit: int | None
    cache: int | None = None

    @property
    def room(self) -> int | None:
        """What is left; None without a limit."""
        return None if self.limit is None else self.limit - self.used


class Wall(Struct, frozen=True):
    """A limit on one process at which its requests for memory are refused, in bytes: `ulimit -v` or `-d`.

    >>> Wall("address space (ulimit -v)", used=700, limit=800).limit
    800
    """

    name: str
    used: int
    limit: int


class ProcessUse(Struct, frozen=True):
    """What one process of the watched tree holds, in bytes.

    `start` is its start in clock ticks since boot: with the pid it names the process, as pids are used again. `name`
    is what it calls itself, such as `ray::Trainer.train`; `role` what it is of the run, where that is known.
    `device` has bytes by device pool. `pss` counts shared pages by their share, and is read rarely. `wall` is a limit
    of its own, which is read of the largest few.
    """

    pid: int
    start: int
    name: str
    rss: int
    shared: int | None = None
    role: str | None = None
    pss: int | None = None
    device: dict[str, int] = field(default_factory=dict)
    wall: Wall | None = None


class Frame(Struct, frozen=True):
    """One moment: `t` in Unix time, all gauges, the tree's processes (the largest first), where the run stood.

    `pressure` has the kernel's PSI of memory, "some" and "full", in per cent of the last 10 s; `events` the counters
    of the control group (`oom_kill`, `high` ...) as they stand. What cannot be read is absent, never 0.
    """

    t: float
    gauges: tuple[Gauge, ...]
    processes: tuple[ProcessUse, ...] = ()
    phase: str | None = None
    step: int | None = None
    pressure: dict[str, float] = field(default_factory=dict)
    events: dict[str, int] = field(default_factory=dict)
    swap_used: int | None = None


ActionName = Literal["warn", "free", "checkpoint", "shrink", "stop"]
"""What a guard may do, the mildest first."""
NO_HANDLE = " (not done: the command has no handle for it)"
"""The end of a reason of what only headway's own trainer could do."""


class Action(Struct, frozen=True):
    """What the guard decided: `value` of a gauge passed `threshold`, in bytes, for `seconds`.

    `dry`: it was written down and not done. `reason` says all of it in one sentence.
    """

    t: float
    name: ActionName
    detector: str
    pool: str
    gauge: str
    value: int
    threshold: int
    seconds: float
    reason: str
    dry: bool = False
    step: int | None = None


def seconds_left(before: Frame, now: Frame, least: float = 0.0) -> float:
    """Seconds until a gauge is at its limit, if it goes on growing as between two frames; infinite where none grows.

    A rise that is no larger than `least`, a share of the limit, is none.

    >>> def frame(t, used): return Frame(t, (Gauge("node[0].host", "cgroup", used, 100_000),))
    >>> seconds_left(frame(0.0, 90_000), frame(2.0, 92_000)), seconds_left(frame(0.0, 9), frame(2.0, 19), 0.001)
    (8.0, inf)
    """
    if now.t <= before.t:
        return inf
    left, held = inf, {(gauge.pool, gauge.name): gauge.used for gauge in before.gauges}
    for gauge in now.gauges:
        grown = gauge.used - held.get((gauge.pool, gauge.name), gauge.used)
        if gauge.limit is not None and gauge.room is not None and grown > least * gauge.limit:
            left = min(left, max(0, gauge.room) * (now.t - before.t) / grown)
    return left
