"""What an engine's rank holds by the model's shape alone: packed weights, KV of a token, state of a sequence."""

from math import ceil
from typing import Literal

from headway.errors import InputError
from headway.facts.blocks import Block, Linear
from headway.facts.shapes import ModelShape
from headway.facts.workload import DTYPE_BYTES, Dtype, Quant

KvDtype = Literal["fp32", "bf16", "fp16", "fp8", "int8"]
KV_BYTES: dict[KvDtype, int] = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1}
VOCAB_PADDING = 64
"""Rows of the vocabulary are padded to a multiple of this before they are divided over ranks (vLLM and SGLang:
`DEFAULT_VOCAB_PADDING_SIZE`)."""
STATE_BYTES = 4
"""The matrix state of linear attention is fp32 in both engines."""

NF4_GROUP, NF4_NESTED = 64, 256
INT4_GROUP = 128
MXFP4_GROUP = 32
TRITON, FLASHINFER, MARLIN = (1, 64), (256, 256), (256, 128)
"""Multiples that an engine's kernels pad the hidden width and the width of an mxfp4 expert to. Source: vLLM's
`Mxfp4MoEMethod.create_weights`."""
KERNELS = dict.fromkeys(("h100", "h200", "h20", "h800", "gh200"), TRITON)
KERNELS |= dict.fromkeys(("b200", "b300", "gb200", "gb300"), FLASHINFER)
"""Device -> the kernels that vLLM takes for mxfp4: Triton's on Hopper, FlashInfer's on Blackwell's servers; Marlin's
on all others."""
FP8_BLOCK = 128 * 128


def packed_bytes(weights: int, quant: Quant, outputs: int = 0) -> int:
    """Bytes of packed projections with `weights` elements; `outputs` is the number of their output channels.

    nf4 (bitsandbytes): half a byte and an fp32 scale for each 64 weights; `double`: a byte for the scale, and an
    fp32 one for each 256 scales. int4 (AWQ, GPTQ): half a byte, and an fp16 scale and a 4-bit zero point for each
    128 weights. mxfp4: half a byte, and a byte for each 32 weights. fp8: a byte, and an fp32 scale for each 128 x 128
    block. int8 (bitsandbytes): a byte, and an fp32 scale for each output channel.

    >>> packed_bytes(1 << 20, Quant("nf4")), packed_bytes(1 << 20, Quant("int4"))
    (589824, 544768)
    """
    if quant.kind == "nf4":
        groups = ceil(weights / NF4_GROUP)
        return ceil(weights / 2) + (groups + 4 * ceil(groups / NF4_NESTED) if quant.double else 4 * groups)
    if quant.kind == "int4":
        return ceil(weights / 2) + ceil(2.5 * ceil(weights / INT4_GROUP))
    if quant.kind == "mxfp4":
        return ceil(weights / 2) + ceil(weights / MXFP4_GROUP)
    if quant.kind == "fp8":
        return weights + 4 * ceil(weights / FP8_BLOCK)
    return weights + 4 * outputs


def kv_heads_per_rank(shape: ModelShape, tensor_parallel: int) -> int:
    """Key-value heads of one rank: never below one, so that ranks beyond the heads hold copies."""
    return ceil(shape.kv_heads / tensor_parallel)


def kv_token_bytes(shape: ModelShape, dtype: KvDtype, *, tensor_parallel: int = 1) -> int:
    """Bytes that one token takes in one rank's KV cache, in all layers that keep it.

    K and V of each kv head; with MLA the latent and the rotary key, which every rank holds whole. Sliding layers
    count as long as the token is in their window (see `sequence_kv_bytes`); linear layers keep no token at all.
    Source: the cache specs of vLLM and SGLang; token counts that they logged for five pools agree within 0.03 %.

    >>> from headway.facts.shapes import table
    >>> kv_token_bytes(table()["qwen3-4b"], "bf16"), kv_token_bytes(table()["qwen3-4b"], "bf16", tensor_parallel=16)
    (147456, 18432)
    """
    return sum(
        count * _layer_token(shape, block, KV_BYTES[dtype], tensor_parallel) for block, count in shape.blocks()
    )


def _layer_token(shape: ModelShape, block: Block, size: int, tensor_parallel: int) -> int:
    if block.attention == "linear":
        return 0
    if shape.mla is not None:
        return shape.mla.cache_width * size
    return 2 * kv_heads_per_rank(shape, tensor_parallel) * shape.head_dim * size


def sequence_kv_bytes(shape: ModelShape, dtype: KvDtype, tokens: int, *, tensor_parallel: int = 1) -> int:
    """KV cache of one sequence of `tokens` tokens; sliding layers keep no more of them than their window.

    >>> from headway.facts.shapes import table
    >>> sequence_kv_bytes(table()["qwen3-4b"], "bf16", 1000)
    147456000
    """
    total = 0
    for block, count in shape.blocks():
        sliding = block.attention == "sliding" and shape.sliding_window
        kept = min(tokens, shape.sliding_window) if sliding else tokens
        total += count * kept * _layer_token(shape, block, KV_BYTES[dtype], tensor_parallel)
    return total


def sequence_state_bytes(shape: ModelShape, dtype: Dtype = "bf16", *, tensor_parallel: int = 1) -> int:
    """What one sequence holds whatever its length: the states of linear layers, divided over ranks.

    The matrix of each value head is fp32, the past of the convolution in `dtype`.

    >>> from headway.facts.shapes import table
    >>> sequence_state_bytes(table()["qwen3-4b"])
    0
    """
    linear = shape.linear
    if linear is None:
        return 0
    matrix = ceil(linear.value_heads / tensor_parallel) * linear.key_dim * linear.value_dim * STATE_BYTES
    past = ceil(linear.conv_width / tensor_parallel) * linear.conv * DTYPE_BYTES[dtype]
    return linear.layers * (matrix + past)


def weight_bytes(
    shape: ModelShape,
    dtype: Dtype,
    quant: Quant | None = None,
    *,
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
    packed_head: bool = False,
    padding: tuple[int, int] = (1, 1),
) -> int:
    """Bytes of the weights on the fullest rank, as vLLM, SGLang and transformers hold them.

    Tensor parallel ranks divide projections, experts, embedding and head (the vocabulary padded to 64); norms and
    routers are on each. K and V projections are not divided below one head; the narrow projections of MLA not at
    all. `quant` packs the projections of the blocks (and the head with `packed_head`); embedding, head, norms and
    routers stay in `dtype`. mxfp4 packs experts alone, their widths padded to the multiples in `padding`.
    Layers divide over pipeline stages, of which the first has the embedding and the last the head (a tied one is
    then there twice). InputError for less than one rank.

    >>> from headway.facts.shapes import table
    >>> weight_bytes(table()["qwen3-4b"], "bf16") == 2 * table()["qwen3-4b"].parameters()
    True
    """
    if tensor_parallel < 1 or pipeline_parallel < 1:
        raise InputError(
            f"engine: tensor_parallel = {tensor_parallel}, pipeline_parallel = {pipeline_parallel}: set at least 1"
        )
    size = DTYPE_BYTES[dtype]
    per_stage = ceil(shape.layers / pipeline_parallel)
    heaviest = sorted(
        (
            (_block_bytes(shape, block, size, quant, tensor_parallel, padding), count)
            for block, count in shape.blocks()
        ),
        reverse=True,
    )
    layers, left = 0, per_stage
    for bytes_each, count in heaviest:
        layers += bytes_each * min(count, left)
        left -= min(count, left)
    vocab = shape.vocab if tensor_parallel == 1 else ceil(_padded(shape.vocab) / tensor_parallel)
    embedding = vocab * shape.hidden * size
    head = packed_bytes(vocab * shape.hidden, quant, vocab) if quant and packed_head else embedding
    head += vocab * size if shape.head_bias else 0
    first = embedding + shape.learned_positions * shape.hidden * size
    first += size * (ceil(shape.vision_parameters / tensor_parallel) + shape.other_parameters)
    last = size * shape.norm_parameters()
    if pipeline_parallel == 1:
        return layers + first + last + (0 if shape.tied and not packed_head else head)
    return layers + max(first, last + head)


def _padded(vocab: int) -> int:
    return ceil(vocab / VOCAB_PADDING) * VOCAB_PADDING


UNDIVIDED = {"q_a", "kv_a"}
"""Projections that every tensor parallel rank holds whole."""


def _block_bytes(
    shape: ModelShape, block: Block, size: int, quant: Quant | None, ranks: int, padding: tuple[int, int] = (1, 1)
) -> int:
    """One block on one rank: its projections packed or not, and what no rank divides."""
    if quant is not None and quant.kind == "mxfp4":
        plain = _block_bytes(shape, block, size, None, ranks)
        experts = shape.experts * shape.expert_parameters() if block.experts else 0
        packed = _mxfp4_bytes(shape, size, ranks, padding) if experts else 0
        return plain - ceil(experts / ranks) * size + packed
    packed = outputs = whole = 0
    for one in _linears(shape, block):
        packed += _share(shape, one, ranks)
        outputs += one.outputs
        whole += one.size
    if block.experts:
        experts = shape.experts * shape.expert_parameters()
        whole += experts
        packed += ceil(experts / ranks)
        outputs += ceil(shape.experts * (2 * shape.expert_ffn + shape.hidden) / ranks)
    rest = shape.block_parameters(block) - whole
    return (packed_bytes(packed, quant, outputs) if quant else packed * size) + rest * size


def kernels_of(device: str) -> tuple[int, int]:
    """What the kernels for mxfp4 on a device, or on a machine of them, pad widths to.

    >>> kernels_of("8xh100-80"), kernels_of("RTX4090-24GB")
    ((1, 64), (256, 128))
    """
    words = device.lower().replace("x", "-").split("-")
    return next((KERNELS[word] for word in words if word in KERNELS), MARLIN)


def _mxfp4_bytes(shape: ModelShape, size: int, ranks: int, padding: tuple[int, int]) -> int:
    """The experts of one layer on one rank, packed and padded, with their biases.

    >>> from headway.facts.shapes import by_name
    >>> round(_mxfp4_bytes(by_name("gpt-oss-20b"), 2, 1, TRITON) * 24 / 2**30, 2)
    9.47
    """
    hidden = ceil(shape.hidden / padding[0]) * padding[0]
    inner = ceil(ceil(shape.expert_ffn / ranks) / padding[1]) * padding[1]
    ins = 2 if shape.gated else 1
    weights = shape.experts * (ins + 1) * hidden * inner
    biases = shape.experts * (ins * inner + hidden) * size if shape.expert_bias else 0
    return packed_bytes(weights, Quant("mxfp4")) + biases


def _linears(shape: ModelShape, block: Block) -> tuple[Linear, ...]:
    """The projections of a block that every token passes; of the routed experts none."""
    if block.attention == "linear" and shape.linear is not None:
        attention = shape.linear.linears(shape.hidden)
    elif shape.mla is not None:
        attention = shape.mla.linears(shape.hidden, shape.heads)
    else:
        pairs = shape.attention_linears(block)
        attention = tuple(Linear(role, *pair) for role, pair in zip(("q", "k", "v", "o"), pairs, strict=True))
    width = shape.shared_ffn if block.experts else shape.ffn
    ins = ("gate", "up") if shape.gated else ("up",)
    mlp = (*(Linear(role, shape.hidden, width) for role in ins), Linear("down", width, shape.hidden))
    return (*attention, *mlp)


def _share(shape: ModelShape, one: Linear, ranks: int) -> int:
    """Elements of one projection on one rank."""
    if one.role in UNDIVIDED:
        return one.size
    if one.role in ("k", "v"):
        return one.inputs * kv_heads_per_rank(shape, ranks) * shape.head_dim
    return ceil(one.size / ranks)
