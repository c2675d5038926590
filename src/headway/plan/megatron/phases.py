"""Pretraining and fine-tuning by Megatron without an engine: every phase's entries, of the worst stage's rank.

What a placement with engines composes is here too: `stages_of`, `tensors` of a stage in a phase, and `placed`.
"""

from collections.abc import Iterable, Iterator

from headway.facts.machine import Machine
from headway.facts.workload import Workload
from headway.plan import host
from headway.plan.item import Entry, Item, Phases
from headway.plan.ledger import Phase
from headway.plan.megatron import passes, runtime, states
from headway.plan.megatron.run import Run
from headway.plan.megatron.stages import Stage

SYSTEMS = frozenset({"megatron", "slime", "miles-megatron", "verl-megatron"})
"""Names of trainers that are Megatron."""


def phases(workload: Workload, machine: Machine | None = None) -> Phases:
    """The entries of every phase: load, score, train, step and save; each of the stage that holds the most in it.

    `machine` is not used: without an engine nothing depends on what the device has.
    """
    del machine
    later = min(2, workload.optimizer_steps)
    steps = {Phase.LOAD: 0, Phase.TRAIN: later, Phase.STEP: 1}
    if workload.trainer.scores or workload.trainer.reference != "none":
        steps[Phase.SCORE] = later
    if workload.save:
        steps[Phase.SAVE] = workload.first_save
    found: Phases = {}
    for phase, step in steps.items():
        stage, items = worst(workload, phase)
        found[phase] = (step, list(placed(workload, stage, phase, items)))
    return found


def stages_of(workload: Workload) -> tuple[Stage, ...]:
    """The pipeline's stages in order."""
    return Run.of(workload).stages()


def worst(workload: Workload, phase: Phase) -> tuple[Stage, list[Item]]:
    """The stage that allocates the most in a phase, and what.

    Of stages with the same layers, and neither embedding nor head, the first has the most micro-batches in flight.
    """
    first: dict[object, Stage] = {}
    for stage in stages_of(workload):
        first.setdefault((stage.chunks, stage.embedding, stage.head), stage)
    found = [(stage, tensors(workload, stage, phase)) for stage in first.values()]
    return max(found, key=lambda pair: sum(item.bytes for item in pair[1]))


def tensors(workload: Workload, stage: Stage, phase: Phase) -> list[Item]:
    """What a stage's rank allocates in a phase; before the first optimizer step there are no moments."""
    stepped = phase is not Phase.LOAD and (phase not in (Phase.TRAIN, Phase.SCORE) or workload.optimizer_steps > 1)
    found = states.items(Run.of(workload), stage, stepped=stepped)
    if phase is Phase.TRAIN:
        return found + passes.train(workload, stage)
    if phase is Phase.SCORE:
        return found + passes.score(workload, stage)
    if phase is Phase.LOAD:
        return found
    return found + passes.step(workload, stage)


def placed(workload: Workload, stage: Stage, phase: Phase, items: Iterable[Item]) -> Iterator[Entry]:
    """The entries of a stage's rank: its tensors, what is beside them on its device, and what its node holds."""
    run, items = Run.of(workload), list(items)
    rank, ranks = run.first_rank(stage), run.layout.devices
    for item in items:
        yield Entry("device", "allocated", "trainer", item, rank)
    yield Entry("device", "reserved", "trainer", passes.reserved(run, stage, items), rank)
    yield Entry("device", "device_used", "trainer", host.cuda_context(), rank)
    if run.layout.ranks > 1:
        yield Entry("device", "device_used", "trainer", runtime.communicators(run), rank)
    for item in states.host_items(run, stage):
        yield Entry("host", "host", "trainer", item, rank, ranks)
    for item in passes.host_items(workload, stage) if phase is not Phase.LOAD else ():
        yield Entry("host", "host", "trainer", item, rank, ranks)
    yield Entry("host", "host", "trainer", host.process(workload, phase), rank, ranks)
    yield Entry("host", "host", "trainer", host.problems(workload), rank)
