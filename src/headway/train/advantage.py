"""Advantages: how much better an answer is than its group."""

from collections.abc import Sequence

import torch
from torch import Tensor

from headway.rollout.samples import Sample

STD_EPS = 1e-6
"""Added to a group's standard deviation before dividing by it, as verl does (TRL adds 1e-4)."""


def group_rewards(samples: Sequence[Sample], size: int) -> Tensor:
    """Rewards [prompts, samples] of groups of `size`; NaN where scoring failed."""
    rewards = [float("nan") if sample.reward is None else sample.reward for sample in samples]
    return torch.tensor(rewards, dtype=torch.float64).view(-1, size)


def group_advantages(rewards: Tensor, std_normalise: bool) -> Tensor:
    """Advantages [prompts, samples] of `rewards` [prompts, samples]: reward minus the mean of its group.

    With `std_normalise` they are divided by (s + 1e-6), s being the unbiased standard deviation of the group
    (divisor samples - 1), as in TRL and verl; without it this is Dr. GRPO's advantage. A group whose rewards are all
    equal has advantages of exactly 0: nothing is left there for rounding to divide.

    An answer without a reward (NaN) has the advantage 0 and is left out of its group's mean and deviation, so that
    it neither earns nor costs anything, whatever numbers a reward function gives.

    >>> group_advantages(torch.tensor([[1.0, 0.0], [0.1, 0.1]]), std_normalise=False).tolist()
    [[0.5, -0.5], [0.0, 0.0]]
    """
    advantages = torch.zeros_like(rewards)
    for group in spread(rewards).nonzero().flatten().tolist():
        there = ~rewards[group].isnan()
        given = rewards[group][there]
        centred = given - given.mean()
        advantages[group, there] = centred / (given.std() + STD_EPS) if std_normalise else centred
    return advantages


def spread(rewards: Tensor) -> Tensor:
    """For each group of `rewards` [prompts, samples] whether two of its answers earn different rewards: [prompts].

    >>> spread(torch.tensor([[1.0, 0.0], [0.1, 0.1], [1.0, float("nan")]])).tolist()
    [True, False, False]
    """
    there = ~rewards.isnan()
    low = rewards.masked_fill(~there, torch.inf).amin(dim=1)
    high = rewards.masked_fill(~there, -torch.inf).amax(dim=1)
    return low < high
