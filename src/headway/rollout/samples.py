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
    token. `reward` is what training uses, `score` the answer's own; `failure` says what kept it from being scored;
    then there may be no reward.

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
    reward: float | None
    score: float | None
    failure: str | None = None

    @property
    def tokens(self) -> int:
        """Prompt and response tokens."""
        return len(self.prompt_ids) + len(self.response_ids)

    @property
    def reason(self) -> str | None:
        """The kind of its failure, a key of `Scorer.failures`."""
        return None if self.failure is None else self.failure.partition(":")[0]


def right(sample: Sample) -> bool:
    """Whether an answer has the full score, 1. Partial credit is no right answer."""
    return sample.score == 1


def share_correct(samples: Sequence[Sample]) -> float | None:
    """The share of right answers, failed ones being none.

    None where a score outside 0 to 1 leaves open what is full, and where there is no score.

    >>> four = [Sample(0, n, (1,), (2,), (-1.0,), "", "stop", n / 2, n / 2) for n in (0, 1, 2, 2)]
    >>> share_correct(four), share_correct([*four, Sample(0, 4, (1,), (2,), (-1.0,), "", "stop", -1.0, -1.0)])
    (0.5, None)
    """
    scores = [sample.score for sample in samples if sample.score is not None]
    if not scores or min(scores) < 0 or max(scores) > 1:
        return None
    return sum(right(sample) for sample in samples) / len(samples)


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
            score=score.score,
            failure=score.failure,
        )
        for (problem, sample), completion, score in zip(asked, completions, scores, strict=True)
    )
