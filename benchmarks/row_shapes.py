"""The model of a measured row as a ModelShape.

A row gives widths and counts. What it does not tell (biases, norms of heads, a shared norm before attention and MLP)
comes from the built-in table where a model has the same widths; else a model without gates has LayerNorms.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

from msgspec.structs import replace

from headway.facts.blocks import Mla
from headway.facts.shapes import ModelShape, table
from prediction import NotCovered, need


def row_shape(model: Mapping[str, Any]) -> ModelShape:
    """The shape that a row's `model` gives; NotCovered where a width or a count is missing."""
    heads, layers = need(model, "heads", of="model"), need(model, "layers", of="model")
    hidden, experts = need(model, "hidden", of="model"), int(model.get("experts") or 0)
    bias = bool(model.get("bias", False))
    gated = bool(model.get("gated", True))
    return _with_habits(ModelShape(
        name=str(model.get("name", "")), family="", layers=layers, hidden=hidden,
        ffn=need(model, "ffn", "expert_ffn", of="model"),
        heads=heads, kv_heads=int(model.get("kv_heads") or heads),
        head_dim=int(model.get("head_dim") or hidden // heads), vocab=need(model, "vocab", of="model"),
        tied=bool(model.get("tied", False)), qkv_bias=bias, output_bias=bias, mlp_bias=bias,
        gated=gated, norm="rms" if gated else "layer", norm_bias=not gated,
        experts=experts, experts_per_token=int(model.get("experts_per_token") or 0),
        expert_ffn=int(model.get("expert_ffn") or 0), shared_ffn=int(model.get("shared_expert_ffn") or 0),
        dense_layers=int(model.get("first_dense_layers") or 0), mla=_mla(model.get("mla")),
        learned_positions=_rows(model.get("learned_positions")), mtp_layers=int(model.get("mtp_layers") or 0),
    ))  # fmt: skip


def _with_habits(shape: ModelShape) -> ModelShape:
    """The shape with what the table knows of a model of the same widths, its layers, vocabulary and tying kept."""
    experts = _by_experts().get((*_widths(shape), shape.experts, shape.layers))
    if experts is not None:
        return replace(experts, name=shape.name, vocab=shape.vocab, tied=shape.tied)
    known = _by_widths().get(_widths(shape))
    if known is None or shape.experts or shape.mla:
        return shape
    return replace(
        shape, family=known.family, qkv_bias=known.qkv_bias, output_bias=known.output_bias, mlp_bias=known.mlp_bias,
        qk_norm=known.qk_norm, qk_norm_wide=known.qk_norm_wide, norm=known.norm, norm_bias=known.norm_bias,
        norm_weight=known.norm_weight, norms=known.norms, parallel=known.parallel, head_bias=known.head_bias,
    )  # fmt: skip


@cache
def _by_experts() -> dict[tuple[int | bool, ...], ModelShape]:
    """Models of experts whose biases and sinks a row does not tell."""
    return {
        (*_widths(shape), shape.experts, shape.layers): shape
        for shape in table().values()
        if shape.experts and shape.expert_bias
    }


@cache
def _by_widths() -> dict[tuple[int | bool, ...], ModelShape]:
    return {
        _widths(shape): shape for shape in reversed(table().values()) if not shape.experts and shape.linear is None
    }


def _widths(shape: ModelShape) -> tuple[int | bool, ...]:
    return (shape.hidden, shape.ffn, shape.heads, shape.kv_heads, shape.head_dim, shape.gated)


def _rows(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _mla(value: Any) -> Mla | None:
    if not value:
        return None
    if not isinstance(value, Mapping):
        raise NotCovered("model.mla is no table of keys")
    q_lora = int(value.get("q_lora") or 0)
    width, rope = need(value, "kv_lora", of="model.mla"), need(value, "qk_rope", of="model.mla")
    return Mla(q_lora, width, need(value, "qk_nope", of="model.mla"), rope, need(value, "v", of="model.mla"))
