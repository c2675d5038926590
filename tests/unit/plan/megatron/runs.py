"""Workloads that the tests of Megatron's plan vary."""

from typing import Any

from msgspec.structs import replace

from headway.facts.blocks import Mla
from headway.facts.shapes import ModelShape
from headway.facts.workload import Layout, Megatron, Optimizer, Recompute, Rollout, Trainer, Workload

LLAMA = ModelShape(
    name="llama-like", family="llama", layers=8, hidden=1024, ffn=3584, heads=16, kv_heads=4, head_dim=64,
    vocab=32000, tied=False,
)  # fmt: skip
GPT = ModelShape(
    name="gpt-like", family="", layers=8, hidden=1024, ffn=4096, heads=16, kv_heads=16, head_dim=64, vocab=51200,
    tied=True, qkv_bias=True, output_bias=True, mlp_bias=True, gated=False, norm="layer", norm_bias=True,
    learned_positions=2048,
)  # fmt: skip
MOE = replace(LLAMA, experts=16, experts_per_token=4, expert_ffn=512, shared_ffn=1024, dense_layers=2)
LATENT = replace(MOE, mla=Mla(256, 128, 64, 32, 64))


def run(shape: ModelShape = LLAMA, **changes: Any) -> Workload:
    """Pretraining of one sample of 2,048 tokens a micro-batch, eight micro-batches a step; changes by field name."""
    layout = {key: changes.pop(key) for key in list(changes) if key in Layout.__struct_fields__}
    megatron = {key: changes.pop(key) for key in list(changes) if key in Megatron.__struct_fields__}
    optimizer = {key: changes.pop(key) for key in list(changes) if key in Optimizer.__struct_fields__}
    recompute = changes.pop("recompute", Recompute())
    length, samples, accumulated = changes.pop("length", 2048), changes.pop("rows", 1), changes.pop("accumulated", 8)
    trainer = Trainer(
        **{
            "param_dtype": "bf16", "lora": None, "reference": "none", "cap": samples * length, "checkpointing": False,
            "attention": "sdpa", "logprob_chunk": 0, "entropy": False, "updates": 1, "system": "megatron",
            "rows": samples, "optimizer": Optimizer(**optimizer), "loss": "logits", "recompute": recompute,
            "megatron": Megatron(**megatron), **changes,
        }
    )  # fmt: skip
    placed = Layout(**layout)
    data = max(1, placed.ranks // (placed.tensor * placed.context * placed.pipeline))
    rollout = Rollout(samples * accumulated * data, 1, 0, length, 0, 0, 1)
    return Workload(
        shape, trainer, rollout, "cuda", 1, 0, "exact", 0, "json", 0, 3, save=True, tensorboard=False, layout=placed
    )
