"""Bytes of the chunked log-probs: logits exist for a chunk of tokens at a time, in fp32."""

from math import ceil

FP32 = 4
KERNEL_COPY = 8
"""A half-precision product is computed in this many slices of the vocabulary and cast."""


def chunk_bytes(vocab: int, tokens: int, chunk: int) -> int:
    """fp32 logits of one chunk: what the forward pass holds, and the backward pass with their gradient.

    >>> chunk_bytes(49152, 2048, 256)  # 4 x 256 x 49,152
    50331648
    """
    return FP32 * min(tokens, chunk) * vocab


def forward_bytes(vocab: int, tokens: int, chunk: int, size: int) -> int:
    """Beside hidden states and results: a chunk of logits, and in half precision a slice of the product."""
    cast = size * min(tokens, chunk) * ceil(vocab / KERNEL_COPY) if size < FP32 else 0
    return chunk_bytes(vocab, tokens, chunk) + cast


def backward_bytes(vocab: int, hidden: int, tokens: int, chunk: int, size: int) -> int:
    """Beside hidden states and the head's gradient: logits with their gradient, and the hidden states' gradient.

    That gradient is summed in fp32; in half precision a product is added to it and the cast result stands beside it.
    """
    return chunk_bytes(vocab, tokens, chunk) + tokens * hidden * (FP32 if size == FP32 else FP32 + size)


def result_bytes(tokens: int, *, entropy: bool) -> int:
    """Log-probs and log-sum-exps, with entropy twice as many, all fp32 and kept until the backward pass."""
    return 2 * FP32 * tokens * (2 if entropy else 1)
