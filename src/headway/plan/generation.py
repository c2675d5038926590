"""What generating text holds where the engine is a plain forward loop: Hugging Face `generate`, litgpt's script."""

from math import ceil
from typing import Literal

from msgspec import Struct

from headway.errors import InputError
from headway.facts.shapes import ModelShape
from headway.facts.workload import DTYPE_BYTES, Dtype, Quant
from headway.plan.engine_sizes import KvDtype, sequence_kv_bytes, sequence_state_bytes, weight_bytes
from headway.plan.item import Item
from headway.units import GIB, MIB

CacheStyle = Literal["grown", "sized"]

WORKSPACE = 32 * MIB
"""cuBLAS keeps 32 MiB on Hopper and 8 MiB on older devices; small buffers add 3 to 5 MiB. 25 runs in bf16 and fp8."""
AWQ_CACHE = 8
"""Runs with int4 weights held an eighth more KV cache than others of the same lengths, in 14 runs of four models.
What holds it is not known."""
RESERVED_FIXED = 890 * MIB
"""Reserved beyond weights and both copies of the cache: 0.8 to 0.9 GiB in four runs that name no counter."""


class Generating(Struct, frozen=True):
    """A generation loop on one device. `prefill` is alive while the prompt passes the model, `unpacked` where packed
    weights are turned back for a matrix product; `old_cache` is what a cache that grows by concatenation leaves
    reserved behind it.

    >>> from headway.facts.shapes import table
    >>> run = hf_generation(table()["qwen3-8b"], "bf16", None, batch=1, prompt=30720, new_tokens=2048, style="grown")
    >>> run.cache.bytes, run.allocated // MIB
    (4831838208, 20266)
    """

    weights: Item
    cache: Item
    unpacked: Item
    prefill: Item
    old_cache: Item
    workspace: Item

    @property
    def items(self) -> tuple[Item, ...]:
        """What is alive at the end of the generation."""
        return (self.weights, self.cache, self.unpacked, self.workspace)

    @property
    def allocated(self) -> int:
        """Bytes of tensors while tokens are generated, the prompt's activations gone."""
        return sum(item.bytes for item in self.items)

    @property
    def allocated_upper(self) -> int:
        """The bound on tensors, at the end or while the prompt passes."""
        return sum(item.upper for item in self.items) + self.prefill.upper

    @property
    def reserved(self) -> int:
        """Bytes of the allocator's segments: a grown cache leaves holes as large as itself."""
        return self.allocated + self.old_cache.bytes

    @property
    def reserved_upper(self) -> int:
        """The bound on the allocator's segments."""
        return self.allocated_upper + self.old_cache.upper


def hf_generation(
    shape: ModelShape,
    dtype: Dtype,
    quant: Quant | None,
    *,
    batch: int,
    prompt: int,
    new_tokens: int,
    style: CacheStyle,
    kv_dtype: KvDtype | None = None,
) -> Generating:
    """Memory of generating `new_tokens` for each of `batch` prompts of `prompt` tokens, on one device.

    "grown" is transformers' dynamic cache: each token's keys and values are concatenated into a new tensor, layer
    by layer, so the tensors alive are one cache, but the allocator keeps the holes of the old ones. The head stays
    unpacked. "sized" is litgpt's: the cache is made for all tokens at once, and packing takes the head too. The
    cache is in `kv_dtype`, by default in `dtype`.
    InputError for counts below one.
    """
    if min(batch, prompt + new_tokens) < 1 or min(prompt, new_tokens) < 0:
        raise InputError(
            f"generation of {batch} x ({prompt} + {new_tokens}) tokens: set a batch of at least 1 and some tokens"
        )
    packed_head = quant is not None and style == "sized"
    weights = weight_bytes(shape, dtype, quant, packed_head=packed_head)
    tokens = prompt + new_tokens
    one = sequence_kv_bytes(shape, kv_dtype or dtype, tokens)
    cache = batch * (one + sequence_state_bytes(shape, dtype))
    held = cache + cache // AWQ_CACHE if quant is not None and quant.kind == "int4" and style == "grown" else cache
    old = held if style == "grown" else 0
    return Generating(
        weights=Item(
            "weights", weights, weights + weights // 50 + 16 * MIB, f"{shape.parameters():,} parameters", "shape"
        ),
        cache=Item(
            "KV cache", held, held + cache // 16, f"{batch} x {tokens:,} tokens x {one // tokens:,} B", "shape"
        ),
        unpacked=_unpacked(shape, DTYPE_BYTES[dtype], quant, packed_head=packed_head),
        prefill=_prefill(shape, DTYPE_BYTES[dtype], batch, max(prompt, 1)),
        old_cache=Item(
            "reserved beyond", old + RESERVED_FIXED, old * 5 // 4 + 2 * GIB, "a cache, and what no counter names",
            "four runs"
        ),
        workspace=Item("workspace", WORKSPACE + 4 * MIB, 4 * WORKSPACE, "cuBLAS", "25 runs"),
    )  # fmt: skip


def _unpacked(shape: ModelShape, size: int, quant: Quant | None, *, packed_head: bool) -> Item:
    """bitsandbytes unpacks a matrix for each product with more than one token: once as it was packed, once cast.

    The largest packed matrix is the head where it is packed. The kernels of other kinds read packed weights.
    """
    if quant is None or quant.kind != "nf4":
        return Item.exact("unpacked", 0, "kernels read packed weights", "")
    width = max(shape.ffn if not shape.experts else shape.expert_ffn, shape.query_width)
    largest = shape.hidden * max(width, shape.vocab if packed_head else 0)
    both = 2 * size * largest
    return Item("unpacked", both, both + 128 * MIB, f"2 x {largest:,} x {size} B", "8 runs of litgpt")


def _prefill(shape: ModelShape, size: int, batch: int, prompt: int) -> Item:
    """Activations of the prompt: the residual stream in fp32 for a norm, Q, K, V, and the MLP's three tensors.

    Only the last position's logits are made.
    """
    routed = shape.experts_per_token * 2 * shape.hidden if shape.experts else 0
    dense = shape.ffn if not shape.experts or shape.dense_layers else shape.expert_ffn
    inner = (3 if shape.gated else 2) * max(dense, shape.shared_ffn) + routed
    attention = 2 * shape.query_width + 2 * shape.kv_width
    width = 4 * shape.hidden + max(inner, attention)
    tokens = batch * prompt
    logits = ceil(batch * shape.vocab * 6)
    peak = tokens * width * size + logits
    return Item(
        "prompt's activations", peak, peak * 11 // 10, f"{tokens:,} tokens x {width:,} x {size} B + logits", "shape"
    )
