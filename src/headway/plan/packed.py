"""Bytes of a frozen base whose projections are packed into few bits, scales included."""

from headway.facts.shapes import ModelShape
from headway.facts.workload import Quant

BITS = {
    # two values a byte; an fp32 scale for 64 of them, or an int8 one and an fp32 one for 256 of those
    ("nf4", False): 4 + 32 / 64,
    ("nf4", True): 4 + 8 / 64 + 32 / (64 * 256),
    # groups of 128: an fp16 scale and a 4-bit zero point each
    ("int4", False): 4 + (16 + 4) / 128,
    ("int4", True): 4 + (16 + 4) / 128,
    # groups of 32 with a scale of 8 bits each
    ("mxfp4", False): 4 + 8 / 32,
    ("mxfp4", True): 4 + 8 / 32,
    # one fp32 or fp16 scale a row is next to nothing
    ("int8", False): 8,
    ("int8", True): 8,
    ("fp8", False): 8,
    ("fp8", True): 8,
}
"""(kind, double) -> bits of one weight. Sources: bitsandbytes' quantize_4bit (blocks of 64, nested blocks of 256),
GPTQ's groups of 128."""


def packed_elements(shape: ModelShape, *, head: bool, kind: str = "") -> int:
    """Elements of the projections, experts included; of an untied head too where `head`; of mxfp4 experts' alone."""
    if kind == "mxfp4":
        weights = (3 if shape.gated else 2) * shape.hidden * shape.expert_ffn
        return sum(number * shape.experts * weights for block, number in shape.blocks() if block.experts)
    count = 0
    for block, number in shape.blocks():
        linears = sum(inputs * outputs for inputs, outputs in shape.attention_linears(block))
        if block.experts:
            linears += shape.experts * shape.expert_parameters()
            width = shape.shared_ffn
            linears += (3 if shape.gated else 2) * shape.hidden * width
        else:
            linears += sum(inputs * outputs for inputs, outputs in shape.mlp_linears(block))
        count += number * linears
    return count + (shape.embedding_parameters() if head and not shape.tied else 0)


def packed_bytes(shape: ModelShape, quant: Quant, size: int, *, head: bool) -> int:
    """All parameters: packed projections, the rest in `size` bytes.

    >>> from headway.facts.shapes import by_name
    >>> round(packed_bytes(by_name("llama2-7b"), Quant("nf4"), 2, head=False) / 1e9, 2)
    4.17
    """
    packed = packed_elements(shape, head=head, kind=quant.kind)
    return round(packed * BITS[quant.kind, quant.double] / 8) + (shape.parameters() - packed) * size
