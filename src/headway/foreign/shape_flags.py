"""The model of a run: from Megatron's model arguments where the script has them, else by its checkpoint's name."""

import re
from collections.abc import Mapping

from msgspec.structs import replace

from headway.errors import InputError
from headway.facts import shapes
from headway.facts.blocks import Mla
from headway.facts.names import like
from headway.facts.shapes import ModelShape
from headway.foreign import megatron_models
from headway.foreign.found import SHAPE_KEYS, Found

Flags = Mapping[str, tuple[str | None, ...]]

TAIL = re.compile(
    r"[-_.](instruct|base|chat|thinking|it|fp8|nvfp4|mxfp4|int4|int8|bf16|fp16|awq|gptq|hf|torch|dist|sft|\d{4}|"
    r"mcore|megatron|slime|miles|merged|\d+layers?)$",
    re.IGNORECASE,
)
"""What a checkpoint's name has behind the model's name, without another shape."""
SAME_SHAPE = (
    (re.compile(r"^meta-llama", re.IGNORECASE), "llama"),
    (re.compile(r"^qwen2\.5-(?:coder|math)-", re.IGNORECASE), "qwen2.5-"),
    (re.compile(r"^deepseek-r1-(?:\d{4}-)?qwen3-", re.IGNORECASE), "qwen3-"),
    (re.compile(r"^mistral-7b-instruct-v0\.3", re.IGNORECASE), "mistral-7B-v0.3"),
    (re.compile(r"^(?:mistral-7b-instruct-v0\.[12]|zephyr-7b.*|zephyr-sft)$", re.IGNORECASE), "mistral-7B-v0.1"),
    (re.compile(r"^phi-3\.5-mini", re.IGNORECASE), "phi-3-mini"),
)
"""Names of models that were trained on from one of the table, with its shape, by their `config.json`."""


def shape_of(found: Found) -> ModelShape:
    """The model's shape. InputError where neither the script nor the table of models tells it.

    >>> shape_of(Found("slime", {"model_name": "Qwen3-4B-Instruct-2507"})).layers
    36
    """
    named = by_checkpoint(found)
    if found.settings.get("num_layers") is not None or megatron_models.layers(found):
        return from_flags(found, named)
    if named is not None:
        return named
    what = found.settings.get("model_name") or found.model or "the checkpoint"
    near = shapes.nearest(str(what))
    names = f"; nearest are {', '.join(near)}" if near else ""
    why = found.unknown.get("num_layers", "the script has no model arguments")
    why += f" ({found.unread[0]})" if found.unread else ""
    raise InputError(
        f"{what}: no such model in the table, and {why}; pass --model NAME, or a folder with its config.json{names}"
    )


def by_checkpoint(found: Found) -> ModelShape | None:
    """The table's shape for the name of the run's checkpoint, without what names of variants have at their end; else
    that of the model which the name tells it was made of."""
    names = [str(name) for name in (found.settings.get("model_name"), found.model) if name]
    exact = next((shape for name in names if (shape := by_variant(name)) is not None), None)
    return exact or next((shape for name in names if "$" not in name and (shape := like(name)) is not None), None)


def by_variant(name: str) -> ModelShape | None:
    """The table's shape for the name or path of a checkpoint, without what names of variants have at their end.

    >>> by_variant("Qwen/Qwen2.5-7B-Instruct").name, by_variant("a/b")
    ('qwen2.5-7B', None)
    """
    text = name.rstrip("/").rpartition("/")[2].replace("___", ".")  # as ModelScope writes a dot
    return _without_tail(text) or _without_tail(_trained_from(text))


def _trained_from(text: str) -> str:
    """The name of the model of the table that one with this name was trained on from; itself where none is known."""
    for pattern, instead in SAME_SHAPE:
        text = pattern.sub(instead, text)
    return text


def _without_tail(text: str) -> ModelShape | None:
    """The table's shape for a name, whole or without its last parts."""
    while text and "$" not in text:
        shape = shapes.by_name(text) or shapes.by_name(f"{text}-Instruct") or shapes.by_name(f"{text}-it")
        if shape is not None:
            return shape
        cut = TAIL.sub("", text)
        if cut == text:
            break
        text = cut
    return None


def from_flags(found: Found, named: ModelShape | None = None) -> ModelShape:
    """The shape that model arguments describe. A model of the table with the same sizes is taken as it is there, for
    what the arguments do not tell; one with another number of layers is cut to it.

    InputError where a size is missing or below 1.
    """
    wrong = [f"{key} = {size}" for key in SHAPE_KEYS if isinstance(size := found.settings.get(key), int) and size < 1]
    wrong = [each for each in wrong if not each.startswith(("num_experts", "moe_"))]
    if wrong:
        raise InputError(f"{', '.join(wrong)} in the model arguments: must be at least 1; or pass --model NAME")
    if named is not None and _alike(found, named):
        layers = found.settings["num_layers"]
        return named if named.layers == layers or not isinstance(layers, int) else _cut(named, layers)
    return _built(found)


def _alike(found: Found, shape: ModelShape) -> bool:
    """Whether a shape of the table agrees with every size that is told, but for the number of layers."""
    told = {
        "hidden_size": shape.hidden, "num_attention_heads": shape.heads, "num_experts": shape.experts,
        "moe_topk": shape.experts_per_token, "moe_ffn_hidden_size": shape.expert_ffn,
    }  # fmt: skip
    if shape.mla is None:
        told |= {"num_kv_heads": shape.kv_heads}
    return all(found.settings.get(key) in (None, size) for key, size in told.items())


def _cut(shape: ModelShape, layers: int) -> ModelShape:
    """A shape with another number of layers, kinds of attention in proportion."""
    share = layers / shape.layers
    linear = replace(shape.linear, layers=round(shape.linear.layers * share)) if shape.linear else None
    return replace(
        shape, name=f"{shape.name}-{layers}layer", layers=layers, linear=linear, mixed=(),
        sliding_layers=round(shape.sliding_layers * share), dense_layers=min(shape.dense_layers, layers),
        assumed=(*shape.assumed, f"{layers} layers of {shape.layers}, otherwise as {shape.name}"),
    )  # fmt: skip


def _built(found: Found) -> ModelShape:
    """A shape of its own from the flags."""
    flags, layers = found.flags, megatron_models.layers(found)
    missing = [
        key for key in ("num_layers", "hidden_size", "num_attention_heads", "vocab_size")
        if not isinstance(found.settings.get(key), int) and not (layers and key == "num_layers")
    ]  # fmt: skip
    if missing:
        raise InputError(
            f"{found.settings.get('model_name')}: no {', '.join(missing)} in its model arguments; pass --model NAME"
        )

    def number(key: str) -> int:
        value = found.value(key)
        return value if isinstance(value, int) else 0

    heads, hidden, experts = number("num_attention_heads"), number("hidden_size"), number("num_experts")
    norms = "qk-layernorm" in flags
    family = ("qwen3_moe" if experts else "qwen3") if norms else "qwen2" if "add-qkv-bias" in flags else "llama"
    dense = _dense_layers(flags, number("num_layers")) if experts else 0
    mla = _mla(flags, number("kv_channels")) if "multi-latent-attention" in flags else None
    assumed = tuple(f"{key.replace('_', ' ')} is not known" for key in SHAPE_KEYS if key in found.unknown)
    shape = ModelShape(
        name=str(found.settings.get("model_name") or "model"), family=family, layers=number("num_layers") or layers,
        hidden=hidden, ffn=number("ffn_hidden_size") or 4 * hidden, heads=heads,
        kv_heads=number("num_kv_heads") or heads, head_dim=number("kv_channels") or hidden // max(heads, 1),
        vocab=number("vocab_size"), tied="untie-embeddings-and-output-weights" not in flags,
        qkv_bias="add-qkv-bias" in flags, qk_norm=norms and mla is None, experts=experts,
        experts_per_token=number("moe_topk") or (2 if experts else 0),
        expert_ffn=(number("moe_ffn_hidden_size") or number("ffn_hidden_size")) if experts else 0,
        shared_ffn=_integer(flags, "moe-shared-expert-intermediate-size") if experts else 0,
        router_bias="moe-router-enable-expert-bias" in flags, dense_layers=dense, gated="swiglu" in flags, mla=mla,
        mtp_layers=_integer(flags, "mtp-num-layers"), assumed=assumed,
    )  # fmt: skip
    return replace(shape, **megatron_models.fields(found, hidden, shape.layers))


def _integer(flags: Flags, name: str, default: int = 0) -> int:
    value = (flags.get(name) or (None,))[0]
    return int(value) if value is not None and re.fullmatch(r"\d{1,9}", value) else default


def _mla(flags: Flags, head: int) -> Mla:
    """Latent attention's widths; the defaults are Megatron's own."""
    return Mla(
        _integer(flags, "q-lora-rank"), _integer(flags, "kv-lora-rank", 32),
        _integer(flags, "qk-head-dim", head or 128),
        _integer(flags, "qk-pos-emb-head-dim", 64), _integer(flags, "v-head-dim", head or 128),
    )  # fmt: skip


def _dense_layers(flags: Flags, layers: int) -> int:
    """Layers without experts, as `--moe-layer-freq` lists them: `[0]*3+[1]*45`, `[0,1,1]`, or one in so many.

    >>> _dense_layers({"moe-layer-freq": ("[0]*3+[1]*45",)}, 48), _dense_layers({"moe-layer-freq": ("[0,1,1,]",)}, 3)
    (3, 1)
    """
    text = (flags.get("moe-layer-freq") or ("1",))[0] or "1"
    text = text.replace(" ", "").strip("'\"")
    if text.isdigit():
        return layers - layers // max(int(text), 1)
    repeated = re.findall(r"\[(\d)\]\*(\d+)", text)
    if repeated:
        return sum(int(count) for kind, count in repeated if kind == "0")
    return sum(each == "0" for each in re.findall(r"\d", text))
