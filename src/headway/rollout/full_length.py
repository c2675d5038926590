"""What a rehearsal puts in the place of a run's answers: all of full length, few of their tokens computed."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from headway.rollout.data import Problem, ProblemSet
from headway.rollout.engine import Completion, Request, SamplingParams
from headway.rollout.hf import HfEngine, _Answer, evaluating
from headway.rollout.kvcache import SlabCache
from headway.rollout.kvplan import kv_token_bytes, split_batches
from headway.rollout.rewards import Answer, Score, Scorer

EDGE = 4
"""Tokens that are computed at the beginning of an answer, and as many at its end."""

PREFILLS = 2
"""Times that prompts are prefilled together; every further one holds as much and is left out."""

SCORED = 64
"""Answers of a rollout that the run's own reward scores."""

IDS = 256
"""Made-up token ids are below this."""


def computed(max_answer: int) -> Iterator[int]:
    """The places of the answers' tokens that are computed after the first one, which the prefill gives.

    >>> list(computed(6)), list(computed(1000))
    ([1, 2, 3, 4, 5], [1, 2, 3, 996, 997, 998, 999])
    """
    return (at for at in range(1, max_answer) if at < EDGE or at >= max_answer - EDGE)


class FullLengthEngine(HfEngine):
    """The embedded engine with every answer as long as it may be; neither end tokens nor stop texts end one.

    Of a call's batches the one with the largest KV cache is computed: its slab is allocated and zeroed, of its
    prompts the first `PREFILLS` groups are prefilled, and of its answers the first and the last `EDGE` tokens are
    decoded, the last ones against a cache of full length. The tokens between, and all other answers, are made-up ids:
    their Python objects are there.
    """

    prefills_left = 0

    def generate(self, requests: Sequence[Request], params: SamplingParams) -> list[Completion]:
        """An answer of `params.max_answer` tokens to every request, in order. An allocation that fails is raised."""
        answers = [_Answer(request, None) for request in requests]
        ordered = sorted(answers, key=lambda each: (-len(each.request.prompt_ids), each.request.prompt_ids))
        lengths = [len(each.request.prompt_ids) for each in ordered]
        batches = split_batches(self._shape, self._dtype.itemsize, self._kv_budget, lengths, params.max_answer)
        start, stop = max(batches, key=lambda each: (each[1] - each[0]) * (lengths[each[0]] + params.max_answer))
        with torch.no_grad(), evaluating(self._model):
            self._compute(ordered[start:stop], params)
        for row, answer in enumerate(answers):
            self._make_up(answer, row, params)
        self._aborted = False
        return [self._completion(answer, params) for answer in answers]

    def _compute(self, answers: list[_Answer], params: SamplingParams) -> None:
        prompt = len(answers[0].request.prompt_ids)
        capacity = prompt + params.max_answer
        self._largest_cache = len(answers) * capacity * kv_token_bytes(self._shape, self._dtype.itemsize)
        cache = SlabCache(self._shape, len(answers), prompt, capacity, self._dtype, self._device)
        self.prefills_left = PREFILLS
        batch = self._prefill(answers, cache, params)
        cache.begin_answers()
        for at in computed(params.max_answer):
            if self._aborted:
                return
            cache.advance(at - batch.step)
            batch.step = at
            self._decode(batch, cache, prompt, params)

    def _forward(self, ids: Tensor, positions: Tensor, mask: Tensor | None, cache: SlabCache) -> Tensor:
        """Logits [b, V]; zeros for prompts beyond the first `PREFILLS` groups, whose states stay zero."""
        if cache.prefilling:
            if not self.prefills_left:
                return torch.zeros(len(ids), self._shape.vocab, device=self._device)
            self.prefills_left -= 1
        return super()._forward(ids, positions, mask, cache)

    def _make_up(self, answer: _Answer, row: int, params: SamplingParams) -> None:
        """Fill an answer. Its log-probs are objects of their own, as those of a run are."""
        count = params.max_answer
        answer.token_ids = [(7 * at + row) % IDS for at in range(count)]
        answer.logprobs = [-1.0 - at / (count + row + 1) for at in range(count)]
        answer.versions = [self._version] * count
        answer.finish = "length"


class SpreadScorer:
    """Scores with the run's own scorer, then spreads the rewards, so that every sample has a gradient.

    Only the first `SCORED` answers of a call are scored: a function that takes seconds would take hours over all.
    """

    def __init__(self, own: Scorer) -> None:
        self._own = own

    @property
    def failures(self) -> Counter[str]:
        """The own scorer's."""
        return self._own.failures

    @property
    def first_failure(self) -> str | None:
        """The own scorer's."""
        return self._own.first_failure

    def check(self, problems: Iterable[Problem]) -> None:
        """As the own scorer does."""
        self._own.check(problems)

    def score(self, items: Sequence[Answer]) -> list[Score]:
        """Rewards 0, 1, 0, 1, ..., after the own scorer has seen the first answers."""
        self._own.score(items[:SCORED])
        return [Score(float(at % 2), float(at % 2)) for at in range(len(items))]

    def pids(self) -> tuple[int, ...]:
        """The own scorer's processes."""
        return self._own.pids()

    def close(self) -> None:
        """Close the own scorer."""
        self._own.close()


def lengthened(problems: ProblemSet, max_prompt: int, train: int) -> ProblemSet:
    """`train` training problems, and all that are held out, each with a prompt of exactly `max_prompt` tokens."""

    def long(problem: Problem, index: int) -> Problem:
        ids = (problem.prompt_ids * (max_prompt // len(problem.prompt_ids) + 1))[:max_prompt]
        return Problem(index, problem.prompt, ids, problem.label, problem.entry)

    source = problems.train
    return ProblemSet(
        tuple(long(source[at % len(source)], at) for at in range(train)),
        tuple(long(each, at) for at, each in enumerate(problems.held_out)),
        problems.dropped_long, problems.duplicates, problems.overlap,
    )  # fmt: skip
