"""Advantages: how much better an answer is than its group."""

import torch
from torch import Tensor

STD_EPS = 1e-6
"""Added to a group's standard deviation before dividing by it, as verl does (TRL adds 1e-4)."""


def group_advantages(rewards: Tensor, std_normalise: bool) -> Tensor:
    """Advantages [prompts, samples] of `rewards` [prompts, samples]: reward minus the mean of its group.

    With `std_normalise` they are divided by (s + 1e-6), s being the unbiased standard deviation of the group
    (divisor samples - 1), as in TRL and verl; without it this is Dr. GRPO's advantage. A group whose rewards are all
    equal has advantages of exactly 0: nothing is left there for rounding to divide.

    >>> group_advantages(torch.tensor([[1.0, 0.0], [0.1, 0.1]]), std_normalise=False).tolist()
    [[0.5, -0.5], [0.0, 0.0]]
    """
    mixed = (rewards != rewards[:, :1]).any(dim=1, keepdim=True)
    if not mixed.any():
        return torch.zeros_like(rewards)
    advantages = rewards - rewards.mean(dim=1, keepdim=True)
    if std_normalise:
        advantages = advantages / (rewards.std(dim=1, keepdim=True) + STD_EPS)
    return torch.where(mixed, advantages, 0.0)
