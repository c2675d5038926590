"""The ledger: every byte that a run is expected to hold, by pool, phase and item."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, NamedTuple

Quantity = Literal["allocated", "reserved", "device_used", "host"]
"""What a line adds to: bytes of tensors; what the allocator holds beyond them; what a process holds of a device
beyond its allocator; host memory. Each of the first three counts contains those before it."""

DEVICE_QUANTITIES: tuple[Quantity, ...] = ("allocated", "reserved", "device_used")


class Phase(StrEnum):
    """What a role is doing. The ledger and the recording use the same names."""

    LOAD = "load"
    ROLLOUT = "rollout"
    WAKE = "wake"
    SCORE = "score"
    TRAIN = "train"
    STEP = "step"
    SLEEP = "sleep"
    SYNC = "sync"
    SAVE = "save"
    EVAL = "eval"


class Line(NamedTuple):
    """One item that a role holds in a pool during a phase.

    `bytes` is the expected value and `upper` the bound; `formula` has the numbers put in; `source` says where
    the formula comes from.

    >>> Line("node[0].host", Phase.TRAIN, "trainer", 0, "gradients", 538, 538, "host", "4 x 134.5", "").bytes
    538
    """

    pool: str
    phase: Phase
    role: str
    rank: int
    item: str
    bytes: int
    upper: int
    quantity: Quantity
    formula: str
    source: str


@dataclass(frozen=True)
class Peak:
    """The most that a pool holds: expected and upper bound, with the phase and the step that first reach it."""

    pool: str
    phase: Phase
    step: int
    bytes: int
    upper: int


@dataclass(frozen=True)
class Ledger:
    """All lines of a run. A phase holds the sum of its lines; a pool peaks at its largest phase."""

    lines: tuple[Line, ...]
    first_step: dict[Phase, int]

    def pools(self) -> tuple[str, ...]:
        """Names of the pools that have lines, in order of appearance."""
        return tuple(dict.fromkeys(line.pool for line in self.lines))

    def phases(self, pool: str) -> tuple[Phase, ...]:
        """Phases that have lines in the pool, in the order of a cycle."""
        present = {line.phase for line in self.lines if line.pool == pool}
        return tuple(phase for phase in Phase if phase in present)

    def select(self, pool: str, phase: Phase) -> tuple[Line, ...]:
        """The lines of one phase in one pool."""
        return tuple(line for line in self.lines if line.pool == pool and line.phase == phase)

    def peak_of(self, pool: str, phase: Phase) -> Peak:
        """What one phase holds in one pool."""
        lines = self.select(pool, phase)
        return Peak(pool, phase, self.first_step[phase], total(lines), total_upper(lines))

    def measured_as(self, pool: str, phase: Phase, quantity: Quantity) -> tuple[int, int]:
        """(expected, upper) bytes of a phase as a counter of that quantity shows them."""
        counted = DEVICE_QUANTITIES[: DEVICE_QUANTITIES.index(quantity) + 1] if quantity != "host" else ("host",)
        lines = [line for line in self.select(pool, phase) if line.quantity in counted]
        return total(lines), total_upper(lines)

    def peak(self, pool: str) -> Peak:
        """The phase that holds the most of a pool, by the expected value."""
        return max((self.peak_of(pool, phase) for phase in self.phases(pool)), key=lambda peak: peak.bytes)

    def upper(self, pool: str) -> int:
        """The most that any phase may hold of a pool, by the upper bound."""
        return max(self.peak_of(pool, phase).upper for phase in self.phases(pool))


def total(lines: Iterable[Line]) -> int:
    """Sum of expected bytes."""
    return sum(line.bytes for line in lines)


def total_upper(lines: Iterable[Line]) -> int:
    """Sum of upper bounds."""
    return sum(line.upper for line in lines)
