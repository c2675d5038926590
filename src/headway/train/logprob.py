"""Log-probabilities straight from hidden states. No [tokens, vocabulary] tensor exists, forward or backward.

T tokens, V vocabulary, h hidden width, c = min(chunk, T), e = bytes of an element of hidden and weight.
Bytes that are live beside the inputs, as the tests measure them (a kernel's own workspace is not counted):

| | fp32 | bf16 |
|---|---|---|
| forward, logits | 4cV | 4cV + 2c·ceil(V/8) |
| backward, logits and their gradient | at most 4cV | at most 4cV |
| backward, gradient of hidden | 4Th | 6Th, of which 2Th stay as the result |
| backward, gradient of a trainable weight (the result) | 4Vh | 2Vh |
| kept from forward to backward | 4T, with entropy 8T | 4T, with entropy 8T |
| results | 4T, with entropy 8T | 4T, with entropy 8T |

Entropy, its gradient, or a frozen weight add nothing but what the table says (a frozen weight: no Vh). Vectors
of T or c elements are left out of the logits' rows: 60 bytes per token bound them. Where V x chunk < 10 T the
backward pass still takes one vocabulary entry at a time: 4T to 10T bytes.

The forward pass takes `chunk` tokens at a time over the whole vocabulary, since softmax needs whole rows. The
backward pass knows each row's log-sum-exp, so it is free to take all tokens at a time over a slice of the vocabulary:
as many bytes, but each row of the weight's gradient is then one product over all tokens, written once. Chunks of
tokens would add to a bf16 gradient chunk after chunk, rounding each time, or need 4Vh more for an fp32 sum.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_CASTS = 8
"""A half-precision product is computed and cast to fp32 in this many slices of the vocabulary."""


def token_logprobs(
    hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, chunk: int, with_entropy: bool
) -> tuple[Tensor, Tensor | None]:
    """Log-probs [T] of `targets` [T] under softmax(hidden @ weight.T / temperature), and the entropies [T].

    `hidden` [T, h] holds the final hidden states that predict `targets`, `weight` [V, h] is the output head; both of
    one dtype. Products are in that dtype (as transformers computes its logits) and all that follows in fp32, or in
    fp64 where the inputs are fp64; so are the results. Both results are differentiable, once, in `hidden` and,
    where it requires a gradient, in `weight`. The second is None unless `with_entropy`. `chunk` bounds memory: as
    many logits exist at a time as `chunk` tokens have.

    Raises ValueError for a temperature that is not above 0 (greedy answers are scored at temperature 1) and for
    inputs of two dtypes.
    """
    if temperature <= 0:
        raise ValueError(f"temperature = {temperature}: must be above 0; score greedy answers at 1")
    if hidden.dtype != weight.dtype:
        raise ValueError(f"hidden states are {hidden.dtype} and the output head is {weight.dtype}")
    logprobs, entropy = _TokenLogprobs.apply(  # type: ignore[no-untyped-call]
        hidden, weight, targets, temperature, chunk, with_entropy
    )
    return logprobs, entropy


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, chunk: int, with_entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        tokens, vocab = len(targets), len(weight)
        exact = _accumulator(hidden.dtype)
        logprobs = hidden.new_empty(tokens, dtype=exact)
        norms = torch.empty_like(logprobs)
        entropy = torch.empty_like(logprobs) if with_entropy else None
        buffer = hidden.new_empty((min(chunk, tokens), vocab), dtype=exact)
        for start in range(0, tokens, chunk):
            part = slice(start, min(start + chunk, tokens))
            logits = buffer[: part.stop - start]
            _logits(logits, hidden[part], weight, temperature)
            largest = logits.amax(dim=1)
            logits.sub_(largest[:, None])
            chosen = logits.gather(1, targets[part, None]).squeeze(1)
            log_sum = logits.exp_().sum(dim=1).log_()
            torch.sub(chosen, log_sum, out=logprobs[part])
            torch.add(largest, log_sum, out=norms[part])
            if entropy is not None:
                logits.div_(log_sum.exp_()[:, None])
                torch.sum(torch.special.entr(logits, out=logits), dim=1, out=entropy[part])
        ctx.save_for_backward(hidden, weight, targets, norms, entropy)
        ctx.temperature, ctx.chunk = temperature, chunk
        ctx.set_materialize_grads(False)
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_logprobs: Tensor | None, grad_entropy: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, targets, norms, entropy = ctx.saved_tensors
        tokens, vocab = len(targets), len(weight)
        if grad_logprobs is None:
            grad_logprobs = torch.zeros_like(norms)
        grad_hidden = torch.zeros_like(hidden, dtype=norms.dtype) if ctx.needs_input_grad[0] else None
        grad_weight = torch.empty_like(weight) if ctx.needs_input_grad[1] else None
        step = _slice_width(hidden, vocab, ctx.chunk, with_entropy=grad_entropy is not None)
        buffer = hidden.new_empty(tokens * step, dtype=norms.dtype)
        for start in range(0, vocab, step):
            part = slice(start, min(start + step, vocab))
            tile = buffer[: tokens * (part.stop - start)].view(tokens, part.stop - start)
            _logits(tile, hidden, weight[part], ctx.temperature)
            tile.sub_(norms[:, None])
            _logits_gradient(tile, targets - start, grad_logprobs, grad_entropy, entropy)
            gradient = tile.div_(ctx.temperature).to(hidden.dtype)
            if grad_hidden is not None:
                _add_product(grad_hidden, gradient, weight[part])
            if grad_weight is not None:
                torch.mm(gradient.t(), hidden, out=grad_weight[part])
            del gradient
        del buffer, tile
        return None if grad_hidden is None else grad_hidden.to(hidden.dtype), grad_weight, None, None, None, None


def _accumulator(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _slice_width(hidden: Tensor, vocab: int, chunk: int, *, with_entropy: bool) -> int:
    """Vocabulary entries per slice: the slice's fp32 logits and its larger companion fit where forward's logits did.

    The companion is the entropy's factor or the gradient cast to half precision; they are not alive together.
    """
    tokens, exact = len(hidden), _accumulator(hidden.dtype).itemsize
    cast = hidden.dtype.itemsize if hidden.dtype.itemsize < exact else 0
    companion = exact if with_entropy else cast
    budget = min(chunk, tokens) * vocab * exact
    return min(vocab, max(1, budget // max(1, tokens * (exact + companion))))


def _logits(out: Tensor, hidden: Tensor, weight: Tensor, temperature: float) -> None:
    """Write hidden @ weight.T / temperature into `out`."""
    if out.dtype == hidden.dtype:
        torch.mm(hidden, weight.t(), out=out)
    else:
        for columns, rows in zip(out.chunk(_CASTS, dim=1), weight.chunk(_CASTS), strict=True):
            columns.copy_(hidden @ rows.t())
    if temperature != 1:
        out.div_(temperature)


def _logits_gradient(
    tile: Tensor, targets: Tensor, grad_logprobs: Tensor, grad_entropy: Tensor | None, entropy: Tensor | None
) -> None:
    """Turn a slice of log-probs [T, n] into the gradient of its scaled logits, in place.

    With p the softmax and H its entropy, d log p[t] / d z[i] = [i = t] - p[i] and
    d H / d z[i] = -p[i] (log p[i] + H). `targets` count from the slice's first entry and may lie outside it.
    """
    if grad_entropy is None or entropy is None:
        tile.exp_().mul_(-grad_logprobs[:, None])
    else:
        factor = tile * -grad_entropy[:, None]
        factor.sub_(torch.addcmul(grad_logprobs, grad_entropy, entropy)[:, None])
        tile.exp_().mul_(factor)
    inside = (targets >= 0) & (targets < tile.shape[1])
    rows = torch.arange(len(tile), device=tile.device)
    tile[rows, targets.clamp(0, tile.shape[1] - 1)] += grad_logprobs * inside


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add left @ right, rounding a half-precision product once before the fp32 sum."""
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    else:
        total.add_(left @ right)
