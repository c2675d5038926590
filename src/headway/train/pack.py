"""From samples to micro-batches: token weights, the token cap, packing."""

from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor

from headway.train.records import MicroBatch, Sample


def admit(samples: Sequence[Sample], cap: int, longest_allowed: int) -> tuple[int, ...]:
    """Positions of the samples that may be trained.

    A sample of up to `cap` tokens is always kept. A longer one is trained alone, and kept only up to
    `longest_allowed` tokens: the longest that the plan found to fit.
    """
    longest = max(cap, longest_allowed)
    return tuple(index for index, sample in enumerate(samples) if sample.tokens <= longest)


def scored(
    kept: Sequence[int], samples: Sequence[Sample], *rows: Sequence[Sequence[float]] | None
) -> tuple[int, ...]:
    """The kept samples that have a log-prob for each response token in all `rows` that there are."""
    return tuple(
        index
        for index in kept
        if all(row is None or len(row[index]) == len(samples[index].response_ids) for row in rows)
    )


def token_weights(lengths: Sequence[int], normalise: str, max_answer: int) -> list[float]:
    """What one token of each sample counts in the loss of an optimizer step; `lengths` are response tokens.

    token-mean: 1 / all tokens; sample-mean: 1 / (samples x length); constant: 1 / (samples x max_answer). Under
    the first two the weights of all tokens sum to 1. A sample without response tokens has weight 0 and does not
    count as a sample.

    >>> token_weights([1, 3, 0], "token-mean", 4), token_weights([1, 4, 0], "sample-mean", 4)
    ([0.25, 0.25, 0.0], [0.5, 0.125, 0.0])
    """
    samples = sum(length > 0 for length in lengths)
    tokens = sum(lengths)

    def divisor(length: int) -> int:
        if normalise == "token-mean":
            return tokens
        if normalise == "sample-mean":
            return samples * length
        if normalise == "constant":
            return samples * max_answer
        raise ValueError(f"normalisation {normalise!r}: known are token-mean, sample-mean and constant")

    return [1 / divisor(length) if length else 0.0 for length in lengths]


def micro_batches(
    samples: Sequence[Sample],
    advantages: Sequence[float],
    weights: Sequence[float],
    old: Sequence[Sequence[float]] | None,
    ref: Sequence[Sequence[float]] | None,
    cap: int,
    pad_id: int,
    dtype: torch.dtype = torch.float32,
) -> list[MicroBatch]:
    """Pack samples by `groups` and make each micro-batch; see `micro_batch`."""
    return [
        micro_batch(samples, advantages, weights, old, ref, group, pad_id, dtype) for group in groups(samples, cap)
    ]


def groups(samples: Sequence[Sample], cap: int) -> list[tuple[int, ...]]:
    """Positions of samples that are trained together, longest first, so that rows x longest <= cap, padding included.

    A sample longer than `cap` is a group of its own, one without response tokens is in no group. The same input
    always gives the same groups.
    """
    order = sorted(
        (index for index, sample in enumerate(samples) if sample.response_ids),
        key=lambda index: (-samples[index].tokens, index),
    )
    found: list[list[int]] = []
    for index in order:
        if found and (len(found[-1]) + 1) * samples[found[-1][0]].tokens <= cap:
            found[-1].append(index)
        else:
            found.append([index])
    return [tuple(group) for group in found]


def micro_batch(
    samples: Sequence[Sample],
    advantages: Sequence[float],
    weights: Sequence[float],
    old: Sequence[Sequence[float]] | None,
    ref: Sequence[Sequence[float]] | None,
    group: Sequence[int],
    pad_id: int,
    dtype: torch.dtype = torch.float32,
) -> MicroBatch:
    """The micro-batch of the samples at `group`, on the CPU.

    `advantages` and `weights` have one value per sample, `old` and `ref` one per response token; they become
    tensors of `dtype`. The batch names its samples by position in `samples`.
    """

    def flat(values: Sequence[Sequence[float]] | None) -> Tensor | None:
        return None if values is None else torch.tensor([*chain(*(values[i] for i in group))], dtype=dtype)

    def repeated(values: Sequence[float]) -> Tensor:
        lengths = torch.tensor([len(samples[i].response_ids) for i in group])
        return torch.tensor([values[i] for i in group], dtype=dtype).repeat_interleave(lengths)

    return MicroBatch(
        ids=_padded([samples[i] for i in group], pad_id),
        **_positions([samples[i] for i in group]),
        advantages=repeated(advantages),
        weights=repeated(weights),
        old_logprobs=flat(old),
        ref_logprobs=flat(ref),
        samples=tuple(group),
    )


def _padded(samples: Sequence[Sample], pad_id: int) -> Tensor:
    longest = max(sample.tokens for sample in samples)
    return torch.tensor(
        [[*s.prompt_ids, *s.response_ids, *[pad_id] * (longest - s.tokens)] for s in samples], dtype=torch.int64
    )


def _positions(samples: Sequence[Sample]) -> dict[str, Tensor]:
    """`rows`, `columns` and `targets` [T]: a response token is predicted one column before its own."""
    assert all(sample.prompt_ids for sample in samples), "a response needs a prompt to predict its first token"
    rows = [row for row, sample in enumerate(samples) for _ in sample.response_ids]
    columns = [len(s.prompt_ids) - 1 + offset for s in samples for offset in range(len(s.response_ids))]
    targets = [token for sample in samples for token in sample.response_ids]
    return {"rows": torch.tensor(rows), "columns": torch.tensor(columns), "targets": torch.tensor(targets)}
