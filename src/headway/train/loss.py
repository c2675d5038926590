"""The objective: a clipped surrogate with a KL penalty and an entropy bonus, over response tokens."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from headway.config.sections import ObjectiveSection
from headway.train.records import MicroBatch


@dataclass(frozen=True)
class LossStats:
    """Sums over tokens, so that the statistics of micro-batches add up; divide by `tokens` for means.

    `clipped` counts the tokens whose gradient the clip removed, `ratio` sums new / old probability, `kl` the
    estimator that the objective names (0 without a reference), `entropy` the entropies where they were computed.
    `loss` alone is weighted already: it sums what `policy_loss` returned. `splits` counts the micro-batches that
    were split as memory ran out, and `dropped` the samples for which even that was not enough.

    >>> (LossStats(tokens=3.0, clipped=1.0) + LossStats(tokens=1.0)).mean("clipped")
    0.25
    """

    tokens: float = 0.0
    clipped: float = 0.0
    ratio: float = 0.0
    kl: float = 0.0
    entropy: float = 0.0
    loss: float = 0.0
    splits: float = 0.0
    dropped: float = 0.0

    def __add__(self, other: "LossStats") -> "LossStats":
        mine, theirs = asdict(self), asdict(other)
        return LossStats(**{name: mine[name] + theirs[name] for name in mine})

    def mean(self, name: str) -> float:
        """One of the sums per token; 0 when there are no tokens."""
        return self.to_dict()[name] / self.tokens if self.tokens else 0.0

    def to_dict(self) -> dict[str, float]:
        """The sums by name, for a checkpoint."""
        return asdict(self)

    @classmethod
    def from_dict(cls, sums: Mapping[str, float]) -> "LossStats":
        """The inverse of `to_dict`; what is missing is 0."""
        return cls(**sums)


def policy_loss(
    logprobs: Tensor, entropy: Tensor | None, batch: MicroBatch, objective: ObjectiveSection
) -> tuple[Tensor, LossStats]:
    """What a micro-batch adds to the loss of its optimizer step (scalar), and its statistics.

    `logprobs` [T] and `entropy` [T] belong to the batch's response tokens. With r = exp(logprob - old), advantage
    A and weight w of each token, the result is

        sum of w (-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) + kl_coef KL - entropy_coef H)

    Weights are shares of the whole optimizer step, so the results of its micro-batches add up to the step's loss and
    their gradients to its gradient, however the samples are packed. Without `batch.old_logprobs` the tokens are
    fresh: r is exactly 1 and its gradient that of the log-prob.

    The KL term is not weighted by r, as in GRPO (Shao et al. 2024, eq. 3). `entropy` may be None at
    entropy_coef 0, `batch.ref_logprobs` at kl_coef 0.
    """
    old = logprobs.detach() if batch.old_logprobs is None else batch.old_logprobs
    ratio = torch.exp(logprobs - old)
    advantages = batch.advantages
    clipped_ratio = ratio.clamp(1 - objective.clip_low, 1 + objective.clip_high)
    loss = -torch.minimum(ratio * advantages, clipped_ratio * advantages)
    kl = None if batch.ref_logprobs is None else kl_estimate(logprobs, batch.ref_logprobs, objective.kl_kind)
    if objective.kl_coef > 0:
        assert kl is not None, "kl_coef > 0 needs reference log-probs"
        loss = loss + objective.kl_coef * kl
    if objective.entropy_coef > 0:
        assert entropy is not None, "entropy_coef > 0 needs entropies"
        loss = loss - objective.entropy_coef * entropy
    total = (loss * batch.weights).sum()
    return total, _stats(total, ratio, kl, entropy, batch, objective)


def kl_estimate(logprobs: Tensor, ref_logprobs: Tensor, kind: str) -> Tensor:
    """Per-token estimate [T] of KL(policy || reference), for tokens that the policy sampled.

    With d = log policy - log reference (Schulman, "Approximating KL divergence", 2020):

    - k1 = d. Unbiased, may be negative. As a loss its gradient is that of the log-prob: its expectation is 0, so it
      adds noise and pulls towards nothing. It is here for comparisons.
    - k2 = d^2 / 2. Biased as a value; its gradient d grad(log-prob) is an unbiased estimate of the gradient of
      KL(policy || reference).
    - k3 = exp(-d) - 1 + d. Unbiased and never negative; its gradient (1 - exp(-d)) grad(log-prob) is, in expectation,
      that of KL(reference || policy). It has no bound where the policy is far less likely than the reference.
    """
    difference = logprobs - ref_logprobs
    if kind == "k1":
        return difference
    if kind == "k2":
        return difference.square() / 2
    if kind == "k3":
        return torch.expm1(-difference) + difference
    raise ValueError(f"KL estimator {kind!r}: known are k1, k2 and k3")


@torch.no_grad()
def _stats(
    loss: Tensor,
    ratio: Tensor,
    kl: Tensor | None,
    entropy: Tensor | None,
    batch: MicroBatch,
    objective: ObjectiveSection,
) -> LossStats:
    high = (ratio > 1 + objective.clip_high) & (batch.advantages > 0)
    low = (ratio < 1 - objective.clip_low) & (batch.advantages < 0)
    zero = ratio.new_zeros(())
    sums = (
        (high | low).sum().to(ratio.dtype),
        ratio.sum(),
        zero if kl is None else kl.sum(),
        zero if entropy is None else entropy.sum(),
        loss,
    )
    return LossStats(float(len(ratio)), *torch.stack(sums).tolist())
