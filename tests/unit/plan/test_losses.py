"""Losses alone: the formulas against tensors that are counted while torch computes them."""

from collections.abc import Callable, Sequence
from math import ceil

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from headway.errors import InputError
from headway.plan.losses import WORKSPACE, Loss, loss_bytes

from ..train.live_bytes import LiveBytes

TOKENS, VOCAB, HIDDEN = 512, 4096, 64
TARGETS = torch.zeros(TOKENS, dtype=torch.long)


def size(tensors: Sequence[Tensor | None]) -> int:
    return sum(each.nbytes for each in tensors if each is not None)


def peak(leaves: Sequence[Tensor], compute: Callable[[], None], *, repeated: bool) -> int:
    """Leaves, their gradients of a first pass if `repeated`, and what a pass holds at its peak."""
    if repeated:
        compute()
    held = [*leaves, *(leaf.grad for leaf in leaves if leaf.grad is not None)]
    with LiveBytes(*held) as counted:
        compute()
    return size(held) + counted.peak


def leaf(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def expected(loss: Loss) -> int:
    """Without cuBLAS's workspace, which a CPU does not have."""
    return loss.bytes - (WORKSPACE if loss.hidden else 0)


@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_cross_entropy_on_given_logits(dtype: str, repeated: bool) -> None:
    logits = leaf(TOKENS, VOCAB, dtype=torch.float32 if dtype == "fp32" else torch.bfloat16)

    def compute() -> None:
        F.cross_entropy(logits.float(), TARGETS).backward()

    counted = peak([logits], compute, repeated=repeated)
    assert counted == pytest.approx(Loss("logits", TOKENS, VOCAB, dtype=dtype, repeated=repeated).bytes, rel=0.002)


@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_head_and_cross_entropy(dtype: str, repeated: bool) -> None:
    kind = torch.float32 if dtype == "fp32" else torch.bfloat16
    states, head = leaf(TOKENS, HIDDEN, dtype=kind), leaf(VOCAB, HIDDEN, dtype=kind)

    def compute() -> None:
        F.cross_entropy(states @ head.t(), TARGETS).backward()

    counted = peak([states, head], compute, repeated=repeated)
    loss = Loss("head", TOKENS, VOCAB, HIDDEN, dtype=dtype, repeated=repeated)
    assert counted == pytest.approx(expected(loss), rel=0.01)


def test_policy_loss_through_full_logits() -> None:
    states, head = leaf(TOKENS, HIDDEN, dtype=torch.bfloat16), leaf(VOCAB, HIDDEN, dtype=torch.bfloat16)
    reference = torch.randn(TOKENS, HIDDEN, dtype=torch.bfloat16)
    old = torch.zeros(TOKENS)

    def compute() -> None:
        logits = (states @ head.t()).float()
        picked = logits.log_softmax(-1).gather(-1, TARGETS[:, None])[:, 0]
        ratio = torch.exp(picked - old)
        torch.min(ratio, ratio.clamp(0.8, 1.2)).mean().neg().backward()

    counted = peak([states, head], compute, repeated=True) + reference.nbytes
    assert counted == pytest.approx(expected(Loss("policy", TOKENS, VOCAB, HIDDEN, repeated=True)), rel=0.01)


def test_chunks_that_form_gradients_as_they_go() -> None:
    """A head as wide as a quarter of the vocabulary: four chunks, each with logits, an fp32 copy and its cast."""
    vocab, hidden = 1024, 256
    states, head = (torch.randn(rows, hidden, dtype=torch.bfloat16) for rows in (TOKENS, vocab))

    def compute() -> None:
        head_gradient = torch.zeros_like(head)
        states_gradient = torch.zeros_like(states)
        for start in range(0, TOKENS, TOKENS // 4):
            rows = slice(start, start + TOKENS // 4)
            logits = states[rows] @ head.t()
            exact = logits.float()
            torch.softmax(exact, -1, out=exact)
            gradient = exact.to(torch.bfloat16)
            torch.matmul(gradient, head, out=states_gradient[rows])
            head_gradient.addmm_(gradient.t(), states[rows])
            del logits, exact, gradient

    counted = peak([states, head], compute, repeated=False)
    assert counted == pytest.approx(expected(Loss("head-fused", TOKENS, vocab, hidden)), rel=0.01)


@pytest.mark.parametrize(("hidden", "chunk"), [(16, 128), (64, 32), (512, 64), (64, TOKENS)])
def test_chunks_whose_graphs_are_kept(hidden: int, chunk: int) -> None:
    """A small head, where a chunk's gradients decide; a larger one; one whose own gradient decides; one chunk."""
    vocab = 2048
    states, head = leaf(TOKENS, hidden, dtype=torch.bfloat16), leaf(vocab, hidden, dtype=torch.bfloat16)

    def compute() -> None:
        parts = [
            F.cross_entropy((states[start : start + chunk] @ head.t()).float(), TARGETS[:chunk], reduction="sum")
            for start in range(0, TOKENS, chunk)
        ]
        torch.stack(parts).sum().backward()

    counted = peak([states, head], compute, repeated=False)
    loss = Loss("head-chunked", TOKENS, vocab, hidden, chunk=chunk)
    assert counted == pytest.approx(expected(loss), rel=0.02)
    assert counted <= loss_bytes(loss).upper


def test_fused_losses_grow_with_tokens_by_hidden_states_and_a_chunk_alone() -> None:
    short, long = (Loss("policy-fused", tokens, 128256, 4096).bytes for tokens in (4096, 8192))
    assert long - short == 4096 * 4096 * 2 * 3  # the states, the reference's, and their gradient


kinds = st.sampled_from([
    "logits", "logits-inplace", "logits-parallel", "logits-parallel-fused", "head", "head-fused", "head-chunked",
    "policy", "policy-fused",
])  # fmt: skip


@given(kinds, st.integers(1, 50_000), st.integers(1, 200_000), st.sampled_from(["bf16", "fp32"]), st.booleans())
def test_no_loss_takes_less_with_more_tokens(kind: str, tokens: int, vocab: int, dtype: str, repeated: bool) -> None:
    few, many = (
        loss_bytes(Loss(kind, count, vocab, 512, dtype=dtype, repeated=repeated)) for count in (tokens, 2 * tokens)
    )
    assert few.bytes <= many.bytes
    assert few.upper <= many.upper
    assert few.bytes <= few.upper


def test_a_chunk_is_a_power_of_two_of_tokens() -> None:
    chunks = ceil(128256 / 4096)
    tokens = 5000
    rounded = 2 ** (ceil(tokens / chunks) - 1).bit_length()
    each = dict(Loss("head-fused", tokens, 128256, 4096).parts())["a chunk's logits"]
    assert each == rounded * 128256 * 8


@pytest.mark.parametrize(
    "loss", [Loss("logits", 0, 5), Loss("logits", 5, 0), Loss("head", 5, 5), Loss("policy", 5, 5, 8, heads=0)]
)
def test_sizes_that_are_missing_are_named(loss: Loss) -> None:
    with pytest.raises(InputError, match="set"):
        loss_bytes(loss)
