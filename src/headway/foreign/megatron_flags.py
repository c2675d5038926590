"""Megatron's flags that decide memory, as Megatron-LM, slime and Miles share them."""

from collections.abc import Mapping
from typing import Literal, get_args

from headway.facts.workload import Float8
from headway.foreign.command import Line
from headway.foreign.rules import Answer, Rule, Unclear

SHAPE = (
    Rule("num_layers", ("num-layers",)),
    Rule("hidden_size", ("hidden-size",)),
    Rule("ffn_hidden_size", ("ffn-hidden-size",)),
    Rule("num_attention_heads", ("num-attention-heads",)),
    Rule("num_kv_heads", ("num-query-groups",)),
    Rule("kv_channels", ("kv-channels",)),
    Rule("vocab_size", ("vocab-size",)),
    Rule("num_experts", ("num-experts",)),
    Rule("moe_topk", ("moe-router-topk",)),
    Rule("moe_ffn_hidden_size", ("moe-ffn-hidden-size",)),
)
"""The model's sizes, as the arrays of model arguments give them."""

LAYOUT = (
    Rule("tp", ("tensor-model-parallel-size",), "int", 1),
    Rule("pp", ("pipeline-model-parallel-size",), "int", 1),
    Rule("cp", ("context-parallel-size",), "int", 1),
    Rule("ep", ("expert-model-parallel-size",), "int", 1),
    Rule("etp", ("expert-tensor-parallel-size",)),
    Rule("sequence_parallel", ("sequence-parallel",), "switch"),
)

TRAINING = (
    Rule("micro_batch", ("micro-batch-size",), "int", 1),
    Rule("global_batch", ("global-batch-size",)),
    Rule("optimizer", ("optimizer",), "text", "adam"),
    Rule("optimizer_offload", ("optimizer-cpu-offload",), "switch"),
    Rule("save_interval", ("save-interval",)),
    Rule("eval_interval", ("eval-interval",)),
)

SWITCHES = frozenset({
    "sequence-parallel", "optimizer-cpu-offload", "overlap-cpu-optimizer-d2h-h2d",
    "use-precision-aware-optimizer", "use-distributed-optimizer", "bf16", "fp16", "swiglu",
    "disable-bias-linear", "add-qkv-bias", "group-query-attention", "untie-embeddings-and-output-weights",
    "qk-layernorm", "no-masked-softmax-fusion", "accumulate-allreduce-grads-in-fp32",
    "attention-softmax-in-fp32", "recompute-activations", "moe-grouped-gemm", "moe-permute-fusion",
    "moe-enable-deepep", "overlap-grad-reduce", "overlap-param-gather", "no-rope-fusion",
    "use-rotary-position-embeddings", "no-save-optim", "no-load-optim", "no-load-rng", "no-save-rng",
    "finetune", "multi-latent-attention", "apply-layernorm-1p", "moe-router-pre-softmax",
    "moe-shared-expert-overlap", "moe-router-enable-expert-bias", "distributed-optimizer",
    "fine-grained-activation-offloading", "use-megatron-fsdp", "use-custom-fsdp", "defer-embedding-wgrad-compute",
    "no-check-for-nan-in-loss-and-grad", "fp8-param-gather", "use-flash-attn", "enable-cuda-graph",
    "external-cuda-graph", "perform-rl-step", "moe-router-padding-for-fp8",
})  # fmt: skip
"""Flags that take no value, so that a word after one is nobody's."""

OFFLOADABLE = frozenset({
    "attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "expert_fc1", "moe_act", "fused_group_mlp",
})  # fmt: skip
"""Modules that `--offload-modules` may name."""

Sharding = Literal["", "optim", "optim_grads", "optim_grads_params"]


def sharding(flags: Mapping[str, tuple[str | None, ...]]) -> Sharding:
    """What Megatron's own FSDP divides; empty where it divides nothing, as without a strategy.

    >>> sharding({"use-megatron-fsdp": (None,), "data-parallel-sharding-strategy": ("optim_grads_params",)})
    'optim_grads_params'
    """
    given = (flags.get("data-parallel-sharding-strategy") or (None,))[0]
    if not flags.keys() & {"use-megatron-fsdp", "use-custom-fsdp"} or given not in get_args(Sharding):
        return ""
    return given  # type: ignore[return-value]


def offloaded(flags: Mapping[str, tuple[str | None, ...]]) -> tuple[str, ...]:
    """The modules whose activations go to host memory; none where that is not switched on.

    >>> offloaded({"fine-grained-activation-offloading": (None,), "offload-modules": ("core_attn", "attn_proj")})
    ('core_attn', 'attn_proj')
    """
    if "fine-grained-activation-offloading" not in flags:
        return ()
    words = " ".join(word or "" for word in flags.get("offload-modules", ())).replace(",", " ").split()
    return tuple(word for word in words if word in OFFLOADABLE)


def float8(flags: Mapping[str, tuple[str | None, ...]]) -> Float8 | None:
    """How layers compute in float8; None where they do not. Megatron's default recipe is delayed scaling.

    >>> float8({"fp8-format": ("hybrid",), "fp8-recipe": ("blockwise",)}).recipe
    'blockwise'
    """
    if not any((flags.get(name) or (None,))[0] for name in ("fp8-format", "fp8")):
        return None
    recipe = (flags.get("fp8-recipe") or (None,))[0] or "delayed"
    known = recipe if recipe in ("delayed", "tensorwise", "blockwise", "mxfp8") else "tensorwise"
    return Float8(known, gather="fp8-param-gather" in flags)  # type: ignore[arg-type]


def dtype(line: Line) -> Answer:
    """`--bf16` or `--fp16`; None where neither is given.

    >>> from headway.foreign.command import Line, flags
    >>> dtype(Line(flags(["--fp16"])))
    'fp16'
    """
    for name in ("fp16", "bf16"):
        if name in line:
            return name
    return None


def low_precision(line: Line) -> Answer:
    """fp8 or fp4 where the layers compute in it; None where they do not."""
    for flag, kind in (("fp4-format", "fp4"), ("fp8-format", "fp8"), ("fp8", "fp8")):
        given = line.last(flag)
        if given is not None:
            return kind if given.text is not None else Unclear(given.why)
    return None


def recompute(line: Line) -> Answer:
    """`full` or `selective`; None where nothing is recomputed."""
    given = line.last("recompute-granularity")
    if given is not None:
        if not given.values:
            return Unclear("--recompute-granularity has no value")
        return given.text if given.text is not None else Unclear(given.why)
    return "selective" if "recompute-activations" in line else None
