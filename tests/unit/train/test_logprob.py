import math

import pytest
import torch

from headway.train.logprob import token_logprobs

from .live_bytes import LiveBytes

CHUNKS = (1, 2, 3, 5, 11, 64)


def inputs(tokens=11, vocab=29, width=6, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(tokens, width, generator=generator, dtype=torch.float64).to(dtype)
    weight = torch.randn(vocab, width, generator=generator, dtype=torch.float64).to(dtype)
    targets = torch.randint(0, vocab, (tokens,), generator=generator)
    targets[:2] = torch.tensor([0, vocab - 1])
    return hidden.requires_grad_(), weight.requires_grad_(), targets


def plain(hidden, weight, targets, temperature):
    """The textbook: all logits, softmax, entropy."""
    logprobs = (hidden @ weight.T / temperature).log_softmax(dim=-1)
    return logprobs[torch.arange(len(targets)), targets], -(logprobs.exp() * logprobs).sum(dim=-1)


def gradients(function, hidden, weight, entropy_share=0.3):
    """Gradients of a loss that weighs every token differently."""
    logprobs, entropy = function(hidden, weight)
    shares = torch.linspace(-1, 2, len(hidden), dtype=torch.float64)
    loss = (shares * logprobs).sum()
    if entropy is not None:
        loss = loss + entropy_share * (shares.flip(0) * entropy).sum()
    return torch.autograd.grad(loss, [hidden, weight])


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_agrees_with_all_logits_at_once(chunk, temperature):
    hidden, weight, targets = inputs()
    found = token_logprobs(hidden, weight, targets, temperature, chunk, True)
    torch.testing.assert_close(found, plain(hidden, weight, targets, temperature), rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(
        gradients(lambda h, w: token_logprobs(h, w, targets, temperature, chunk, True), hidden, weight),
        gradients(lambda h, w: plain(h, w, targets, temperature), hidden, weight),
        rtol=1e-10, atol=1e-12,
    )  # fmt: skip


@pytest.mark.parametrize("chunk", CHUNKS)
def test_without_entropy_the_rest_is_the_same(chunk):
    hidden, weight, targets = inputs()
    logprobs, entropy = token_logprobs(hidden, weight, targets, 0.7, chunk, False)
    assert entropy is None
    torch.testing.assert_close(logprobs, plain(hidden, weight, targets, 0.7)[0], rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(
        gradients(lambda h, w: token_logprobs(h, w, targets, 0.7, chunk, False), hidden, weight),
        gradients(lambda h, w: (plain(h, w, targets, 0.7)[0], None), hidden, weight),
        rtol=1e-10, atol=1e-12,
    )  # fmt: skip


@pytest.mark.parametrize("chunk", [2, 64])
@pytest.mark.parametrize("with_entropy", [False, True])
def test_gradcheck(chunk, with_entropy):
    hidden, weight, targets = inputs(tokens=5, vocab=7, width=3)

    def function(hidden, weight):
        logprobs, entropy = token_logprobs(hidden, weight, targets, 1.3, chunk, with_entropy)
        return (logprobs, entropy) if with_entropy else logprobs

    assert torch.autograd.gradcheck(function, (hidden, weight))


def test_entropy_alone_has_its_gradient():
    hidden, weight, targets = inputs()
    found = torch.autograd.grad(token_logprobs(hidden, weight, targets, 1.0, 3, True)[1].sum(), [hidden, weight])
    expected = torch.autograd.grad(plain(hidden, weight, targets, 1.0)[1].sum(), [hidden, weight])
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_a_frozen_weight_leaves_the_gradient_of_hidden_as_it_was():
    hidden, weight, targets = inputs()
    whole = torch.autograd.grad(token_logprobs(hidden, weight, targets, 1.0, 3, False)[0].sum(), hidden)
    frozen = weight.detach()
    alone = torch.autograd.grad(token_logprobs(hidden, frozen, targets, 1.0, 3, False)[0].sum(), hidden)
    assert torch.equal(whole[0], alone[0])


def test_large_logits_neither_overflow_nor_vanish():
    hidden = torch.tensor([[1000.0], [-1000.0]], requires_grad=True)
    weight = torch.tensor([[1.0], [0.5], [-1.0]], requires_grad=True)
    logprobs, entropy = token_logprobs(hidden, weight, torch.tensor([0, 0]), 1.0, 1, True)
    assert logprobs.tolist() == [0.0, -2000.0]
    assert entropy.tolist() == [0.0, 0.0]
    (logprobs.sum() + entropy.sum()).backward()
    # Only the second token's softmax (all on entry 2) differs from its target (entry 0).
    assert hidden.grad.tolist() == [[0.0], [2.0]]
    assert weight.grad.tolist() == [[-1000.0], [0.0], [1000.0]]


def test_no_tokens():
    hidden, weight, targets = inputs()
    logprobs, entropy = token_logprobs(hidden[:0], weight, targets[:0], 1.0, 4, True)
    (logprobs.sum() + entropy.sum()).backward()
    assert logprobs.shape == entropy.shape == (0,)
    assert torch.equal(weight.grad, torch.zeros_like(weight))


def test_bf16_inputs_give_fp32_results_as_exact_as_their_logits():
    hidden, weight, targets = inputs(tokens=64, vocab=500, width=32, dtype=torch.bfloat16)
    logprobs, entropy = token_logprobs(hidden, weight, targets, 1.0, 16, True)
    assert logprobs.dtype == entropy.dtype == torch.float32
    rounded = (hidden @ weight.T).double().log_softmax(dim=-1)
    expected = rounded[torch.arange(64), targets], -(rounded.exp() * rounded).sum(dim=-1)
    # The same bf16 logits in fp64: what is left is fp32 rounding, far below bf16's 0.06 on a log-prob of 10.
    torch.testing.assert_close((logprobs.double(), entropy.double()), expected, rtol=2e-6, atol=2e-6)


def test_a_bf16_weight_gradient_is_rounded_once_however_many_chunks():
    # Adding 64 chunks into a bf16 sum makes three times the error of one product over all tokens (0.008, 0.003).
    hidden, weight, targets = inputs(tokens=256, vocab=40, width=8, dtype=torch.bfloat16)
    exact = plain(hidden.double(), weight.double(), targets, 1.0)[0].sum()
    (expected,) = torch.autograd.grad(exact, weight)
    errors = {}
    for chunk in (4, 256):
        logprobs, _ = token_logprobs(hidden, weight, targets, 1.0, chunk, False)
        (found,) = torch.autograd.grad(logprobs.sum(), weight)
        errors[chunk] = ((found.double() - expected.double()).norm() / expected.double().norm()).item()
    assert errors[4] < 0.005
    assert errors[4] < 1.2 * errors[256]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("with_entropy", [False, True], ids=["plain", "entropy"])
@pytest.mark.parametrize("trainable", [False, True], ids=["frozen", "trainable"])
@pytest.mark.parametrize(("tokens", "chunk"), [(160, 16), (24, 32)])
def test_live_bytes_are_those_of_the_table(dtype, with_entropy, trainable, tokens, chunk):
    vocab, width = 4001, 8
    hidden, weight, targets = inputs(tokens, vocab, width, dtype)
    weight.requires_grad_(trainable)
    rows, half = min(chunk, tokens), dtype == torch.bfloat16
    logits = 4 * rows * vocab
    vectors = 60 * tokens
    with LiveBytes(hidden, weight, targets) as forward:
        logprobs, entropy = token_logprobs(hidden, weight, targets, 0.7, chunk, with_entropy)
    expected = logits + (2 * rows * math.ceil(vocab / 8) if half else 0)
    assert expected <= forward.peak <= expected + vectors
    loss = logprobs.sum() if entropy is None else logprobs.sum() + entropy.sum()
    with LiveBytes(hidden, weight, targets) as backward:
        loss.backward()
    weight_gradient = vocab * width * dtype.itemsize if trainable else 0
    hidden_gradient = tokens * width * (6 if half else 4)
    assert backward.peak <= logits + hidden_gradient + weight_gradient + vectors
    assert backward.peak > 0.5 * logits + weight_gradient
    kept = weight_gradient + hidden.grad.nbytes
    assert kept <= backward.live <= kept + vectors
    if tokens > 2 * chunk:
        assert max(forward.largest, backward.largest) < 0.5 * 4 * tokens * vocab


def test_refuses_greedy_and_mixed_inputs():
    hidden, weight, targets = inputs()
    with pytest.raises(ValueError, match="temperature = 0"):
        token_logprobs(hidden, weight, targets, 0.0, 4, False)
    with pytest.raises(ValueError, match=r"float32.*float64"):
        token_logprobs(hidden.float(), weight, targets, 1.0, 4, False)
