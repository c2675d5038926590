import math

import numpy as np
import pytest
import torch
from torch import Tensor

from headway.rollout import kvplan
from headway.rollout.engine import SamplingParams
from headway.rollout.kvplan import sampler_bytes, slice_rows
from headway.rollout.sampling import choose, inverse_cdf, keep_top_k, keep_top_p, uniforms

from ..train.live_bytes import LiveBytes

ONE = SamplingParams(max_answer=1)


def params(**changes) -> SamplingParams:
    return SamplingParams(max_answer=1, **changes)


def draws(count: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(uniforms((seed, 0, 0, 0), count))


def chi_square(counts: np.ndarray, expected: np.ndarray) -> float:
    """Standardised chi-square statistic: about normal(0, 1) under the null for many degrees of freedom."""
    freedom = len(counts) - 1
    return (((counts - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom)


def test_uniforms_are_uniform():
    numbers = np.concatenate([uniforms((1, 2, prompt, 3), 1000) for prompt in range(200)])
    assert numbers.min() >= 0
    assert numbers.max() < 1
    counts, _ = np.histogram(numbers, bins=1000, range=(0, 1))
    assert abs(chi_square(counts, np.full(1000, 200.0))) < 4


@pytest.mark.parametrize("part", range(4))
def test_neighbouring_keys_are_independent(part):
    def key(value: int) -> tuple[int, int, int, int]:
        return tuple(value if at == part else 7 for at in range(4))  # type: ignore[return-value]

    table = np.stack([uniforms(key(value), 64) for value in range(2000)])  # [keys, positions]
    for left, right in ((table[:-1], table[1:]), (table[:, :-1], table[:, 1:])):
        pairs, _, _ = np.histogram2d(left.ravel(), right.ravel(), bins=20, range=[(0, 1), (0, 1)])
        assert abs(chi_square(pairs.ravel(), np.full(400, left.size / 400))) < 4
        assert abs(np.corrcoef(left.ravel(), right.ravel())[0, 1]) < 4 / math.sqrt(left.size)


def test_uniforms_depend_on_key_and_position_alone():
    assert (uniforms((1, 2, 3, 4), 10) == uniforms((1, 2, 3, 4), 100)[:10]).all()
    keys = [(1, 2, 3, 4), (2, 1, 3, 4), (1, 2, 4, 3), (3, 4, 1, 2), (0, 2, 3, 4), (1, 2, 3, 2**32 - 1)]
    assert len({uniforms(key, 1)[0] for key in keys}) == len(keys)
    # A change here would silently change every run's answers.
    assert uniforms((1, 2, 3, 4), 2).tolist() == [0.8376746264781152, 0.8926128228087881]


@pytest.mark.parametrize("key", [(-1, 0, 0, 0), (0, 2**32, 0, 0)])
def test_uniforms_refuse_a_key_that_would_collide(key):
    with pytest.raises(ValueError, match="must be in"):
        uniforms(key, 1)


@pytest.mark.parametrize("vocab", [5, 256, 700])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_frequencies_match_softmax(vocab, temperature):
    logits = torch.randn(1, vocab, generator=torch.Generator().manual_seed(vocab))
    count = 25_000
    tokens, _ = choose(
        logits, draws(count), params(temperature=temperature), rows=torch.zeros(count, dtype=torch.long)
    )
    probs = torch.softmax(logits[0].double() / temperature, -1).numpy()
    common = probs * count >= 5  # chi-square needs enough expected in each cell
    counts = np.bincount(tokens.numpy(), minlength=vocab)
    observed = np.append(counts[common], counts[~common].sum() + 5)
    expected = np.append(probs[common] * count, probs[~common].sum() * count + 5)
    assert abs(chi_square(observed, expected)) < 4


def brute_force_allowed(probs: Tensor, k: int, p: float) -> set[int]:
    """Most likely tokens first: at most k (0: all), then until their renormalised sum reaches p."""
    order = probs.argsort(descending=True).tolist()[: k or None]
    kept, mass, total = [], 0.0, float(probs[order].sum())
    for token in order:
        if mass >= p * total:
            break
        kept.append(token)
        mass += float(probs[token])
    return set(kept)


@pytest.mark.parametrize(("k", "p"), [(1, 1.0), (7, 1.0), (0, 0.3), (0, 0.9), (0, 0.999), (10, 0.6), (600, 1.0)])
def test_top_k_and_top_p_allow_exactly_the_most_likely(k, p):
    logits = 2 * torch.randn(1, 500, generator=torch.Generator().manual_seed(1))
    count = 25_000
    tokens, logprobs = choose(logits, draws(count), params(top_k=k, top_p=p), torch.zeros(count, dtype=torch.long))
    probs = torch.softmax(logits[0].double(), -1)
    allowed = brute_force_allowed(probs, k, p)
    seen = set(tokens.tolist())
    assert seen <= allowed
    assert {token for token in allowed if probs[token] * count > 20} <= seen
    # Among the allowed, shares are those of the renormalised distribution; log-probabilities are not renormalised.
    best = int(probs.argmax())
    share = float(probs[best] / probs[sorted(allowed)].sum())
    assert float((tokens == best).double().mean()) == pytest.approx(share, abs=5 * math.sqrt(0.25 / count))
    torch.testing.assert_close(logprobs.double(), probs[tokens].log(), atol=2e-6, rtol=0)


def test_equals_at_the_edge_are_kept():
    probs = torch.tensor([[0.1, 0.3, 0.1, 0.1, 0.4] + [0.0] * 251])
    keep_top_k(probs, 3)
    assert probs[0, :5].tolist() == pytest.approx([0.1, 0.3, 0.1, 0.1, 0.4])
    probs = torch.tensor([[0.1, 0.3, 0.1, 0.1, 0.4] + [0.0] * 251])
    keep_top_p(probs, 0.75)
    assert (probs[0, :5] > 0).all()
    keep_top_p(probs, 0.65)
    assert probs[0].nonzero().ravel().tolist() == [1, 4]


def test_a_flat_distribution_is_cut_too():
    probs = torch.full((2, 512), 1 / 512)
    probs[:, 100:300] += 1e-4
    keep_top_p(probs, 0.1)
    assert probs[0].nonzero().ravel().tolist() == list(range(100, 300))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_greedy_takes_the_lowest_id_of_equals(dtype):
    logits = torch.zeros(3, 1000, dtype=dtype)
    logits[0, [900, 17, 400]] = 2.0
    logits[1, 999] = 1.0
    tokens, logprobs = choose(logits, draws(3), params(temperature=0.0))
    assert tokens.tolist() == [17, 999, 0]
    torch.testing.assert_close(logprobs, torch.log_softmax(logits.float(), -1)[range(3), tokens], atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    "settings", [{}, {"temperature": 0.0}, {"top_k": 9}, {"top_p": 0.8}, {"top_k": 50, "top_p": 0.8}]
)
def test_a_row_chooses_the_same_in_any_batch(settings, monkeypatch):
    logits = 3 * torch.randn(40, 1111, generator=torch.Generator().manual_seed(2))
    numbers = draws(40)
    tokens, logprobs = choose(logits, numbers, params(**settings))
    order = torch.randperm(40, generator=torch.Generator().manual_seed(3))
    for rows in ([0], [39], [5, 4], order.tolist()):
        again = choose(logits[rows], numbers[rows], params(**settings))
        assert torch.equal(again[0], tokens[rows])
        assert torch.equal(again[1], logprobs[rows])
    monkeypatch.setattr(kvplan, "SLICE_BYTES", {"cpu": 3 * 4 * 1111})
    assert slice_rows(1111, "cpu") == 3
    sliced = choose(logits, numbers, params(**settings))
    assert torch.equal(sliced[0], tokens)
    assert torch.equal(sliced[1], logprobs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("spread", [0.01, 3.0])
@pytest.mark.parametrize("settings", [{}, {"temperature": 0.0}, {"top_k": 9}, {"top_p": 0.9}, {"top_p": 0.999}])
def test_temporaries_stay_below_their_bound(settings, spread, dtype):
    vocab = 20_000
    logits = (spread * torch.randn(120, vocab)).to(dtype)
    numbers, rows = draws(120), torch.arange(120)
    bound = sampler_bytes(vocab, 120, "cpu", top_p="top_p" in settings)
    with LiveBytes(logits, numbers, rows) as live:
        choose(logits, numbers, params(**settings), rows)
    assert live.peak < 1.01 * bound  # the rest are sums of blocks


def test_rows_share_logits():
    logits = torch.randn(2, 300)
    rows = torch.tensor([0, 0, 1, 0])
    tokens, logprobs = choose(logits, draws(4), ONE, rows)
    expected = choose(logits[rows], draws(4), ONE)
    assert torch.equal(tokens, expected[0])
    assert torch.equal(logprobs, expected[1])


def test_the_smallest_and_largest_draws_hit_tokens_with_mass():
    probs = torch.zeros(4, 1024)
    probs[:, 300] = 1e-3
    probs[:, 700] = 0.7
    ends = torch.tensor([0.0, 1 - 2.0**-53, 0.0, 1 - 2.0**-53], dtype=torch.float64)
    assert inverse_cdf(probs, ends).tolist() == [300, 700, 300, 700]


def test_inverse_cdf_follows_the_cumulative_sum():
    probs = torch.rand(50, 2048, generator=torch.Generator().manual_seed(4)) ** 8
    numbers = draws(50)
    cdf = probs.double().cumsum(-1)
    expected = torch.searchsorted(cdf, numbers[:, None] * cdf[:, -1:], right=True)[:, 0]
    assert torch.equal(inverse_cdf(probs, numbers), expected)


def test_extreme_temperatures_stay_finite():
    logits = torch.randn(4, 300) * 30
    for temperature in (1e-30, 1e30):
        tokens, logprobs = choose(logits, draws(4), params(temperature=temperature))
        assert logprobs.isfinite().all()
        assert temperature > 1 or torch.equal(tokens, logits.argmax(-1))


def test_logits_that_are_not_numbers_show_in_the_logprob():
    tokens, logprobs = choose(torch.full((2, 300), torch.nan), draws(2), ONE)
    assert logprobs.isnan().all()
    assert ((tokens >= 0) & (tokens < 300)).all()


def test_the_logits_are_not_changed():
    logits = torch.randn(4, 300)
    before = logits.clone()
    choose(logits, draws(4), params(temperature=0.5, top_k=3, top_p=0.5))
    assert torch.equal(logits, before)
