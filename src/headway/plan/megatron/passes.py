"""The moments of a stage's passes, and the one that holds the most: what a trainer plans beside its states."""

from math import ceil

from msgspec import Struct

from headway.facts.blocks import Block
from headway.facts.workload import Workload
from headway.plan import training
from headway.plan.activations import Batch
from headway.plan.item import Item
from headway.plan.megatron import encoder, fsdp, graphs, offload, runtime, states
from headway.plan.megatron.activations import layer
from headway.plan.megatron.loss import loss
from headway.plan.megatron.parts import Layer, gathered, stream
from headway.plan.megatron.run import FP32, SOURCE, Run
from headway.plan.megatron.stages import Groups, Stage, in_flight
from headway.plan.megatron.widths import distinct
from headway.units import MIB

HOLES, EXPERT_HOLES = 0.12, 0.25
"""Share of transient bytes that the allocator holds in the rounding of blocks and in holes; more where the many
copies of experts come and go. Fitted on 12 public runs with what is reserved beside it."""
SEGMENTS = 640 * MIB
"""What the allocator holds in partly used segments of permanent tensors, and of streams of its own; same 12 runs."""
PASSING = frozenset({"saved activations", "working set", "logits", "weight gradient"})
"""Items that come and go within a step."""
NOTHING = Layer(0, 0, 0, 0)
UNEVEN = 0.25
"""Upper bound of what an uneven routing adds to what experts keep, where no capacity bounds it."""


class Moment(Struct, frozen=True):
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


def micro_batches(workload: Workload, run: Run) -> int:
    """Micro-batches of one optimizer step and rank."""
    trainer, rollout = workload.trainer, workload.rollout
    samples = ceil(rollout.prompts * rollout.samples / (trainer.updates * run.data))
    if trainer.rows:
        return max(1, samples // trainer.rows)
    return max(1, ceil(samples * rollout.longest / max(trainer.cap, rollout.longest)))


def moments(workload: Workload, run: Run, stage: Stage, batch: Batch) -> tuple[Moment, ...]:
    """The moments of training that can be a stage's peak.

    Forward through the last layer of the last micro-batch that is in flight; backward through the last layer; where
    the stage has the head, the loss forward and backward and the output layer backward. Megatron's output layer
    gathers its input into a buffer that stays, and its gradient has the gathered width before it is divided again.
    With a pipeline, what is sent and what is received has buffers of its own.
    """
    layers = {block: layer(run, batch, block) for block, _ in stage.groups} or {_widest(run): NOTHING}
    held = _held(workload, run, stage, batch, layers)
    always = (2 * stream(run, batch) if stage.count > 1 else 0) + (gathered(run, batch) if stage.head else 0)
    divided = fsdp.gathered(run, stage)
    always += divided.parameters
    forward = max(one.forward for one in layers.values())
    backward = max(one.backward + _again(run, stage, one) + max(one.hosted, default=0) for one in layers.values())
    found = [
        Moment("forward, last layer", held, forward + always),
        Moment("backward, last layer", held, backward + always + divided.gradients, 0, _weight_gradient(run, stage)),
    ]
    if divided.waiting:
        gone = divided.layers * min(one.kept for one in layers.values())
        found.append(Moment("backward, gradients wait", max(0, held - gone), backward + always + divided.waiting))
    if stage.head:
        costs = loss(run, batch)
        whole = batch.tokens * run.shape.hidden * run.size
        tail = held + (2 + 3 * stage.mtp) * stream(run, batch) + encoder.before_logits(run, batch)
        tail += _deferred(workload, run) * (whole + batch.tokens * run.vocab * run.size)
        after = whole + (stream(run, batch) if run.gathers else 0)
        found += [
            Moment("loss, forward", tail, always, costs.forward),
            Moment("loss, backward", tail, always, costs.backward),
            Moment("output layer, backward", tail, always + after, costs.gradient, _table_gradient(run)),
        ]
    return tuple(found)


def _deferred(workload: Workload, run: Run) -> int:
    """Micro-batches whose input and gradient of the output layer wait for its weight gradient when the last comes:
    all but that one, or as many as are allowed (`--defer-embedding-wgrad-compute`, `--wgrad-deferral-limit`). Source:
    Megatron Core's `LinearWithGradAccumulationAndAsyncCommunication`."""
    megatron = run.megatron
    if not megatron.defer_gradients or run.layout.pipeline == 1:
        return 0
    return min(micro_batches(workload, run) - 1, megatron.deferral_limit or micro_batches(workload, run))


def _table_gradient(run: Run) -> int:
    """Bytes of the output layer's weight gradient, where no dummy of the runtime stands for it."""
    if run.trainer.lora is not None or (
        run.megatron.fused_gradients and run.te_since(2, 3) and run.core_since(0, 14)
    ):
        return 0
    return run.size * run.shape.hidden * run.vocab


def _widest(run: Run) -> Block:
    """The kind of block that layers for multi-token prediction have."""
    return max((block for block, _ in run.shape.blocks()), key=run.shape.block_parameters)


def _held(workload: Workload, run: Run, stage: Stage, batch: Batch, layers: dict[Block, Layer]) -> int:
    """Activations of all micro-batches in flight, and masks of the embedding's dropout."""
    flights = in_flight(stage, micro_batches(workload, run))
    found = sum(number * _kept(run, groups, layers) for number, groups in zip(flights, stage.chunks, strict=True))
    found += max((sum(one.hosted) for one in layers.values()), default=0)
    if stage.mtp:
        kind = _widest(run)
        one = layers[kind] if kind in layers else layer(run, batch, kind)
        found += stage.mtp * (one.kept + 3 * stream(run, batch)) * max(flights[-1], 1)
    if stage.embedding and run.megatron.hidden_dropout:
        found += flights[0] * (stream(run, batch) // run.size)
    found += flights[0] * encoder.kept(run, batch)
    # sines and cosines of all positions in fp32
    return found + (0 if run.shape.learned_positions else batch.longest * run.context * run.shape.head_dim * FP32)


def _kept(run: Run, groups: Groups, layers: dict[Block, Layer]) -> int:
    """What one part of a stage keeps of one micro-batch."""
    recompute = run.recompute
    if recompute.granularity != "full":
        return sum(number * layers[block].kept for block, number in groups)
    if recompute.method == "block" and recompute.layers:
        left, found = recompute.layers, 0
        for block, number in groups:
            again = min(left, number)
            left -= again
            found += again * layers[block].kept + (number - again) * (layers[block].kept + layers[block].again)
        return found
    group = max(1, recompute.layers)
    return sum(ceil(number / group) * layers[block].kept for block, number in groups)


def _again(run: Run, stage: Stage, one: Layer) -> int:
    """What recomputation brings back at once: one layer, or all of a group that has only one input kept."""
    recompute = run.recompute
    if recompute.granularity != "full" or recompute.method == "block":
        return one.again
    group = min(max(1, recompute.layers), max(1, stage.layers))
    return group * (one.again + one.source) - one.source


def _weight_gradient(run: Run, stage: Stage) -> int:
    """Without fusion a weight's gradient exists before it is added to the buffer."""
    if run.megatron.fused_gradients or run.trainer.lora is not None:
        return 0
    plain, grouped = distinct(run.shape, stage.kinds, run.tensor, run.expert_tensor)
    experts = run.shape.experts // run.expert if run.shape.experts else 0
    sizes = [inputs * outputs for inputs, outputs in plain] + [experts * a * b for a, b in grouped]
    return run.size * max(sizes, default=0)


def train(workload: Workload, stage: Stage, batch: Batch | None = None) -> list[Item]:
    """The highest moment of a stage's forward and backward passes, beside the states."""
    run = Run.of(workload)
    batch = batch or training.micro_batch(workload)
    top = max(moments(workload, run, stage, batch), key=lambda moment: moment.bytes)
    number = micro_batches(workload, run)
    return _items(run, stage, top, batch, in_flight(stage, number)) + graphs.items(run, stage, batch, number)


def host_items(workload: Workload, stage: Stage) -> list[Item]:
    """Pinned host memory of offloaded activations: of all micro-batches in flight, but for the last layer's."""
    run = Run.of(workload)
    if not run.megatron.offload_modules:
        return []
    batch = training.micro_batch(workload)
    sizes = {block: sum(layer(run, batch, block).hosted) for block, _ in stage.groups}
    flights = in_flight(stage, micro_batches(workload, run))
    held = [
        (number * count, sizes[block])
        for number, groups in zip(flights, stage.chunks, strict=True)
        for block, count in groups
    ]
    size = sum(count * each for count, each in held) - max(sizes.values(), default=0)
    return offload.pinned(size, sum(count for count, each in held if each))


def score(workload: Workload, stage: Stage) -> list[Item]:
    """A forward pass without gradients: one layer at a time, and on the last stage logits and log-probs."""
    run = Run.of(workload)
    batch = training.scoring_batch(workload)
    layers = [layer(run, batch, block) for block, _ in stage.groups]
    found = [Moment("forward, a layer", 0, max((one.forward + one.kept + one.again for one in layers), default=0))]
    if stage.head:
        found.append(Moment("log-probs", 2 * stream(run, batch), gathered(run, batch), loss(run, batch).score))
    return _items(run, stage, max(found, key=lambda moment: moment.bytes), batch, ())


def step(workload: Workload, stage: Stage) -> list[Item]:
    """The optimizer's step has fused kernels: copies of half-precision moments, and what stays of the runtime and of
    captured graphs."""
    run = Run.of(workload)
    copies = states.step_bytes(run, states.counts(run, stage))
    found = [Item.exact("temporaries", copies, "moments in fp32 while they are updated", SOURCE)] if copies else []
    batch = training.micro_batch(workload)
    return found + runtime.items(run, stage) + graphs.items(run, stage, batch, micro_batches(workload, run))


def _items(run: Run, stage: Stage, top: Moment, batch: Batch, flights: tuple[int, ...]) -> list[Item]:
    """The lines of a moment, with their bounds."""
    tokens = f"{batch.rows:,} x {batch.longest:,} tokens"
    passes = f", {'+'.join(map(str, flights))} micro-batches in flight" if flights else ""
    bound = 1.05
    if run.shape.experts and not run.megatron.capacity:
        bound += UNEVEN
    rows = (
        ("saved activations", top.kept, bound, f"{stage.layers} layers, {tokens}{passes}"),
        ("working set", top.working, 1.3, f"{top.at}, {tokens}"),
        ("logits", top.logits, 1.3 if run.rl else 1.1, f"{top.at}, {tokens} x {run.vocab:,}"),
        ("weight gradient", top.weights, 1.1, "before it is added to the buffer"),
    )
    found = [Item(name, size, round(size * wide), formula, SOURCE) for name, size, wide, formula in rows if size]
    return found + runtime.items(run, stage)


def reserved(run: Run, stage: Stage, items: list[Item]) -> Item:
    """What the allocator holds beyond tensors: a share of what comes and goes, partly used segments, and a block as
    large as the largest weight, which start and step had and nothing smaller gives back."""
    passing = sum(item.bytes for item in items if item.item in PASSING)
    plain, _ = distinct(run.shape, stage.kinds, run.tensor, run.expert_tensor)
    tables = [run.shape.hidden * run.vocab] if stage.embedding or stage.head else []
    largest = run.size * max([*tables, *(inputs * outputs for inputs, outputs in plain)], default=0)
    share = EXPERT_HOLES if run.shape.experts else HOLES
    size = round(share * passing) + largest + SEGMENTS
    return Item("fragmentation", size, 2 * size, f"{share:.0%} of transient bytes, largest weight, segments", SOURCE)
