"""The ledger: every byte that a run is expected to hold, by pool, phase and item."""

from collections.abc import Iterable
from enum import StrEnum
from functools import cached_property
from math import isqrt
from typing import Literal

from msgspec import Struct

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


class Line(Struct, frozen=True):
    """One item that a role holds in a pool during a phase.

    `bytes` is the expected value and `upper` the bound; `formula` has the numbers put in; `source` says where
    the formula comes from. `independent`: its error has nothing to do with that of other lines, as the size of the
    operating system has nothing to do with that of a driver process.

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
    independent: bool = False


class Peak(Struct, frozen=True):
    """The most that a pool holds: expected and upper bound, with the phase and the step that first reach it."""

    pool: str
    phase: Phase
    step: int
    bytes: int
    upper: int


class Ledger(Struct, frozen=True, dict=True):
    """All lines of a run. A phase holds the sum of its lines; a pool peaks at its largest phase.

    `first_step` is the step at which a phase first holds its peak: before the first optimizer step there are no
    moments, so what comes before it in a step reaches its peak in step 2.
    """

    lines: tuple[Line, ...]
    first_step: dict[Phase, int]

    @cached_property
    def _by_phase(self) -> dict[str, dict[Phase, tuple[Line, ...]]]:
        found: dict[str, dict[Phase, list[Line]]] = {}
        for line in self.lines:
            found.setdefault(line.pool, {}).setdefault(line.phase, []).append(line)
        return {
            pool: {phase: tuple(phases[phase]) for phase in Phase if phase in phases}
            for pool, phases in found.items()
        }

    def pools(self) -> tuple[str, ...]:
        """Names of the pools that have lines, in order of appearance."""
        return tuple(self._by_phase)

    def phases(self, pool: str) -> tuple[Phase, ...]:
        """Phases that have lines in the pool, in the order of a cycle."""
        return tuple(self._by_phase.get(pool, {}))

    def select(self, pool: str, phase: Phase) -> tuple[Line, ...]:
        """The lines of one phase in one pool."""
        return self._by_phase.get(pool, {}).get(phase, ())

    def peak_of(self, pool: str, phase: Phase) -> Peak:
        """What one phase holds in one pool."""
        lines = self.select(pool, phase)
        return Peak(pool, phase, self.first_step[phase], total(lines), total_upper(lines))

    def measured_as(self, pool: str, phase: Phase, quantity: Quantity) -> tuple[int, int]:
        """(expected, upper) bytes of a phase as a counter of that quantity shows them."""
        counted = DEVICE_QUANTITIES[: DEVICE_QUANTITIES.index(quantity) + 1] if quantity != "host" else ("host",)
        lines = [line for line in self.select(pool, phase) if line.quantity in counted]
        return total(lines), total_upper(lines)

    def peaks(self, pool: str) -> tuple[Peak, ...]:
        """What each phase holds of a pool, in the order in which a run first reaches it."""
        found = [self.peak_of(pool, phase) for phase in self.phases(pool)]
        return tuple(sorted(found, key=lambda peak: peak.step))

    def peak(self, pool: str) -> Peak:
        """The phase that holds the most of a pool, by the expected value."""
        return max((self.peak_of(pool, phase) for phase in self.phases(pool)), key=lambda peak: peak.bytes)

    def worst(self, pool: str, limit: int | None) -> Peak:
        """The phase that decides: the first that is expected to pass the limit, as a run ends there and reaches no
        later one.

        Where no phase is expected to pass it but a bound does, the one with the highest bound; where none may, or no
        limit is known, the one that holds the most.
        """
        peaks = self.peaks(pool)
        if limit is not None:
            if (over := next((peak for peak in peaks if peak.bytes > limit), None)) is not None:
                return over
            if (highest := max(peaks, key=lambda peak: peak.upper)).upper > limit:
                return highest
        return max(peaks, key=lambda peak: peak.bytes)

    def upper(self, pool: str) -> int:
        """The most that any phase may hold of a pool, by the upper bound."""
        return max(self.peak_of(pool, phase).upper for phase in self.phases(pool))


def total(lines: Iterable[Line]) -> int:
    """Sum of expected bytes."""
    return sum(line.bytes for line in lines)


def total_upper(lines: Iterable[Line]) -> int:
    """The upper bound of a sum.

    Bounds of lines with a cause in common add up; those of independent lines add up as errors do, by the root of the
    sum of their squares, because no run has all of them at their worst.

    >>> from msgspec.structs import replace
    >>> odd = Line("p", Phase.LOAD, "a", 0, "x", 100, 130, "host", "", "", independent=True)
    >>> even = replace(odd, item="y", bytes=50, upper=90)
    >>> total_upper([odd, even]), total_upper([odd, even, replace(even, independent=False)])
    (200, 290)
    """
    found, squares = 0, 0
    for line in lines:
        if line.independent:
            found += line.bytes
            squares += (line.upper - line.bytes) ** 2
        else:
            found += line.upper
    return found + isqrt(squares)
