"""What generation holds: pure functions without torch, shared by the engine, the ledger and the checks.

A batch's cache is one allocation of (sequences) x (longest prompt of the batch + max_answer) tokens, made when the
batch starts and never grown, so its bytes are known exactly beforehand. Beside it stand the activations of one
forward (a prefill of up to PREFILL_TOKENS, or one token of each sequence), its logits [sequences, V] in the model's
dtype, and the sampler's temporaries.
"""

from collections.abc import Sequence

from headway.config.fits import kv_token_bytes, kv_too_small
from headway.errors import InputError
from headway.facts.shapes import ModelShape
from headway.units import MIB

PREFILL_TOKENS = 4096
"""Prompt tokens, padding included, of one prefill forward; a single prompt may be longer."""

SLICE_BYTES = {"cpu": 4 * MIB, "cuda": 64 * MIB}
"""Bytes of one fp32 [rows, V] temporary of the sampler, by device. On the CPU a slice that stays in its cache is many
times faster; on the GPU each slice costs kernel launches."""

TEMPORARIES, TEMPORARIES_TOP_P = 3, 6
"""How many of them exist at once: gathered rows, scaled logits, probabilities; with top-p below 1 also the sorted
values with their cumulative sum in fp64, up to the whole vocabulary when it is flat."""


def sequences_in_flight(shape: ModelShape, dtype_bytes: int, kv_budget: int, longest: int) -> int:
    """Answers that the budget holds at the same time, each of `longest` tokens (padded prompt + max_answer).

    InputError if it does not hold even one.
    """
    if (problem := kv_too_small(shape, dtype_bytes, kv_budget, longest)) is not None:
        raise InputError(problem)
    return kv_budget // (kv_token_bytes(shape, dtype_bytes) * longest)


def split_batches(
    shape: ModelShape, dtype_bytes: int, kv_budget: int, prompt_lengths: Sequence[int], max_answer: int
) -> list[tuple[int, int]]:
    """Cut requests, longest prompt first, into batches [start, stop) whose caches each fit the budget.

    The first prompt of a batch is its longest, and the others are padded to it.
    """
    batches = []
    start = 0
    while start < len(prompt_lengths):
        count = sequences_in_flight(shape, dtype_bytes, kv_budget, prompt_lengths[start] + max_answer)
        stop = min(start + count, len(prompt_lengths))
        batches.append((start, stop))
        start = stop
    return batches


def peak_kv_bytes(
    shape: ModelShape, dtype_bytes: int, kv_budget: int, prompt_lengths: Sequence[int], max_answer: int
) -> int:
    """Bytes of the largest cache that generating these requests allocates; caches never exist side by side.

    >>> from headway.facts.shapes import by_name
    >>> peak_kv_bytes(by_name("qwen3-0.6B"), 2, 1 << 30, [100, 20], max_answer=28)  # 2 x (100 + 28) x 114688
    29360128
    """
    lengths = sorted(prompt_lengths, reverse=True)
    batches = split_batches(shape, dtype_bytes, kv_budget, lengths, max_answer)
    token_bytes = kv_token_bytes(shape, dtype_bytes)
    return max(((stop - start) * (lengths[start] + max_answer) * token_bytes for start, stop in batches), default=0)


def slice_rows(vocab: int, device: str) -> int:
    """Rows of logits [B, V] that the sampler processes at once."""
    return max(1, SLICE_BYTES[device] // (4 * vocab))


def sampler_bytes(vocab: int, sequences: int, device: str, *, top_p: bool) -> int:
    """Bound of the sampler's temporaries beside the logits; `top_p`: whether it is below 1.

    >>> sampler_bytes(49152, 64, "cpu", top_p=False)  # 3 x 21 rows x 49152 x 4 bytes
    12386304
    """
    rows = min(sequences, slice_rows(vocab, device))
    return (TEMPORARIES_TOP_P if top_p else TEMPORARIES) * rows * vocab * 4
