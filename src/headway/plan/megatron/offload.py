"""Activations that a Megatron trainer keeps in host memory until its backward pass: fine-grained offloading.

`--offload-modules` names modules. What autograd saves while one of them runs is copied to pinned host memory when the
module has run, and its device memory is free as soon as nothing else holds it; tensors below 2^20 elements stay.
Source: Megatron Core's `fine_grained_activation_offload.py` and the modules that open it:

    attn_norm         the layer's input, where the norm is a module of its own (latent attention; not Transformer
                      Engine's norm and projection in one)
    qkv_linear        the projection's input, with that of the norm where both are one module; latent vectors
    core_attn         queries, keys, values, and the softmax of attention in plain torch
    attn_proj         attention's output, which core_attn alone cannot free
    mlp_norm          the input of the norm before experts
    expert_fc1        the experts' inputs
    moe_act           gate and up
    fused_group_mlp   all of the experts

The last group of each module stays on the device, since the backward pass begins with it, and while a group goes
backward the next one comes back. `--activation-offload-fraction` leaves the later groups on the device. The pinned
buffers stay in a pool; torch's allocator for pinned memory rounds each up to a power of two.
"""

from headway.plan.item import Item
from headway.plan.megatron.run import Run

SMALLEST = 2**20
"""Elements below which a tensor stays (`--min-offloaded-tensor-size`)."""


def attention(run: Run, stream: int, latent: int, inside: int, out: int) -> tuple[int, ...]:
    """Bytes of each group of an attention, of its input, what it is projected to on the way, what attention itself
    keeps beside its output, and that output."""
    apart = run.shape.mla is not None or not run.te
    normed = 0 if run.drops("layernorm") and apart else stream
    sizes = {
        "attn_norm": stream if apart else 0,
        "qkv_linear": normed + latent + (0 if apart else stream),
        "core_attn": inside,
        "attn_proj": out if "core_attn" in run.megatron.offload_modules else 0,
    }
    return _chosen(run, sizes)


def experts(run: Run, stream: int, moved: int, first: int, second: int) -> tuple[int, ...]:
    """Bytes of each group of a layer's experts: its norm's input, the copies that come in, gate and up, and their
    product, which is offloaded only where all of them are one group."""
    product = 0 if run.drops("moe_act") else second
    sizes = {"mlp_norm": stream, "expert_fc1": moved, "moe_act": first, "fused_group_mlp": moved + first + product}
    return _chosen(run, sizes)


def _chosen(run: Run, sizes: dict[str, int]) -> tuple[int, ...]:
    wanted = [size for name, size in sizes.items() if name in run.megatron.offload_modules]
    return tuple(round(size * run.megatron.offload_fraction) for size in wanted if size >= SMALLEST * run.size)


def pinned(size: int, layers: int) -> list[Item]:
    """The host's line of so many bytes, of so many layers of all micro-batches in flight."""
    if not size:
        return []
    return [Item("offloaded activations", size, 2 * size, f"{layers} layers in flight", "pinned, plan/megatron")]
