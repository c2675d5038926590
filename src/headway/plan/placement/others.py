"""Whole models beside the actor - critic, reward model, teacher, reference: what each holds at rest and at work."""

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from headway.facts.workload import OtherModel, Role, Workload
from headway.plan import actors
from headway.plan import host as processes
from headway.plan.item import Entry, Item, Phases
from headway.plan.ledger import Phase
from headway.plan.placement.pauses import PARAMETERS, Paused, paused
from headway.plan.placement.sides import Side, all_sides

ASLEEP = frozenset({"slime", "miles-megatron"})
"""Trainers whose processes destroy their process groups while their state is in the host (torch_memory_saver)."""


class Beside(Struct, frozen=True):
    """One of these models, with one rank of each of its stages."""

    role: Role
    other: OtherModel
    sides: tuple[Side, ...]

    def at(self, rank: int, ranks: int) -> Side:
        """The rank that stands for the one on the device of the actor's `rank` of `ranks`."""
        return self.sides[min(len(self.sides) - 1, rank * len(self.sides) // max(1, ranks))]

    def rest(self, side: Side, *, stepped: bool) -> Paused:
        """What it holds while others work, on the device and in the host, without what is in the host for good."""
        if self.other.in_host:
            return Paused([], [])
        if not self.other.trained:
            found = paused(side, self.other.trainer.offload, stepped=False)
            device = [item for item in found.device if item.item in PARAMETERS]
            return Paused(device, [item for item in found.host if item.item in PARAMETERS])
        return paused(side, self.other.trainer.offload, stepped=stepped)

    def work(self, side: Side, phase: Phase, *, stepped: bool) -> tuple[list[Item], list[Item]] | None:
        """What it holds on the device while it works in a phase, and what comes and goes; None where it rests.

        Only its parameters come back for a pass that scores: an optimizer in the host stays there.
        """
        if phase is Phase.SCORE:
            offload = self.other.trainer.offload
            held = paused(side, "optimizer" if "optimizer" in offload else "none", stepped=stepped).device
            if not self.other.trained:
                held = [item for item in side.states(stepped=False) if item.item in PARAMETERS]
            return ([] if self.other.in_host else held), side.score()
        if not self.other.trained:
            return None
        if phase is Phase.TRAIN:
            return side.states(stepped=stepped), side.train()
        if phase is Phase.STEP:
            return side.states(stepped=stepped), side.step()
        if phase is Phase.SAVE:
            return [*side.states(stepped=stepped), *side.runtime], []
        return None

    def reserved(self, side: Side, passing: list[Item]) -> list[Item]:
        """What the allocator holds beyond what comes and goes."""
        return [side.reserved(passing)] if passing else []

    def beside(self, side: Side, *, resting: bool) -> Iterator[Item]:
        """Device memory of its own process: context, process groups or what is left where they are destroyed."""
        if not self.other.process:
            return
        yield processes.cuda_context().alone()
        trainer = self.other.trainer
        if resting and trainer.system in ASLEEP and trainer.offload != "none":
            yield side.paused.alone()
        else:
            yield from side.groups

    def always_in_host(self, side: Side) -> Iterator[Item]:
        """What no phase changes in host memory: its process, pinned parameters, an offloaded optimizer."""
        if self.other.process:
            text = "python, torch with CUDA, transformers"
            yield Item("process", actors.GPU_PROCESS, 2 * actors.GPU_PROCESS, text, actors.READ).alone()
        if self.other.in_host:
            yield side.copy("weights")
        if self.other.trained:
            yield from side.offloaded()


def run_of(workload: Workload, other: OtherModel) -> Workload:
    """The run as if the other model were the one that is trained: what a rank of it is planned from."""
    alone = dict.fromkeys(("critic", "reward_model", "teacher", "reference_model"))
    assert other.model is not None
    return replace(workload, model=other.model, trainer=other.trainer, layout=other.layout, **alone)


def all_beside(workload: Workload) -> tuple[Beside, ...]:
    """Every model beside the actor. InputError where its ranks do not divide into its groups."""
    return tuple(Beside(role, each, all_sides(run_of(workload, each))) for role, each in workload.others)


def entries(
    beside: Beside, side: Side, held: list[Item], passing: list[Item], node: int, device: int
) -> Iterator[Entry]:
    """The entries of a rank on its device: what is there, and what its allocator holds beyond what comes and goes."""
    for item in (*held, *passing):
        if item.upper:
            yield Entry("device", "allocated", beside.role, item, side.rank, 1, node, device)
    for item in beside.reserved(side, passing):
        yield Entry("device", "reserved", beside.role, item, side.rank, 1, node, device)


def with_others(found: Phases, workload: Workload) -> Phases:
    """The phases of a run without an engine, with the models beside the actor: in its process, or behind its devices.

    A model that is trained together with the actor is in the same passes; the others score in a phase of their own.
    """
    workload = _with_reference(workload)
    all_of_them = all_beside(workload)
    if not all_of_them:
        return found
    later = min(2, workload.optimizer_steps)
    _, states = found.get(Phase.SAVE) or found[Phase.STEP]
    if Phase.SCORE not in found:
        resting = [entry for entry in states if entry.item.item not in ("gradients", "temporaries", "fragmentation")]
        found = {**found, Phase.SCORE: (later, resting)}
    return {
        phase: (step, [*entries, *_beside(all_of_them, workload, phase)]) for phase, (step, entries) in found.items()
    }


def _with_reference(workload: Workload) -> Workload:
    """The run with its frozen copy of the actor as a model of its own, which no phase of training alone has."""
    trainer = workload.trainer
    if trainer.reference not in ("copy", "host") or workload.reference_model is not None:
        return workload
    held = replace(trainer, reference="none", copies=(), lora=None, quant=None, grad_dtype=None)
    reference = OtherModel(workload.model, held, workload.layout, in_host=trainer.reference == "host")
    return replace(workload, reference_model=reference)


def _beside(all_of_them: tuple[Beside, ...], workload: Workload, phase: Phase) -> Iterator[Entry]:
    """The models beside the actor in one phase; of those that take turns, the one that holds the most works."""
    layout, groups = workload.layout, workload.groups
    stepped = phase not in (Phase.LOAD, Phase.TRAIN, Phase.SCORE) or workload.optimizer_steps > 1
    works = {each.role: each.work(each.sides[0], phase, stepped=stepped) for each in all_of_them}
    sizes = {
        each.role: sum(item.bytes for part in work for item in part)
        for each in all_of_them
        if (work := works[each.role]) is not None and not (each.other.together or each.other.group)
    }
    worker = max(sizes, key=lambda role: sizes[role], default="")
    for each in all_of_them:
        other, side = each.other, each.sides[0]
        group = other.group
        first = layout.ranks + sum(groups[: group - 1]) if group else 0
        node, device = divmod(first, layout.devices)
        work = works[each.role] if other.together or group or each.role == worker else None
        held, passing = work or (each.rest(side, stepped=stepped).device, [])
        if work and worker != each.role and phase is Phase.SCORE and not group:
            passing = []
        on_device = list(entries(each, side, held, passing, node, device))
        on_device += [
            Entry("device", "device_used", each.role, item, side.rank, 1, node, device)
            for item in each.beside(side, resting=work is None)
        ]
        if workload.device != "cuda":
            on_device = [replace(entry, place="host", quantity="host") for entry in on_device]
        yield from on_device
        for item in each.always_in_host(side):
            yield Entry("host", "host", each.role, item, side.rank, min(other.layout.ranks, layout.devices), node)
