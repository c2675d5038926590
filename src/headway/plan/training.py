"""One rank of another system's trainer: what it holds between passes, in a pass, and in the optimizer's step."""

from dataclasses import dataclass, replace
from math import ceil

from headway.facts.workload import DTYPE_BYTES, Workload
from headway.plan import logits, passes
from headway.plan.activations import Batch
from headway.plan.item import Item
from headway.plan.packed import packed_bytes, packed_elements
from headway.plan.stack import SOFTCAPPED, replay, saved_by_op
from headway.plan.systems import SYSTEMS, Style, System, system

FP32 = 4
STATE_BYTES = {"fp32": 4.0, "bf16": 2.0, "int8": 1 + 4 / 256, "int4": 0.5 + 4 / 128}
"""Bytes of one optimizer state per element; the low-bit ones carry an fp32 scale per block of 256 or 128."""
STATES = {"adamw": 2, "adafactor": 0, "sgd": 0, "muon": 1, "lion": 1}
"""States per element. Adafactor keeps one row and one column of each matrix; plain SGD keeps nothing."""
SUBGROUP = 1_000_000_000
"""Elements of a shard that DeepSpeed's ZeRO updates together, and most parameters that it keeps gathered."""


def micro_batch(workload: Workload) -> Batch:
    """The fullest micro-batch of one rank.

    `rows` samples of the longest length where the trainer counts samples; else tokens up to the cap, or the longest
    sample alone where it is longer.
    """
    trainer, rollout = workload.trainer, workload.rollout
    ranks = workload.layout.context
    if trainer.rows:
        longest = ceil(rollout.longest / ranks)
        return Batch(trainer.rows, longest, trainer.rows * ceil(min(rollout.max_answer, rollout.longest) / ranks))
    samples = max(1, rollout.prompts * rollout.samples // trainer.updates)
    tokens = ceil(min(max(trainer.cap, rollout.longest), samples * rollout.longest) / ranks)
    answers = ceil(min(samples * rollout.max_answer, tokens) / 1)
    return Batch(1, tokens, min(tokens, answers), reach=ceil(rollout.longest / ranks))


def shards(workload: Workload) -> int:
    """Ranks that divide one set of states."""
    return workload.layout.shards


def model_ranks(workload: Workload) -> int:
    """Ranks that divide the layers and the widths."""
    return workload.layout.tensor * workload.layout.pipeline


def base_bytes(workload: Workload) -> int:
    """The model's parameters before sharding: as they are, or with projections packed."""
    shape, trainer = workload.model, workload.trainer
    size = DTYPE_BYTES[trainer.param_dtype]
    if trainer.quant is None:
        return shape.parameters() * size
    return packed_bytes(shape, trainer.quant, size, head=system(trainer.system).packed_head)


def trained_parameters(workload: Workload) -> int:
    """Elements that take a gradient, before sharding."""
    shape, lora = workload.model, workload.trainer.lora
    if lora is None:
        return shape.parameters()
    extra = (1 if shape.tied else 2) * shape.embedding_parameters() if lora.embeddings else 0
    return shape.lora_parameters(lora.rank, lora.targets) + extra


def trained_size(workload: Workload) -> int:
    """Bytes of a trained element."""
    lora = workload.trainer.lora
    return DTYPE_BYTES[workload.trainer.param_dtype if lora is None else lora.dtype]


def gradient_size(workload: Workload) -> int:
    """Bytes of an element's gradient."""
    dtype = workload.trainer.grad_dtype
    return DTYPE_BYTES[dtype] if dtype else trained_size(workload)


def gradient_bytes(workload: Workload) -> int:
    """The full set of gradients of one rank."""
    return _shard(workload, trained_parameters(workload) * gradient_size(workload))


def _shard(workload: Workload, size: float) -> int:
    return ceil(size / (shards(workload) * model_ranks(workload)))


def states(workload: Workload, *, stepped: bool) -> list[Item]:
    """What the device holds between passes; `stepped`: the optimizer has its state already."""
    trainer = workload.trainer
    where = _where(workload)
    found = []
    on_device = 1 - trainer.optimizer.offload if _offloads_parameters(workload) else 1.0
    base = _shard(workload, base_bytes(workload) * on_device)
    count = workload.model.parameters()
    packed = f", projections in {trainer.quant.kind}" if trainer.quant else ""
    found.append(Item.exact("weights", base, f"{count:,} parameters{packed}{where}", "plan/training.py"))
    trained = trained_parameters(workload)
    if trainer.lora is not None:
        size = _shard(workload, trained * trained_size(workload) * on_device)
        found.append(
            Item.exact(
                "adapters", size, f"{trained:,} parameters x {trained_size(workload)} B{where}", "plan/training.py"
            )
        )
    if stepped:
        found += _optimizer_items(workload)
    return [item for item in found if item.upper]


def load_bytes(workload: Workload) -> int:
    """The most that loading holds beside the states: the largest parameter as it is read, or the whole model where a
    rank takes its shard from all of it."""
    shape, trainer = workload.model, workload.trainer
    whole = shape.block_parameters() if shards(workload) > 1 else shape.hidden * shape.ffn
    largest = max(shape.embedding_parameters(), whole) * DTYPE_BYTES[trainer.param_dtype]
    if system(trainer.system).gathered_stays and shards(workload) > 1:
        return base_bytes(workload) + largest
    return largest


def _where(workload: Workload) -> str:
    ranks = shards(workload) * model_ranks(workload)
    return f" over {ranks} ranks" if ranks > 1 else ""


def _offloads_parameters(workload: Workload) -> bool:
    """Whether parameters and gradients wait in host memory too, as FSDP's CPU offload has it."""
    trainer = workload.trainer
    sharded = shards(workload) > 1 or trainer.system.startswith("fsdp")
    return trainer.optimizer.offload >= 1 and sharded and trainer.system != "deepspeed"


def optimizer_bytes(workload: Workload) -> tuple[int, int]:
    """Moments and fp32 master of one rank, wherever they are."""
    optimizer = workload.trainer.optimizer
    trained = trained_parameters(workload)
    moments = trained * STATES[optimizer.kind] * STATE_BYTES[optimizer.state_dtype]
    master = trained * FP32 if optimizer.master and trained_size(workload) < FP32 else 0
    return _shard(workload, moments), _shard(workload, master)


def _optimizer_items(workload: Workload) -> list[Item]:
    optimizer = workload.trainer.optimizer
    moments, master = optimizer_bytes(workload)
    here = 0.0 if optimizer.paged else 1 - optimizer.offload
    trained = trained_parameters(workload)
    where = _where(workload)
    kept = round(moments * here)
    # paged state is in device memory as long as there is room; small parameters keep full precision
    upper = moments if optimizer.paged else kept
    if optimizer.state_dtype in ("int8", "int4"):
        upper = round(1.1 * upper)
    return [
        Item(
            "optimizer moments",
            kept,
            upper,
            f"{trained:,} parameters, {optimizer.state_dtype}{where}",
            optimizer.kind,
        ),
        Item.exact("fp32 master", round(master * here), f"{trained:,} parameters x 4 B{where}", optimizer.kind),
    ]


def host_states(workload: Workload) -> list[Item]:
    """What waits in host memory, pinned: offloaded or paged state, and parameters with their gradients under FSDP."""
    trainer = workload.trainer
    optimizer = trainer.optimizer
    moments, master = optimizer_bytes(workload)
    away = 1.0 if optimizer.paged else optimizer.offload
    found = [Item.exact("offloaded optimizer", round((moments + master) * away), optimizer.state_dtype, "pinned")]
    if _offloads_parameters(workload):
        base = _shard(workload, base_bytes(workload))
        found.append(Item.exact("offloaded weights", base, "parameters", "pinned"))
        found.append(Item.exact("offloaded gradients", gradient_bytes(workload), "gradients", "pinned"))
    return [item for item in found if item.upper]


@dataclass(frozen=True)
class Moment:
    """What is alive at one moment of a pass, beside the states, in bytes."""

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


@dataclass(frozen=True)
class Blocks:
    """All blocks of one rank for one batch: what they keep, and the most that one of them holds while it runs.

    `last` is what the last block keeps of `kept`: while it runs backward, that is part of its `backward`.
    """

    kept: int
    last: int
    forward: int
    forward_free: int
    backward: int
    source: int


def blocks(workload: Workload, batch: Batch) -> Blocks:
    """The blocks of one pipeline stage. The first stage holds as many micro-batches as there are stages."""
    shape, trainer, layout = workload.model, workload.trainer, workload.layout
    style, counts = Style.of(trainer, layout.tensor), batch.counts
    kept = last = forward = free = backward = source = 0
    for block, number in shape.blocks():
        found = replay(shape, style, block)
        entering = found.source.at(counts)
        saves = found.kept.at(counts)
        top = found.backward.at(counts)
        if trainer.checkpointing:
            lasting = 0 if found.source_kept else entering
            top = max(top + lasting, found.recompute.at(counts))
            saves = 0 if style.habits.checkpoints_away else entering
        elif trainer.selective:
            saves = saved_by_op(shape, style, block).at(counts)
            top = max(top, found.recompute.at(counts))
        kept += number * saves
        last = max(last, saves)
        forward = max(forward, (found.forward_free if trainer.checkpointing else found.forward).at(counts))
        free, backward, source = max(free, found.forward_free.at(counts)), max(backward, top), max(source, entering)
    if layout.tensor > 1 and layout.sequence_parallel:
        kept, last, source = (
            size // (layout.tensor if trainer.checkpointing else 1) for size in (kept, last, source)
        )
        gathers = 4 * batch.tokens * shape.hidden * style.size
        forward, free, backward = forward + gathers, free + gathers, backward + gathers
    return Blocks(kept, last, forward, free, backward, source)


@dataclass(frozen=True)
class Gathered:
    """Bytes of parameters gathered or cast for computing, and of gradients before they are divided: while the loss
    runs, and while blocks run.

    >>> Gathered(10, 20, 30).blocks
    20
    """

    loss: int = 0
    blocks: int = 0
    gradients: int = 0
    head_gradients: int = 0


def gathered(workload: Workload) -> Gathered:
    """Two blocks, the one that computes and the next; for the loss the head and one block.

    Gradients of one block, or of the head, exist in the dtype of computing and as the reduction takes them. ZeRO-3
    keeps up to its limit of parameters gathered, and as many that will soon be used again. A pipeline stage keeps what
    it gathered for its other micro-batches.
    """
    shape, trainer, layout = workload.model, workload.trainer, workload.layout
    habits = system(trainer.system)
    size = DTYPE_BYTES[trainer.compute_dtype or trainer.param_dtype]
    if shards(workload) == 1 and habits.autocast and size != DTYPE_BYTES[trainer.param_dtype]:
        # autocast holds its copies of all weights until the forward pass is over, their users until their backward
        cast = packed_elements(shape, head=True) * size
        return Gathered(cast, shape.block_parameters() * size if trainer.checkpointing else cast)
    if shards(workload) == 1 and not _casts(workload):
        return Gathered()
    reduced = gradient_size(workload) if shards(workload) > 1 else 0
    share = 1.0 if trainer.lora is None else trained_parameters(workload) / shape.parameters()
    split = layout.tensor
    gradients = ceil(shape.block_parameters() * share * (size + reduced) / split)
    head = ceil(shape.embedding_parameters() * size / split)
    head_gradients = 0 if trainer.lora else ceil(shape.embedding_parameters() * reduced / split)
    packing = base_bytes(workload) / (shape.parameters() * DTYPE_BYTES[trainer.param_dtype])
    block = ceil(shape.block_parameters() * size * packing / split)
    if layout.pipeline > 1:
        stage = ceil(shape.parameters() * size / model_ranks(workload))
        return Gathered(stage, stage, gradients, head_gradients)
    if habits.gathered_stays and trainer.lora is not None and shards(workload) > 1:
        whole = ceil(base_bytes(workload) / split) + block
        return Gathered(whole, whole, gradients, head_gradients)
    if trainer.system == "deepspeed":
        live = round(min(2 * SUBGROUP, shape.parameters()) * size * packing) + head
        return Gathered(live, live, gradients, head_gradients)
    root = (1 if shape.tied else 2) * head if habits.root_stays else 0
    return Gathered(max(root, head) + block, root + 2 * block, gradients, head_gradients)


def _casts(workload: Workload) -> bool:
    """Whether parameters are cast for computing although one rank has them all, as FSDP2's mixed precision does."""
    trainer = workload.trainer
    compute = trainer.compute_dtype or trainer.param_dtype
    return compute != trainer.param_dtype and trainer.system in CASTING


CASTING = ("fsdp1", "fsdp2", "torchtitan", "torchtune", "miles-fsdp")
"""Systems that compute on cast copies of a block's parameters."""


def loss_bytes(workload: Workload, batch: Batch) -> tuple[int, int, int]:
    """Logits in the loss's forward pass, in its backward pass, and what stays of them in that of the blocks."""
    shape, trainer, layout = workload.model, workload.trainer, workload.layout
    habits = system(trainer.system)
    size = DTYPE_BYTES[trainer.compute_dtype or trainer.param_dtype]
    vocab = ceil(shape.vocab / layout.tensor)
    chunk = min(batch.tokens, trainer.logprob_chunk or batch.tokens)
    states_size = batch.tokens * shape.hidden * size
    if trainer.loss in ("hidden-chunks", "fused"):
        head = shape.embedding_parameters() * size // layout.tensor if trainer.lora is None else 0
        one = logits.chunk_bytes(vocab, batch.tokens, chunk)
        return 2 * one, 3 * one + states_size + head, 0
    cells = batch.tokens * vocab
    cost = habits.loss_fused if trainer.kernels == "fused" else habits.loss
    if habits.autocast and trainer.optimizer.master:
        cost = cost.half()
    if layout.tensor > 1:
        # each rank's part of log-softmax has one fp32 temporary more, forward and backward
        cost = replace(cost, forward=cost.forward + FP32, backward=cost.backward + FP32)
    extra = cost.rows_chunk * vocab * min(batch.tokens, batch.rows * LITGPT_CHUNK) if cost.rows_chunk else 0
    extra_forward = cost.responses * batch.responses * vocab + (size * cells if trainer.temperature else 0)
    if trainer.loss == "logits-chunks" and not cost.rows_chunk:
        # all logits in half precision, the rest for one chunk at a time; their gradients take the logits' place
        one = (cost.forward + cost.backward) * min(chunk, batch.tokens) * vocab
        return 2 * size * cells + one, 2 * size * cells + one, 0
    return (
        cost.forward * cells + extra_forward, cost.backward * cells + extra + extra_forward, cost.held * cells,
    )  # fmt: skip


LITGPT_CHUNK = 128
"""Tokens of each sample whose logits litgpt makes at a time."""


def moments(workload: Workload, batch: Batch) -> tuple[Moment, ...]:
    """The moments of a training pass that can be its peak."""
    shape, trainer, layout = workload.model, workload.trainer, workload.layout
    style = Style.of(trainer, layout.tensor)
    whole = blocks(workload, batch)
    stages = layout.pipeline
    kept = whole.kept if stages == 1 else whole.kept // stages * min(stages, _in_flight(workload))
    always = _always(workload, batch)
    embedded = batch.tokens * shape.hidden * style.size // (layout.tensor if layout.sequence_parallel else 1)
    tail = _tail_bytes(workload, batch)
    forward_loss, backward_loss, held = loss_bytes(workload, batch)
    cells = batch.tokens * ceil(shape.vocab / layout.tensor)
    head = 0
    if trainer.lora is None or trainer.lora.embeddings:
        head = ceil(shape.embedding_parameters() * style.size / layout.tensor)
    unpacked = 0
    if trainer.quant is not None and style.habits.packed_head:
        unpacked = shape.embedding_parameters() * style.size
    if shape.family in SOFTCAPPED:
        # what the cap's tanh keeps of the logits
        forward_loss, backward_loss = (size + cells * style.size for size in (forward_loss, backward_loss))
    whole_blocks = gathered(workload)
    bucket = whole_blocks.gradients
    everything = gradient_bytes(workload)
    if stages > 1:
        # gradients are divided only after the last micro-batch, and are summed in fp32 until then
        everything += trained_parameters(workload) * gradient_size(workload) // model_ranks(workload)
    if trainer.optimizer.in_backward:
        everything = ceil(max(shape.block_parameters(), shape.embedding_parameters()) * gradient_size(workload))
    if _offloads_parameters(workload):
        everything = bucket
    before = everything if _accumulates(workload) else 0
    own = min(everything, head if trainer.lora is None else everything)
    one, left, copies = Moment, kept - whole.last + always, whole_blocks
    running = copies.blocks + copies.gradients
    return (
        one("forward, last block", before, copies.blocks, left, whole.forward),
        one("loss, forward", before, copies.loss, kept + always + tail, unpacked, forward_loss),
        one(
            "loss, backward", before, copies.loss + copies.head_gradients, kept + always + tail, unpacked + head,
            backward_loss,
        ),
        one("backward, last block", max(before, own), running, left, whole.backward, held),
        one("backward, first block", everything, running, always + embedded, whole.backward, held),
    )  # fmt: skip


def _in_flight(workload: Workload) -> int:
    """Micro-batches of one optimizer step and rank."""
    rows = max(1, workload.trainer.rows)
    ranks = max(1, workload.layout.shards * workload.layout.replicas // workload.layout.context)
    samples = workload.rollout.prompts * workload.rollout.samples // workload.trainer.updates
    return max(1, samples // (rows * ranks))


def _accumulates(workload: Workload) -> bool:
    """Whether gradients of an earlier micro-batch or step are there when a pass begins."""
    return workload.trainer.gradients_stay or _in_flight(workload) > 1


def _always(workload: Workload, batch: Batch) -> int:
    """Ids, labels, and mask; sines and cosines; the mask that eager attention adds."""
    style = Style.of(workload.trainer)
    mask = batch.pairs * style.size if style.attention == "eager" else 0
    return 3 * 8 * batch.tokens + 2 * batch.longest * workload.model.head_dim * FP32 + mask


def _tail_bytes(workload: Workload, batch: Batch) -> int:
    """The final norm: its input, the fp32 copy of it where there is one, its result."""
    style = Style.of(workload.trainer, workload.layout.tensor)
    fused = style.fused or style.habits.norm == "fused" or workload.model.norm == "layer" or style.size == FP32
    width = 2 * style.size + (0 if fused else FP32)
    return batch.tokens * workload.model.hidden * width


def train(workload: Workload, batch: Batch) -> list[Item]:
    """The highest moment of forward and backward, beside the states."""
    if workload.trainer.system == "headway":
        found = passes.highest(passes.training_moments(workload, batch, accumulate=workload.trainer.gradients_stay))
        top = Moment(found.at, found.gradients + found.head_gradient, 0, found.kept, found.working, found.logits)
    else:
        top = max(moments(workload, batch), key=lambda moment: moment.bytes)
    return _items(workload, top, batch)


def _items(workload: Workload, top: Moment, batch: Batch) -> list[Item]:
    tokens = f"{batch.rows:,} x {batch.longest:,} tokens"
    layers = workload.model.layers
    kept_whole = system(workload.trainer.system).gathered_stays and shards(workload) > 1
    gathers = max(1.25, base_bytes(workload) / top.gathered) if kept_whole and top.gathered else 1.25
    rows = (
        ("gradients", top.gradients, 1.0, f"{trained_parameters(workload):,} parameters{_where(workload)}"),
        ("gathered blocks", top.gathered, gathers, "parameters of the blocks that compute, and their gradients"),
        ("saved activations", top.kept, 1.1 if workload.trainer.quant is None else 1.2, f"{layers} blocks, {tokens}"),
        ("working set", top.working, 1.3, f"{top.at}, {tokens}"),
        ("logits", top.logits, 1.12, f"{top.at}, {tokens} x {workload.model.vocab:,}"),
    )
    return [
        Item(item, size, round(size * bound), formula, "plan/training.py")
        for item, size, bound, formula in rows
        if size
    ]


def score(workload: Workload, batch: Batch) -> list[Item]:
    """A forward pass without gradients and its log-probs; gradients that stay are there too."""
    trainer, shape = workload.trainer, workload.model
    before = gradient_bytes(workload) if trainer.gradients_stay and not _offloads_parameters(workload) else 0
    if trainer.system == "headway":
        found = passes.highest(passes.scoring_moments(workload, batch))
        return _items(workload, Moment(found.at, before, 0, found.kept, found.working, found.logits), batch)
    whole, always = blocks(workload, batch), _always(workload, batch)
    style = Style.of(trainer, workload.layout.tensor)
    embedded = batch.tokens * shape.hidden * style.size
    forward_loss, _, _ = loss_bytes(workload, batch)
    copies = gathered(workload)
    pair = (
        Moment("forward, a block", before, copies.blocks, always + embedded, whole.forward_free),
        Moment("log-probs", before, copies.loss, always + 2 * embedded, 0, forward_loss),
    )
    return _items(workload, max(pair, key=lambda moment: moment.bytes), batch)


def step(workload: Workload) -> list[Item]:
    """Gradients and the temporaries of the optimizer's step, beside the states."""
    optimizer = workload.trainer.optimizer
    gradients = gradient_bytes(workload)
    if optimizer.in_backward or _offloads_parameters(workload):
        gradients = 0
    found = [Item.exact("gradients", gradients, "all of one rank", "plan/training.py")]
    size, formula = step_temporaries(workload)
    found.append(Item.exact("temporaries", size, formula, "plan/training.py"))
    return [item for item in found if item.upper]


def step_temporaries(workload: Workload) -> tuple[int, str]:
    """Bytes beside states and gradients while the optimizer updates, and what they are."""
    trainer = workload.trainer
    optimizer = trainer.optimizer
    trained = trained_parameters(workload)
    own = _shard(workload, trained)
    if optimizer.offload >= 1 or optimizer.in_backward:
        return 0, "none"
    if trainer.system == "deepspeed":
        # fp32 gradients of one group of the shard, and what AdamW makes over it
        return 2 * FP32 * min(own, SUBGROUP), "fp32 gradients and a denominator of one group"
    largest = _shard(workload, max(workload.model.embedding_parameters(), workload.model.hidden * workload.model.ffn))
    if optimizer.kind == "adafactor":
        return 2 * FP32 * min(own, largest), "update of one parameter in fp32"
    if optimizer.step == "foreach" and optimizer.kind in ("adamw", "lion"):
        state = FP32 if optimizer.master else STATE_BYTES[optimizer.state_dtype]
        return round(own * state), "square roots of all second moments at once"
    if optimizer.step == "blocks":
        return 2 * FP32 * min(own, largest), "one parameter at a time"
    return 0, "none"


HOLES, HOLES_UPPER = 0.03, 0.12
"""Share of transient bytes that the allocator holds in the rounding of blocks and in holes; fitted on 30 rows."""
LOGITS_HOLES, LOGITS_HOLES_UPPER = 0.20, 0.30
"""The same for logits: a freed copy in half precision has no room for one in fp32, so segments of both stay."""


def reserved(items: list[Item], habits: System = SYSTEMS["peft"]) -> Item:
    """What the allocator holds beyond tensors: rounding and holes, in proportion to what comes and goes."""
    passing = [item for item in items if item.item not in PERMANENT]
    size = upper = 0.0
    for item in passing:
        low, high = (LOGITS_HOLES, LOGITS_HOLES_UPPER) if item.item == "logits" else (HOLES, HOLES_UPPER)
        size, upper = size + low * item.bytes, upper + high * item.upper
    return Item(
        "fragmentation", round(size) + habits.held_back, round(upper) + 2 * habits.held_back,
        f"{HOLES:.0%} of transient bytes, {LOGITS_HOLES:.0%} of logits, {habits.held_back:,} B", "plan/training.py",
    )  # fmt: skip


PERMANENT = frozenset({"weights", "adapters", "optimizer moments", "fp32 master", "reference weights"})
"""Items that stay where they were put."""
