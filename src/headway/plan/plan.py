"""From a Workload to its Ledger: the phases of its kind of run, laid into the pools of its machine."""

from headway.errors import InputError
from headway.facts.machine import Machine
from headway.facts.workload import Workload
from headway.plan import colocated, finetune, own
from headway.plan.item import Entry, Item, Phases, Place
from headway.plan.ledger import Ledger, Line, Phase
from headway.plan.megatron import phases as megatron

HOST, DEVICE, UNIFIED = "node[0].host", "node[0].device[0]", "node[0].unified"
SPLIT: dict[Place, str] = {"host": HOST, "device": DEVICE}
ONE: dict[Place, str] = {"host": UNIFIED, "device": UNIFIED}


def plan(workload: Workload, machine: Machine | None = None) -> Ledger:
    """The ledger of a run.

    On a machine whose CPU and GPU share one memory every line is in its one pool; without a machine, host and
    device are apart. Device lines are those of the rank that holds the most; host lines those of the whole node.
    """
    found = phases(workload, machine)
    pools = ONE if machine is not None and machine.unified else SPLIT
    floor = _floors(machine)
    lines: list[Line] = []
    for phase in Phase:
        if phase in found:
            here = [_line(pools[entry.place], phase, entry) for entry in found[phase][1]]
            used = {line.pool for line in here}
            lines += here
            lines += [_line(pool, phase, entry) for pool, entry in floor if pool in used]
    return Ledger(tuple(lines), {phase: step for phase, (step, _) in found.items()})


def phases(workload: Workload, machine: Machine | None = None) -> Phases:
    """What is alive in each phase, by the kind of run.

    InputError for an engine of its own without a machine: its KV pool is a share of the device.
    """
    if workload.engine is not None:
        if machine is None:
            raise InputError("an engine takes a share of its device: name the machine, such as --machine h100-80")
        return colocated.phases(workload, machine)
    if workload.trainer.system in megatron.SYSTEMS:
        return megatron.phases(workload, machine)
    if workload.trainer.system != "headway":
        return finetune.phases(workload)
    return own.phases(workload)


def _floors(machine: Machine | None) -> list[tuple[str, Entry]]:
    """What the system itself holds of a pool, where the pool's limits count that."""
    if machine is None:
        return []
    return [
        (
            pool.name,
            Entry(
                "host",
                "host",
                "system",
                Item(
                    "operating system",
                    pool.floor_bytes,
                    pool.floor_upper,
                    "constant of the machine",
                    "facts/tables/machines.csv",
                ),
            ),
        )
        for pool in machine.pools
        if pool.floor_upper
    ]


def _line(pool: str, phase: Phase, entry: Entry) -> Line:
    item, count = entry.item, entry.count
    # _make takes a third of the call's time, and a plan makes some sixty lines
    return Line._make((
        pool, phase, entry.role, entry.rank, item.item, item.bytes * count, item.upper * count, entry.quantity,
        item.formula if count == 1 else f"{count} x ({item.formula})", item.source, item.independent,
    ))  # fmt: skip
