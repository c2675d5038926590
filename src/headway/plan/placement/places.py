"""On which node and device each rank of each role is."""

from math import ceil

from msgspec import Struct

from headway.errors import InputError
from headway.facts.machine import Machine
from headway.facts.workload import Engine, Layout, Workload

USUAL = 8
"""Devices of a node where a run needs more than the machine has, so that it tells nothing."""


class Node(Struct, frozen=True):
    """What is on one node: trainer ranks from `first` on, devices of engines, and whether the run is driven from it.

    `engines` counts those that have their first rank here.

    >>> Node(0, first=0, ranks=4, engine_devices=4, engines=1, head=True).ranks
    4
    """

    index: int
    first: int
    ranks: int
    engine_devices: int
    engines: int
    head: bool


class Places(Struct, frozen=True):
    """Trainer ranks fill the devices in order, node by node; an engine that is not colocated has those behind them,
    and behind it each group of other models has its own (`more`: how many).

    Source: `slime/ray/placement_group.py`, whose actors take the first devices of one group that is sorted by node.

    >>> places = Places(per_node=8, trainer=4, engine=4, engine_ranks=4, colocated=False)
    >>> places.trainer_at(3), places.engine_at(0), places.node(0)
    ((0, 3), (0, 4), Node(index=0, first=0, ranks=4, engine_devices=4, engines=1, head=True))
    """

    per_node: int
    trainer: int
    engine: int
    engine_ranks: int
    colocated: bool
    more: tuple[int, ...] = ()

    @classmethod
    def of(cls, workload: Workload, engine: Engine, machine: Machine) -> "Places":
        """InputError where an engine that is apart has no devices, or where roles that share devices overlap."""
        layout, ranks = workload.layout, engine.tensor_parallel * engine.pipeline_parallel
        apart = 0 if engine.colocated else engine.devices
        if engine.colocated and workload.mode != "sync":
            raise InputError(
                f"mode = {workload.mode}: an engine on the trainer's devices cannot generate while it trains; set "
                "engine.colocated=false and engine.devices, or mode=sync"
            )
        if not engine.colocated and (apart < ranks or apart % ranks):
            raise InputError(
                f"engine.devices = {apart}: an engine of its own devices needs {ranks} for each engine (tensor x "
                f"pipeline parallel); set engine.devices to a multiple of {ranks}"
            )
        used = layout.ranks if engine.colocated else apart
        more = workload.groups
        per_node = _per_node(layout, apart + sum(more), machine)
        return cls(per_node, layout.ranks, used, ranks, engine.colocated, more)

    @property
    def first_engine(self) -> int:
        """The first device of the engines, counted over all nodes."""
        return 0 if self.colocated else self.trainer

    @property
    def engines(self) -> int:
        """How many engines generate, those that only read prompts included."""
        return max(1, self.engine // self.engine_ranks)

    def trainer_at(self, rank: int) -> tuple[int, int]:
        """(node, device) of a rank of the trainer."""
        return divmod(rank, self.per_node)

    def engine_at(self, index: int) -> tuple[int, int]:
        """(node, device) of one of the engines' devices."""
        return divmod(self.first_engine + index, self.per_node)

    def first_of(self, group: int) -> int:
        """The first device of a group of other models, counted over all nodes; group 0 is on the trainer's.

        >>> Places(8, trainer=4, engine=2, engine_ranks=2, colocated=False, more=(1, 4)).first_of(2)
        7
        """
        if not group:
            return 0
        return self.trainer + (0 if self.colocated else self.engine) + sum(self.more[: group - 1])

    def on_node(self, index: int, group: int, ranks: int) -> int:
        """How many of a group's ranks are on a node."""
        start, first = index * self.per_node, self.first_of(group)
        return max(0, min(start + self.per_node, first + ranks) - max(start, first))

    def node(self, index: int) -> Node:
        """What is on a node."""
        start, end = index * self.per_node, (index + 1) * self.per_node
        first, last = min(start, self.trainer), min(end, self.trainer)
        begin = max(0, start - self.first_engine)
        stop = min(self.engine, max(0, end - self.first_engine))
        engine_devices = max(0, stop - begin)
        engines = ceil(stop / self.engine_ranks) - ceil(begin / self.engine_ranks) if engine_devices else 0
        return Node(index, first, last - first, engine_devices, engines, head=index == 0)


def _per_node(layout: Layout, apart: int, machine: Machine) -> int:
    """Devices of a node: those that the run names for several of them, else the machine's where it has enough."""
    there = max(1, machine.device_count // machine.nodes)
    total = layout.ranks + apart
    if machine.unified:
        return there
    if layout.nodes > 1 and not apart:
        return layout.devices
    if total <= machine.device_count:
        return there
    return max(there, layout.devices, min(total, USUAL) if apart else 1)
