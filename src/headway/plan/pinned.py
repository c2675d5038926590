"""Copies in pinned host memory: torch's allocator rounds every tensor up to a power of two."""

from collections import Counter
from collections.abc import Iterator
from functools import cache
from math import ceil

from headway.facts.shapes import ModelShape
from headway.facts.workload import Workload
from headway.plan.item import Item

HALF = 2


def copy(name: str, workload: Workload) -> Item:
    """A half-precision copy of one rank's shard of the model, tensor by tensor in pinned memory.

    Source: torch's CachingHostAllocator rounds a request up to a power of two (vLLM issue 56410 measured up to 1.9
    times the bytes asked for).
    """
    shards = workload.layout.shards
    size = rounded(workload.model, shards, HALF)
    plain = ceil(workload.model.parameters() / shards) * HALF
    text = f"{plain:,} B in tensors rounded up to powers of two"
    return Item(name, size, size, text, "pinned, one copy a rank")


@cache
def rounded(shape: ModelShape, shards: int, size: int) -> int:
    """Bytes of all parameters, each tensor's shard rounded up to a power of two.

    >>> from headway.facts.shapes import by_name
    >>> shape = by_name("qwen3-4B")
    >>> shape.parameters() * 2 / 2**30, rounded(shape, 1, 2) / 2**30  # doctest: +ELLIPSIS
    (7.4..., 10.5...)
    """
    return sum(count * power_of_two(ceil(elements / shards) * size) for elements, count in tensors(shape).items())


def power_of_two(size: int) -> int:
    """The smallest power of two that is not below a size.

    >>> power_of_two(5), power_of_two(8)
    (8, 8)
    """
    return 1 << max(0, size - 1).bit_length()


def tensors(shape: ModelShape) -> Counter[int]:
    """How many parameter tensors have how many elements; what no projection explains is one tensor a block."""
    found: Counter[int] = Counter()
    for elements in _outside(shape):
        found[elements] += 1
    for block, number in shape.blocks():
        linears = [inside * outside for inside, outside in (*shape.attention_linears(), *shape.mlp_linears())]
        if block.experts:
            linears = [inside * outside for inside, outside in shape.attention_linears()]
            linears += [3 * shape.experts * shape.hidden * shape.expert_ffn]
        rest = shape.block_parameters(block) - sum(linears)
        for elements in (*linears, *([rest] if rest > 0 else [])):
            found[elements] += number
    return found


def _outside(shape: ModelShape) -> Iterator[int]:
    yield shape.embedding_parameters()
    if not shape.tied:
        yield shape.head_parameters()
