"""The plan of a run that a black box holds: how much of each pool was planned, as far as who watches needs it."""

import msgspec
from msgspec import Struct

from headway.guard.frame import Frame

LEDGER_BYTES, SPEC_BYTES = 512 << 10, 128 << 10
"""Bytes of the plan, and of what was read of the command, that a black box keeps; larger ones are left out."""


class PlannedLimit(Struct, frozen=True):
    """A limit of a pool."""

    name: str
    bytes: int


class Worst(Struct, frozen=True):
    """The phase that decides, and the step from which it holds its peak."""

    phase: str
    step: int


class PlannedPool(Struct, frozen=True):
    """What a pool was planned to hold, in bytes: expected in the phase that decides, and at most in any. `limits` has
    the lowest first."""

    pool: str
    verdict: str
    expected_bytes: int
    upper_bytes: int
    worst: Worst
    limits: tuple[PlannedLimit, ...] = ()

    @property
    def room(self) -> float:
        """How far the bound is below the lowest limit, as a share of it; infinite where none is known.

        >>> PlannedPool("node[0].host", "fits", 60, 75, Worst("train", 2), (PlannedLimit("memory", 100),)).room
        0.25
        """
        if not self.limits or self.limits[0].bytes <= 0:
            return float("inf")
        return 1 - self.upper_bytes / self.limits[0].bytes


class Size(Struct, frozen=True):
    """An expected size."""

    expected_bytes: int


class PlannedRemedy(Struct, frozen=True):
    """A change that the plan named."""

    text: str
    verdict: str
    cost: str
    pool: str
    before: Size
    after: Size


class BoxPlan(Struct, frozen=True):
    """The verdict of a plan, its pools, and what it said to change."""

    verdict: str
    machine: str
    pools: tuple[PlannedPool, ...]
    remedies: tuple[PlannedRemedy, ...] = ()
    refusals: tuple[str, ...] = ()
    deciding: tuple[str, ...] = ()
    unplanned: tuple[str, ...] = ()

    @property
    def tightest(self) -> PlannedPool | None:
        """The pool with the least room, of those that have the whole plan's verdict where some have; None where there
        is none."""
        own = [each for each in self.pools if each.verdict == self.verdict]
        return min(own or self.pools, key=lambda each: each.room, default=None)


_DECODER = msgspec.json.Decoder(BoxPlan)


def plan_of(ledger: str) -> BoxPlan | None:
    """The plan in a black box's text; None where it holds none, or one that cannot be read.

    >>> plan_of(""), plan_of('{"verdict": "fits", "machine": "gb10", "pools": []}').machine
    (None, 'gb10')
    """
    if not ledger:
        return None
    try:
        return _DECODER.decode(ledger)
    except (msgspec.MsgspecError, RecursionError):
        return None


def run_use(frame: Frame) -> dict[str, int]:
    """What a run held of each pool at most, in bytes, to be put beside its plan.

    A node's gauges count other programs too, and the sum of resident memory counts shared pages in each process: of a
    host the least of them is taken. What a device or a unified memory is used for is told by no process, so there the
    gauge counts.

    >>> from headway.guard.frame import Gauge, ProcessUse
    >>> gauges = (Gauge("node[0].host", "node", 9, 99), Gauge("node[0].device[0]", "device", 5, 80))
    >>> run_use(Frame(0.0, gauges, (ProcessUse(7, 1, "python3", 4),)))
    {'node[0].host': 4, 'node[0].device[0]': 5}
    """
    found: dict[str, int] = {}
    for gauge in frame.gauges:
        host = gauge.pool.endswith(".host")
        before = found.get(gauge.pool, gauge.used)
        found[gauge.pool] = min(before, gauge.used) if host else max(before, gauge.used)
    tree = sum(use.rss for use in frame.processes)
    return {
        pool: min(used, tree) if pool.endswith(".host") and frame.processes else used for pool, used in found.items()
    }
