"""What one layer keeps from its forward pass for its backward pass, and what it needs while it runs.

Bytes per token and layer (2 bytes an element), of t tensor ranks; s of them divide the residual stream (sequence
parallelism). h hidden, q and kv widths of queries and of keys, f of the MLP; counted from Megatron Core and
Transformer Engine:

    input of each of the two norms               2h / s     the residual stream
    output of each norm                          2h / s     input of the projection behind it, gathered again backward
    queries, keys, values as attention takes     2 (q + 2 kv) / t
    attention's output                           2q / t     the output projection's input too
    softmax statistics                           4 heads / t
    gate and up                                  4f / t     2f without a gate
    their product                                2f / t     the down projection's input (6f / t not in one kernel)
    masks of two dropouts, where there are any   2h / s     one byte an element

Together 8h + 2q + 2 (q + 2 kv) + 4 heads + 6f, over t where s = t. Attention in plain torch keeps the
softmax (2 bytes a pair of tokens and head), and with dropout a mask and the result (1 + 2). Context parallelism by
all-to-all keeps attention's output before and after the exchange since Transformer Engine 2.8. FlashAttention 2
("flash") keeps it in both orders of samples and tokens where a micro-batch has several samples; cuDNN's attention
("sdpa") does not.
"""

from math import ceil

from msgspec.structs import replace

from headway.facts.blocks import Block
from headway.plan.activations import Batch
from headway.plan.megatron import encoder, float8, mamba, moe, offload
from headway.plan.megatron.parts import NOTHING, Layer, Part, gathered, stream, unfused
from headway.plan.megatron.run import FP32, Run
from headway.plan.megatron.widths import attention_of, mlp


def layer(run: Run, batch: Batch, block: Block) -> Layer:
    """One layer as its recomputation leaves it."""
    if block.attention == "encoder":
        batch = encoder.batch(run, batch)
    attended = _attention(run, batch, block)
    after = NOTHING if not block.mlp else moe.experts(run, batch) if block.experts else _mlp(run, batch)
    source = stream(run, batch)
    masks = block.halves * (source // run.size) if run.megatron.hidden_dropout else 0
    whole = block.halves * source + attended.kept + after.kept + masks
    dropped = attended.dropped + after.dropped
    forward, backward = max(attended.forward, after.forward), max(attended.backward, after.backward)
    hosted = attended.hosted + after.hosted
    if run.recompute.granularity == "full":
        return Layer(source, source, forward, backward, whole + dropped - source)
    again = max(attended.dropped, after.dropped)
    return Layer(source, whole - sum(hosted), forward, backward, again, hosted)


def _attention(run: Run, batch: Batch, block: Block) -> Part:
    """The norm's output, the projections and attention itself."""
    if block.attention == "none":
        return NOTHING
    if block.attention == "linear":
        return _recurrent(run, batch)
    if block.attention == "mamba":
        return mamba.mixer(run, batch)
    tokens, size = batch.tokens, run.size
    normed = stream(run, batch)
    latent, queries, keys, values, out = _qkv(run, tokens, block)
    if block.attention == "cross":
        far = encoder.batch(run, batch)
        keys, values = keys * far.longest // batch.longest, values * far.longest // batch.longest
        batch = replace(batch, reach=far.longest)
    core_kept, core_dropped, core_forward, core_backward = _core(run, batch, out)
    # latent attention has a norm apart, whose result two projections save, each in its precision
    into = normed if run.shape.mla is not None else float8.saved(run, normed)
    core_kept += float8.attended(run, out)
    kept = into + latent + core_kept + (gathered(run, batch) if _keeps_gathered(run) else 0)
    qkv = queries + keys + values
    dropped, inside = core_dropped, core_kept - out
    if run.drops("mla_up_proj") and run.shape.mla is not None:
        dropped += qkv
    else:
        kept, inside = kept + qkv, inside + qkv
    if run.drops("layernorm") and (run.shape.mla is not None or not run.te):
        kept, dropped = kept - into, dropped + into
    whole = tokens * run.shape.hidden * size
    # backward: gradients of queries (fp32 while they are summed), keys and values, and of attention's output
    backward = core_backward + qkv + queries * FP32 // size + out + normed + gathered(run, batch)
    hosted = offload.attention(run, normed, latent, inside, out)
    forward = core_forward + max(qkv + gathered(run, batch), out + whole if run.tensor > 1 else out)
    return Part(kept, dropped, forward, backward, hosted)


def _keeps_gathered(run: Run) -> bool:
    """An adapter's first matrix keeps its input, gathered, unless it is gathered again."""
    return run.trainer.lora is not None and run.gathers and not run.megatron.regather_lora


def _qkv(run: Run, tokens: int, block: Block) -> tuple[int, int, int, int, int]:
    """Narrow latent vectors with their norms, then queries, keys, values and attention's output, in bytes."""
    shape, size = run.shape, run.size
    if shape.mla is not None:
        mla, heads = shape.mla, ceil(shape.heads / run.tensor)
        key, value = heads * (mla.qk_nope + mla.qk_rope), heads * mla.v
        # of each latent vector its norm's input and result, which is in one module with the next projection
        narrow = ceil(tokens * (mla.q_lora + mla.kv_lora) * size / run.stream)
        latent = narrow + float8.saved(run, narrow) + tokens * mla.qk_rope * size
        wide = tokens * size
        return latent, wide * key, wide * key, wide * value, wide * value
    widths = {one.role: one.outputs for one in attention_of(shape, block, run.tensor)}
    query, kv = widths["q"], widths["k"]
    extra = 0
    if shape.attention_gate:
        query //= 2
        extra += 2 * query
    if shape.qk_norm:
        # each norm keeps its input; its output is turned by the position and then dropped
        extra += query + kv
    wide = tokens * size
    return wide * extra, wide * query, wide * kv, wide * kv, wide * query


def _core(run: Run, batch: Batch, out: int) -> tuple[int, int, int, int]:
    """Attention itself: kept, dropped, and beside them forward and backward.

    In plain torch: the softmax in half precision; with dropout its mask and result. The scores are there until the
    softmax is, and in the backward pass the gradients of both.
    """
    shape, size = run.shape, run.size
    heads = ceil(shape.heads / run.tensor)
    if run.trainer.attention == "eager":
        cells = batch.pairs * heads
        kept = cells * (size + (1 + size if run.megatron.attention_dropout else 0))
        if run.drops("core_attn"):
            return out, kept, size * cells, 2 * size * cells
        return out + kept, 0, size * cells, 2 * size * cells
    stats = batch.tokens * heads * FP32
    # FlashAttention's result has samples before tokens, the projection takes tokens before samples: a copy of it
    turned = run.trainer.attention == "flash" and batch.rows > 1 and run.context == 1
    kept, forward = out * (2 if turned else 1), 0
    if run.context > 1 and run.megatron.context_exchange == "a2a":
        kept += out if run.te_since(2, 8) else 0
        forward = 3 * out
    elif run.context > 1:
        # ring: results of each step until they are merged, and the neighbours' keys and values coming in
        forward = out * (run.context + 1) // 2
    if run.drops("core_attn"):
        return kept, stats, forward, 0
    return kept + stats, 0, forward, 0


def _mlp(run: Run, batch: Batch) -> Part:
    """The norm's output, the dense MLP's first projection and its activation."""
    shape, size, tokens = run.shape, run.size, batch.tokens
    normed, whole = stream(run, batch), gathered(run, batch)
    up, down = mlp(shape, shape.ffn, run.tensor)
    first, second = tokens * up.outputs * size, tokens * down.inputs * size
    into = float8.saved(run, normed)
    kept = into + first + float8.saved(run, second) + second * unfused(run) + (whole if _keeps_gathered(run) else 0)
    dropped = 0
    if run.drops("mlp"):
        kept, dropped = 0, kept
    elif run.drops("layernorm") and not run.te:
        kept, dropped = kept - into, into
    # the result's gradient is gathered, then that of the activation replaces the activation
    backward = first + 2 * normed + whole
    return Part(kept, dropped, whole + normed, max(backward, second + 2 * whole + normed))


def _recurrent(run: Run, batch: Batch) -> Part:
    """A gated delta net: the norm's output, the projections, the convolution's result, what the recurrence gives,
    and its gated norm. Counted from flash-linear-attention's chunked kernel, whose states per chunk of 64 tokens are
    computed again."""
    kind = run.shape.linear
    assert kind is not None
    wide = batch.tokens * run.size
    normed = stream(run, batch)
    made = wide * (2 * kind.conv_width + 2 * kind.key_width + 3 * kind.value_width) // run.tensor
    made += batch.tokens * 4 * FP32 * kind.value_heads // run.tensor
    backward = wide * (2 * kind.conv_width + kind.value_width) // run.tensor
    return Part(float8.saved(run, normed) + made, 0, made // 2, backward + gathered(run, batch))
