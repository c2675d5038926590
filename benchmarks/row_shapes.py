"""The model of a measured row as a ModelShape."""

from collections.abc import Mapping
from typing import Any

from headway.facts.blocks import Mla
from headway.facts.shapes import ModelShape
from prediction import NotCovered, need


def row_shape(model: Mapping[str, Any]) -> ModelShape:
    """The shape that a row's `model` gives; NotCovered where a width or a count is missing."""
    heads, layers = need(model, "heads", of="model"), need(model, "layers", of="model")
    hidden, experts = need(model, "hidden", of="model"), int(model.get("experts") or 0)
    bias = bool(model.get("bias", False))
    return ModelShape(
        name=str(model.get("name", "")), family="", layers=layers, hidden=hidden,
        ffn=need(model, "ffn", "expert_ffn", of="model"),
        heads=heads, kv_heads=int(model.get("kv_heads") or heads),
        head_dim=int(model.get("head_dim") or hidden // heads), vocab=need(model, "vocab", of="model"),
        tied=bool(model.get("tied", False)), qkv_bias=bias, output_bias=bias, mlp_bias=bias,
        gated=bool(model.get("gated", True)),
        experts=experts, experts_per_token=int(model.get("experts_per_token") or 0),
        expert_ffn=int(model.get("expert_ffn") or 0), shared_ffn=int(model.get("shared_expert_ffn") or 0),
        dense_layers=int(model.get("first_dense_layers") or 0), mla=_mla(model.get("mla")),
        learned_positions=_rows(model.get("learned_positions")), mtp_layers=int(model.get("mtp_layers") or 0),
    )  # fmt: skip


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
