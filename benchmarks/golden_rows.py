"""A row of Megatron-LM's functional tests as a run."""

import re
from collections.abc import Mapping
from typing import Literal

from headway.facts.blocks import Mamba, Mla
from headway.facts.shapes import ModelShape
from headway.facts.workload import Float8, Layout, Megatron, Optimizer, Recompute, Rollout, Trainer, Workload
from headway.foreign.megatron_flags import OFFLOADABLE
from headway.units import GIB
from prediction import NotCovered
from rows_megatron import OLDER_CORE

MODELS = ("gpt", "moe", "mixtral", "bert", "t5", "hybrid")


def workload(row: Mapping[str, str], *, renewed: bool = True) -> Workload:
    """The run of a row; NotCovered where it is of another kind, or where the row does not say enough. `renewed`: the
    test was recorded again after its long-term container changed."""
    if row["model"] not in MODELS:
        raise NotCovered(f"model {row['model']}")
    if "distill" in row["case"]:
        raise NotCovered("the teacher of a distillation is not known")
    if row["cuda_graph"] == "transformer_engine":
        raise NotCovered("torch counts what runs in captured graphs only while it captures")
    if row["pp_layout"]:
        raise NotCovered("a layout of stages by letters")
    layout, shape = _layout(row), _shape(row)
    data = layout.ranks // (layout.tensor * layout.context * layout.pipeline)
    samples, batch = number(row, "mbs", 1), number(row, "gbs")
    length = number(row, "decoder_seq" if row["model"] == "t5" else "seq")
    trainer = Trainer(
        param_dtype="fp16" if flag(row, "fp16") else "bf16", lora=None, reference="none", cap=samples * length,
        checkpointing=False, attention=_attention(row, renewed=renewed),
        logprob_chunk=0, entropy=False, updates=1, system="megatron", rows=samples,
        grad_dtype="fp16" if flag(row, "fp16") else "fp32", float8=_float8(row),
        optimizer=Optimizer(
            kind="muon" if "muon" in row["opt"] else "adamw", step="fused",
            distributed=flag(row, "distributed_optimizer"),
        ),
        loss="logits",
        recompute=Recompute(row["rec"] or "none", (), row["rec_m"] or "uniform", number(row, "rec_n", 0)),
        megatron=_megatron(row),
    )  # fmt: skip
    samples_a_step = max(batch, samples * data)
    return Workload(
        shape, trainer, Rollout(samples_a_step, 1, 0, length, 0, 0, 1), "cuda", 1, 0, "exact", 0, "json", 0, 3,
        save=False, tensorboard=False, layout=layout,
    )  # fmt: skip


def _float8(row: Mapping[str, str]) -> Float8 | None:
    """Megatron's default recipe is delayed scaling."""
    if not row["fp8"]:
        return None
    recipe = row["fp8_recipe"] or "delayed"
    if recipe not in ("delayed", "tensorwise", "blockwise", "mxfp8"):
        raise NotCovered(f"fp8 recipe {recipe}")
    return Float8(recipe, flag(row, "fp8_param_gather"), "gb200" not in row["env"])  # type: ignore[arg-type]


def _attention(row: Mapping[str, str], *, renewed: bool) -> Literal["eager", "flash", "sdpa"]:
    """What runs it: Transformer Engine takes cuDNN's attention where that is deterministic, as these tests ask for:
    on Hopper; on Ampere and Blackwell it takes FlashAttention. Transformer Engine 1.2 of the older container has no
    deterministic kernel but its unfused one ("Disabling usage of FlashAttention since version 2 does not support
    deterministic execution", `attention.py`)."""
    if row["attn"] == "unfused" or _local(row):
        return "eager"
    if not row["attn"] and _older_container(row, renewed=renewed) and _deterministic(row):
        return "eager"
    return "sdpa" if "h100" in row["env"] and row["attn"] != "flash" else "flash"


def _local(row: Mapping[str, str]) -> bool:
    """Whether layers are Megatron Core's own."""
    return "local" in (row["impl"], row["attn"]) or "local_spec" in row["case"]


def _older_container(row: Mapping[str, str], *, renewed: bool) -> bool:
    """Whether a value is of PyTorch's container 24.01, which the long-term tests ran in until November 2025. Those of
    the cluster's old name were not recorded after it; a test that was has a value named `lts` alone, or a second
    run."""
    return row["env"].startswith("lts_dgxa100_dracooci") or (row["env"] == "lts_dgx_a100" and not renewed)


def _deterministic(row: Mapping[str, str]) -> bool:
    """Whether a test sets NVTE_ALLOW_NONDETERMINISTIC_ALGO=0, as all do but releases, those that reshard a
    checkpoint or fuse the loss, and those that say so."""
    free = ("nondeterministic", "reshard", "cross_entropy_loss_fusion", "memory_speed")
    return row["test_type"] != "release" and not any(word in row["case"] for word in free)


def _megatron(row: Mapping[str, str]) -> Megatron:
    native = flag(row, "cef") or row["cross_entropy_impl"] == "native"
    return Megatron(
        implementation="local" if _local(row) else "te",
        te_version="2.0" if row["env"].startswith("lts") else "", core_version=OLDER_CORE,
        fused_gradients=flag(row, "grad_accum_fusion"), cross_entropy="native" if native else "unfused",
        hidden_dropout=float(row["hidden_dropout"] or 0) > 0,
        attention_dropout=float(row["attention_dropout"] or 0) > 0,
        optimizer_instances=number(row, "optimizer_instances", 1),
        encoder_length=number(row, "encoder_seq", 0) if row["model"] == "t5" else 0,
        # the tests set a limit of two micro-batches
        defer_gradients="defer_embedding_wgrad" in row["case"], deferral_limit=2, fsdp=_sharding(row),
        offload_modules=_offloaded(row["activation_offload"]),
        graphs="local" if row["cuda_graph"] == "local" else "", inference_cache=_inference_cache(row["case"]),
        count_embedding=flag(row, "account_embedding"), count_loss=flag(row, "account_loss"),
    )  # fmt: skip


def _inference_cache(case: str) -> int:
    """The cache of tests that generate: Megatron's default, but where the test's arguments set 20 GiB."""
    if "_grpo_" not in case:
        return 0
    return (20 if "tp4_pp1_dp2_8b" in case else 40) * GIB


def _sharding(row: Mapping[str, str]) -> Literal["", "optim", "optim_grads", "optim_grads_params"]:
    """What Megatron's FSDP divides."""
    text = row["fsdp_sharding"]
    if text == "optim" or text == "optim_grads" or text == "optim_grads_params":
        return text
    if text or flag(row, "fsdp"):
        raise NotCovered("what Megatron's FSDP divides is not known")
    return ""


def _offloaded(text: str) -> tuple[str, ...]:
    """The modules whose activations go to host memory."""
    found = tuple(word for word in re.findall(r"[a-z_0-9]+", text.lower()) if word in OFFLOADABLE)
    if text and text != "False" and not found:
        raise NotCovered("which activations are offloaded is not known")
    return found


def _layout(row: Mapping[str, str]) -> Layout:
    tensor, pipeline, context = (number(row, key, 1) for key in ("tp", "pp", "cp"))
    parts = number(row, "vpp", 0)
    if parts == 1:
        # one part would be no interleaving: the value is that of --num-layers-per-virtual-pipeline-stage
        parts = number(row, "layers") // pipeline
    if "|" in row["hybrid_pattern"]:
        parts = (row["hybrid_pattern"].count("|") + 1) // pipeline
    if not row["world_size"] and flag(row, "distributed_optimizer"):
        raise NotCovered("world size is not known")
    # data parallel ranks that divide nothing do not change what one of them holds
    devices = number(row, "world_size", tensor * pipeline * context)
    if "default (2x4)" in row["world_size_from"] and row["case"].endswith("_1node"):
        devices = 4
    return Layout(
        devices=devices, tensor=tensor, pipeline=pipeline, context=context,
        sequence_parallel=flag(row, "sp"), expert_parallel=number(row, "ep", 1),
        expert_tensor=number(row, "etp", 0) or None,
        virtual_pipeline=max(1, parts) if pipeline > 1 else 1,
        first_stage_layers=number(row, "pp_first_layers", 0) or None,
        last_stage_layers=number(row, "pp_last_layers", 0) or None,
    )  # fmt: skip


def _shape(row: Mapping[str, str]) -> ModelShape:
    hidden, heads, gated = number(row, "hidden"), number(row, "heads"), flag(row, "gated")
    bias, kind, letters = flag(row, "bias"), row["model"], row["hybrid_pattern"]
    if "/" in letters:
        raise NotCovered("a hybrid with layers for multi-token prediction")
    layers = len(letters.replace("|", "")) or number(row, "decoder_layers" if kind == "t5" else "layers")
    ffn = number(row, "ffn", 0) or (int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden)
    learned = row["position_embedding"] == "learned_absolute"
    rms = row["norm"] == "RMSNorm"
    experts = number(row, "experts", 0)
    return ModelShape(
        name=row["case"], family="", layers=layers, hidden=hidden, ffn=ffn, heads=heads,
        kv_heads=number(row, "kv", 0) or heads, head_dim=number(row, "head_dim", 0) or hidden // heads,
        vocab=number(row, "vocab"), tied=flag(row, "tied"), qkv_bias=bias, output_bias=bias, mlp_bias=bias,
        gated=gated, norm="rms" if rms else "layer", norm_bias=not rms, experts=experts,
        experts_per_token=number(row, "topk", 0), expert_ffn=(number(row, "moeffn", 0) or ffn) if experts else 0,
        shared_ffn=number(row, "shared_expert_ffn", 0), dense_layers=_dense(row["moe_layer_freq"]),
        mla=_mla(row) if flag(row, "mla") else None, mtp_layers=number(row, "mtp_layers", 0),
        learned_positions=number(row, "max_positions", 0) if learned else 0,
        head_bias=kind in ("bert", "t5"), masked_head=kind == "bert",
        encoder_layers=number(row, "encoder_layers") if kind == "t5" else 0,
        letters=letters, mamba=_mamba(hidden) if letters else None,
    )  # fmt: skip


def _mamba(hidden: int) -> Mamba:
    """Megatron Core's defaults: inner width twice the model's, heads of 64, 8 groups, states of 128."""
    return Mamba(heads=2 * hidden // 64, head_dim=64, groups=8, state=128)


def _dense(frequency: str) -> int:
    """Leading dense layers of `([0]*1+[1]*15)`; 0 where every layer has experts."""
    if not frequency:
        return 0
    head, star, rest = frequency.replace("(", "").replace("[0]", "").partition("*")
    count = rest.partition("+")[0]
    if head or not star or not count.isdigit():
        raise NotCovered(f"moe_layer_freq {frequency}")
    return int(count)


def _mla(row: Mapping[str, str]) -> Mla:
    return Mla(*(number(row, key, 0) for key in ("q_lora", "kv_lora", "qk_nope", "qk_rope", "v_dim")))


def number(row: Mapping[str, str], key: str, default: int | None = None) -> int:
    """A whole number; NotCovered where it is absent and there is no default."""
    text = row[key]
    if not text:
        if default is None:
            raise NotCovered(f"{key} is not known")
        return default
    return int(float(text))


def flag(row: Mapping[str, str], key: str) -> bool:
    """Whether a column says True."""
    return row[key] == "True"
