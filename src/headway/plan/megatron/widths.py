"""The projections of a block as one tensor parallel rank has them, by role."""

from math import ceil

from headway.facts.blocks import Block, Linear
from headway.facts.shapes import ModelShape
from headway.plan.megatron.run import Run

COLUMN = frozenset({
    "q", "k", "v", "gate", "up", "q_b", "kv_b", "in_qkv", "in_z", "in_b", "in_a", "in_qkvz", "in_ba",
})  # fmt: skip
"""Projections whose outputs the tensor ranks divide. Those to narrow latent vectors are on every rank in whole."""
ROW = frozenset({"o", "down", "out"})
"""Projections whose inputs they divide."""


def attention(shape: ModelShape, block: Block) -> tuple[Linear, ...]:
    """The attention's projections of the whole model."""
    if block.attention == "linear" and shape.linear is not None:
        return shape.linear.linears(shape.hidden)
    if block.attention == "mla" and shape.mla is not None:
        return shape.mla.linears(shape.hidden, shape.heads)
    roles = ("q", "k", "v", "o")
    return tuple(Linear(role, *pair) for role, pair in zip(roles, shape.attention_linears(block), strict=True))


def attention_of(run: Run, block: Block) -> tuple[Linear, ...]:
    """The same of one rank, which has at least one key and value head."""
    found = []
    for one in attention(run.shape, block):
        if one.role in ("k", "v"):
            found.append(Linear(one.role, one.inputs, run.kv_heads * run.shape.head_dim))
        elif one.role in COLUMN:
            found.append(Linear(one.role, one.inputs, ceil(one.outputs / run.tensor)))
        elif one.role in ROW:
            found.append(Linear(one.role, ceil(one.inputs / run.tensor), one.outputs))
        else:
            found.append(one)
    return tuple(found)


def fused_attention(run: Run, block: Block) -> tuple[Linear, ...]:
    """As Megatron makes them: queries, keys and values in one projection, where they come from one input."""
    found = attention_of(run, block)
    qkv = [one for one in found if one.role in ("q", "k", "v")]
    if len(qkv) < 3:
        return found
    return (Linear("qkv", run.shape.hidden, sum(one.outputs for one in qkv)), found[-1])


def mlp(shape: ModelShape, width: int, ranks: int) -> tuple[Linear, Linear]:
    """An MLP's projections of one of `ranks`: gate and up in one, and down."""
    wide = ceil(width / ranks)
    return Linear("up", shape.hidden, wide * (2 if shape.gated else 1)), Linear("down", wide, shape.hidden)


def plain_width(shape: ModelShape, block: Block) -> int:
    """Width of the dense MLP, or of the shared experts (0: none)."""
    return shape.shared_ffn if block.experts else shape.ffn
