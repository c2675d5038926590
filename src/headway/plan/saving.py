"""Host memory of loading and of a checkpoint: what the first rank gathers of all, and what every rank copies."""

from math import ceil

from headway.facts.workload import DTYPE_BYTES, Workload
from headway.plan.activations import FP32
from headway.plan.item import Item
from headway.plan.offload import SUBGROUP, optimizer_bytes
from headway.plan.rank import Rank
from headway.plan.systems import uses_zero
from headway.units import format_bytes

WRITE_BYTES = 256 << 20
"""What a checkpoint that is written tensor by tensor holds of them in host memory at a time."""
WHOLE_SHARDS = frozenset({"verl-fsdp"})
"""Trainers beside Megatron's that copy a rank's whole shard to the host before they write it: verl's FSDP checkpoint
(`ShardedStateDictConfig(offload_to_cpu=True)`, for the optimizer as well)."""
FILE_BYTES = 5_000_000_000
"""The largest file of a published checkpoint, which a rank reads in whole where it takes its shard from it; what
transformers 4 puts into one that it writes."""
LARGEST_FILE = 50_000_000_000
"""What transformers 5 puts into one file (`max_shard_size`)."""
FIRST = "all of it on the first rank"


def gathered(workload: Workload, rank: Rank | None = None) -> list[Item]:
    """What rank 0 has in host memory of the whole run's state while a checkpoint is written.

    `Workload.gathers`, else the system's habit (`System.gathers`). "in turn": weights, and when they are written the
    optimizer's state, so the larger of the two; "together": both at once. Under ZeRO only the weights are gathered.
    What is not divided is copied file by file by transformers, whole by torchtune, and not at all by others.
    Sources: torchtune's `CheckpointClient._save_checkpoint_sync`; accelerate's `get_state_dict`, `save_fsdp_model`
    and `save_fsdp_optimizer`; DeepSpeed's `_zero3_consolidated_16bit_state_dict`.
    """
    rank = rank or Rank.of(workload)
    how, weights = workload.gathers, _weights(workload, rank)
    how = rank.habits.gathers if how == "usual" else how
    if how == "nothing":
        return []
    if rank.shards == 1:
        return _undivided(workload, rank, weights)
    text = f"{rank.parameters:,} parameters"
    if how == "weights" or uses_zero(workload.trainer):
        return [Item("gathered weights", weights, weights + min(weights, FILE_BYTES), text, FIRST)]
    state = sum(optimizer_bytes(workload, rank)) * rank.optimizer_divided
    words = f"{format_bytes(weights)} of weights, {format_bytes(state)} of the optimizer"
    if how == "in turn":
        most = max(weights, state)
        return [Item("gathered checkpoint", most, most + min(weights, FILE_BYTES), f"{words}, in turn", FIRST)]
    return [
        Item("gathered weights", weights, weights + min(weights, FILE_BYTES), text, FIRST),
        Item.exact("gathered optimizer", state, f"{rank.trained:,} parameters; not after the last step", FIRST),
    ]


def _weights(workload: Workload, rank: Rank) -> int:
    """All parameters as they are written; torchtune unpacks a packed base."""
    base = rank.base
    if rank.habits.gathers == "together" and workload.trainer.quant is not None:
        base = rank.parameters * DTYPE_BYTES[workload.trainer.param_dtype]
    return base + (rank.trained * rank.trained_size if workload.trainer.lora is not None else 0)


def _undivided(workload: Workload, rank: Rank, weights: int) -> list[Item]:
    """A model that its rank has whole."""
    if workload.device != "cuda":
        return []
    if rank.habits.gathers == "together" or (rank.habits.gathers == "weights" and uses_zero(workload.trainer)):
        return [Item.exact("gathered weights", weights, f"{rank.parameters:,} parameters", "copied to the host")]
    if rank.habits.gathers != "in turn" or uses_zero(workload.trainer):
        return []
    if workload.trainer.lora is not None:
        weights = rank.trained * rank.trained_size
    size = min(weights, FILE_BYTES)
    return [Item("file being written", size, min(weights, LARGEST_FILE), "tensors of one file", "safetensors")]


def staging(workload: Workload, rank: Rank, held: int) -> Item:
    """What every rank has in host memory while it writes its own part; `held` is its state on the device.

    DeepSpeed writes storage by storage, and the optimizer's are as large as a group of its shard. Of ZeRO 1 and 2,
    whose ranks have the whole model, accelerate's `get_state_dict` makes every rank a copy on the CPU first
    (`clone_tensors_for_torch_save`).
    """
    if workload.trainer.system in WHOLE_SHARDS:
        return Item("checkpoint staging", held, held * 5 // 4, "the whole shard", "copied before it is written")
    size = WRITE_BYTES
    if uses_zero(workload.trainer) and rank.shards == 1 and rank.habits.gathers == "in turn":
        size = _weights(workload, rank)
    if uses_zero(workload.trainer) and not workload.trainer.optimizer.offload:
        own = ceil(rank.trained / rank.optimizer_divided)
        size = max(size, FP32 * (min(own, SUBGROUP) if rank.shards > 1 else own))
    most = max(4 * WRITE_BYTES, size)
    return Item("checkpoint staging", size, most, "tensors in flight", "written shard by shard")


ON_DEVICE = ("trl", "trl-script")
"""Systems that load a model by name onto the device of a single process (TRL 1.16, `create_model_from_path`)."""


def loading(workload: Workload, rank: Rank) -> tuple[Item, bool] | None:
    """What loading holds in host memory, and whether every rank does or the first alone; None where next to nothing.

    torchtune maps the files and copies the projections of queries and keys, whose order it changes. Others read the
    whole model first: the first rank for all where FSDP shards it, else every rank its own; where nothing is cast,
    the mapped files can be all of it. ZeRO 3 takes its shards file by file.
    """
    shape, trainer = workload.model, workload.trainer
    size, habit = DTYPE_BYTES[trainer.param_dtype], rank.habits.loads
    if habit == "mapped" or trainer.quant is not None:
        return None
    if habit == "permuted":
        moved = shape.layers * shape.hidden * (shape.query_width + shape.kv_width) * 2
        return Item.exact("projections being loaded", moved, "queries and keys, in another order", "one copy"), True
    whole = rank.parameters * size
    if uses_zero(trainer) and rank.shards > 1:
        return Item.exact("file being loaded", min(FILE_BYTES, rank.parameters * 2), "one file", "its shard"), True
    text = f"{rank.parameters:,} parameters x {size} B"
    if rank.shards > 1:
        return Item.exact("model being loaded", whole, text, "before it is sharded"), workload.loads == "each"
    cast = size == FP32 and not (trainer.system in ON_DEVICE and workload.layout.ranks == 1)
    return Item("model being loaded", whole if cast else 0, whole, text, "before it goes to the device"), True
