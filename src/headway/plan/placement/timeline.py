"""Which roles do what at the same time, and what of it is on each device: the phases of a run with an engine.

On the trainer's own devices (colocated) the two take turns: while the engine generates the trainer's state is away,
and while the trainer works the engine has given back what it can. Apart, each keeps its devices, and an engine that
generates the next answers meanwhile (one-step-off, async) changes what the host holds, not what the devices do.
"""

from collections.abc import Iterator
from functools import cached_property
from math import ceil
from typing import NamedTuple

from msgspec import Struct

from headway.facts.machine import Machine
from headway.facts.workload import DTYPE_BYTES, Engine, Workload
from headway.plan import host as processes
from headway.plan.actors import processes as processes_of
from headway.plan.engines import EngineMemory, engine_memory
from headway.plan.item import Entry, Item, Phases
from headway.plan.ledger import Phase, Quantity
from headway.plan.placement import buckets, others
from headway.plan.placement.hosts import GENERATING, Host
from headway.plan.placement.others import Beside
from headway.plan.placement.pauses import paused
from headway.plan.placement.places import Places
from headway.plan.placement.sides import Side, all_sides

TOKEN_BYTES = 32
"""Bytes of one token of a sample on the device: its id and mask (8 each), old and reference log-prob, advantage and
return (4 each)."""


class Run(Struct, frozen=True, dict=True):
    """What every phase is put together from: who is where, one rank of each stage, the engine awake and asleep."""

    workload: Workload
    engine: Engine
    places: Places
    sides: tuple[Side, ...]
    memory: EngineMemory
    unified: bool
    beside: tuple[Beside, ...] = ()

    @classmethod
    def of(cls, workload: Workload, machine: Machine) -> "Run":
        """InputError where roles overlap, or ranks do not divide into groups."""
        engine = workload.engine
        assert engine is not None
        places = Places.of(workload, engine, machine)
        device = next(pool for pool in machine.pools if pool.kind in ("device", "unified"))
        # the engine starts before the trainer, so it measures what the system and its own processes leave
        taken = device.floor_bytes
        if machine.unified:
            node = places.node(places.engine_at(0)[0])
            started = (each for each in processes_of(workload, node) if each.role != "trainer")
            taken += sum(each.item.bytes * each.count for each in started)
        memory = engine_memory(
            workload.model, engine, device_bytes=device.total_bytes, free_bytes=device.total_bytes - taken,
            longest=workload.rollout.longest, device=machine.name,
        )  # fmt: skip
        beside = others.all_beside(workload)
        return cls(workload, engine, places, all_sides(workload), memory, machine.unified, beside)

    @cached_property
    def schedule(self) -> dict[Phase, tuple[int, bool]]:
        """Phase -> the step at which its peak is first reached, and whether the optimizer has its moments then.

        Before the first optimizer step there are none, so rollout, score and train grow once more in step 2.
        """
        workload, trainer = self.workload, self.workload.trainer
        later, grown = min(2, workload.steps), workload.steps > 1
        found = {
            Phase.LOAD: (0, False), Phase.ROLLOUT: (later, grown), Phase.TRAIN: (later, grown),
            Phase.STEP: (1, True), Phase.SYNC: (1, True),
        }  # fmt: skip
        if self.engine.colocated:
            found[Phase.SLEEP] = (1, True)
        copies = {"old_actor", "teacher"} & set(trainer.copies)
        if trainer.scores or trainer.reference != "none" or trainer.updates > 1 or copies or self.beside:
            found[Phase.SCORE] = (later, grown)
        if workload.save:
            found[Phase.SAVE] = (workload.first_save, True)
        if workload.rollout.eval_problems:
            found[Phase.EVAL] = (workload.first_eval, True)
        return found


def phases(workload: Workload, machine: Machine) -> Phases:
    """The entries of every phase: of the ranks that hold the most of their role, and of the nodes where they are.

    InputError where the roles cannot be placed.
    """
    run = Run.of(workload, machine)
    found_at = {phase: [_at(run, side, phase) for side in run.sides] for phase in run.schedule}
    worst = _worst({phase: [each.entries for each in stages] for phase, stages in found_at.items()})
    hosts = [_host(run, machine, index) for index in _nodes(run, worst)]
    always = [entry for node in hosts for entry in node.always()]
    for index in worst:
        always.append(_on_device("device_used", "trainer", processes.cuda_context().alone(), run, run.sides[index]))
    engines = _engine(run, worst)
    found: Phases = {}
    for phase, (step, stepped) in run.schedule.items():
        entries = list(always)
        worker = max((found_at[phase][index] for index in worst), key=At.size).worker
        for node in hosts:
            entries += node.during(phase, stepped=stepped, worker=worker)
        for index in worst:
            here = found_at[phase][index]
            entries += here.entries
            entries += _beside(run, run.sides[index], phase, here.worker)
        entries += _apart(run, phase)
        entries += engines[_state_of_engine(run.engine, phase)]
        found[phase] = (step, entries)
    return found


def _worst(tensors: dict[Phase, list[list[Entry]]]) -> list[int]:
    """The stages whose rank holds the most in some phase, in order."""
    if all(len(stages) == 1 for stages in tensors.values()):
        return [0]
    found = set()
    for stages in tensors.values():
        sizes = [sum(entry.item.bytes for entry in entries) for entries in stages]
        found.add(sizes.index(max(sizes)))
    return sorted(found)


def _nodes(run: Run, worst: list[int]) -> list[int]:
    """The node from which the run is driven, those of the worst ranks, and the engines' first."""
    found = {0, run.places.engine_at(0)[0]}
    found |= {run.places.first_of(group + 1) // run.places.per_node for group in range(len(run.places.more))}
    return sorted(found | {run.places.trainer_at(run.sides[index].rank)[0] for index in worst})


def _host(run: Run, machine: Machine, index: int) -> Host:
    """A node with its ranks by stage: stages are the outermost group, so each has as many ranks in a row."""
    node = run.places.node(index)
    stride = max(1, run.places.trainer // len(run.sides))
    sides = []
    for place, side in enumerate(run.sides):
        start, end = max(node.first, place * stride), min(node.first + node.ranks, (place + 1) * stride)
        if end > start:
            sides.append((side, end - start))
    shm = any(pool.name == f"node[{index}].shm" for pool in machine.pools)
    beside = []
    for each in run.beside:
        group, ranks = each.other.group, each.other.layout.ranks
        if there := run.places.on_node(index, group, ranks):
            beside.append((each, each.at(0 if group else node.first, run.places.trainer), there))
    return Host(run.workload, run.engine, node, tuple(sides), run.memory, run.unified, shm, tuple(beside))


# -- the trainer's devices ------------------------------------------------------------------------------------


class At(NamedTuple):
    """What is allocated on one device in a phase, and the role that works there while the others rest.

    >>> At("critic", []).size()
    0
    """

    worker: str
    entries: list[Entry]

    def size(self) -> int:
        """Bytes of all of it."""
        return sum(entry.item.bytes for entry in self.entries)


def _at(run: Run, side: Side, phase: Phase) -> At:
    """A device of the trainer, where the models that share it take turns: the turn that holds the most."""
    here = [(each, each.at(side.rank, run.places.trainer)) for each in run.beside if not each.other.group]
    if not here:
        return At("trainer", _tensors(run, side, phase))
    node, device = run.places.trainer_at(side.rank)
    stepped = run.schedule[phase][1]

    def lay(each: Beside, own: Side, *, works: bool) -> list[Entry]:
        work = each.work(own, phase, stepped=stepped) if works else None
        held, passing = work or (each.rest(own, stepped=stepped).device, [])
        return list(others.entries(each, own, held, passing, node, device))

    turns = [At("trainer", _tensors(run, side, phase))]
    for each, own in here:
        turns[0].entries.extend(lay(each, own, works=each.other.together))
    for each, own in here:
        if not each.other.together and each.work(own, phase, stepped=stepped) is not None:
            rest = [entry for one, its in here if one is not each for entry in lay(one, its, works=False)]
            turns.append(At(each.role, [*lay(each, own, works=True), *rest, *_resting(run, side, stepped=stepped)]))
    return max(turns, key=At.size)


def _resting(run: Run, side: Side, *, stepped: bool) -> Iterator[Entry]:
    """What the trainer holds while another model works on its devices."""
    for item in paused(side, run.workload.trainer.offload, stepped=stepped).device:
        yield _on_device("allocated", "trainer", item, run, side)
    if run.workload.trainer.reference == "copy":
        yield _on_device("allocated", "reference", _frozen(side), run, side)


def _apart(run: Run, phase: Phase) -> Iterator[Entry]:
    """Models on devices of their own: the first device of each group, where they take turns too."""
    stepped = run.schedule[phase][1]
    for group in sorted({each.other.group for each in run.beside if each.other.group}):
        node, device = divmod(run.places.first_of(group), run.places.per_node)
        members = [(each, each.sides[0]) for each in run.beside if each.other.group == group]
        turns = [At("", [])]
        turns += [At(each.role, []) for each, side in members if each.work(side, phase, stepped=stepped) is not None]
        for turn in turns:
            for each, side in members:
                work = each.work(side, phase, stepped=stepped) if turn.worker == each.role else None
                held, passing = work or (each.rest(side, stepped=stepped).device, [])
                turn.entries.extend(others.entries(each, side, held, passing, node, device))
        most = max(turns, key=At.size)
        yield from most.entries
        for each, side in members:
            for item in each.beside(side, resting=most.worker != each.role):
                yield Entry("device", "device_used", each.role, item, side.rank, 1, node, device)


def _tensors(run: Run, side: Side, phase: Phase) -> list[Entry]:
    """What a rank of the trainer allocates in a phase, and what its allocator holds beyond that."""
    stepped = run.schedule[phase][1]
    passing: list[Item] | None = None
    if phase in (*GENERATING, Phase.SLEEP, Phase.SYNC):
        held = list(_away(run, side, phase, stepped=stepped))
    else:
        held = side.states(stepped=stepped)
        if phase is not Phase.LOAD:
            held = [*held, _batch(run, side)]
        if phase is Phase.SCORE:
            passing = side.score()
        elif phase is Phase.TRAIN:
            passing = side.train()
        elif phase is Phase.STEP:
            passing = side.step()
        elif phase is Phase.SAVE:
            held = [*held, *side.runtime, *([] if side.stale is None else [side.stale])]
    node, device = run.places.trainer_at(side.rank)
    items = [*held, *(passing or ())]
    entries = [
        Entry("device", "allocated", "trainer", item, side.rank, 1, node, device) for item in items if item.upper
    ]
    if run.workload.trainer.reference == "copy":
        entries.append(_on_device("allocated", "reference", _frozen(side), run, side))
    if passing is not None:
        entries.append(_on_device("reserved", "trainer", side.reserved(passing), run, side))
    return entries


def _away(run: Run, side: Side, phase: Phase, *, stepped: bool) -> Iterator[Item]:
    """What is allocated while the trainer waits: all, if the engine has devices of its own."""
    offload = run.workload.trainer.offload if run.engine.colocated else "none"
    yield from paused(side, offload, stepped=stepped, syncing=phase is Phase.SYNC).device
    if phase is Phase.SLEEP and offload != "none":
        size = side.largest * DTYPE_BYTES[run.workload.trainer.param_dtype]
        text = "the largest tensor is in both places for a moment"
        yield Item.exact("tensor being moved", size, text, "moved one by one")
    if phase is Phase.SYNC:
        yield buckets.sending(side, run.engine)


def _batch(run: Run, side: Side) -> Item:
    """The samples of a step that a rank trains on, which it takes to its device at once."""
    rollout = run.workload.rollout
    tokens = ceil(rollout.prompts * rollout.samples * rollout.longest / side.parallel)
    text = f"{tokens:,} tokens x {TOKEN_BYTES} B"
    return Item.exact("samples", tokens * TOKEN_BYTES, text, "ids, mask, log-probs, advantages")


def _frozen(side: Side) -> Item:
    """A reference beside the model, divided as the model is."""
    return Item.exact("reference weights", side.whole, f"{side.whole // 2:,} parameters x 2 B", "a frozen copy")


def _beside(run: Run, side: Side, phase: Phase, worker: str) -> Iterator[Entry]:
    """Communicators, and what a paused trainer leaves; the same of other processes on the device."""
    for each in run.beside:
        if not each.other.group:
            own = each.at(side.rank, run.places.trainer)
            for item in each.beside(own, resting=worker != each.role):
                yield _on_device("device_used", each.role, item, run, side)
    asleep = (run.engine.colocated and phase in (*GENERATING, Phase.SYNC)) or worker != "trainer"
    if asleep and run.workload.trainer.offload == "dropped":
        yield _on_device("device_used", "trainer", side.paused.alone(), run, side)
        return
    for item in side.groups:
        yield _on_device("device_used", "trainer", item, run, side)
    if not run.engine.colocated and phase is not Phase.LOAD:
        yield _on_device("device_used", "trainer", buckets.group(run.workload, run.places.engine), run, side)


def _on_device(quantity: Quantity, role: str, item: Item, run: Run, side: Side) -> Entry:
    node, device = run.places.trainer_at(side.rank)
    return Entry("device", quantity, role, item, side.rank, 1, node, device)


# -- the engines' devices -------------------------------------------------------------------------------------


def _engine(run: Run, worst: list[int]) -> dict[str, list[Entry]]:
    """The first device of the engines, which all hold as much: awake, asleep, or while weights come in.

    Engines that share the trainer's devices stand beside its worst rank, wherever that is.
    """
    memory, at = run.memory, {run.places.engine_at(0)}
    own = [] if run.engine.shared else [memory.weights]
    # an engine that gave its weights back has them again when new ones come in; others never lost them
    back = own if run.engine.releases == "weights+kv" else []
    awake = [*own, *(item.alone() for item in memory.awake if item is not memory.weights)]
    asleep = memory.residue.alone()
    if run.engine.colocated:
        at = {run.places.trainer_at(run.sides[index].rank) for index in worst}
        states = {"awake": awake, "asleep": [asleep], "syncing": [*back, asleep]}
    else:
        linked = [*awake, buckets.group(run.workload, run.places.engine)]
        received = buckets.receiving(run.sides[0], run.engine)
        states = {"loading": awake, "awake": linked, "syncing": [*linked, received]}
    return {
        name: [
            Entry("device", "device_used", "engine", item, 0, 1, node, device)
            for node, device in sorted(at) for item in items
        ]
        for name, items in states.items()
    }  # fmt: skip


def _state_of_engine(engine: Engine, phase: Phase) -> str:
    """What an engine does in a phase of the trainer: apart it is always awake."""
    if phase is Phase.SYNC:
        return "syncing"
    if engine.colocated:
        return "awake" if phase in GENERATING else "asleep"
    return "loading" if phase is Phase.LOAD else "awake"
