import statistics

import pytest
import torch

from headway.train.advantage import STD_EPS, group_advantages


@pytest.mark.parametrize("std_normalise", [False, True])
def test_agrees_with_a_plain_computation_per_group(std_normalise):
    groups = [[1.0, 0.0, 0.25, 0.1], [0.3, 0.3, 0.9, 0.3], [0.0, 1.0, 1.0, 1.0]]
    expected = [
        [(r - statistics.fmean(group)) / (statistics.stdev(group) + STD_EPS if std_normalise else 1) for r in group]
        for group in groups
    ]
    found = group_advantages(torch.tensor(groups, dtype=torch.float64), std_normalise)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=0)


@pytest.mark.parametrize("std_normalise", [False, True])
@pytest.mark.parametrize("samples", [1, 3, 7, 10])
def test_equal_rewards_give_exactly_zero(samples, std_normalise):
    # The mean of equal numbers is not always that number: only a rule for equal rewards makes this exact.
    rewards = torch.linspace(0.01, 1, 50)[:, None].repeat(1, samples)
    if samples == 7:
        assert (rewards - rewards.mean(dim=1, keepdim=True)).any()
    assert torch.equal(group_advantages(rewards, std_normalise), torch.zeros(50, samples))


def test_equal_groups_are_zero_beside_a_mixed_one_and_do_not_touch_it():
    mixed = torch.tensor([[0.0] * 6 + [1.0]])
    rewards = torch.cat([torch.linspace(0.01, 1, 50)[:, None].repeat(1, 7), mixed])
    found = group_advantages(rewards, True)
    assert torch.equal(found, torch.cat([torch.zeros(50, 7), group_advantages(mixed, True)]))
    assert found[-1, -1] > 2


@pytest.mark.parametrize("std_normalise", [False, True])
def test_an_answer_without_a_reward_is_left_out_of_its_group(std_normalise):
    nan = float("nan")
    rewards = torch.tensor([[-1.0, nan, 2.0, 0.5], [nan, nan, nan, 3.0], [nan] * 4, [-2.0, -2.0, nan, -2.0]])
    found = group_advantages(rewards, std_normalise)
    without = group_advantages(torch.tensor([[-1.0, 2.0, 0.5]]), std_normalise)[0]
    torch.testing.assert_close(found[0], torch.stack([without[0], torch.tensor(0.0), without[1], without[2]]))
    assert torch.equal(found[1:], torch.zeros(3, 4))


def test_advantages_follow_differences_alone_wherever_rewards_lie():
    rewards = torch.tensor([[0.0, 1.0, 0.25, 1.0]], dtype=torch.float64)
    shifted = group_advantages(rewards * 300 - 1e6, std_normalise=True)
    torch.testing.assert_close(shifted, group_advantages(rewards, std_normalise=True), rtol=1e-5, atol=0)
