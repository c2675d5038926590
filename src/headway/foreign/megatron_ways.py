"""How a script of Megatron-LM tells Megatron to run its model: fusions, dropout, dispatch, offload, FSDP."""

from typing import TYPE_CHECKING, Literal

from headway.facts.shapes import ModelShape
from headway.facts.workload import Float8, Megatron
from headway.foreign.hydra import value as literal
from headway.foreign.megatron_flags import float8, offloaded, sharding
from headway.units import GIB

if TYPE_CHECKING:
    from headway.foreign.runs import Reading


def products(reading: "Reading") -> Float8 | None:
    """How layers compute in float8; None where they do not."""
    reading.asked.update(("fp8-format", "fp8", "fp8-recipe", "fp8-param-gather"))
    found, recipe = float8(reading.found.flags), reading.text("fp8-recipe")
    if found is not None and recipe not in (None, found.recipe):
        reading.notes.append(
            f"trainer.float8.recipe = {found.recipe} (assumed: --fp8-recipe {recipe} is not planned)"
        )
    return found


def ways(reading: "Reading", shape: ModelShape) -> Megatron:
    """How Megatron is told to run a model; what of it cannot be told is noted."""
    flags = reading.found.flags
    dispatcher = reading.text("moe-token-dispatcher-type") or "allgather"
    loss: Literal["unfused", "native", "te"] = "unfused"
    if "cross-entropy-loss-fusion" in flags:
        loss = "te" if reading.text("cross-entropy-fusion-impl") == "te" else "native"

    def dropout(name: str) -> bool:
        rate = literal(reading.text(name) or "0.1")
        return not isinstance(rate, int | float) or rate > 0

    modules = offloaded(flags)
    if not modules and "fine-grained-activation-offloading" in flags:
        reading.notes.append("which activations are offloaded cannot be told: all are planned on the device")
    share = literal(reading.text("activation-offload-fraction") or "1")
    fraction = float(share) if isinstance(share, int | float) and share >= 0 else 1.0
    impl = reading.text("cuda-graph-impl")
    older = {"enable-cuda-graph": "local", "external-cuda-graph": "transformer_engine"}
    impl = impl or next((name for flag, name in older.items() if reading.flag(flag)), None)
    if impl == "transformer_engine":
        reading.notes.append(
            "captured graphs share their buffers (assumed: Transformer Engine 2.7 or newer; older ones have four for "
            "each layer and micro-batch: --set trainer.megatron.te_version=2.6)"
        )
    cache = literal(reading.text("inference-dynamic-batching-buffer-size-gb") or "40")
    size = cache if isinstance(cache, int | float) and 0 < cache < 2**20 else 40
    exchange = reading.text("cp-comm-type") or "p2p"
    return Megatron(
        implementation="local" if reading.text("transformer-impl") == "local" else "te",
        fused_gradients="no-gradient-accumulation-fusion" not in flags, cross_entropy=loss,
        hidden_dropout=dropout("hidden-dropout"), attention_dropout=dropout("attention-dropout"),
        context_exchange="a2a" if exchange == "a2a" else "all_gather" if exchange == "all_gather" else "p2p",
        dispatcher="flex" if dispatcher == "flex" else "alltoall" if "alltoall" in dispatcher else "allgather",
        grouped_experts="moe-grouped-gemm" in flags,
        vocab_multiple=reading.number("make-vocab-size-divisible-by", default=128),
        count_embedding="account-for-embedding-in-pipeline-split" in flags,
        count_loss="account-for-loss-in-pipeline-split" in flags,
        encoder_length=reading.number("encoder-seq-length", "seq-length") if shape.encoder_layers else 0,
        offload_modules=modules, offload_fraction=min(1.0, fraction),
        defer_gradients="defer-embedding-wgrad-compute" in flags,
        deferral_limit=reading.number("wgrad-deferral-limit"), fsdp=sharding(flags),
        optimizer_instances=max(1, reading.number("num-distributed-optimizer-instances", default=1)),
        graphs="local" if impl == "local" else "transformer_engine" if impl == "transformer_engine" else "",
        inference_cache=round(size * GIB) if reading.flag("perform-rl-step") else 0,
    )  # fmt: skip
