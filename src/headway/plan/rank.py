"""What one rank of another system's trainer has of the model: elements, bytes and the replays of its blocks."""

from functools import cache
from math import ceil

from msgspec import Struct

from headway.facts.shapes import ModelShape
from headway.facts.workload import DTYPE_BYTES, Layout, Trainer, Workload
from headway.plan.activations import FP32, Replay
from headway.plan.packed import packed_bytes, packed_elements
from headway.plan.stack import replay, saved_by_op
from headway.plan.systems import Style, System, uses_zero
from headway.plan.tape import Size

CASTING = ("fsdp1", "fsdp2", "torchtitan", "torchtune", "miles-fsdp", "verl-fsdp")
"""Systems that compute on cast copies of a block's parameters, which exist on one rank too."""
SOFTCAPPED = frozenset({"gemma2"})
"""Families that cap attention scores and logits with a tanh, which fused attention kernels do not do."""


class Group(Struct, frozen=True):
    """Identical blocks: how many, their replays, and what selective checkpointing keeps of one."""

    number: int
    replay: Replay
    selective: Size


class Rank(Struct, frozen=True, eq=False):
    """Sizes that do not depend on a batch. Counts are of the whole model, before it is divided over ranks.

    `base` is the bytes of all parameters as they are stored, `packing` their share of unpacked ones. `trained` are
    elements with a gradient of `gradient_size` bytes, themselves `trained_size`. `block` and `embedding` are elements
    of the largest block (`block_trained`: without adapters; `block_float8`: gathered in float8) and of the
    embedding, `largest` of the largest parameter, `projections` of all matrices. `divided` ranks share parameters,
    `optimizer_divided` the optimizer's state. `gradients` is one rank's full set in bytes. The formulas are words for
    the ledger.
    """

    shape: ModelShape
    style: Style
    parameters: int
    base: int
    packing: float
    trained: int
    trained_size: int
    gradient_size: int
    block: int
    block_trained: int
    block_float8: int
    embedding: int
    largest: int
    projections: int
    groups: tuple[Group, ...]
    shards: int
    divided: int
    optimizer_divided: int
    casts: bool
    offloads_parameters: bool
    gradients: int
    base_formula: str
    trained_formula: str

    @property
    def habits(self) -> System:
        """The system's."""
        return self.style.habits

    def share(self, size: float) -> int:
        """One rank's part of something that all ranks of a model divide, padded up."""
        return ceil(size / self.divided)

    @classmethod
    def of(cls, workload: Workload) -> "Rank":
        """The rank of a run, made once for a model, a trainer and a layout."""
        return _rank(workload.model, workload.trainer, workload.layout)


@cache
def _rank(shape: ModelShape, trainer: Trainer, layout: Layout) -> Rank:
    style = Style.of(trainer, layout.tensor, softcapped=shape.family in SOFTCAPPED)
    size = DTYPE_BYTES[trainer.param_dtype]
    parameters = shape.parameters()
    base = parameters * size
    if trainer.quant is not None:
        base = packed_bytes(shape, trainer.quant, size, head=style.habits.packed_head)
    lora = trainer.lora
    trained, trained_size = parameters, size
    if lora is not None:
        heads = 1 if shape.tied else 2
        trained = shape.lora_parameters(lora.rank, lora.targets)
        trained += heads * shape.embedding_parameters() if lora.embeddings else 0
        trained_size = DTYPE_BYTES[lora.dtype]
    gradient_size = DTYPE_BYTES[trainer.grad_dtype] if trainer.grad_dtype else trained_size
    divided = layout.shards * layout.tensor * layout.pipeline
    optimizer_divided = divided * (layout.replicas if layout.zero != "none" else 1)
    gradients_divided = divided * (layout.replicas if layout.zero == "gradients" else 1)
    offload = trainer.optimizer.offload >= 1 and not uses_zero(trainer)
    where = f" over {divided} ranks" if divided > 1 else ""
    packed = f", projections in {trainer.quant.kind}" if trainer.quant else ""
    return Rank(
        shape=shape, style=style, parameters=parameters, base=base, packing=base / (parameters * size),
        trained=trained, trained_size=trained_size, gradient_size=gradient_size,
        block=shape.block_parameters(),
        block_trained=shape.block_parameters() if lora is None else 0,
        block_float8=_in_float8(shape) if style.float8 is not None and style.float8.gather else 0,
        embedding=shape.embedding_parameters(),
        largest=max(shape.embedding_parameters(), shape.hidden * shape.ffn),
        projections=packed_elements(shape, head=True),
        groups=tuple(
            Group(number, replay(shape, style, block), saved_by_op(shape, style, block))
            for block, number in shape.blocks()
        ),
        shards=layout.shards, divided=divided,
        optimizer_divided=optimizer_divided, casts=trainer.system in CASTING and style.size < size,
        offloads_parameters=trainer.offload_parameters
        or (offload and (layout.shards > 1 or trainer.system.startswith("fsdp"))),
        gradients=ceil(trained * gradient_size / gradients_divided),
        base_formula=f"{parameters:,} parameters{packed}{where}", trained_formula=f"{trained:,} parameters{where}",
    )  # fmt: skip


def _in_float8(shape: ModelShape) -> int:
    """Elements of the largest block's projections; experts are none."""
    return max(sum(a * b for a, b in shape.lora_linears("all-linear", block)) for block, _ in shape.blocks())


def norm_is_fused(rank: Rank) -> bool:
    """Whether the norms keep their input as it is, without a copy in fp32."""
    style = rank.style
    return style.fused or style.habits.norm == "fused" or rank.shape.norm == "layer" or style.stream == FP32
