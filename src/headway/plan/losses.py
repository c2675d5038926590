"""Bytes of a loss alone: tokens x vocabulary, by the way in which it is computed. No model is around it.

Every count is of tensors alive at the peak of a forward and backward pass, per logit (one token and one entry of the
vocabulary), per hidden element of a token, and per head matrix. `size` is 2 in half precision, 4 in fp32.
"""

from math import ceil
from typing import Literal

from msgspec import Struct

from headway.errors import InputError
from headway.facts.workload import DTYPE_BYTES, Dtype
from headway.plan.item import Item

LossKind = Literal[
    "logits", "logits-inplace", "logits-parallel", "logits-parallel-fused",
    "head", "head-upcast", "head-fused", "head-fused-cast", "head-chunked", "policy", "policy-fused",
]  # fmt: skip
CHUNK = 256
"""Tokens of a chunk in TRL's chunked loss."""
FP32 = 4
SAMPLE = 1024
"""Tokens of a sample, which is one chunk of the fused policy loss, where nothing says how many."""
WORKSPACE = 2 * 8320 * 1024
"""cuBLAS keeps 8,320 KiB for each of the forward and the backward thread (32 MiB each on Hopper). Exact on 9 runs."""
SLACK = 80 << 20
"""Targets, masks, results and larger workspaces."""


class Loss(Struct, frozen=True):
    """A loss on `tokens` x `vocab` logits, given as such or made from `hidden`-wide states by a head matrix.

    `heads` is how many head matrices are resident (a comparison of two variants holds one for each, with reference
    models two). `repeated`: the gradients of a call before are still there, as with accumulation.

    >>> Loss("logits", 1024, 32000, dtype="fp32", repeated=True).bytes // (1024 * 32000)
    20
    """

    kind: LossKind
    tokens: int
    vocab: int
    hidden: int = 0
    dtype: Dtype = "bf16"
    heads: int = 1
    repeated: bool = False
    chunk: int = 0

    @property
    def size(self) -> int:
        """Bytes of an element as it is given."""
        return DTYPE_BYTES[self.dtype]

    @property
    def half(self) -> bool:
        """Whether the loss casts to fp32 first."""
        return self.size < 4

    @property
    def head(self) -> int:
        """Bytes of one head matrix."""
        return self.hidden * self.vocab * self.size

    @property
    def states(self) -> int:
        """Bytes of the hidden states."""
        return self.tokens * self.hidden * self.size

    @property
    def bytes(self) -> int:
        """Bytes at the peak."""
        return sum(part for _, part in self.parts())

    def parts(self) -> tuple[tuple[str, int], ...]:
        """What is alive at the peak, in words and bytes. The docstring of each kind's function derives it."""
        if self.kind.startswith("logits"):
            return self._on_logits()
        if self.hidden < 1:
            raise InputError(f"loss {self.kind!r}: it needs the width of the hidden states; set hidden")
        if self.kind in ("head", "head-upcast"):
            return self._head()
        if self.kind == "policy":
            return self._policy()
        if self.kind == "head-chunked":
            return self._chunked()
        return self._fused()

    def _on_logits(self) -> tuple[tuple[str, int], ...]:
        """Logits are a leaf of `size` bytes, and their gradient of the call before stands beside them.

        "logits" (torch's cross entropy): log-softmax (4) is kept; its backward pass makes the gradient of the picked
        entries (4, zeros elsewhere) and from it that of the logits (4): 12 beside the leaf. The leaf's fp32 cast is
        gone by then. "logits-inplace" (Liger): the gradient overwrites the logits, or their fp32 cast (4) where they
        are half precision, whose cast gradient (2) becomes the leaf's. "logits-parallel" (Megatron): the fp32 copy
        (4) becomes exponentials, softmax and gradient in place, and is cast (2). Fused by the compiler it makes one
        more fp32 tensor (4).
        """
        count = self.tokens * self.vocab
        stale = ("gradient of the call before", count * self.size if self.repeated else 0)
        leaf = ("logits", count * self.size)
        if self.kind == "logits":
            return leaf, stale, ("log-softmax and two gradients", 12 * count)
        if self.kind == "logits-inplace" and not self.half:
            return (leaf,)
        fp32 = 8 if self.kind == "logits-parallel-fused" else 4
        return leaf, ("fp32 copy", fp32 * count), ("gradient", (2 if self.half else 0) * count)

    def _head(self) -> tuple[tuple[str, int], ...]:
        """torch: head, then cross entropy, in the head's precision or ("head-upcast") on logits cast to fp32.

        The logits are gone once log-softmax has its result, which stays for the backward pass; that makes the
        gradient of the picked entries and that of the logits: three tensors of the loss's precision. The cast's
        gradient comes when two of them are gone. transformers (`ForCausalLMLoss`), and so TRL, and most loops cast.
        """
        count, size = self.tokens * self.vocab, FP32 if self.kind == "head-upcast" else self.size
        return (*self._resident(), ("log-softmax and two gradients", 3 * size * count))

    def _policy(self) -> tuple[tuple[str, int], ...]:
        """torch: head, fp32 logits, log-softmax, picked log-probs, clipped ratio.

        fp32 logits (4) are held by the caller, log-softmax (4) by the backward pass, which makes two gradients (8).
        The reference's hidden states stand beside the policy's.
        """
        count = self.tokens * self.vocab
        return (*self._resident(), ("states of the reference", self.states), ("fp32 logits and more", 16 * count))

    def _fused(self) -> tuple[tuple[str, int], ...]:
        """Liger: head and loss chunk by chunk; gradients are formed in the forward pass.

        A new gradient of the head and one of the hidden states fill up over the chunks. Cross entropy: a chunk's
        logits (`size`), their fp32 copy, which becomes their gradient (4), and that cast (`size`); chunks are as many
        as the vocabulary is times wider than the hidden states, their tokens rounded up to a power of two. Policy: a
        chunk is one sample, with logits, two fp32 tensors and, where half precision, their cast.

        Liger of 2025 ("head-fused-cast") writes a chunk's gradient over its logits (`liger_cross_entropy_kernel`),
        and adds `torch.mm(gradient.t(), states).float()` to the head's gradient: while it is cast, the product and
        its fp32 copy are there beside the sum (`fused_linear_cross_entropy_forward` without `accum_dtype`).
        """
        filled = (("head's gradient", self.head), ("states' gradient", self.states))
        if self.kind == "policy-fused":
            chunk = min(self.tokens, self.chunk or SAMPLE)
            each = chunk * self.vocab * (2 * 4 + (self.size if self.half else 0))
            return (*self._resident(), ("states of the reference", self.states), *filled, ("a chunk's logits", each))
        tokens = self.chunk or fused_chunk(self.tokens, self.vocab, self.hidden)
        if self.kind == "head-fused-cast":
            each = min(tokens, self.tokens) * self.vocab * self.size
            part = self.head + (self.head // self.size * FP32 if self.half else 0)
            return (*self._resident(), *filled, ("a chunk's logits", each), ("its part of the head's gradient", part))
        each = min(tokens, self.tokens) * self.vocab * (4 + (2 * self.size if self.half else 0))
        return (*self._resident(), *filled, ("a chunk's logits", each))

    def _chunked(self) -> tuple[tuple[str, int], ...]:
        """TRL: head and cross entropy chunk by chunk, each chunk's graph kept for one backward pass.

        Each chunk keeps its fp32 log-softmax (4), so all logits stand by the end. The backward pass peaks at one of
        three points: the first chunk makes two fp32 gradients (8); the second does so too, when the first one's
        log-softmax (4) is gone and the gradients of head and states are there; or two chunks are gone and their
        shares of the head's gradient stand beside their sum.
        """
        chunk = min(self.tokens, self.chunk or CHUNK)
        one, gradients = chunk * self.vocab, self.head + self.states
        candidates = [8 * one]
        if chunk < self.tokens:
            candidates += [4 * one + gradients, 3 * self.head + self.states - 8 * one]
        return (
            *self._resident(),
            ("fp32 log-softmax", 4 * self.tokens * self.vocab),
            ("backward pass", max(candidates)),
        )

    def _resident(self) -> tuple[tuple[str, int], ...]:
        """Head matrices and hidden states, and the gradients of one head and of the states from a call before."""
        stale = self.head + self.states if self.repeated else 0
        return (
            ("workspace", WORKSPACE),
            ("head matrices", self.heads * self.head),
            ("hidden states", self.states),
            ("gradients of the call before", stale),
        )


def fused_chunk(tokens: int, vocab: int, hidden: int) -> int:
    """Tokens of a chunk of Liger's fused cross entropy.

    >>> fused_chunk(16384, 128256, 4096)
    512
    """
    return min(tokens, 1 << (ceil(tokens / ceil(vocab / hidden)) - 1).bit_length())


def loss_bytes(loss: Loss) -> Item:
    """The item of a loss alone. Upper: an eighth of what comes and goes, and 32 MiB.

    InputError for counts below one.

    >>> loss_bytes(Loss("head", 8192, 128256, 4096, heads=2, repeated=True)).bytes
    9607315456
    """
    if min(loss.tokens, loss.vocab, loss.heads) < 1:
        raise InputError(
            f"loss on {loss.tokens} tokens x {loss.vocab} entries, {loss.heads} heads: set at least 1 of each"
        )
    parts = [(name, size) for name, size in loss.parts() if size]
    total = sum(size for _, size in parts)
    formula = " + ".join(f"{name} {size:,}" for name, size in parts)
    passing = total - (loss.heads * loss.head if loss.hidden else 0)
    return Item("loss", total, total + passing // 16 + SLACK, formula, "live tensors of forward and backward")
