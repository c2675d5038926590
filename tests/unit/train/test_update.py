from collections.abc import Callable

import pytest
import torch
from torch import nn

from headway.config.sections import ModelSection, ObjectiveSection
from headway.config.source import resolve
from headway.rollout.samples import Sample
from headway.train.failures import Failure
from headway.train.model import load
from headway.train.update import Pass, accumulate, make_update, score

ANSWERS = 12
OBJECTIVE = ObjectiveSection()


@pytest.fixture(scope="module")
def model() -> nn.Module:
    section = ModelSection(path="tiny-qwen3", init="random", dtype="fp32")
    return load(resolve(section), section, torch.device("cpu"), 0).model.double()


def samples() -> tuple[Sample, ...]:
    generator = torch.Generator().manual_seed(3)

    def ids(low: int, high: int) -> tuple[int, ...]:
        count = int(torch.randint(low, high, (), generator=generator))
        return tuple(torch.randint(0, 250, (count,), generator=generator).tolist())

    return tuple(
        Sample(n // 4, n % 4, ids(2, 9), response, (-1.0,) * len(response), "", "stop", 0.0, 0.0)
        for n in range(8)
        for response in [ids(1, ANSWERS)]
    )


def how(cap: int) -> Pass:
    return Pass(1.0, 4, cap, 0, torch.device("cpu"))


def nothing() -> None:
    pass


def unexpected(failure: Failure) -> None:
    raise AssertionError(failure)


def gradients(
    model: nn.Module, cap: int, advantages: list[float], check: Callable[[], None] = nothing
) -> torch.Tensor:
    update = make_update(samples(), range(8), advantages, None, None, OBJECTIVE, ANSWERS)
    accumulate(model, update, OBJECTIVE, how(cap), check, unexpected)
    found = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    model.zero_grad(set_to_none=True)
    return found


ADVANTAGES = [1.0, -0.5, 0.25, -0.75, 0.0, 0.0, 0.0, 0.0]


def test_one_batch_equals_many(model: nn.Module) -> None:
    whole = gradients(model, 10_000, ADVANTAGES)
    assert whole.abs().max() > 1e-4
    for cap in (40, 20, 1):
        torch.testing.assert_close(gradients(model, cap, ADVANTAGES), whole, rtol=1e-9, atol=1e-12)


def test_a_sample_without_advantage_is_left_out_and_still_counts() -> None:
    update = make_update(samples(), range(8), ADVANTAGES, None, None, OBJECTIVE, ANSWERS)
    assert len(update.samples) == 4
    tokens = sum(len(sample.response_ids) for sample in samples())
    assert update.weights == [1 / tokens] * 4
    with_kl = make_update(samples(), range(8), ADVANTAGES, None, None, ObjectiveSection(kl_coef=0.1), ANSWERS)
    assert len(with_kl.samples) == 8


def test_scores_are_the_models_log_probs(model: nn.Module) -> None:
    found = score(model, samples(), (0, 2, 5), how(30), nothing, unexpected)
    assert [len(row) > 0 for row in found] == [True, False, True, False, False, True, False, False]
    for place in (0, 2, 5):
        sample = samples()[place]
        ids = torch.tensor([[*sample.prompt_ids, *sample.response_ids]])
        with torch.no_grad():
            logprobs = model(input_ids=ids).logits[0].log_softmax(-1)
        first = len(sample.prompt_ids)
        expected = [logprobs[first + n - 1, token].item() for n, token in enumerate(sample.response_ids)]
        assert found[place] == pytest.approx(expected, rel=1e-9)
