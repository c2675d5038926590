"""Choosing tokens: randomness by request and position, and the processed distribution it is applied to.

A row's choice depends on its logits and its number in [0, 1) alone: every operation works row by row in an order
that the other rows do not change, so the same request answers the same in any batch whose logits are the same.
"""

import numpy as np
import torch
from torch import Tensor

from headway.rollout.engine import SamplingParams
from headway.rollout.kvplan import slice_rows

BLOCK = 256
"""Width of the blocks of the inverse-CDF search."""


def uniforms(key: tuple[int, int, int, int], count: int) -> np.ndarray:
    """The numbers in [0, 1) of positions 0 .. count-1 of the request `key`: float64 [count].

    Philox 4x64-10 (Salmon et al., SC 2011) keyed by (seed, step, prompt, sample), each 32 bits of its 128-bit key,
    and counted by position: different keys give independent streams, and a longer stream begins with the shorter one.
    ValueError for a part outside 0 .. 2**32 - 1.
    """
    if not all(0 <= part < 2**32 for part in key):
        raise ValueError(f"key {key}: every part must be in 0 .. 2**32 - 1")
    seed, step, prompt, sample = key
    words = np.array([seed << 32 | step, prompt << 32 | sample], dtype=np.uint64)
    raw = np.random.Philox(key=words).random_raw(count)
    return (raw >> np.uint64(11)) * 2.0**-53


def choose(
    logits: Tensor, draws: Tensor, params: SamplingParams, rows: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Choose one token for each of `draws`: token ids int64 [B] and their log-probabilities fp32 [B].

    `logits` [U, V] in any float type, `draws` float64 [B] in [0, 1) on the same device (unused when greedy), `rows`
    int64 [B] names the row of logits of each choice (default: its own). Log-probabilities are those of
    softmax(logits / temperature) over the whole vocabulary, at temperature 1 when greedy. Beside the logits there
    are at most `sampler_bytes` of temporaries.
    """
    count, size = len(draws), slice_rows(logits.shape[-1], logits.device.type)
    tokens = torch.empty(count, dtype=torch.int64, device=logits.device)
    logprobs = torch.empty(count, dtype=torch.float32, device=logits.device)
    for start in range(0, count, size):
        part = slice(start, min(start + size, count))
        some = logits[part] if rows is None else logits[rows[part]]
        tokens[part], logprobs[part] = _choose(some, draws[part], params)
    return tokens, logprobs


def _choose(logits: Tensor, draws: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor]:
    greedy = params.temperature == 0
    probs = _probabilities(logits, 1.0 if greedy else params.temperature)
    if greedy:
        tokens = logits.argmax(-1)  # the lowest id of equals
    else:
        if 0 < params.top_k < logits.shape[-1]:
            keep_top_k(probs, params.top_k)
        if params.top_p < 1:
            keep_top_p(probs, params.top_p)
        tokens = inverse_cdf(probs, draws).clamp_(max=logits.shape[-1] - 1)
    return tokens, probs.gather(1, tokens[:, None])[:, 0].log()


def _probabilities(logits: Tensor, temperature: float) -> Tensor:
    """softmax(logits / temperature) in fp32, padded with zeros to whole blocks: [b, ceil(V / BLOCK) * BLOCK]."""
    rows, vocab = logits.shape
    width = -(-vocab // BLOCK) * BLOCK
    scaled = torch.full((rows, width), -torch.inf, dtype=torch.float32, device=logits.device)
    # Subtracting the maximum first keeps a very low temperature from overflowing.
    scaled[:, :vocab].copy_(logits).sub_(logits.amax(-1, keepdim=True)).div_(temperature)
    return torch.softmax(scaled, -1)


def keep_top_k(probs: Tensor, k: int) -> None:
    """Zero all but the k most likely tokens of each row of `probs` [b, W], in place.

    Tokens as likely as the k-th stay too (as in transformers), so that no order among equals decides.
    """
    lowest = probs.topk(k, dim=-1).values[:, -1:]
    probs.masked_fill_(probs < lowest, 0.0)


def keep_top_p(probs: Tensor, p: float) -> None:
    """Zero all but the smallest set of most likely tokens that has the share p of a row's mass, in place.

    `probs` [b, W] need not sum to 1. Tokens as likely as the least likely of the set stay too.
    """
    total = _block_cdf(probs)[:, -1:]
    # Tokens below (1 - p) / W of the mass have together less than 1 - p of it, so none of them is in the set: only
    # the rest, mostly few, has to be sorted.
    floor = (total * ((1 - p) / probs.shape[-1])).float()
    candidates = int((probs >= floor).sum(-1).max())
    likely = probs.topk(max(candidates, 1), dim=-1).values
    cdf = likely.double().cumsum_(-1)
    last = torch.searchsorted(cdf, total * p).clamp_(max=likely.shape[-1] - 1)
    probs.masked_fill_(probs < likely.gather(1, last), 0.0)


def _block_cdf(probs: Tensor) -> Tensor:
    """Cumulative mass at the end of each block: fp64 [b, W / BLOCK]."""
    return probs.view(len(probs), -1, BLOCK).sum(-1).double().cumsum_(-1)


def inverse_cdf(probs: Tensor, draws: Tensor) -> Tensor:
    """The token at which the cumulative mass of each row passes draw x total: int64 [b].

    `probs` [b, W] with W a multiple of BLOCK, not necessarily summing to 1; `draws` float64 [b] in [0, 1). Searches
    the blocks first and then one block, which costs one pass over the row and no cumulative sum of it.
    """
    block, rest = _search(_block_cdf(probs), draws)
    inside = probs.view(len(probs), -1, BLOCK)[torch.arange(len(probs), device=probs.device), block]
    token, _ = _search(inside.double().cumsum_(-1), rest)
    return block * BLOCK + token


def _search(cdf: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
    """First entry of each row that exceeds draw x total, and where inside that entry's mass the draw fell, in [0, 1).

    Never an entry without mass: rounding at the end of a row falls back to the last entry that has some.
    """
    total = cdf[:, -1:]
    target = draws[:, None] * total
    last = (cdf < total).sum(-1, keepdim=True)
    index = torch.searchsorted(cdf, target, right=True).minimum(last).clamp_(max=cdf.shape[-1] - 1)
    below = torch.where(index > 0, cdf.gather(1, (index - 1).clamp_(min=0)), 0.0)
    mass = cdf.gather(1, index) - below
    return index[:, 0], ((target - below) / mass)[:, 0].clamp_(0.0, 1.0)
