"""From a Workload to its Ledger: the phases of its kind of run, laid into the pools of its machine."""

from headway.errors import InputError
from headway.facts.machine import Machine
from headway.facts.workload import Workload
from headway.plan import finetune, own
from headway.plan.item import Entry, Item, Phases, Place
from headway.plan.ledger import Ledger, Line, Phase
from headway.plan.megatron import phases as megatron
from headway.plan.placement import others, timeline

HOST, DEVICE, UNIFIED = "node[0].host", "node[0].device[0]", "node[0].unified"


def plan(workload: Workload, machine: Machine | None = None) -> Ledger:
    """The ledger of a run.

    On a machine whose CPU and GPU share one memory every line is in its node's one pool; without a machine, host and
    device are apart. Device lines are those of the ranks that hold the most of their role, each in the pool of its
    own device; host lines those of whole nodes, where these ranks are.
    """
    found = phases(workload, machine)
    unified = machine is not None and machine.unified
    floors = _floors(machine)
    pools: dict[tuple[Place, int, int], str] = {}
    lines: list[Line] = []
    for phase in Phase:
        if phase not in found:
            continue
        used: dict[str, None] = {}
        for entry in found[phase][1]:
            key = (entry.place, entry.node, entry.device)
            pool = pools.get(key) or pools.setdefault(key, pool_of(entry, unified=unified))
            used[pool] = None
            lines.append(_line(pool, phase, entry))
        lines += [_line(pool, phase, floors[kind]) for pool in used if (kind := _kind(pool)) in floors]
    return Ledger(tuple(lines), {phase: step for phase, (step, _) in found.items()})


def pool_of(entry: Entry, *, unified: bool) -> str:
    """The name of the pool that an entry is in.

    >>> pool_of(Entry("device", "allocated", "engine", Item.exact("x", 1, "", ""), node=1, device=3), unified=False)
    'node[1].device[3]'
    """
    if entry.place == "shm":
        return f"node[{entry.node}].shm"
    if unified:
        return f"node[{entry.node}].unified"
    return f"node[{entry.node}].host" if entry.place == "host" else f"node[{entry.node}].device[{entry.device}]"


def _kind(pool: str) -> str:
    return pool.rpartition(".")[2].partition("[")[0]


def phases(workload: Workload, machine: Machine | None = None) -> Phases:
    """What is alive in each phase, by the kind of run.

    InputError for an engine of its own without a machine: its KV pool is a share of the device.
    """
    if workload.engine is not None:
        if machine is None:
            raise InputError("an engine takes a share of its device: name the machine, such as --machine h100-80")
        return timeline.phases(workload, machine)
    if workload.trainer.system in megatron.SYSTEMS:
        return others.with_others(megatron.phases(workload, machine), workload)
    if workload.trainer.system != "headway":
        return others.with_others(finetune.phases(workload), workload)
    calibrated = () if machine is None else machine.calibrated
    return own.phases(workload, next((base for base in calibrated if base.device == workload.device), None))


def _floors(machine: Machine | None) -> dict[str, Entry]:
    """What the system itself holds of a pool, by the pool's kind, where the pool's limits count that."""
    found: dict[str, Entry] = {}
    for pool in machine.pools if machine is not None else ():
        if pool.floor_upper and pool.kind not in found:
            text, source = "constant of the machine", "facts/tables/machines.csv"
            item = Item("operating system", pool.floor_bytes, pool.floor_upper, text, source)
            found[pool.kind] = Entry("host", "host", "system", item)
    return found


def _line(pool: str, phase: Phase, entry: Entry) -> Line:
    item, count = entry.item, entry.count
    return Line(
        pool, phase, entry.role, entry.rank, item.item, item.bytes * count, item.upper * count, entry.quantity,
        item.formula if count == 1 else f"{count} x ({item.formula})", item.source, item.independent,
    )  # fmt: skip
