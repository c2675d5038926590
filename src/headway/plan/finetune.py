"""Training without an engine by another system: fine-tuning on given samples, one rank on its device."""

from collections.abc import Iterator
from math import ceil

from msgspec.structs import replace

from headway.facts.workload import Workload
from headway.plan import host, offload, saving, training
from headway.plan.generation import hf_generation
from headway.plan.item import Entry, Item, Phases
from headway.plan.ledger import Phase
from headway.plan.rank import Rank
from headway.plan.systems import uses_zero
from headway.units import MIB

SOURCE = "plan/finetune.py"
WORKSPACES = Item("workspaces", 64 * MIB, 128 * MIB, "constant", "cuBLAS, reported 32 to 64 MiB on Hopper")
COMMUNICATORS = Item("communicators", 600 * MIB, 1200 * MIB, "constant", "NCCL, 544 to 688 MB in its issue 964")


GENERATING = frozenset({"trl"})
"""Trainers of reinforcement learning that generate by themselves, with transformers, where they have no engine."""
STAYS = training.PERMANENT | {WORKSPACES.item}
"""Tensors that are there between passes."""


def phases(workload: Workload) -> Phases:
    """The entries of every phase: load, train, step and save."""
    rank, batch = Rank.of(workload), training.micro_batch(workload)
    later, grown = min(2, workload.optimizer_steps), workload.optimizer_steps > 1
    before = training.states(workload, stepped=False, rank=rank)
    after = training.states(workload, stepped=True, rank=rank)
    reading = training.load_bytes(workload, rank)
    tensors: dict[Phase, tuple[int, list[Item]]] = {
        Phase.LOAD: (0, [*before, Item("tensor being read", 0, reading, "before it is divided or packed", SOURCE)]),
        Phase.TRAIN: (later, (after if grown else before) + training.train(workload, batch, rank)),
        Phase.STEP: (1, after + training.step(workload, rank)),
    }
    if workload.save:
        tensors[Phase.SAVE] = (workload.first_save, after)
    beside = _beside(workload)
    if workload.device == "cuda":
        beside += [Entry("device", "device_used", "trainer", item) for item in offload.paged_states(workload, rank)]
    host_items = [_on_host(workload, item) for item in offload.host_states(workload, rank)]
    found: Phases = {}
    for phase, (step, items) in tensors.items():
        streams, pool = 0, (0, 0)
        if phase is Phase.TRAIN:
            streams = training.stream_bytes(workload, items, rank) + training.earlier_holes(workload, batch, rank)
            pool = training.gradient_pool(items, rank)
        entries = _tensors(workload, items, rank, streams, pool) + beside
        loading = [each for each in host_items if each.item.item == "offloaded weights"]
        entries += host_items if phase is not Phase.LOAD else [*loading, *_loading(workload, rank)]
        entries += _saving(workload, rank, items) if phase is Phase.SAVE else []
        entries.append(_on_host(workload, host.process(workload, phase)))
        found[phase] = (step, entries)
    if workload.trainer.system in GENERATING and workload.device == "cuda":
        step, entries = found[Phase.TRAIN]
        entries = [
            entry for entry in entries if entry.item.item in STAYS or entry.quantity in ("device_used", "host")
        ]
        found[Phase.ROLLOUT] = (step, [*entries, *_generation(workload, rank)])
    return {phase: found[phase] for phase in Phase if phase in found}


def _generation(workload: Workload, rank: Rank) -> Iterator[Entry]:
    """A rank's part of all samples of a rollout at once, in transformers' own loop (`plan/generation.py`).

    The prompts' activations are gone when the cache is full, so only the bound has both. Where ranks divide the
    parameters, all of them are gathered (TRL: `ds3_gather_for_generation`).
    """
    rollout, layout = workload.rollout, workload.layout
    batch = ceil(rollout.prompts * rollout.samples / max(1, layout.ranks // layout.tensor))
    made = hf_generation(
        workload.model, workload.trainer.compute_dtype or workload.trainer.param_dtype, None, batch=batch,
        prompt=rollout.max_prompt, new_tokens=rollout.max_answer, style="grown",
    )  # fmt: skip
    yield Entry("device", "allocated", "trainer", made.cache)
    yield Entry("device", "allocated", "trainer", replace(made.prefill, bytes=0))
    yield Entry("device", "reserved", "trainer", made.old_cache)
    if rank.shards > 1:
        size, text = rank.parameters * rank.style.size, f"{rank.parameters:,} parameters x {rank.style.size} B"
        yield Entry("device", "allocated", "trainer", Item.exact("gathered blocks", size, text, SOURCE))


def _tensors(workload: Workload, items: list[Item], rank: Rank, streams: int, pool: tuple[int, int]) -> list[Entry]:
    """Tensors where the trainer computes, and what its allocator holds beyond them."""
    if workload.device != "cuda":
        return [Entry("host", "host", "trainer", item) for item in items]
    entries = [Entry("device", "allocated", "trainer", item) for item in items]
    entries.append(Entry("device", "reserved", "trainer", training.reserved(items, rank.habits, streams, pool)))
    return entries


def _beside(workload: Workload) -> list[Entry]:
    """What no phase changes: workspaces, the context, communicators; the data in host memory."""
    entries = [Entry("host", "host", "trainer", host.problems(workload))]
    if workload.device == "cuda":
        entries.append(Entry("device", "allocated", "trainer", WORKSPACES))
        entries.append(Entry("device", "device_used", "trainer", host.cuda_context()))
        if workload.layout.ranks > 1:
            entries.append(Entry("device", "device_used", "trainer", COMMUNICATORS))
    return entries


def _loading(workload: Workload, rank: Rank) -> Iterator[Entry]:
    """What loading holds beside the states; on a CPU the states are where it would be."""
    found = saving.loading(workload, rank) if workload.device == "cuda" else None
    if found is not None:
        item, everyone = found
        yield _on_host(workload, item) if everyone else Entry("host", "host", "trainer", item)


def _saving(workload: Workload, rank: Rank, states: list[Item]) -> list[Entry]:
    """What the first rank gathers; where it gathers nothing, and under ZeRO, what each rank copies of its part."""
    found = [Entry("host", "host", "trainer", item) for item in saving.gathered(workload, rank)]
    if (rank.shards > 1 and not found) or uses_zero(workload.trainer):
        found.append(_on_host(workload, saving.staging(workload, rank, sum(item.bytes for item in states))))
    return found


def _on_host(workload: Workload, item: Item) -> Entry:
    """An item that each process of a node holds."""
    return Entry("host", "host", "trainer", item, count=workload.layout.devices)
