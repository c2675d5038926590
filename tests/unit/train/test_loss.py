import itertools
import statistics

import pytest
import torch

from headway.config.sections import ObjectiveSection
from headway.train.advantage import group_advantages
from headway.train.logprob import token_logprobs
from headway.train.loss import LossStats, kl_estimate, policy_loss
from headway.train.pack import micro_batches, token_weights
from headway.train.records import MicroBatch, Sample

PROMPTS, SAMPLES, VOCAB, WIDTH, MAX_ANSWER = 2, 3, 17, 5, 6
EXACT = {"rtol": 1e-9, "atol": 1e-12}


def rollout(seed=0):
    """Two groups of three answers of 1 to 6 tokens with mixed rewards."""
    generator = torch.Generator().manual_seed(seed)

    def ids(count):
        return tuple(torch.randint(0, VOCAB, (count,), generator=generator).tolist())

    answers = itertools.product(range(PROMPTS), range(SAMPLES))
    lengths = (3, 1, 6, 2, 5, 4)
    rewards = (1.0, 0.0, 0.25, 0.5, 0.0, 1.0)
    return [
        Sample(prompt, sample, ids(2 + prompt), ids(length), (0.0,) * length, "", "stop", reward, reward)
        for (prompt, sample), length, reward in zip(answers, lengths, rewards, strict=True)
    ]


class Toy:
    """A causal model of two matrices: a state is the running mean of its tokens' embeddings."""

    def __init__(self):
        generator = torch.Generator().manual_seed(1)
        self.embedding = torch.randn(VOCAB, WIDTH, generator=generator, dtype=torch.float64, requires_grad=True)
        self.head = torch.randn(VOCAB, WIDTH, generator=generator, dtype=torch.float64, requires_grad=True)

    def states(self, ids):
        embedded = self.embedding[ids]
        return embedded.cumsum(dim=-2) / torch.arange(1, embedded.shape[-2] + 1, dtype=torch.float64)[:, None]

    def gradients(self, loss):
        return torch.autograd.grad(loss, [self.embedding, self.head])


def plain_logprobs(toy, sample, temperature):
    """Log-probs of an answer and entropies, from all logits of the sample alone."""
    states = toy.states(torch.tensor(sample.prompt_ids + sample.response_ids))
    first = len(sample.prompt_ids) - 1
    logits = states[first : first + len(sample.response_ids)] @ toy.head.T / temperature
    p = logits.exp() / logits.exp().sum(dim=-1, keepdim=True)
    chosen = torch.stack([p[t, token] for t, token in enumerate(sample.response_ids)])
    return chosen.log(), -(p * p.log()).sum(dim=-1)


def textbook(toy, samples, objective, old, ref, temperature):
    """The loss as the papers write it: sample by sample, written without any of headway's functions."""
    samples_tokens = [len(sample.response_ids) for sample in samples]
    total = torch.zeros((), dtype=torch.float64)
    for index, sample in enumerate(samples):
        group = [other.reward for other in samples if other.prompt == sample.prompt]
        advantage = sample.reward - statistics.fmean(group)
        if objective.std_normalise:
            advantage /= statistics.stdev(group) + 1e-6
        logp, entropy = plain_logprobs(toy, sample, temperature)
        before = logp.detach() if old is None else torch.tensor(old[index], dtype=torch.float64)
        ratio = (logp - before).exp()
        clipped = ratio.clip(1 - objective.clip_low, 1 + objective.clip_high)
        terms = -torch.min(ratio * advantage, clipped * advantage)
        if objective.kl_coef > 0:
            d = logp - torch.tensor(ref[index], dtype=torch.float64)
            kl = {"k1": d, "k2": 0.5 * d**2, "k3": (-d).exp() - 1 + d}[objective.kl_kind]
            terms = terms + objective.kl_coef * kl
        terms = terms - objective.entropy_coef * entropy
        if objective.normalise == "token-mean":
            total = total + terms.sum() / sum(samples_tokens)
        elif objective.normalise == "sample-mean":
            total = total + terms.mean() / len(samples)
        else:
            total = total + terms.sum() / (len(samples) * MAX_ANSWER)
    return total


def headway_loss(toy, samples, objective, old, ref, temperature, cap=16):
    """The same through headway: advantages, weights, several padded micro-batches, chunked log-probs, loss."""
    rewards = torch.tensor([s.reward for s in samples], dtype=torch.float64).view(PROMPTS, SAMPLES)
    advantages = group_advantages(rewards, objective.std_normalise).flatten().tolist()
    weights = token_weights([len(s.response_ids) for s in samples], objective.normalise, MAX_ANSWER)
    batches = micro_batches(samples, advantages, weights, old, ref, cap, 0, torch.float64)
    assert len(batches) > 1
    total, stats = torch.zeros((), dtype=torch.float64), LossStats()
    for batch in batches:
        states = toy.states(batch.ids)[batch.rows, batch.columns]
        logprobs, entropy = token_logprobs(
            states, toy.head, batch.targets, temperature, 3, objective.entropy_coef > 0
        )
        loss, added = policy_loss(logprobs, entropy, batch, objective)
        total, stats = total + loss, stats + added
    return total, stats


def shifted_logprobs(toy, samples, temperature, seed, size=0.6):
    """Log-probs of another policy: those of the toy, each moved by up to `size`."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for sample in samples:
        logp = plain_logprobs(toy, sample, temperature)[0].detach()
        move = torch.rand(len(logp), generator=generator, dtype=torch.float64) * 2 - 1
        found.append(tuple((logp + size * move).tolist()))
    return found


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("kl", [None, "k1", "k2", "k3"])
@pytest.mark.parametrize("normalise", ["token-mean", "sample-mean", "constant"])
def test_every_combination_agrees_with_the_textbook(normalise, kl, temperature):
    toy, samples = Toy(), rollout()
    shifted = shifted_logprobs(toy, samples, temperature, seed=2)
    ref = None if kl is None else shifted_logprobs(toy, samples, temperature, seed=3)
    for std, clip, entropy, old in itertools.product(
        [False, True], [(0.2, 0.2), (0.1, 0.35)], [0.0, 0.02], [None, shifted]
    ):
        objective = ObjectiveSection(
            std_normalise=std, clip_low=clip[0], clip_high=clip[1], normalise=normalise,
            kl_coef=0.0 if kl is None else 0.3, kl_kind=kl or "k3", entropy_coef=entropy,
        )  # fmt: skip
        expected = textbook(toy, samples, objective, old, ref, temperature)
        found, stats = headway_loss(toy, samples, objective, old, ref, temperature)
        torch.testing.assert_close(found, expected, **EXACT)
        torch.testing.assert_close(toy.gradients(found), toy.gradients(expected), **EXACT)
        assert (stats.clipped > 0) == (old is not None)


def one_batch(logprobs, old, ref, advantages):
    count = len(logprobs)
    return MicroBatch(
        ids=torch.zeros(1, count + 1, dtype=torch.int64), rows=torch.zeros(count, dtype=torch.int64),
        columns=torch.arange(count), targets=torch.zeros(count, dtype=torch.int64),
        advantages=torch.tensor(advantages), weights=torch.full((count,), 1 / count),
        old_logprobs=None if old is None else torch.tensor(old),
        ref_logprobs=None if ref is None else torch.tensor(ref), samples=(0,),
    )  # fmt: skip


def test_the_clip_stops_the_gradient_only_where_it_would_overshoot():
    # The clip binds upwards for a good token and downwards for a bad one; ratios are e and 1/e.
    logprobs = torch.tensor([-1.0, -3.0, -1.0, -3.0, -3.0], requires_grad=True)
    batch = one_batch(logprobs, [-2.0] * 5, None, [1.0, 1.0, -1.0, -1.0, -2.0])
    loss, stats = policy_loss(logprobs, None, batch, ObjectiveSection())
    loss.backward()
    e = torch.e
    torch.testing.assert_close(logprobs.grad, torch.tensor([0.0, -1 / e, e, 0.0, 0.0]) / 5)
    assert stats.clipped == 3
    assert stats.ratio == pytest.approx(2 * e + 3 / e)
    assert (stats.tokens, stats.kl, stats.entropy) == (5, 0, 0)


def test_fresh_samples_have_ratio_one_and_the_policy_gradient():
    logprobs = torch.tensor([-0.5, -7.0], requires_grad=True)
    loss, stats = policy_loss(logprobs, None, one_batch(logprobs, None, None, [2.0, -1.0]), ObjectiveSection())
    loss.backward()
    assert loss.item() == -0.5
    assert logprobs.grad.tolist() == [-1.0, 0.5]
    assert (stats.ratio, stats.clipped) == (2.0, 0.0)


def test_statistics_are_sums_over_tokens():
    logprobs, ref = torch.tensor([-1.0, -2.0, -0.5]), [-1.5, -2.0, -0.25]
    objective = ObjectiveSection(kl_coef=0.1, kl_kind="k2", entropy_coef=0.5)
    batch = one_batch(logprobs, None, ref, [0.0, 1.0, 2.0])
    loss, stats = policy_loss(logprobs, torch.tensor([0.5, 1.0, 2.0]), batch, objective)
    assert stats == LossStats(
        3.0, 0.0, 3.0, pytest.approx((0.25 + 0.0625) / 2), pytest.approx(3.5), pytest.approx(loss.item())
    )
    assert stats + LossStats() == stats
    assert (stats + stats).mean("entropy") == pytest.approx(3.5 / 3)
    assert LossStats.from_dict((stats + stats).to_dict()) == stats + stats
    assert LossStats().mean("kl") == 0


def test_expected_kl_and_its_gradients_are_what_the_estimators_claim():
    """Over a whole small vocabulary expectations are sums, so the claims of the docstring can be checked."""
    scores = torch.tensor([0.3, -1.0, 0.8, 0.1], dtype=torch.float64, requires_grad=True)
    ref = torch.tensor([-0.2, 0.4, 0.5, -1.0], dtype=torch.float64).log_softmax(0)

    def expectation(kind):
        logp = scores.log_softmax(0)
        value = (logp.exp().detach() * kl_estimate(logp, ref, kind)).sum()
        return value.item(), torch.autograd.grad(value, scores)[0]

    logp = scores.log_softmax(0)
    policy_to_ref = (logp.exp() * (logp - ref)).sum()
    ref_to_policy = (ref.exp() * (ref - logp)).sum()
    (gradient_forward,) = torch.autograd.grad(policy_to_ref, scores, retain_graph=True)
    (gradient_reverse,) = torch.autograd.grad(ref_to_policy, scores)

    assert expectation("k1")[0] == pytest.approx(policy_to_ref.item(), rel=1e-12)
    assert expectation("k3")[0] == pytest.approx(policy_to_ref.item(), rel=1e-12)
    torch.testing.assert_close(expectation("k1")[1], torch.zeros_like(scores), rtol=0, atol=1e-15)
    torch.testing.assert_close(expectation("k2")[1], gradient_forward, rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(expectation("k3")[1], gradient_reverse, rtol=1e-12, atol=1e-15)


def test_an_unknown_estimator_is_refused():
    with pytest.raises(ValueError, match="'k4'"):
        kl_estimate(torch.zeros(1), torch.zeros(1), "k4")
