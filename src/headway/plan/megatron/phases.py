"""Pretraining and fine-tuning by Megatron without an engine: every phase's entries, of the worst stage's rank."""

from collections.abc import Iterator

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
    """The entries of every phase: load, train, step and save; each of the stage that holds the most in it."""
    del machine
    run = Run.of(workload)
    later = min(2, workload.optimizer_steps)
    steps = {Phase.LOAD: 0, Phase.TRAIN: later, Phase.STEP: 1}
    if workload.trainer.scores or workload.trainer.reference != "none":
        steps[Phase.SCORE] = later
    if workload.save:
        steps[Phase.SAVE] = workload.steps
    found: Phases = {}
    for phase, step in steps.items():
        stage, items = max(
            ((each, tensors(workload, each, phase)) for each in run.stages()),
            key=lambda pair: sum(item.bytes for item in pair[1]),
        )
        found[phase] = (step, list(_placed(workload, run, stage, phase, items)))
    return found


def tensors(workload: Workload, stage: Stage, phase: Phase) -> list[Item]:
    """What a stage's rank allocates in a phase."""
    stepped = phase not in (Phase.LOAD,) and (phase is not Phase.TRAIN or workload.optimizer_steps > 1)
    found = states.items(Run.of(workload), stage, stepped=stepped)
    if phase is Phase.TRAIN:
        return found + passes.train(workload, stage)
    if phase is Phase.SCORE:
        return found + passes.score(workload, stage)
    if phase in (Phase.STEP, Phase.SAVE):
        return found + passes.step(workload, stage)
    return found


def _placed(workload: Workload, run: Run, stage: Stage, phase: Phase, items: list[Item]) -> Iterator[Entry]:
    rank = run.first_rank(stage)
    for item in items:
        yield Entry("device", "allocated", "trainer", item, rank)
    yield Entry("device", "reserved", "trainer", passes.reserved(items), rank)
    yield Entry("device", "device_used", "trainer", host.cuda_context(), rank)
    if run.layout.ranks > 1:
        yield Entry("device", "device_used", "trainer", runtime.communicators(run), rank)
    for item in states.host_items(run, stage):
        yield Entry("host", "host", "trainer", item, rank, run.layout.devices)
    yield Entry("host", "host", "trainer", host.process(workload, phase), rank, run.layout.devices)
    yield Entry("host", "host", "trainer", host.problems(workload), rank)
