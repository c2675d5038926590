"""The projections of a block as one tensor parallel rank has them, by role."""

from functools import lru_cache
from math import ceil

from headway.facts.blocks import Block, Linear
from headway.facts.shapes import ModelShape

COLUMN = frozenset({
    "q", "k", "v", "gate", "up", "q_b", "kv_b", "in_qkv", "in_z", "in_b", "in_a", "in_qkvz", "in_ba",
    "in_mamba",
})  # fmt: skip
"""Projections whose outputs the tensor ranks divide. Those to narrow latent vectors are on every rank in whole."""
ROW = frozenset({"o", "down", "out"})
"""Projections whose inputs they divide."""


@lru_cache(maxsize=1024)
def attention(shape: ModelShape, block: Block) -> tuple[Linear, ...]:
    """The attention's projections of the whole model."""
    if block.attention == "none":
        return ()
    if block.attention == "mamba" and shape.mamba is not None:
        return shape.mamba.linears(shape.hidden)
    if block.attention == "linear" and shape.linear is not None:
        return shape.linear.linears(shape.hidden)
    if block.attention == "mla" and shape.mla is not None:
        return shape.mla.linears(shape.hidden, shape.heads)
    roles = ("q", "k", "v", "o")
    return tuple(Linear(role, *pair) for role, pair in zip(roles, shape.attention_linears(block), strict=True))


def kv_heads(shape: ModelShape, ranks: int) -> int:
    """Key and value heads of one of `ranks`; each has at least one."""
    return max(1, ceil(shape.kv_heads / ranks))


@lru_cache(maxsize=1024)
def attention_of(shape: ModelShape, block: Block, ranks: int) -> tuple[Linear, ...]:
    """The attention's projections of one of `ranks`."""
    found = []
    for one in attention(shape, block):
        if one.role in ("k", "v"):
            found.append(Linear(one.role, one.inputs, kv_heads(shape, ranks) * shape.head_dim))
        elif one.role in COLUMN:
            found.append(Linear(one.role, one.inputs, ceil(one.outputs / ranks)))
        elif one.role in ROW:
            found.append(Linear(one.role, ceil(one.inputs / ranks), one.outputs))
        else:
            found.append(one)
    return tuple(found)


def fused_attention(shape: ModelShape, block: Block, ranks: int) -> tuple[Linear, ...]:
    """As Megatron makes them: queries, keys and values in one projection, where they come from one input."""
    found = attention_of(shape, block, ranks)
    if block.attention == "cross":
        # queries come from the decoder's tokens, keys and values in one projection from the encoder's
        query, key, value, out = found
        return query, Linear("kv", key.inputs, key.outputs + value.outputs), out
    qkv = [one for one in found if one.role in ("q", "k", "v")]
    if len(qkv) < 3:
        return found
    return (Linear("qkv", shape.hidden, sum(one.outputs for one in qkv)), found[-1])


Pairs = frozenset[tuple[int, int]]
"""(inputs, outputs) of distinct projections."""


@lru_cache(maxsize=1024)
def distinct(shape: ModelShape, blocks: tuple[Block, ...], ranks: int, expert_ranks: int) -> tuple[Pairs, Pairs]:
    """Every distinct projection of these blocks on one rank, and of their experts."""
    plain: set[tuple[int, int]] = set()
    grouped: set[tuple[int, int]] = set()
    for block in blocks:
        plain |= {(one.inputs, one.outputs) for one in fused_attention(shape, block, ranks)}
        width = plain_width(shape, block)
        if block.mlp and width:
            plain |= {(one.inputs, one.outputs) for one in mlp(shape, width, ranks)}
        if block.experts:
            grouped |= {(one.inputs, one.outputs) for one in mlp(shape, shape.expert_ffn, expert_ranks)}
    return frozenset(plain), frozenset(grouped)


def mlp(shape: ModelShape, width: int, ranks: int) -> tuple[Linear, Linear]:
    """An MLP's projections of one of `ranks`: gate and up in one, and down."""
    wide = ceil(width / ranks)
    return Linear("up", shape.hidden, wide * (2 if shape.gated else 1)), Linear("down", wide, shape.hidden)


def plain_width(shape: ModelShape, block: Block) -> int:
    """Width of the dense MLP, or of the shared experts (0: none)."""
    return shape.shared_ffn if block.experts else shape.ffn
