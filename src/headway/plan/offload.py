"""What of a trainer's state waits in host memory for good: offloaded or paged, and how pinned memory rounds it up."""

from math import ceil

from headway.facts.workload import Workload
from headway.plan import pinned
from headway.plan.activations import FP32
from headway.plan.item import Item
from headway.plan.rank import Rank
from headway.plan.systems import uses_zero

SUBGROUP = 1_000_000_000
"""Elements of a shard that DeepSpeed's ZeRO updates together, and most parameters that it keeps gathered."""
STATE_BYTES = {"fp32": 4.0, "bf16": 2.0, "int8": 1 + 4 / 256, "int4": 0.5 + 4 / 128}
"""Bytes of one optimizer state per element; low-bit ones carry an fp32 scale for a block of 256 or of 128."""
STATES = {"adamw": 2, "adafactor": 0, "sgd": 0, "muon": 1, "lion": 1, "rmsprop": 1, "adagrad": 1}
"""States per element. Adafactor keeps one row and one column of each matrix; plain SGD keeps nothing."""


def optimizer_bytes(workload: Workload, rank: Rank) -> tuple[int, int]:
    """Moments and fp32 master of one rank, wherever they are."""
    optimizer = workload.trainer.optimizer
    moments = rank.trained * STATES[optimizer.kind] * STATE_BYTES[optimizer.state_dtype]
    master = rank.trained * FP32 if optimizer.master and rank.trained_size < FP32 else 0
    return ceil(moments / rank.optimizer_divided), ceil(master / rank.optimizer_divided)


def host_states(workload: Workload, rank: Rank | None = None) -> list[Item]:
    """What one rank has in host memory: offloaded or paged state, parameters and their gradients."""
    optimizer, rank = workload.trainer.optimizer, rank or Rank.of(workload)
    away = 1.0 if optimizer.paged else optimizer.offload
    found: list[Item] = []
    if away:
        is_zero = uses_zero(workload.trainer) and not optimizer.paged
        found += _zero(workload, rank, away) if is_zero else _plain(workload, rank, away)
    if rank.offloads_parameters:
        found.append(_pinned("offloaded weights", workload, rank, rank.share(rank.base), rank.base_formula))
    if rank.offloads_parameters and not uses_zero(workload.trainer):
        text = f"{rank.trained_formula} x {rank.gradient_size} B"
        found.append(_pinned("offloaded gradients", workload, rank, rank.gradients, text))
    return [item for item in found if item.upper]


def _plain(workload: Workload, rank: Rank, away: float) -> list[Item]:
    """Moments are made like a parameter but not pinned (`torch.zeros_like`)."""
    moments, master = optimizer_bytes(workload, rank)
    state = workload.trainer.optimizer.state_dtype
    where = "managed memory" if workload.trainer.optimizer.paged else "pageable"
    return [Item.exact("offloaded optimizer", round((moments + master) * away), state, where)]


def _zero(workload: Workload, rank: Rank, away: float) -> list[Item]:
    """fp32 master and moments, and every gradient in fp32 for the update on the CPU; ZeRO 3 has another buffer of all
    gradients as they come.

    The bound is `pin_memory`, which rounds the flat buffers of up to 10^9 elements up to a power of two, and under
    ZeRO 1 and 2 the half-precision gradients that accumulation keeps. Source: DeepSpeed's
    `initialize_optimizer_states` in `stage_1_and_2.py` and `stage3.py`, `grad_partitions_flat_buffer`.
    """
    moments, master = optimizer_bytes(workload, rank)
    own, size = ceil(rank.trained / rank.optimizer_divided), rank.gradient_size
    flat = _flat(own) if rank.shards > 1 else pinned.power_of_two(own * FP32)
    buffer = own * size if rank.shards > 1 else 0
    rounded = pinned.power_of_two(own * size)
    held, most = round((moments + master) * away), round((moments + (flat if master else 0)) * away)
    gradients = round((own * FP32 + buffer) * away)
    text = f"{rank.trained_formula} x (4 B for the update{f' + {size} B' if buffer else ''})"
    return [
        Item("offloaded optimizer", held, max(held, most), "fp32 master and moments", "pinned where it is asked for"),
        Item("offloaded gradients", gradients, max(gradients, round((flat + rounded) * away)), text, "as above"),
    ]


def _flat(own: int) -> int:
    """fp32 buffers of one rank's elements in groups of 10^9, each rounded up to a power of two."""
    whole, rest = divmod(own, SUBGROUP)
    return whole * pinned.power_of_two(SUBGROUP * FP32) + (pinned.power_of_two(rest * FP32) if rest else 0)


def _pinned(name: str, workload: Workload, rank: Rank, size: int, text: str) -> Item:
    """A rank's part of the parameters or gradients in pinned memory, tensor by tensor.

    Source: FSDP's offload pins each sharded parameter, and torch pins what is copied to the host without waiting.
    """
    if uses_zero(workload.trainer):
        return Item(name, size, pinned.power_of_two(size), text, "pinned in one buffer")
    plain = ceil(workload.model.parameters() / rank.divided) * pinned.HALF
    ratio = pinned.rounded(workload.model, rank.divided, pinned.HALF) / plain
    held = max(size, round(size * ratio))
    return Item(name, held, held, f"{text}, in tensors rounded up to powers of two", "pinned")


def paged_states(workload: Workload, rank: Rank | None = None) -> list[Item]:
    """Paged state is managed memory: no allocator of torch counts it, and it is on the device while there is room."""
    if not workload.trainer.optimizer.paged:
        return []
    size = sum(optimizer_bytes(workload, rank or Rank.of(workload)))
    return [Item("paged optimizer", 0, size, workload.trainer.optimizer.state_dtype, "managed memory")]
