"""A rollout: the scored answers of one step. It is what the trainer learns from and what a checkpoint keeps."""

from collections.abc import Sequence
from dataclasses import dataclass

from headway.rollout.data import Problem
from headway.rollout.engine import Engine, Request, SamplingParams
from headway.rollout.rewards import Answer, Scorer


@dataclass(frozen=True)
class Sample:
    """One answer with its reward.

    `prompt` is the problem's index, `sample` the index in its group. `sampler_logprobs` has one value per response
    token. `reward` is what training uses, `correct` the answer's score alone.

    >>> Sample(7, 0, (1, 2), (3,), (-0.5,), "4", "stop", 1.0, 1.0).tokens
    3
    """

    prompt: int
    sample: int
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    sampler_logprobs: tuple[float, ...]
    text: str
    finish: str
    reward: float
    correct: float

    @property
    def tokens(self) -> int:
        """Prompt and response tokens."""
        return len(self.prompt_ids) + len(self.response_ids)


def collect(
    engine: Engine,
    scorer: Scorer,
    problems: Sequence[Problem],
    *,
    samples: int,
    params: SamplingParams,
    seed: int,
    step: int,
) -> tuple[Sample, ...]:
    """Generate and score `samples` answers for each problem, group after group."""
    asked = [(problem, sample) for problem in problems for sample in range(samples)]
    requests = [Request(problem.prompt_ids, (seed, step, problem.index, sample)) for problem, sample in asked]
    completions = engine.generate(requests, params)
    scores = scorer.score(
        [Answer(problem, completion.text) for (problem, _), completion in zip(asked, completions, strict=True)]
    )
    return tuple(
        Sample(
            prompt=problem.index,
            sample=sample,
            prompt_ids=problem.prompt_ids,
            response_ids=completion.token_ids,
            sampler_logprobs=completion.logprobs,
            text=completion.text,
            finish=completion.finish,
            reward=score.reward,
            correct=score.correct,
        )
        for (problem, sample), completion, score in zip(asked, completions, scores, strict=True)
    )
