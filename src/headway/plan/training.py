"""One rank of another system's trainer: what it holds between passes, in a pass, and in the optimizer's step."""

from collections.abc import Callable
from math import ceil

from msgspec import Struct
from msgspec.structs import replace

from headway.facts.workload import DTYPE_BYTES, Trainer, Workload
from headway.plan import passes
from headway.plan.activations import FP32, Batch
from headway.plan.item import Item
from headway.plan.losses import fused_chunk
from headway.plan.offload import STATE_BYTES, SUBGROUP, optimizer_bytes
from headway.plan.rank import Rank, norm_is_fused
from headway.plan.systems import DEEPSPEED, SYSTEMS, LossCost, System, uses_zero

LITGPT_CHUNK = 128
"""Tokens of each sample whose logits litgpt makes at a time."""
HOLES, HOLES_UPPER = 0.03, 0.12
"""Share of transient bytes that the allocator holds in the rounding of blocks and in holes; fitted on 30 rows."""
LOGITS_HOLES, LOGITS_HOLES_UPPER = 0.20, 0.30
"""The same for logits: a freed copy in half precision has no room for one in fp32, so segments of both stay."""
PERMANENT = frozenset({"weights", "adapters", "optimizer moments", "fp32 master", "reference weights"})
"""Items that stay where they were put."""
SOURCE = "plan/training.py"


def micro_batch(workload: Workload) -> Batch:
    """The fullest micro-batch of one rank.

    `rows` samples of the longest length where the trainer counts samples; else tokens up to the cap, or the longest
    sample alone where it is longer. Context parallel ranks divide the tokens of each sample. verl gives each data
    parallel rank as many samples as the others; elsewhere all may be on one.
    """
    trainer, rollout, layout, ranks = workload.trainer, workload.rollout, workload.layout, workload.layout.context
    longest = ceil(rollout.longest / ranks)
    if trainer.rows:
        return Batch(trainer.rows, longest, trainer.rows * ceil(rollout.max_answer / ranks))
    groups = layout.data_ranks if trainer.system.startswith("verl") else 1
    samples = max(1, ceil(rollout.prompts * rollout.samples // trainer.updates / max(1, groups)))
    tokens = ceil(min(max(trainer.cap, rollout.longest), samples * rollout.longest) / ranks)
    return Batch(1, tokens, min(tokens, ceil(samples * rollout.max_answer / ranks)), reach=longest)


def scoring_batch(workload: Workload) -> Batch:
    """The same of a pass that only scores, which some systems fill with other numbers of samples or tokens."""
    trainer = workload.trainer
    if not trainer.score_cap and not trainer.score_rows:
        return micro_batch(workload)
    # all samples of the rollout are scored, however many updates share them
    scoring = replace(trainer, cap=trainer.score_cap, rows=trainer.score_rows, updates=1)
    return micro_batch(replace(workload, trainer=scoring))


SHORTER = 4
"""Samples that lie one behind another: one is expected to be of the longest length, the others a fourth of it each.
In many of verl's own examples, with 16 to 160 samples, all of the longest would fill the device several times."""


def likely(workload: Workload) -> Workload:
    """The run with the tokens that its micro-batches are expected to have; the same run where that is their bound."""
    trainer, longest = workload.trainer, workload.rollout.longest
    if not trainer.padding_free:
        return workload
    changed: dict[str, int] = {}
    for rows, cap in (("rows", "cap"), ("score_rows", "score_cap")):
        number = getattr(trainer, rows)
        if number > 1:
            changed |= {rows: 0, cap: longest + (number - 1) * longest // SHORTER}
    return workload if not changed else replace(workload, trainer=replace(trainer, **changed))


def with_bounds(workload: Workload, items: Callable[[Workload], list[Item]]) -> list[Item]:
    """Items of a pass over the expected micro-batch with the bounds of those over the fullest."""
    run, bound = likely(workload), items(workload)
    return bound if run is workload else _spread(items(run), bound)


def _spread(expected: list[Item], bound: list[Item]) -> list[Item]:
    known = {item.item: item for item in expected}
    found = []
    for item in bound:
        own = known.pop(item.item, None)
        size, formula = (0, item.formula) if own is None else (own.bytes, f"{own.formula}; bound: {item.formula}")
        found.append(replace(item, bytes=size, upper=max(size, item.upper), formula=formula))
    return [*found, *known.values()]


def gradient_bytes(workload: Workload) -> int:
    """The full set of gradients of one rank."""
    return Rank.of(workload).gradients


def states(workload: Workload, *, stepped: bool, rank: Rank | None = None) -> list[Item]:
    """What the device holds between passes; `stepped`: the optimizer has its state already.

    Here and below `rank` saves the look-up to callers that ask for several parts of one run.
    """
    rank = rank or Rank.of(workload)
    here = not rank.offloads_parameters
    found = [Item.exact("weights", rank.share(rank.base) * here, rank.base_formula, SOURCE)]
    if workload.trainer.lora is not None:
        size = rank.share(rank.trained * rank.trained_size) * here
        found.append(Item.exact("adapters", size, f"{rank.trained_formula} x {rank.trained_size} B", SOURCE))
    if stepped:
        found += _optimizer_items(workload, rank)
    return [item for item in found if item.upper]


def _optimizer_items(workload: Workload, rank: Rank) -> list[Item]:
    optimizer = workload.trainer.optimizer
    moments, master = optimizer_bytes(workload, rank)
    here = 0.0 if optimizer.paged else 1 - optimizer.offload
    kept = round(moments * here)
    # small parameters keep full precision
    upper = round(1.1 * kept) if optimizer.state_dtype in ("int8", "int4") else kept
    formula = f"{rank.trained_formula}, {optimizer.state_dtype}"
    return [
        Item("optimizer moments", kept, upper, formula, optimizer.kind),
        Item.exact("fp32 master", round(master * here), f"{rank.trained_formula} x 4 B", optimizer.kind),
    ]


def load_bytes(workload: Workload, rank: Rank) -> int:
    """The most that loading holds beside the states: the largest parameter or block as it is read, or the whole model
    where a rank takes its shard from all of it."""
    size = DTYPE_BYTES[workload.trainer.param_dtype]
    largest = max(rank.largest, rank.block if rank.shards > 1 else 0) * size
    return largest + (rank.base if rank.habits.gathered_stays and rank.shards > 1 else 0)


class Moment(Struct, frozen=True):
    """What is alive at one moment of a pass, beside the states, in bytes.

    >>> Moment("loss, backward", gradients=1, kept=10, logits=5).bytes
    16
    """

    at: str
    gradients: int = 0
    gathered: int = 0
    kept: int = 0
    working: int = 0
    logits: int = 0

    @property
    def bytes(self) -> int:
        """All of it."""
        return self.gradients + self.gathered + self.kept + self.working + self.logits


class Blocks(Struct, frozen=True):
    """All blocks of one rank for one batch: what they keep, and the most that one of them holds while it runs.

    `last` is the last block's part of `kept`, which `forward` and `backward` contain. `source` is a block's input.
    """

    kept: int
    last: int
    forward: int
    forward_free: int
    backward: int
    source: int


def blocks(workload: Workload, rank: Rank, batch: Batch, *, accumulate: bool = False) -> Blocks:
    """The blocks of a pipeline's first stage, which holds as many micro-batches as there are stages.

    `accumulate`: parameters have gradients already, so that new ones are added at once.
    """
    trainer, layout, counts = workload.trainer, workload.layout, batch.counts
    kept = last = forward = free = backward = source = 0
    for group in rank.groups:
        found = group.replay
        entering, saves = found.source.at(counts), found.kept.at(counts)
        top = (found.accumulating if accumulate else found.backward).at(counts)
        if trainer.checkpointing:
            top = max(top + (0 if found.source_kept else entering), found.recompute.at(counts))
            saves = 0 if rank.habits.checkpoints_away else entering
        elif trainer.selective:
            saves = group.selective.at(counts)
            top = max(top, found.recompute.at(counts))
        without = found.forward_free.at(counts)
        kept += group.number * saves
        last = max(last, saves)
        forward = max(forward, without if trainer.checkpointing else found.forward.at(counts))
        free, backward, source = max(free, without), max(backward, top), max(source, entering)
    if layout.tensor > 1:
        # each pair of projections gathers its input from the ranks, forward and again backward
        gathers = 4 * batch.tokens * rank.shape.hidden * rank.style.size
        forward, free, backward = forward + gathers, free + gathers, backward + gathers
        if layout.sequence_parallel and trainer.checkpointing:
            kept, last, source = kept // layout.tensor, last // layout.tensor, source // layout.tensor
    if layout.pipeline > 1:
        kept = kept // layout.pipeline * min(layout.pipeline, _in_flight(workload))
    return Blocks(kept, last, forward, free, backward, source)


class Gathered(Struct, frozen=True):
    """Bytes of parameters gathered or cast for computing while the loss runs and while blocks run, and of gradients
    as the reduction over ranks takes them: of one block, and of the head.

    >>> Gathered(10, 20, 30).blocks
    20
    """

    loss: int = 0
    blocks: int = 0
    gradients: int = 0
    head_gradients: int = 0


def gathered(workload: Workload, rank: Rank, *, scoring: bool = False) -> Gathered:
    """Two blocks, the one that computes and the next; for the loss the head and one block.

    ZeRO-3 keeps up to its limit of parameters gathered, and as many that will soon be used again. A pipeline stage
    keeps what it gathered for its other micro-batches. FSDP 2 gathers projections in float8 where it is told to, a
    byte an element (torchao's `WeightWithDynamicFloat8CastTensor`); the head stays in half precision.
    """
    trainer, layout, habits = workload.trainer, workload.layout, rank.habits
    size, split = rank.style.size, layout.tensor
    if rank.shards == 1 and not rank.casts:
        if not habits.autocast or size == DTYPE_BYTES[trainer.param_dtype]:
            return Gathered()
        # autocast holds its copies of all weights until the forward pass is over, their users until their backward
        cast = rank.projections * size
        if trainer.lora is not None and not trainer.lora.embeddings:
            return _frozen_casts(trainer, rank, cast, scoring=scoring)
        return Gathered(cast, rank.block * size if trainer.checkpointing else cast)
    reduced = rank.gradient_size if rank.shards > 1 else 0
    share = rank.trained / rank.parameters
    gradients = ceil(rank.block * share * reduced / split)
    head = ceil(rank.embedding * size / split)
    head_gradients = 0 if trainer.lora else ceil(rank.embedding * reduced / split)
    block = ceil((rank.block * rank.packing - rank.block_float8) * size / split) + ceil(rank.block_float8 / split)
    if layout.pipeline > 1:
        whole = ceil(rank.parameters * size / (split * layout.pipeline))
    elif habits.gathered_stays and rank.shards > 1:
        whole = ceil(rank.base / split) + block
    elif trainer.system in DEEPSPEED:
        whole = round(min(2 * SUBGROUP, rank.parameters) * size * rank.packing) + head
    else:
        root = (1 if rank.shape.tied else 2) * head if habits.root_stays else 0
        return Gathered(max(root, head) + block, root + 2 * block, gradients, head_gradients)
    return Gathered(whole, whole, gradients, head_gradients)


def _frozen_casts(trainer: Trainer, rank: Rank, cast: int, *, scoring: bool) -> Gathered:
    """Copies of a frozen base: autocast keeps none of weights that take no gradient, but the graph keeps one of each
    product for the gradient of its input. Packed projections are unpacked in their own product.

    Source: torch, `cached_cast` in `aten/src/ATen/autocast_mode.cpp`.
    """
    head = rank.embedding * rank.style.size
    block = 0 if trainer.quant is not None else rank.block * rank.style.size
    if trainer.checkpointing or scoring or trainer.quant is not None:
        return Gathered(head, block)
    return Gathered(cast, cast)


def loss_bytes(workload: Workload, rank: Rank, batch: Batch) -> tuple[int, int, int]:
    """Logits in the loss's forward pass, in its backward pass, and what stays of them in that of the blocks."""
    trainer, layout, shape = workload.trainer, workload.layout, rank.shape
    size, vocab = rank.style.size, ceil(shape.vocab / layout.tensor)
    chunk = min(batch.tokens, trainer.logprob_chunk or batch.tokens) * vocab
    if trainer.loss == "value":
        return 0, 0, 0
    if trainer.loss == "fused":
        return _fused_loss(workload, rank, batch)
    if trainer.loss == "hidden-chunks":
        # each chunk's part of the head's gradient is added to the sum of those before
        head = 2 * rank.embedding * size // layout.tensor if trainer.lora is None else 0
        return 2 * FP32 * chunk, 3 * FP32 * chunk + batch.tokens * shape.hidden * size + head, 0
    cost = _cost(workload, rank)
    cells = batch.tokens * vocab
    if trainer.loss == "logits-chunks" and not cost.rows_chunk and not rank.habits.chunks:
        # all logits and their gradients in half precision, the rest for one chunk at a time
        whole = 2 * size * cells + round(max(cost.forward, cost.backward) * chunk)
        return whole, whole, 0
    beside = cost.responses * batch.responses * vocab
    beside += size * cells if trainer.temperature else 0
    beside += size * cells if rank.style.softcapped else 0
    last = cost.rows_chunk * vocab * min(batch.tokens, batch.rows * LITGPT_CHUNK)
    return (
        round(cost.forward * cells) + beside,
        round(cost.backward * cells) + last + beside,
        round(cost.held * cells),
    )


def _fused_loss(workload: Workload, rank: Rank, batch: Batch) -> tuple[int, int, int]:
    """Liger's: gradients are formed chunk by chunk in the forward pass, and wait for the backward pass.

    Supervised, a chunk's logits are overwritten with their gradient (`plan/losses.py` has the derivation); as part of
    the head's gradient each chunk makes a product, and its fp32 copy where that is half precision. Of log-probs a
    chunk is one sample's answer, with two fp32 tensors beside its logits.
    """
    trainer, layout, shape, size = workload.trainer, workload.layout, rank.shape, rank.style.size
    vocab = ceil(shape.vocab / layout.tensor)
    trains_head = trainer.lora is None or trainer.lora.embeddings
    head = rank.embedding * size // layout.tensor if trains_head else 0
    states = batch.tokens * shape.hidden * size
    if trainer.scores:
        longest = batch.longest if batch.reach is None else batch.reach
        sample = min(longest, ceil(batch.responses / batch.rows))
        return sample * vocab * (2 * FP32 + size) + states + head, states + head, 0
    logits = fused_chunk(batch.tokens, shape.vocab, shape.hidden) * vocab * size
    part = head + (head // size * FP32 if size < FP32 else 0)
    return logits + states + head + part, states + head, 0


def _cost(workload: Workload, rank: Rank) -> LossCost:
    """The system's cost of full logits in this run."""
    trainer, habits = workload.trainer, rank.habits
    cost = habits.loss_fused if trainer.kernels == "fused" else habits.loss
    if habits.autocast and uses_zero(trainer):
        # masters in fp32 and parameters in half precision: nothing is left for autocast to do
        cost = cost.half()
    if workload.layout.tensor > 1:
        # each rank's part of the log-softmax has one fp32 temporary more, forward and backward
        return cost.plus(FP32)
    return cost


def moments(workload: Workload, batch: Batch, rank: Rank | None = None) -> tuple[Moment, ...]:
    """The moments of a training pass that can be its peak."""
    trainer, layout, rank = workload.trainer, workload.layout, rank or Rank.of(workload)
    accumulate = trainer.gradients_stay or _in_flight(workload) > 1
    whole, copies = blocks(workload, rank, batch, accumulate=accumulate), gathered(workload, rank)
    always, tail = _always(rank, batch), _tail_bytes(rank, batch)
    forward_loss, backward_loss, held = loss_bytes(workload, rank, batch)
    # a value head is one output wide
    vocab = 0 if trainer.loss == "value" else rank.shape.vocab
    head = rank.shape.hidden * vocab * rank.style.size
    head_gradient = 0 if trainer.lora and not trainer.lora.embeddings else ceil(head / layout.tensor)
    # the sum of the chunks' gradients is copied for the reduction when the last one of them is gone
    summed = max(0, head_gradient - copies.head_gradients) if rank.habits.chunks else 0
    unpacked = head if trainer.quant is not None and rank.habits.packed_head else 0
    # a loss from hidden states has been through the head already
    through = 0 if trainer.loss in ("fused", "hidden-chunks") else batch.tokens
    in_head = held + through * rank.style.size * ceil(vocab / layout.tensor)
    everything = _all_gradients(workload, rank, copies)
    before = everything if accumulate else 0
    waiting = 0 if accumulate else min(everything, head_gradient)
    rest = before or max(0, everything - min(everything, rank.share(rank.block_trained * rank.gradient_size)))
    left, full = whole.kept - whole.last + always, whole.kept + always + tail
    running, source = copies.blocks + copies.gradients, always + whole.source
    return (
        Moment("forward, last block", before, copies.blocks, left, whole.forward),
        Moment("loss, forward", before, copies.loss, full, unpacked, forward_loss),
        Moment("loss, backward", before, copies.loss, full, unpacked, backward_loss),
        Moment("head, backward", before, copies.loss + copies.head_gradients, full, head_gradient + summed, in_head),
        Moment("backward, last block", before + waiting, running, left, whole.backward, held),
        Moment("backward, first block", rest, running, source, whole.backward, held),
        Moment("backward, embedding", everything, copies.head_gradients, source, 0, held),
    )


def _all_gradients(workload: Workload, rank: Rank, copies: Gathered) -> int:
    """Gradients of one rank at the end of a backward pass, as far as they stay on the device until then."""
    layout, optimizer = workload.layout, workload.trainer.optimizer
    if rank.offloads_parameters:
        return copies.gradients
    if optimizer.in_backward:
        return max(rank.block, rank.embedding) * rank.gradient_size
    whole = rank.trained * rank.gradient_size // (layout.tensor * layout.pipeline)
    if layout.pipeline > 1 or (rank.habits.gathered_stays and rank.shards > 1 and _in_flight(workload) > 1):
        # gradients are divided only after the last micro-batch, and are summed until then
        return rank.gradients + whole if layout.pipeline > 1 else whole
    return rank.gradients


def _in_flight(workload: Workload) -> int:
    """Micro-batches of one optimizer step and rank."""
    rollout, layout = workload.rollout, workload.layout
    ranks = max(1, layout.shards * layout.replicas // layout.context)
    samples = rollout.prompts * rollout.samples // workload.trainer.updates
    return max(1, samples // (max(1, workload.trainer.rows) * ranks))


def _always(rank: Rank, batch: Batch) -> int:
    """Ids, labels and mask; sines and cosines; the mask that eager attention adds."""
    mask = batch.pairs * rank.style.size if rank.style.attention == "eager" else 0
    return 3 * 8 * batch.tokens + 2 * batch.longest * rank.shape.head_dim * FP32 + mask


def _tail_bytes(rank: Rank, batch: Batch) -> int:
    """The final norm: its input, the fp32 copy of it where there is one, its result."""
    style = rank.style
    width = 2 * style.stream + (0 if norm_is_fused(rank) else FP32)
    # tensor parallel ranks split the norm's tokens and gather its result for the head
    whole = style.size if style.tensor > 1 else 0
    return batch.tokens * rank.shape.hidden * (width // style.tensor + whole)


def train(workload: Workload, batch: Batch, rank: Rank | None = None) -> list[Item]:
    """The highest moment of forward and backward, beside the states."""
    rank = rank or Rank.of(workload)
    if workload.trainer.system == "headway":
        found = passes.highest(passes.training_moments(workload, batch, accumulate=workload.trainer.gradients_stay))
        gradients = found.gradients + found.head_gradient
        top = Moment(found.at, gradients, 0, found.kept, found.working, found.logits)
    else:
        top = max(moments(workload, batch, rank), key=lambda moment: moment.bytes)
    return _items(rank, top, batch)


def score(workload: Workload, batch: Batch) -> list[Item]:
    """A forward pass without gradients and its log-probs; gradients that stay are there too."""
    trainer, rank = workload.trainer, Rank.of(workload)
    before = rank.gradients if trainer.gradients_stay else 0
    if trainer.system == "headway":
        found = passes.highest(passes.scoring_moments(workload, batch))
        return _items(rank, Moment(found.at, before, 0, found.kept, found.working, found.logits), batch)
    whole, copies = blocks(workload, rank, batch), gathered(workload, rank, scoring=True)
    held = 0 if rank.offloads_parameters else before
    if trainer.loss == "fused":
        # only a loss is fused: log-probs alone are made of all logits
        workload = replace(workload, trainer=replace(trainer, loss="logits"))
    always, logits = _always(rank, batch) + whole.source, loss_bytes(workload, rank, batch)[0]
    pair = (
        Moment("forward, a block", held, copies.blocks, always, whole.forward_free),
        Moment("log-probs", held, copies.loss, always + whole.source, 0, logits),
    )
    return _items(rank, max(pair, key=lambda moment: moment.bytes), batch)


def _items(rank: Rank, top: Moment, batch: Batch) -> list[Item]:
    """The lines of a moment. Bounds: what other versions of a system keep was up to a tenth more, in 130 rows. An
    older compiler may keep inputs that are cast to float8 as they are, which is up to half more."""
    tokens = f"{batch.rows:,} x {batch.longest:,} tokens"
    gathers = 1.25
    if rank.habits.gathered_stays and rank.shards > 1 and top.gathered:
        gathers = max(gathers, rank.base / top.gathered)
    kept = 1.5 if rank.style.casts_again else 1.2 if rank.style.packed else 1.1
    rows = (
        ("gradients", top.gradients, 1.0, f"{rank.trained_formula} x {rank.gradient_size} B"),
        ("gathered blocks", top.gathered, gathers, "parameters that compute, and gradients before they are divided"),
        ("saved activations", top.kept, kept, f"{rank.shape.layers} blocks, {tokens}"),
        ("working set", top.working, 1.3, f"{top.at}, {tokens}"),
        ("logits", top.logits, 1.12, f"{top.at}, {tokens} x {rank.shape.vocab:,}"),
    )
    return [Item(name, size, round(size * bound), formula, SOURCE) for name, size, bound, formula in rows if size]


def step(workload: Workload, rank: Rank | None = None) -> list[Item]:
    """Gradients and the temporaries of the optimizer's step, beside the states."""
    optimizer, rank = workload.trainer.optimizer, rank or Rank.of(workload)
    gradients = rank.gradients
    if optimizer.in_backward or rank.offloads_parameters:
        gradients = 0
    found = [
        Item.exact("gradients", gradients, f"{rank.trained_formula} x {rank.gradient_size} B", SOURCE),
        _temporaries(workload, rank),
    ]
    return [item for item in found if item.upper]


def _temporaries(workload: Workload, rank: Rank) -> Item:
    """What there is beside states and gradients while the optimizer updates."""
    trainer, own = workload.trainer, ceil(rank.trained / rank.optimizer_divided)
    optimizer = trainer.optimizer
    name, one = "temporaries", 2 * FP32 * min(own, rank.share(rank.largest))
    if optimizer.offload >= 1 or optimizer.in_backward:
        return Item.exact(name, 0, "none", SOURCE)
    if trainer.system in DEEPSPEED:
        group = 2 * FP32 * min(own, SUBGROUP)
        return Item.exact(name, group, "fp32 gradients and a denominator of one group of the shard", SOURCE)
    if optimizer.kind == "adafactor" or optimizer.step == "blocks":
        return Item.exact(name, one, "one parameter at a time, in fp32", SOURCE)
    if optimizer.step == "foreach" and optimizer.kind in ("adamw", "lion", "rmsprop", "adagrad"):
        size = round(own * (FP32 if optimizer.master else STATE_BYTES[optimizer.state_dtype]))
        # torch 2.0 makes two such lists, later releases one
        return Item(name, size, 2 * size, "square roots of all second moments at once", SOURCE)
    return Item.exact(name, 0, "none", SOURCE)


def stream_bytes(workload: Workload, items: list[Item], rank: Rank) -> int:
    """What communication holds in pools of its own: the allocator gives no stream the freed memory of another.

    Gathered parameters and gradients under reduction come and go at different moments of a pass; the most of each
    stays reserved, beside what `items` already count.
    """
    if rank.shards == 1 or rank.habits.gathered_stays:
        return 0
    copies = gathered(workload, rank)
    counted = sum(item.bytes for item in items if item.item == "gathered blocks")
    return max(0, max(copies.blocks, copies.loss) + copies.gradients + copies.head_gradients - counted)


def gradient_pool(items: list[Item], rank: Rank) -> tuple[int, int]:
    """Bytes of a rank's gradients that `items` do not count, and their bound: reserved beside the highest moment.

    FSDP 2 makes the divided gradients in the stream that reduces them (`foreach_reduce` of torch), so that memory
    which logits left is not theirs. The same model on 8 and on 128 ranks differed by 16 B a parameter and rank, as
    with gradients. Where the loss is compiled, seven runs lie on both sides, and only the bound has them; adapters'
    are small.
    """
    if rank.shards == 1 or not rank.habits.pools_gradients:
        return 0, 0
    apart = max(0, rank.gradients - sum(item.bytes for item in items if item.item == "gradients"))
    likely = rank.style.full and (rank.habits.pools_gradients == "always" or not rank.style.fused)
    return apart * likely, apart


def earlier_holes(workload: Workload, batch: Batch, rank: Rank) -> int:
    """What the allocator holds beyond the highest moment of a pass because another moment left it more holes.

    So a longer sample never lowers what is reserved, though its highest moment may be one that needs fewer logits.
    """
    if workload.trainer.system == "headway":
        return 0

    def held(moment: Moment) -> float:
        return moment.bytes + HOLES * (moment.bytes - moment.logits) + LOGITS_HOLES * moment.logits

    found = moments(workload, batch, rank)
    return round(max(map(held, found)) - held(max(found, key=lambda moment: moment.bytes)))


def reserved(
    items: list[Item], habits: System = SYSTEMS["peft"], streams: int = 0, pool: tuple[int, int] = (0, 0)
) -> Item:
    """What the allocator holds beyond tensors: rounding and holes, in proportion to what comes and goes, and other
    streams' pools; `pool` that of gradients, with its bound."""
    size = upper = 0.0
    for item in items:
        if item.item not in PERMANENT:
            low, high = (LOGITS_HOLES, LOGITS_HOLES_UPPER) if item.item == "logits" else (HOLES, HOLES_UPPER)
            size, upper = size + low * item.bytes, upper + high * item.upper
    fixed = habits.held_back + streams + pool[0]
    return Item(
        "fragmentation", round(size) + fixed, round(upper) + 2 * habits.held_back + streams + pool[1],
        f"{HOLES:.0%} of transient bytes, {LOGITS_HOLES:.0%} of logits, {fixed:,} B", SOURCE,
    )  # fmt: skip
