"""What a run can run out of: pools and their limits."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Limit:
    """A size at which something happens to a pool.

    >>> Limit("cgroup", 8 << 30, "the kernel kills a process of the group", "memory.max").name
    'cgroup'
    """

    name: str
    bytes: int
    consequence: str
    source: str


@dataclass(frozen=True)
class Pool:
    """One thing that can run out, such as `node[0].host`, `node[0].device[0]` or `node[0].unified`.

    `used_bytes` is what others already hold, as far as it counts against none of the limits yet.
    """

    name: str
    kind: Literal["host", "device", "unified"]
    total_bytes: int
    limits: tuple[Limit, ...]

    @property
    def lowest(self) -> Limit:
        """The limit that is reached first."""
        return min(self.limits, key=lambda limit: limit.bytes)


@dataclass(frozen=True)
class Machine:
    """The machine of a run: its pools and how many CPU threads torch uses."""

    name: str
    pools: tuple[Pool, ...]
    cores: int

    def pool(self, name: str) -> Pool:
        """The pool of that name; KeyError if the machine has none."""
        for pool in self.pools:
            if pool.name == name:
                return pool
        raise KeyError(name)
