"""How the families of transformers differ from a Llama block, as facts that the reader of `config.json` looks up.

Source of every entry: the family's configuration and modelling code in transformers 5.24, and the counts of its
modules on the meta device.
"""

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct, field

Windows = Literal["none", "all", "late", "every", "even"]
Sparse = Literal["all", "first", "step", "ernie", "interleave"]


class Family(Struct, frozen=True):
    """What one `model_type` has apart from a Llama block, whose answers are the defaults.

    `fixed` are fields of `ModelShape`. `flags` are fields that a key decides: field -> (key, value where absent).
    `defaults` are the values that transformers takes where a key is absent. `kv_is_heads`: no `num_key_value_heads`
    means one per head. `windows` says which layers slide where the file has no `layer_types`: all; those from
    `max_window_layers` on; all but every `every`-th; or every other. `sparse` says which layers have experts:
    all; all after the first few; by `decoder_sparse_step`; or as ERNIE and Llama 4 have it. `experts_use_ffn`: an
    expert is `intermediate_size` wide.

    >>> FAMILIES["olmo2"].fixed
    {'qk_norm': True, 'qk_norm_wide': True}
    """

    fixed: Mapping[str, Any] = field(default_factory=dict)
    flags: Mapping[str, tuple[str, bool]] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    tied: bool = False
    kv_is_heads: bool = True
    windows: Windows = "none"
    every: int = 0
    sparse: Sparse = "all"
    experts_use_ffn: bool = False


def _biased(key: str, default: bool, *fields: str) -> dict[str, tuple[str, bool]]:
    return dict.fromkeys(fields, (key, default))


_ATTENTION = _biased("attention_bias", False, "qkv_bias", "output_bias")
_MLP = _biased("mlp_bias", False, "mlp_bias")
_QK = {"qk_norm": True}
_WIDE = {"qk_norm": True, "qk_norm_wide": True}
_LAYER = {"norm": "layer", "norm_bias": True}
_ALL_BIASES = {"qkv_bias": True, "output_bias": True, "mlp_bias": True}
_GPT = _LAYER | _ALL_BIASES | {"gated": False}
_COHERE = {"norm": "layer", "norms": 1, "parallel": True}
_HYBRID = _QK | {"attention_gate": True}
_NEXT = {
    "head_dim": 256, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    "linear_num_key_heads": 16, "linear_num_value_heads": 32,
}  # fmt: skip
_LLAMA_SIZES = {
    "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
    "vocab_size": 32000,
}  # fmt: skip
_GEMMA_SIZES = {
    "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096,
}  # fmt: skip
_QWEN_SIZES = {
    "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 32, "vocab_size": 151936, "max_window_layers": 28,
    "use_sliding_window": False,
}  # fmt: skip
_QWEN_VL_SIZES = {
    "hidden_size": 8192, "intermediate_size": 29568, "num_hidden_layers": 80, "num_attention_heads": 64,
    "num_key_value_heads": 8, "vocab_size": 152064, "max_window_layers": 80, "sliding_window": 4096,
    "use_sliding_window": False,
}  # fmt: skip
_MLA_SIZES = {
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}

_QWEN2_VL = Family({"qkv_bias": True}, windows="late", defaults=_QWEN_VL_SIZES)
_DEEPSEEK_V3 = Family(
    flags=_ATTENTION, sparse="first",
    defaults=_MLA_SIZES | {
        "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61, "num_attention_heads": 128,
        "num_key_value_heads": 128, "vocab_size": 129280, "first_k_dense_replace": 3, "n_shared_experts": 1,
        "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 2048,
    },
)  # fmt: skip
_QWEN3_5 = Family(
    _HYBRID, _ATTENTION, every=4,
    defaults=_NEXT | {
        "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 32, "num_attention_heads": 16,
        "num_key_value_heads": 4, "vocab_size": 248320,
    },
)  # fmt: skip
_QWEN3_5_MOE = Family(
    _HYBRID | {"shared_gate": True}, _ATTENTION, every=4,
    defaults=_NEXT | {
        "hidden_size": 2048, "num_hidden_layers": 40, "num_attention_heads": 16, "num_key_value_heads": 2,
        "vocab_size": 248320, "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
    },
)  # fmt: skip
_LLAMA4 = Family(
    flags=_ATTENTION, sparse="interleave", experts_use_ffn=True,
    defaults={
        "hidden_size": 5120, "intermediate_size": 8192, "intermediate_size_mlp": 16384, "num_hidden_layers": 48,
        "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 202048,
        "num_experts": 16, "num_experts_per_tok": 1, "interleave_moe_layer_step": 1, "attention_chunk_size": 8192,
    },
)  # fmt: skip

FAMILIES: dict[str, Family] = {
    "llama": Family(flags=_ATTENTION | _MLP, defaults=_LLAMA_SIZES),
    "mistral": Family(windows="all", defaults=_LLAMA_SIZES | {
        "intermediate_size": 14336, "num_key_value_heads": 8, "sliding_window": 4096,
    }),
    "ministral3": Family(windows="all", defaults=_LLAMA_SIZES | {
        "intermediate_size": 14336, "num_hidden_layers": 34, "num_key_value_heads": 8, "head_dim": 128,
        "vocab_size": 131072,
    }),
    "qwen2": Family({"qkv_bias": True}, windows="late", defaults=_QWEN_SIZES | {"sliding_window": 4096}),
    "qwen3": Family(
        _QK, _ATTENTION, windows="late", defaults=_QWEN_SIZES | {"sliding_window": 4096, "head_dim": 128},
    ),
    "gemma": Family(flags=_ATTENTION, tied=True, kv_is_heads=False, defaults={"head_dim": 256}),
    "gemma2": Family(
        {"norms": 4}, _ATTENTION, tied=True, kv_is_heads=False, windows="every", every=2, defaults=_GEMMA_SIZES,
    ),
    "gemma3_text": Family(
        _QK | {"norms": 4}, _ATTENTION, tied=True, kv_is_heads=False, windows="every", every=6,
        defaults=_GEMMA_SIZES | {"vocab_size": 262208},
    ),
    "phi": Family(_GPT | {"norms": 1, "parallel": True, "head_bias": True}),
    "phi3": Family(windows="all"),
    "phimoe": Family(
        _LAYER, _ATTENTION | {"head_bias": ("lm_head_bias", False)}, windows="all", experts_use_ffn=True,
        kv_is_heads=False,
    ),
    "falcon": Family({"norm": "layer", "norm_bias": True, "gated": False},
                     _biased("bias", False, "qkv_bias", "output_bias", "mlp_bias"), tied=True),
    "gpt_neox": Family(
        _LAYER | {"mlp_bias": True, "gated": False},
        _biased("attention_bias", True, "qkv_bias", "output_bias") | {"parallel": ("use_parallel_residual", True)},
    ),
    "gpt2": Family(_GPT, tied=True),
    "gpt_bigcode": Family(_GPT, tied=True),
    "bloom": Family(_GPT, tied=True),
    "opt": Family({"norm": "layer", "gated": False},
                  _biased("enable_bias", True, "qkv_bias", "output_bias", "mlp_bias"), tied=True),
    "stablelm": Family(
        _LAYER, {"qkv_bias": ("use_qkv_bias", False), "qk_norm": ("qk_layernorm", False),
                 "qk_norm_wide": ("qk_layernorm", False), "parallel": ("use_parallel_residual", False)},
        kv_is_heads=False,
    ),
    "olmo": Family({"norm": "layer", "norm_weight": False}, _ATTENTION),
    "olmo2": Family(_WIDE, _ATTENTION),
    "olmo3": Family(_WIDE, _ATTENTION, windows="every", every=4, defaults={"sliding_window": 4096}),
    "granite": Family(flags=_ATTENTION | _MLP),
    "glm": Family(flags={"qkv_bias": ("attention_bias", True)}, kv_is_heads=False, defaults={"head_dim": 128}),
    "glm4": Family(
        {"norms": 4}, {"qkv_bias": ("attention_bias", True)}, kv_is_heads=False, defaults={"head_dim": 128},
    ),
    "cohere": Family(_COHERE, _ATTENTION | _biased("use_qk_norm", False, "qk_norm", "qk_norm_wide"), tied=True),
    "cohere2": Family(_COHERE, _ATTENTION, tied=True, windows="every", every=4, defaults={"sliding_window": 4096}),
    "starcoder2": Family(
        _LAYER | {"gated": False}, _biased("use_bias", True, "qkv_bias", "output_bias", "mlp_bias"),
        tied=True, windows="all", kv_is_heads=False,
    ),
    "smollm3": Family(flags=_ATTENTION | _MLP, tied=True),
    "ernie4_5": Family(
        flags=_biased("use_bias", False, "qkv_bias", "output_bias", "mlp_bias"), tied=True,
        defaults={"head_dim": 128},
    ),
    "seed_oss": Family(
        flags=_MLP | {"qkv_bias": ("attention_bias", True), "output_bias": ("attention_out_bias", False)},
        defaults={"head_dim": 128},
    ),
    "exaone4": Family(_QK, windows="every", every=4, defaults={"sliding_window": 4096}),
    "nemotron": Family(_LAYER | {"gated": False}, _ATTENTION | _MLP),
    "hunyuan_v1_dense": Family(_QK, _ATTENTION),
    "arcee": Family({"gated": False}, _ATTENTION | _MLP),
    "apertus": Family(_QK | {"gated": False}, _ATTENTION),
    # its norms, on the stream and on queries and keys, have no weights
    "nanochat": Family({"gated": False, "norm_weight": False}, _ATTENTION),
    "jais2": Family(_LAYER | {"gated": False}, _biased("attention_bias", True, "qkv_bias", "output_bias")
                    | {"mlp_bias": ("mlp_bias", True)}),
    "persimmon": Family(_GPT),
    "gptj": Family(_LAYER | {"mlp_bias": True, "gated": False, "norms": 1, "parallel": True, "head_bias": True}),
    "gpt_neo": Family(_LAYER | {"output_bias": True, "mlp_bias": True, "gated": False}, tied=True),
    "mpt": Family({"norm": "layer", "gated": False}, tied=True),
    "helium": Family(flags={"qkv_bias": ("attention_bias", False)} | _MLP, defaults={"head_dim": 128}),
    "internlm3": Family(
        flags={"qkv_bias": ("qkv_bias", False)} | _biased("bias", False, "output_bias", "mlp_bias")
    ),
    "exaone_moe": Family(_QK, windows="every", every=4, sparse="first",
                         defaults={"sliding_window": 4096, "first_k_dense_replace": 1}),
    "flex_olmo": Family(_WIDE, _ATTENTION, experts_use_ffn=True),
    "hy_v3": Family(_QK, _ATTENTION | _MLP, sparse="first", defaults={"first_k_dense_replace": 1}),
    "solar_open": Family(
        flags={"qkv_bias": ("attention_bias", False)}, sparse="first", defaults={"first_k_dense_replace": 0},
    ),
    "minicpm3": Family(flags=_ATTENTION | _MLP),
    "youtu": Family(flags=_ATTENTION | _MLP, tied=True),
    "ministral": Family(windows="all", defaults={"sliding_window": 4096}),
    "deepseek_v32": Family(flags=_ATTENTION, sparse="first", defaults=_MLA_SIZES | {
        "first_k_dense_replace": 3, "n_shared_experts": 1, "index_n_heads": 64, "index_head_dim": 128,
    }),
    "glm_moe_dsa": Family(flags=_ATTENTION, sparse="first", defaults={
        "first_k_dense_replace": 3, "n_shared_experts": 1, "index_n_heads": 32, "index_head_dim": 128,
    }),
    "glm4v_text": Family({"norms": 4, "qkv_bias": True}, defaults={
        "hidden_size": 4096, "intermediate_size": 13696, "num_hidden_layers": 40, "num_attention_heads": 32,
        "num_key_value_heads": 2, "vocab_size": 151552,
    }),
    "glm4v_moe_text": Family(flags={"qkv_bias": ("attention_bias", True)}, sparse="first", defaults={
        "first_k_dense_replace": 1, "n_shared_experts": 1, "moe_intermediate_size": 1408, "num_experts": 128,
        "num_experts_per_tok": 8, "hidden_size": 4096, "intermediate_size": 10944, "num_hidden_layers": 46,
        "num_attention_heads": 96, "num_key_value_heads": 8, "vocab_size": 151424,
    }),
    # remote code: a Qwen2 block with layers for multi-token prediction beside it
    "mimo": Family({"qkv_bias": True}),
    "mixtral": Family(windows="all", experts_use_ffn=True),
    "qwen2_moe": Family(
        {"shared_gate": True}, {"qkv_bias": ("qkv_bias", True)}, windows="even", sparse="step",
        defaults={
            "sliding_window": 4096, "max_window_layers": 28, "use_sliding_window": False,
            "shared_expert_intermediate_size": 5632,
        },
    ),
    "qwen3_moe": Family(_QK, _ATTENTION, windows="all", sparse="step", defaults={"use_sliding_window": False}),
    "olmoe": Family(_WIDE, _ATTENTION, experts_use_ffn=True),
    "granitemoe": Family(flags=_ATTENTION, experts_use_ffn=True),
    "granitemoeshared": Family(flags=_ATTENTION, experts_use_ffn=True),
    "gpt_oss": Family(
        {"sinks": True, "router_bias": True, "expert_bias": True},
        _biased("attention_bias", True, "qkv_bias", "output_bias"), windows="every", every=2, experts_use_ffn=True,
        defaults={"head_dim": 64, "sliding_window": 128},
    ),
    "minimax_m2": Family(_WIDE, experts_use_ffn=True, kv_is_heads=False, defaults={"head_dim": 128}),
    "deepseek_v2": Family(
        flags=_ATTENTION | _MLP, sparse="first",
        defaults=_MLA_SIZES | {"first_k_dense_replace": 0, "n_shared_experts": 2, "moe_intermediate_size": 1407},
    ),
    "deepseek_v3": _DEEPSEEK_V3,
    "kimi_k2": _DEEPSEEK_V3,
    "glm4_moe_lite": Family(
        flags=_ATTENTION, sparse="first",
        defaults={"kv_lora_rank": 512, "q_lora_rank": 768, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64,
                  "v_head_dim": 256, "first_k_dense_replace": 1, "n_shared_experts": 1},
    ),
    "glm4_moe": Family(
        flags={"qkv_bias": ("attention_bias", False), "qk_norm": ("use_qk_norm", False)}, sparse="first",
        kv_is_heads=False, defaults={"first_k_dense_replace": 1, "n_shared_experts": 1},
    ),
    "dots1": Family(
        _QK, _ATTENTION, windows="late", sparse="first",
        defaults={"first_k_dense_replace": 0, "sliding_window": 4096, "max_window_layers": 62},
    ),
    "ernie4_5_moe": Family(
        {"router_bias": True}, _biased("use_bias", False, "qkv_bias", "output_bias", "mlp_bias", "head_bias"),
        tied=True, sparse="ernie", kv_is_heads=False,
    ),
    "qwen3_next": Family(
        _HYBRID | {"shared_gate": True}, _ATTENTION, every=4, sparse="step",
        defaults=_NEXT | {"shared_expert_intermediate_size": 512},
    ),
    "qwen3_5_text": _QWEN3_5,
    "qwen3_5_moe_text": _QWEN3_5_MOE,
    "qwen2_vl_text": _QWEN2_VL,
    "qwen2_5_vl_text": _QWEN2_VL,
    "qwen3_vl_text": Family(_QK, _ATTENTION, defaults=_QWEN_SIZES | {"head_dim": 128}),
    "qwen3_vl_moe_text": Family(
        _QK, _ATTENTION, sparse="step", tied=True,
        defaults=_QWEN_SIZES | {
            "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24, "num_attention_heads": 16,
            "num_key_value_heads": 16, "moe_intermediate_size": 1408, "num_experts": 60, "num_experts_per_tok": 4,
        },
    ),
    "llama4_text": _LLAMA4,
    "mllama_text_model": Family(defaults=_LLAMA_SIZES | {
        "intermediate_size": 14336, "num_hidden_layers": 40, "num_key_value_heads": 8, "vocab_size": 128256,
        "cross_attention_layers": [3, 8, 13, 18, 23, 28, 33, 38],
    }),
}  # fmt: skip
"""model_type of a text model -> what it has apart from a Llama block."""


class Composite(Struct, frozen=True):
    """A model_type that holds a text model and a tower: the text's model_type where `text_config` has none, and
    whether the head is tied where the outer file does not say. `or_text`: the text's own answer counts too.

    >>> COMPOSITES["gemma3"].text
    'gemma3_text'
    """

    text: str
    tied: bool = False
    or_text: bool = False


COMPOSITES: dict[str, Composite] = {
    "gemma3": Composite("gemma3_text", tied=True),
    "qwen2_vl": Composite("qwen2_vl_text", or_text=True),
    "qwen2_5_vl": Composite("qwen2_5_vl_text", or_text=True),
    "qwen3_vl": Composite("qwen3_vl_text"),
    "qwen3_vl_moe": Composite("qwen3_vl_moe_text"),
    "qwen3_5": Composite("qwen3_5_text"),
    "qwen3_5_moe": Composite("qwen3_5_moe_text"),
    "glm4v": Composite("glm4v_text"),
    "glm46v": Composite("glm4v_text"),
    "glm4v_moe": Composite("glm4v_moe_text"),
    "llava_next": Composite("llama", or_text=True),
    "paligemma": Composite("gemma", tied=True),
    "llava": Composite("llama", or_text=True),
    "mistral3": Composite("mistral", tied=True),
    "internvl": Composite("qwen2", tied=True),
    "idefics3": Composite("llama"),
    "smolvlm": Composite("llama"),
    "llama4": Composite("llama4_text"),
    "mllama": Composite("mllama_text_model", or_text=True),
    "kimi_k25": Composite("deepseek_v3", tied=True),
}
"""model_type of a model with a vision tower -> its text model."""
