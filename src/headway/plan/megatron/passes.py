"""The moments of a stage's passes, and the one that holds the most: what a trainer plans beside its states."""

from dataclasses import dataclass
from math import ceil

from headway.facts.blocks import Block
from headway.facts.workload import Workload
from headway.plan import training
from headway.plan.activations import Batch
from headway.plan.item import Item
from headway.plan.megatron import runtime, states
from headway.plan.megatron.activations import distinct_weights, layer
from headway.plan.megatron.loss import loss
from headway.plan.megatron.parts import Layer, gathered, stream
from headway.plan.megatron.run import FP32, SOURCE, Run
from headway.plan.megatron.stages import Groups, Stage, in_flight

HOLES, HOLES_UPPER = 0.02, 0.12
"""Share of transient bytes that the allocator holds in the rounding of blocks and in holes."""


@dataclass(frozen=True)
class Moment:
    """What is alive at one moment of a pass beside the states, in bytes.

    >>> Moment("loss, forward", kept=10, logits=5).bytes
    15
    """

    at: str
    kept: int = 0
    working: int = 0
    logits: int = 0
    weights: int = 0

    @property
    def bytes(self) -> int:
        """All of it."""
        return self.kept + self.working + self.logits + self.weights


def micro_batches(workload: Workload) -> int:
    """Micro-batches of one optimizer step and rank."""
    trainer, rollout, run = workload.trainer, workload.rollout, Run.of(workload)
    samples = ceil(rollout.prompts * rollout.samples / (trainer.updates * run.data))
    if trainer.rows:
        return max(1, samples // trainer.rows)
    return max(1, ceil(samples * rollout.longest / max(trainer.cap, rollout.longest)))


def is_rl(workload: Workload) -> bool:
    """Whether the loss is made from log-probs of answers, as slime, Miles and verl do, not Megatron's own."""
    return workload.trainer.system != "megatron"


def moments(workload: Workload, run: Run, stage: Stage, batch: Batch) -> tuple[Moment, ...]:
    """The moments of training that can be a stage's peak.

    Forward through the last layer of the last micro-batch that is in flight; the loss forward and backward, where
    the stage has the head; backward through the last layer. Megatron's output layer gathers its input into a buffer
    that stays, and its gradient is of the gathered width before it is divided again.
    """
    layers = {block: layer(run, batch, block) for block, _ in stage.groups}
    held = _held(workload, run, stage, batch, layers)
    top = max(layers.values(), key=lambda one: one.again + max(one.forward, one.backward), default=Layer(0, 0, 0, 0))
    transfer = 2 * stream(run, batch) if stage.count > 1 else 0
    weight = _weight_gradient(run, stage)
    before = gathered(run, batch) if stage.head else 0
    found = [
        Moment("forward, last layer", held, max(one.forward for one in layers.values()) + transfer + before)
        if layers else Moment("forward", held),
        Moment("backward, last layer", held, top.again + top.backward + transfer + before, 0, weight),
    ]  # fmt: skip
    if stage.head:
        costs = loss(run, batch, rl=is_rl(workload))
        tail = (2 + 3 * stage.mtp) * stream(run, batch)
        whole = batch.tokens * run.shape.hidden * run.size
        table = 0 if run.trainer.lora or _cached_table(run) else run.size * run.shape.hidden * run.vocab
        after = whole + (stream(run, batch) if run.gathers else 0)
        found += [
            Moment("loss, forward", held + tail, before, costs.forward),
            Moment("loss, backward", held + tail, before, costs.backward),
            Moment("output layer, backward", held + tail, before + after, costs.gradient, table),
        ]
    return tuple(found)


def _cached_table(run: Run) -> bool:
    """Whether the output layer's weight gradient is a dummy that the runtime counts."""
    return run.megatron.fused_gradients and run.te_since(2, 3) and run.core_since(0, 14)


def _held(workload: Workload, run: Run, stage: Stage, batch: Batch, layers: dict[Block, Layer]) -> int:
    """Activations of all micro-batches in flight, and masks of the embedding's dropout."""
    found = 0
    flights = in_flight(stage, micro_batches(workload))
    for number, groups in zip(flights, stage.chunks, strict=True):
        found += number * _kept(run, groups, layers)
    if stage.mtp:
        widest = max(layers.values(), key=lambda one: one.kept)
        found += stage.mtp * (widest.kept + 3 * stream(run, batch)) * max(flights[-1], 1)
    if stage.embedding and run.megatron.hidden_dropout:
        found += flights[0] * (stream(run, batch) // run.size)
    # sines and cosines of all positions in fp32
    return found + (0 if run.shape.learned_positions else batch.longest * run.context * run.shape.head_dim * FP32)


def _kept(run: Run, groups: Groups, layers: dict[Block, Layer]) -> int:
    """What one part of a stage keeps of one micro-batch."""
    recompute = run.recompute
    if recompute.granularity != "full":
        return sum(number * layers[block].kept for block, number in groups)
    whole = {block: one.kept + one.again for block, one in layers.items()}
    if recompute.method == "block" and recompute.layers:
        left, found = recompute.layers, 0
        for block, number in groups:
            again = min(left, number)
            left -= again
            found += again * layers[block].kept + (number - again) * whole[block]
        return found
    group = max(1, recompute.layers)
    return sum(ceil(number / group) * layers[block].kept for block, number in groups)


def _weight_gradient(run: Run, stage: Stage) -> int:
    """Without fusion a weight's gradient exists before it is added to the buffer."""
    if run.megatron.fused_gradients or run.trainer.lora is not None:
        return 0
    plain, grouped = distinct_weights(run, tuple(block for block, _ in stage.groups))
    experts = run.shape.experts // run.expert if run.shape.experts else 0
    sizes = [inputs * outputs for inputs, outputs in plain] + [experts * a * b for a, b in grouped]
    return run.size * max(sizes, default=0)


def train(workload: Workload, stage: Stage, batch: Batch | None = None) -> list[Item]:
    """The highest moment of a stage's forward and backward passes, beside the states."""
    run = Run.of(workload)
    batch = batch or training.micro_batch(workload)
    top = max(moments(workload, run, stage, batch), key=lambda moment: moment.bytes)
    return _items(run, stage, top, batch, in_flight(stage, micro_batches(workload)))


def score(workload: Workload, stage: Stage, batch: Batch | None = None) -> list[Item]:
    """A forward pass without gradients: one layer at a time, and on the last stage logits and log-probs."""
    run = Run.of(workload)
    batch = batch or training.micro_batch(workload)
    layers = [layer(run, batch, block) for block, _ in stage.groups]
    one = max((each.forward + each.kept + each.again for each in layers), default=0)
    found = [Moment("forward, a layer", 0, one)]
    if stage.head:
        costs = loss(run, batch, rl=is_rl(workload))
        found.append(Moment("log-probs", 2 * stream(run, batch), gathered(run, batch), costs.score))
    return _items(run, stage, max(found, key=lambda moment: moment.bytes), batch, ())


def step(workload: Workload, stage: Stage) -> list[Item]:
    """The optimizer's step has fused kernels: copies of half-precision moments, and what stays of the runtime."""
    run = Run.of(workload)
    copies = states.step_bytes(run, states.counts(run, stage))
    return [
        *([Item.exact("temporaries", copies, "moments in fp32 while they are updated", SOURCE)] if copies else []),
        *runtime.items(run, stage),
    ]


def _items(run: Run, stage: Stage, top: Moment, batch: Batch, flights: tuple[int, ...]) -> list[Item]:
    """The lines of a moment. An uneven routing of tokens may double what experts hold: the bound says so."""
    tokens = f"{batch.rows:,} x {batch.longest:,} tokens"
    passes = f", {'+'.join(map(str, flights))} micro-batches in flight" if flights else ""
    uneven = 1.0 if not run.shape.experts or run.megatron.capacity else 0.25
    bound = 1.05 if not run.shape.experts or run.megatron.capacity else 1.05 + uneven
    rows = (
        ("saved activations", top.kept, bound, f"{stage.layers} layers, {tokens}{passes}"),
        ("working set", top.working, 1.3, f"{top.at}, {tokens}"),
        ("logits", top.logits, 1.1, f"{top.at}, {tokens} x {run.vocab:,}"),
        ("weight gradient", top.weights, 1.1, "before it is added to the buffer"),
    )
    found = [Item(name, size, round(size * wide), formula, SOURCE) for name, size, wide, formula in rows if size]
    return found + runtime.items(run, stage)


def reserved(items: list[Item]) -> Item:
    """What the allocator holds beyond tensors, in proportion to what comes and goes."""
    passing = [item for item in items if item.item in ("saved activations", "working set", "logits")]
    size, upper = sum(item.bytes for item in passing), sum(item.upper for item in passing)
    formula = f"{HOLES:.0%} of transient bytes"
    return Item("fragmentation", round(size * HOLES), round(upper * HOLES_UPPER), formula, SOURCE)


def states_of(workload: Workload, stage: Stage, *, stepped: bool) -> list[Item]:
    """What a stage's rank holds between passes."""
    return states.items(Run.of(workload), stage, stepped=stepped)
