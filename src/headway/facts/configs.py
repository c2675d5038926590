"""Hugging Face's `config.json` read into a ModelShape, as published and as transformers writes it, of any family."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from headway.errors import InputError
from headway.facts.blocks import AttentionKind, Block, LinearAttention, Mla
from headway.facts.context import of_config
from headway.facts.families import COMPOSITES, FAMILIES, Family
from headway.facts.shapes import TRAINED, ModelShape
from headway.facts.vision import tower_parameters

Config = Mapping[str, Any]

SPELLINGS: dict[str, tuple[str, ...]] = {
    "hidden_size": ("n_embd", "n_embed", "d_model"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads"),
    "num_key_value_heads": ("num_kv_heads", "n_head_kv"),
    "intermediate_size": ("ffn_dim", "ffn_hidden_size", "n_inner"),
    # published files and transformers 5 differ in which of these they write
    "num_experts": ("num_local_experts", "n_routed_experts", "moe_num_experts"),
    "num_experts_per_tok": ("num_experts_per_token", "moe_k", "moe_topk"),
    "n_shared_experts": ("num_shared_experts", "moe_num_shared_experts"),
    "num_nextn_predict_layers": ("num_mtp_layers", "num_mtp_modules", "mtp_num_hidden_layers"),
    "max_position_embeddings": ("n_positions", "max_seq_len"),
}
"""A key -> other names of it, in some families or versions."""

_SIZES = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "vocab_size",
)  # fmt: skip
_FULL_EVERY = {"full_attention_interval", "sliding_window_pattern", "_sliding_window_pattern"}
_KINDS: dict[str, AttentionKind] = {
    "full_attention": "full", "attention": "full", "sliding_attention": "sliding", "chunked_attention": "sliding",
    "linear_attention": "linear", "indexed_attention": "full",
}  # fmt: skip


class _Keys:
    """One table of keys with its family's defaults; collects what is wrong, so that all is said at once."""

    def __init__(self, name: str, config: Config, family: Family, nested: bool) -> None:
        self.config, self.family, self.name = config, family, name
        # A whole file without a size is a torn one; inside `text_config` leaving out the family's own is common
        self.defaults = {key: value for key, value in family.defaults.items() if nested or key not in _SIZES}
        self.problems: list[str] = []

    def has(self, key: str) -> bool:
        """Whether the file itself has a value."""
        return any(self.config.get(one) is not None for one in (key, *SPELLINGS.get(key, ())))

    def get(self, key: str) -> Any:
        """The file's value by any spelling, or the family's default where the file has no such key."""
        names = (key, *SPELLINGS.get(key, ()))
        found = next((self.config[one] for one in names if self.config.get(one) is not None), None)
        return self.defaults.get(key) if found is None and not any(one in self.config for one in names) else found

    def size(self, key: str) -> int:
        """A number above zero that must be known; a problem (and 1) otherwise."""
        value = self.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            self.problems.append(f"model {self.name}: config.json has no usable {key!r} (found {value!r})")
            return 1
        return value

    def count(self, key: str, default: int = 0) -> int:
        """A number of zero or more; `default` where neither the file nor the family has one."""
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            self.problems.append(f"model {self.name}: config.json has no usable {key!r} (found {value!r})")
            return default
        return value

    def layers(self, key: str) -> set[int]:
        """A list of layer numbers; empty where the file has none."""
        value = self.get(key) or ()
        if not isinstance(value, list | tuple) or not all(isinstance(one, int) for one in value):
            self.problems.append(f"model {self.name}: {key} must be a list of layer numbers (found {value!r})")
            return set()
        return set(value)

    def names(self, key: str, layers: int) -> list[str] | None:
        """A list with a name per layer; None where the file has none."""
        value = self.config.get(key)
        if value is None:
            return None
        if not isinstance(value, list | tuple) or len(value) < layers:
            self.problems.append(
                f"model {self.name}: {key} must name each of the {layers} layers (found {value!r})"[:300]
            )
            return ["full_attention"] * layers
        return [str(one) for one in value[:layers]]


def from_config(name: str, config: Config) -> ModelShape:
    """The shape of a `config.json`. InputError names every key without which the shape cannot be known.

    A `model_type` that no table here knows is read as a Llama block with what its keys say; `assumed` says so.

    >>> from_config("x", {"model_type": "llama", "hidden_size": 64, "intermediate_size": 160, "vocab_size": 264,
    ...     "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}).parameters()
    120128
    """
    outer = str(config.get("model_type"))
    if config.get("model_type") is None:
        raise InputError(f"model {name}: config.json has no 'model_type' (found None), so its layers are not known")
    composite = COMPOSITES.get(outer)
    nested = config.get("text_config")
    if not isinstance(nested, Mapping):
        inside = _published_family(config) if composite is None else composite.text
        shape = _text(name, inside, config, nested=False)
    else:
        inside = str(nested.get("model_type") or (composite.text if composite else outer))
        shape = _text(name, _without_composite(inside), nested, nested=True)
        shape = replace(shape, tied=_composite_tied(outer, config, nested, shape))
    assumed = shape.assumed
    tower = 0
    if config.get("vision_config"):
        try:
            counted = tower_parameters(config, shape.hidden)
        except (TypeError, ValueError, AttributeError, IndexError, ZeroDivisionError) as error:
            raise InputError(f"model {name}: vision_config has a value that is no size ({error})") from None
        tower = counted or 0
        if counted is None:
            assumed = (*assumed, f"the vision tower of {outer} is not counted")
    if any(config.get(key) for key in ("audio_config", "speech_config")):
        assumed = (*assumed, f"the audio tower of {outer} is not counted")
    return replace(shape, family=outer, vision_parameters=tower, assumed=assumed)


def _without_composite(family: str) -> str:
    """The text model of a family that is itself a model with a tower (a `text_config` may carry its outer name)."""
    return COMPOSITES[family].text if family in COMPOSITES else family


def _composite_tied(outer: str, config: Config, nested: Config, shape: ModelShape) -> bool:
    """Whether the head is tied: the outer file says, else the outer family."""
    composite = COMPOSITES.get(outer)
    if composite is None:
        return bool(config.get("tie_word_embeddings", shape.tied))
    tied = bool(config.get("tie_word_embeddings", composite.tied))
    return tied or (composite.or_text and bool(nested.get("tie_word_embeddings", shape.tied)))


def _published_family(config: Config) -> str:
    """The family whose blocks a file describes, where its `model_type` alone does not tell."""
    family = str(config.get("model_type"))
    # MiniMax-M2 was published under the name of its predecessor, whose attention is another
    if family == "minimax" and "MiniMaxM2ForCausalLM" in (config.get("architectures") or ()):
        return "minimax_m2"
    return family


def _text(name: str, family: str, config: Config, *, nested: bool) -> ModelShape:
    """The shape of a text model."""
    facts = FAMILIES.get(family)
    keys = _Keys(name, config, facts or Family(flags=FAMILIES["llama"].flags), nested)
    assumed: tuple[str, ...] = ()
    if facts is None:
        assumed = (f"model_type {family!r} is not known here: its blocks are taken to be like Llama's",)
    if config.get("block_configs"):
        keys.problems.append(f"model {name}: block_configs gives each layer a width of its own, which is not read")
    layers, hidden, heads = keys.size("num_hidden_layers"), keys.size("hidden_size"), keys.size("num_attention_heads")
    kv_heads = _kv_heads(keys, family, heads)
    flags = {
        field: bool(config.get(key, default) if config.get(key) is not None else default)
        for field, (key, default) in keys.family.flags.items()
    }
    mla = _mla(keys)
    shape = ModelShape(
        name=name, family=family, layers=layers, hidden=hidden, ffn=1, heads=heads, kv_heads=kv_heads,
        head_dim=mla.qk_nope if mla else keys.count("head_dim") or hidden // heads, vocab=keys.size("vocab_size"),
        tied=bool(config.get("tie_word_embeddings", keys.family.tied)), mla=mla,
        mtp_layers=keys.count("num_nextn_predict_layers"), assumed=assumed,
        context=of_config(config, keys.get("max_position_embeddings")),
        **{**keys.family.fixed, **flags},
    )  # fmt: skip
    shape = _special(keys, family, _with_layers(keys, family, _with_experts(keys, family, shape)))
    if keys.problems:
        raise InputError(*keys.problems)
    return shape


def _kv_heads(keys: _Keys, family: str, heads: int) -> int:
    """Key-value heads; one per head where the family says so without the key."""
    if family == "falcon":
        if keys.config.get("new_decoder_architecture") or not keys.config.get("multi_query", True):
            return keys.count("num_key_value_heads") or heads
        return 1
    if family == "gpt_bigcode":
        return 1 if keys.config.get("multi_query", True) else heads
    null = "num_key_value_heads" in keys.config or "num_key_value_heads" not in keys.family.defaults
    if keys.family.kv_is_heads and null and not keys.has("num_key_value_heads"):
        return heads
    return keys.size("num_key_value_heads")


def _mla(keys: _Keys) -> Mla | None:
    """Latent attention, where a file has its keys or its family is built of it."""
    if keys.get("kv_lora_rank") is None:
        return None
    return Mla(
        keys.count("q_lora_rank"), keys.size("kv_lora_rank"), keys.size("qk_nope_head_dim"),
        keys.size("qk_rope_head_dim"), keys.size("v_head_dim"),
    )  # fmt: skip


def _with_experts(keys: _Keys, family: str, shape: ModelShape) -> ModelShape:
    """The widths of the MLPs, dense, routed and shared."""
    sparse = keys.get("num_experts") is not None or family.endswith(("_moe", "_moe_text")) or family == "mixtral"
    if not sparse:
        optional = {"gpt2", "gpt_bigcode", "bloom", "falcon", "gptj", "gpt_neo", "mpt"}
        ffn = keys.count("intermediate_size") if family in optional else keys.size("intermediate_size")
        return replace(shape, ffn=ffn or 4 * shape.hidden)
    wide = keys.family.experts_use_ffn or not keys.has("moe_intermediate_size")
    if keys.family.experts_use_ffn or (wide and keys.get("moe_intermediate_size") is None):
        expert_ffn = keys.size("intermediate_size")
    else:
        expert_ffn = keys.size("moe_intermediate_size")
    dense = "intermediate_size_mlp" if family == "llama4_text" else "intermediate_size"
    shared = keys.count("n_shared_experts") * expert_ffn
    shared = keys.count("shared_expert_intermediate_size") or keys.count("shared_intermediate_size") or shared
    return replace(
        shape, ffn=keys.count(dense) or expert_ffn, experts=keys.size("num_experts"),
        experts_per_token=keys.size("num_experts_per_tok"), expert_ffn=expert_ffn,
        shared_ffn=expert_ffn if family == "llama4_text" else shared,
    )  # fmt: skip


def _with_layers(keys: _Keys, family: str, shape: ModelShape) -> ModelShape:
    """Which layers slide, are linear, or have no experts; and how the three mix."""
    kinds, sparse = _attention_kinds(keys, shape), _sparse_layers(keys, shape)
    linear = kinds.count("linear")
    if linear and keys.get("linear_num_value_heads") is None:
        keys.problems.append(
            f"model {keys.name}: layer_types has linear_attention of a kind that is not read ({family})"
        )
        linear = 0
    attention = LinearAttention(
        linear, keys.size("linear_num_key_heads"), keys.size("linear_num_value_heads"),
        keys.size("linear_key_head_dim"), keys.size("linear_value_head_dim"), keys.size("linear_conv_kernel_dim"),
        fused=family == "qwen3_next",
    ) if linear else None  # fmt: skip
    window = keys.count("sliding_window") or keys.count("attention_chunk_size")
    sliding = kinds.count("sliding")
    if sliding and not window:
        keys.problems.append(f"model {keys.name}: layers slide, but config.json has no usable 'sliding_window'")
    shape = replace(
        shape, sliding_window=window if sliding else 0, sliding_layers=sliding, linear=attention,
        dense_layers=shape.layers - sum(sparse) if shape.experts else 0,
    )  # fmt: skip
    groups = Counter(Block(kind, experts) for kind, experts in zip(kinds, sparse, strict=True))
    if shape.layers and groups != dict(shape.blocks()):
        shape = replace(shape, mixed=tuple(groups.most_common()))
    return shape


def _attention_kinds(keys: _Keys, shape: ModelShape) -> list[AttentionKind]:
    """The kind of attention of each layer: as listed, or by the family's pattern."""
    layers, family = shape.layers, keys.family
    whole: AttentionKind = "mla" if shape.mla else "full"
    listed = keys.names("layer_types", layers)
    if listed is not None:
        for strange in sorted({one for one in listed if one not in _KINDS}):
            keys.problems.append(f"model {keys.name}: layer_types has {strange!r}, a kind of layer that is not read")
        kinds = [_KINDS.get(one, whole) for one in listed]
        return [whole if kind == "full" else kind for kind in kinds]
    every = next((keys.count(key) for key in sorted(_FULL_EVERY) if keys.has(key)), family.every)
    if "linear_num_value_heads" in family.defaults:
        return ["full" if every and (at + 1) % every == 0 else "linear" for at in range(layers)]
    if "attention_chunk_size" in family.defaults:
        # Llama 4: every fourth layer attends to everything, without positions
        every = keys.count("no_rope_layer_interval", 4)
        return ["sliding" if every == 0 or (at + 1) % every else "full" for at in range(layers)]
    used = keys.config.get("use_sliding_window", family.defaults.get("use_sliding_window", True))
    window = keys.get("sliding_window") if used else None
    if not window or family.windows == "none":
        return [whole] * layers
    return [
        "sliding" if _slides(at, family, every, keys.count("max_window_layers", layers)) else whole
        for at in range(layers)
    ]


def _slides(at: int, family: Family, every: int, late: int) -> bool:
    """Whether layer `at` (from 0) slides by its family's pattern."""
    if family.windows == "every":
        return every > 0 and (at + 1) % every != 0
    if family.windows == "even":
        return at % 2 == 0 and at < late
    return family.windows == "all" or at >= late


def _sparse_layers(keys: _Keys, shape: ModelShape) -> list[bool]:
    """Whether each layer has experts."""
    layers = range(shape.layers)
    if not shape.experts:
        return [False for _ in layers]
    listed = keys.names("mlp_layer_types", shape.layers)
    if listed is not None:
        return [one == "sparse" for one in listed]
    rule = keys.family.sparse
    if rule == "first" or keys.has("first_k_dense_replace"):
        first = keys.count("first_k_dense_replace")
        return [at >= first for at in layers]
    if rule == "step" or keys.has("decoder_sparse_step") or keys.has("mlp_only_layers"):
        dense, step = keys.layers("mlp_only_layers"), keys.count("decoder_sparse_step", 1) or 1
        return [at not in dense and (at + 1) % step == 0 for at in layers]
    if rule == "ernie":
        open_end = keys.config.get("moe_layer_end_index", -1) in (None, -1)
        last = shape.layers - 1 if open_end else keys.count("moe_layer_end_index")
        step, start = keys.count("moe_layer_interval", 1) or 1, keys.count("moe_layer_start_index", 1)
        return [(at + 1) % step == 0 and start <= at <= last for at in layers]
    if rule == "interleave":
        step = keys.count("interleave_moe_layer_step", 1) or 1
        chosen = keys.layers("moe_layers") or set(range(step - 1, shape.layers, step))
        return [at in chosen for at in layers]
    return [True for _ in layers]


def _special(keys: _Keys, family: str, shape: ModelShape) -> ModelShape:
    """What a few families have that no other has."""
    if family == "falcon":
        new = bool(keys.config.get("new_decoder_architecture", False))
        parallel = new or bool(keys.config.get("parallel_attn", True))
        norms = keys.count("num_ln_in_parallel_attn") or (2 if new else 1)
        return replace(shape, parallel=parallel, norms=norms if parallel else 2)
    if family == "stablelm" and shape.parallel:
        return replace(shape, norms=1)
    if family in ("gpt2", "gpt_bigcode", "gpt_neo"):
        return replace(shape, learned_positions=keys.size("max_position_embeddings"))
    if family == "bloom":
        return replace(shape, other_parameters=2 * shape.hidden)
    if family == "mpt":
        return replace(shape, ffn=keys.count("expansion_ratio", 4) * shape.hidden)
    if family == "mllama_text_model":
        # Layers that attend to the image have two gates and a norm of queries and of keys; 8 rows are for the image
        cross = len(keys.layers("cross_attention_layers"))
        return replace(shape, other_parameters=cross * (2 * shape.head_dim + 2) + 8 * shape.hidden)
    if family == "apertus":
        # the activation learns two numbers a layer
        return replace(shape, other_parameters=2 * shape.layers)
    if shape.mla and keys.has("index_n_heads"):
        return replace(shape, other_parameters=_indexer(keys, shape))
    qk = {"phi": False, "persimmon": True}.get(family)
    if qk is not None and keys.config.get("qk_layernorm", qk):
        # two norms with bias over one head's width
        return replace(shape, other_parameters=4 * shape.head_dim * shape.layers)
    if family == "opt":
        affine = bool(keys.config.get("layer_norm_elementwise_affine", True))
        shape = replace(shape, norm_weight=affine, norm_bias=affine)
        narrow = keys.count("word_embed_proj_dim") or shape.hidden
        # The embedding may be narrower than the layers, with a projection each way; OPT-350m has no final norm
        other = 0 if narrow == shape.hidden else 2 * narrow * shape.hidden - shape.vocab * (shape.hidden - narrow)
        if not keys.config.get("do_layer_norm_before", True) or keys.config.get("_remove_final_layer_norm"):
            other -= shape.norm_parameters()
        # its positions start at 2
        return replace(
            shape, learned_positions=keys.size("max_position_embeddings") + 2, other_parameters=other
        )  # fmt: skip
    return shape


def _indexer(keys: _Keys, shape: ModelShape) -> int:
    """Parameters of the indexers that choose which tokens sparse attention sees (DeepSeek-V3.2, GLM-5).

    Per layer that has one of its own: queries from the latent, one key, its norm with bias, and a weight a head.
    """
    assert shape.mla is not None
    heads, width = keys.size("index_n_heads"), keys.size("index_head_dim")
    one = shape.mla.q_lora * heads * width + shape.hidden * width + 2 * width + shape.hidden * heads
    listed = keys.names("indexer_types", shape.layers)
    return one * (shape.layers if listed is None else listed.count("full"))


def trained_problems(name: str, config: Config) -> tuple[str, ...]:
    """Why headway does not train the model of a `config.json`: every reason, none where it does.

    >>> trained_problems("x", {"model_type": "mamba"})
    ("model x: model_type 'mamba' is not trained yet; trained are llama, qwen2, qwen3, qwen3_moe, gemma",)
    """
    family = config.get("model_type")
    if family not in TRAINED:
        return (f"model {name}: model_type {family!r} is not trained yet; trained are {', '.join(TRAINED)}",)
    return tuple(f"model {name}: {reason}" for reason in _refusals(config))


def _refusals(config: Config) -> Iterator[str]:
    """What a model of a known family may have that headway's trainer and ledger do not cover."""
    if config.get("quantization_config"):
        yield "the weights are quantised, which cannot be trained; take the unquantised model"
    if config.get("use_sliding_window") and config.get("sliding_window"):
        yield "use_sliding_window is true; sliding-window attention is not trained yet"
    if config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1:
        yield "mlp_only_layers or decoder_sparse_step mix dense and expert layers, which is not trained yet"


def trained_from_config(name: str, config: Config) -> ModelShape:
    """The shape of a model that headway trains. InputError names every reason why it does not."""
    problems = trained_problems(name, config)
    if problems and config.get("model_type") not in TRAINED:
        raise InputError(*problems)
    try:
        shape = from_config(name, config)
    except InputError as error:
        raise InputError(*problems, *error.problems) from None
    if problems:
        raise InputError(*problems)
    return shape


def load_config(folder: Path) -> dict[str, Any]:
    """The `config.json` of a model folder. InputError where it is missing or no table of keys."""
    try:
        config = json.loads((folder / "config.json").read_text())
    except FileNotFoundError:
        raise InputError(
            f"model.path = {folder}: the folder has no config.json, so it is no Hugging Face model"
        ) from None
    except ValueError as error:
        raise InputError(f"model.path = {folder}: config.json is not JSON ({error})") from None
    if not isinstance(config, dict):
        raise InputError(f"model.path = {folder}: config.json holds no table of keys, so it is no Hugging Face model")
    return config


def from_folder(folder: Path) -> ModelShape:
    """The shape of a model folder of any family, from its `config.json`."""
    return from_config(folder.name, load_config(folder))


def trained_from_folder(folder: Path) -> ModelShape:
    """The shape of a model folder that headway trains."""
    return trained_from_config(folder.name, load_config(folder))
