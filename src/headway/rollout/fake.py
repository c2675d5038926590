"""An engine without a model: answers come from a function. For tests of everything around an engine."""

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from transformers import PreTrainedTokenizerBase

from headway.rollout.engine import Completion, Request, SamplingParams
from headway.rollout.sampling import uniforms
from headway.rollout.stopping import StopWatch, visible_text


class FakeEngine:
    """Engine whose answer to a request is the text that `respond` returns, token by token.

    Each answer ends with the tokenizer's end token, where it has one, unless a stop text or the length ends it first.
    Log-probabilities lie between log(0.05) and 0 and depend on the request's key and the position alone.
    """

    def __init__(self, respond: Callable[[Request], str], tokenizer: PreTrainedTokenizerBase) -> None:
        self._respond = respond
        self._tokenizer = tokenizer
        self._version = 0
        self._aborted = False
        self._asleep = False

    def generate(self, requests: Sequence[Request], params: SamplingParams) -> list[Completion]:
        """Answer every request, in order. After an abort the rest of the answers are empty."""
        if self._asleep:
            raise RuntimeError("generate() on a sleeping engine: call wake() first")
        completions = []
        for request in requests:
            text = self._respond(request)  # may call abort(), as a signal would
            completions.append(
                Completion((), (), (), "", "abort") if self._aborted else self._complete(request, text, params)
            )
        self._aborted = False
        return completions

    def _complete(self, request: Request, text: str, params: SamplingParams) -> Completion:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        end = self._tokenizer.eos_token_id
        watch = StopWatch(self._tokenizer, params.stop) if params.stop else None
        stopped = next((at + 1 for at, token in enumerate(ids) if watch is not None and watch.push(token)), None)
        if stopped is not None:
            ids = ids[:stopped]
        elif isinstance(end, int):
            ids = [*ids, end]
        finish: Literal["stop", "length"] = "stop" if len(ids) <= params.max_answer else "length"
        ids = ids[: params.max_answer]
        shown = ids[:-1] if ids and ids[-1] == end else ids
        draws = uniforms(request.key, len(ids))
        return Completion(
            token_ids=tuple(ids), logprobs=tuple(np.log(0.05 + 0.95 * draws).tolist()),
            versions=(self._version,) * len(ids),
            text=visible_text(self._tokenizer, shown, params.stop), finish=finish,
        )  # fmt: skip

    def update_weights(self, version: int) -> None:
        """Name the version of the answers to come."""
        self._version = version

    def sleep(self, level: int) -> None:  # noqa: ARG002 (nothing to free)
        """Refuse to generate until wake()."""
        self._asleep = True

    def wake(self) -> None:
        """Be ready to generate again."""
        self._asleep = False

    def abort(self) -> None:
        """End the answers in flight, or the next generate() if there are none."""
        self._aborted = True

    def shrink(self, longest: int) -> int:  # noqa: ARG002 (it holds no cache)
        """There is nothing to make smaller."""
        return 0

    def close(self) -> None:
        """Refuse to generate from now on."""
        self._asleep = True
