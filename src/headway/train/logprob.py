"""Log-probabilities straight from hidden states. No [tokens, vocabulary] tensor exists, forward or backward.

T tokens, V vocabulary, h hidden width, c = min(chunk, T). Bytes that are live beside the inputs, as the tests measure
them (a kernel's own workspace is not counted; MKL's was below 6 MiB):

| | fp32 | bf16 |
|---|---|---|
| forward: logits | 4cV | 4cV + 2c ceil(V/8) |
| backward: logits and their gradient | at most 4cV | at most 4cV |
| backward: gradient of hidden | 4Th, the result | 6Th, of which 2Th is the result |
| backward: gradient of a trainable weight | 4Vh, the result | 2Vh, the result |
| results, and what forward keeps for backward | 8T, with entropy 12T | 8T, with entropy 12T |

A frozen weight has no Vh; entropy and its gradient take no more than the table says. Vectors of one value per token,
at most 60T, are left out of the logits' rows. All large buffers are allocated once, before the loops.

The forward pass takes `chunk` tokens at a time over the whole vocabulary, since softmax needs whole rows. The
backward pass knows each row's log-sum-exp, so it is free to take all tokens at a time over a slice of the vocabulary:
as many bytes, but each row of the weight's gradient is then one product over all tokens, written once. Chunks of
tokens would add to a bf16 gradient chunk after chunk, rounding each time, or need 4Vh more for an fp32 sum.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_CASTS = 8
"""In the forward pass half-precision logits are computed and cast to fp32 in this many slices of the vocabulary."""


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
        rows = min(chunk, tokens)
        buffer = hidden.new_empty((rows, vocab), dtype=exact)
        scratch = None if hidden.dtype == exact else hidden.new_empty(rows * math.ceil(vocab / _CASTS))
        for start in range(0, tokens, chunk):
            part = slice(start, min(start + chunk, tokens))
            logits = buffer[: part.stop - start]
            _logits(logits, hidden[part], weight, temperature, scratch)
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
        vocab = len(weight)
        if grad_logprobs is None:
            grad_logprobs = torch.zeros_like(norms)
        need_hidden, need_weight = ctx.needs_input_grad[:2]
        total = torch.zeros_like(hidden, dtype=norms.dtype) if need_hidden else None
        product = torch.empty_like(hidden) if need_hidden and hidden.dtype != norms.dtype else None
        grad_weight = torch.empty_like(weight) if need_weight else None
        tiles = _Tiles(hidden, vocab, ctx.chunk, with_entropy=grad_entropy is not None)
        for start in range(0, vocab, tiles.width):
            part = slice(start, min(start + tiles.width, vocab))
            tile, factor, cast = tiles.cut(part.stop - start)
            _logits(tile, hidden, weight[part], ctx.temperature, cast)
            tile.sub_(norms[:, None])
            _logits_gradient(tile, factor, targets - start, grad_logprobs, grad_entropy, entropy)
            tile.div_(ctx.temperature)
            gradient = tile if cast is None else cast.copy_(tile)
            if total is not None:
                _add_product(total, product, gradient, weight[part])
            if grad_weight is not None:
                torch.mm(gradient.t(), hidden, out=grad_weight[part])
        grad_hidden = total if product is None or total is None else product.copy_(total)
        return grad_hidden, grad_weight, None, None, None, None


class _Tiles:
    """The buffers of the backward pass, allocated once: all tokens by `width` vocabulary entries.

    fp32 logits, and beside them the entropy's factor and the gradient cast to half precision, which share bytes as
    they are never needed together. `width` is what fits in the bytes of the forward pass's logits.
    """

    def __init__(self, hidden: Tensor, vocab: int, chunk: int, *, with_entropy: bool) -> None:
        exact = _accumulator(hidden.dtype)
        self._tokens, self._dtype = len(hidden), hidden.dtype
        self._with_entropy, self._casts = with_entropy, hidden.dtype != exact
        beside = exact if with_entropy else hidden.dtype
        entry = self._tokens * (exact.itemsize + (beside.itemsize if with_entropy or self._casts else 0))
        budget = min(chunk, self._tokens) * vocab * exact.itemsize
        self.width = min(vocab, max(1, budget // max(1, entry)))
        count = self._tokens * self.width
        self._logits = hidden.new_empty(count, dtype=exact)
        self._beside = hidden.new_empty(count if with_entropy or self._casts else 0, dtype=beside)

    def cut(self, width: int) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Logits, factor and cast of one slice, each [tokens, width] or None where it is not needed."""

        def shaped(flat: Tensor) -> Tensor:
            return flat[: self._tokens * width].view(self._tokens, width)

        factor = shaped(self._beside) if self._with_entropy else None
        cast = shaped(self._beside.view(self._dtype)) if self._casts else None
        return shaped(self._logits), factor, cast


def _accumulator(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _logits(out: Tensor, hidden: Tensor, weight: Tensor, temperature: float, scratch: Tensor | None) -> None:
    """Write hidden @ weight.T / temperature into `out`, in half precision through `scratch`."""
    if scratch is None:
        torch.mm(hidden, weight.t(), out=out)
    else:
        width = scratch.numel() // len(hidden)
        for start in range(0, len(weight), width):
            rows = weight[start : start + width]
            product = scratch.view(-1)[: len(hidden) * len(rows)].view(len(hidden), len(rows))
            out[:, start : start + width].copy_(torch.mm(hidden, rows.t(), out=product))
    if temperature != 1:
        out.div_(temperature)


def _logits_gradient(
    tile: Tensor,
    factor: Tensor | None,
    targets: Tensor,
    grad_logprobs: Tensor,
    grad_entropy: Tensor | None,
    entropy: Tensor | None,
) -> None:
    """Turn a slice of log-probs [T, n] into the gradient of its scaled logits, in place.

    With p the softmax and H its entropy, d log p[t] / d z[i] = [i = t] - p[i] and
    d H / d z[i] = -p[i] (log p[i] + H). `targets` count from the slice's first entry and may lie outside it.
    """
    if factor is None or grad_entropy is None or entropy is None:
        tile.exp_().mul_(-grad_logprobs[:, None])
    else:
        torch.mul(tile, -grad_entropy[:, None], out=factor)
        factor.sub_(torch.addcmul(grad_logprobs, grad_entropy, entropy)[:, None])
        tile.exp_().mul_(factor)
    inside = (targets >= 0) & (targets < tile.shape[1])
    rows = torch.arange(len(tile), device=tile.device)
    tile[rows, targets.clamp(0, tile.shape[1] - 1)] += grad_logprobs * inside


def _add_product(total: Tensor, product: Tensor | None, left: Tensor, right: Tensor) -> None:
    """Add left @ right to `total`, in half precision through `product`."""
    if product is None:
        total.addmm_(left, right)
    else:
        total.add_(torch.mm(left, right, out=product))
