"""What an inference engine is to headway: the protocol and its records. `fake.py`, `hf.py` implement it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are chosen. `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 choose from all tokens."""

    max_answer: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class Request:
    """One answer to generate.

    `key` is (seed, step, prompt, sample): all of the answer's randomness comes from it and from the token's
    position, never from the other requests of the batch.

    >>> Request((1, 2, 3), (0, 0, 17, 3)).key
    (0, 0, 17, 3)
    """

    prompt_ids: tuple[int, ...]
    key: tuple[int, int, int, int]


@dataclass(frozen=True)
class Completion:
    """The answer to a request.

    `logprobs[i]` is the log-probability of `token_ids[i]` under softmax(logits / temperature) over the whole
    vocabulary (temperature 1 when greedy), whatever top-p and top-k left to choose from; `versions[i]` is the
    weight version that produced it. `token_ids` holds the end token, or the tokens of the stop text, where one
    was generated; `text` leaves them out.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    text: str
    finish: Literal["stop", "length", "abort"]


class Engine(Protocol):
    """A source of answers. Weights are versioned: every token says which version produced it."""

    def generate(self, requests: Sequence[Request], params: SamplingParams) -> list[Completion]:
        """Answer every request, in the order of the requests."""
        ...

    def update_weights(self, version: int) -> None:
        """Serve the trainer's current parameters as `version` from now on."""
        ...

    def sleep(self, level: int) -> None:
        """Free memory: level 1 drops the KV cache, level 2 the weights too where the engine has its own copy."""
        ...

    def wake(self) -> None:
        """Be ready to generate again."""
        ...

    def abort(self) -> None:
        """End the answers in flight as soon as possible; they finish with "abort"."""
        ...

    def shrink(self, longest: int) -> int:
        """Answer half as many at once from now on, one of `longest` tokens at least; returns the budget in bytes."""
        ...

    def close(self) -> None:
        """Release everything."""
        ...
