"""Allocations that fail in a run: what is said of one, and what is done before another try."""

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch

from headway.errors import LimitReachedError
from headway.facts.machine import Machine
from headway.guard.read import descendants, process_status, tree_rss
from headway.plan.ledger import Phase
from headway.rollout.allocation import asked_bytes, first_line, out_of_memory
from headway.train.memory import trim
from headway.units import format_bytes

T = TypeVar("T")

REMEDIES = {
    Phase.LOAD: 'a smaller model, or model.dtype = "bf16"',
    Phase.ROLLOUT: "a smaller rollout.kv_budget",
    Phase.EVAL: "a smaller rollout.kv_budget",
    Phase.SCORE: "a smaller train.cap or train.logprob_chunk",
    Phase.TRAIN: "a smaller train.cap or train.logprob_chunk, or train.checkpointing = true",
    Phase.STEP: "[lora], which needs moments for the adapters alone",
    Phase.SAVE: "a smaller model",
}
"""What to set when memory runs out in a phase."""


@dataclass(frozen=True)
class PoolState:
    """What is held of a pool, and the limit that comes first, in bytes. On the CPU `used` is the process tree's."""

    name: str
    used: int
    limit: int | None

    def __str__(self) -> str:
        of = "no limit known" if self.limit is None else f"limit {format_bytes(self.limit)}"
        return f"{self.name} {format_bytes(self.used)} used, {of}"


def pool_state(machine: Machine, device: torch.device) -> PoolState | None:
    """The pool that the model lives in as it is now: the device's by its driver, else the process tree's memory."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return PoolState(f"node[0].device[{device.index or 0}]", total - free, total)
    status = process_status(os.getpid())
    if status is None:
        return None
    pool = machine.pools[0]
    used = status.rss + tree_rss(descendants(os.getpid()))
    return PoolState(pool.name, used, pool.lowest.bytes if pool.limits else None)


@dataclass(frozen=True)
class Failure:
    """An allocation that failed over a micro-batch of `samples` samples and `tokens` tokens, padding included.

    `asked` is the size of the tensor in bytes where the error says it, `longest` the tokens of the longest sample.
    `left` is what is tried next; empty where the sample is dropped.

    >>> Failure(Phase.TRAIN, "backward", 3 << 20, 4096, 8, 500, "...", "2 parts").text(None)[:66]
    'phase train, backward: memory ran out: a tensor of 3.0 MiB was ask'
    """

    phase: Phase
    stage: Literal["forward", "backward"]
    asked: int | None
    tokens: int
    samples: int
    longest: int
    reason: str
    left: str

    def text(self, pool: PoolState | None) -> str:
        """All of it on one line, with the key to change."""
        asked = self.reason if self.asked is None else f"a tensor of {format_bytes(self.asked)} was asked for"
        held = "" if pool is None else f"; {pool}"
        count = f"{self.samples} samples, the longest of" if self.samples > 1 else "one sample of"
        return (
            f"phase {self.phase}, {self.stage}: memory ran out: {asked} in a micro-batch of {self.tokens:,} tokens "
            f"({count} {self.longest:,}){held}. {self.left or 'The sample is dropped'}. Set {REMEDIES[self.phase]}"
        )


def give_back() -> None:
    """Collect what a failed attempt left, and give it back to the system and the device."""
    gc.collect(1)  # what an attempt left is young; looking through all that the libraries hold takes a quarter second
    trim()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def with_retries(attempt: Callable[[], T]) -> T:
    """The result of what either changes nothing before it has its memory, or goes on where it stood; tried twice."""
    try:
        return attempt()
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
    give_back()
    return attempt()


@contextmanager
def naming_failures(phase: Phase, state: Callable[[], PoolState | None]) -> Iterator[None]:
    """Turn an allocation that failed into LimitReachedError: the phase, what was asked for, the pool, what to set."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        asked, reason = asked_bytes(error), first_line(error)
    else:
        return
    size = "" if asked is None else f"a tensor of {format_bytes(asked)} was asked for; "
    pool = state()
    held = "" if pool is None else f"; {pool}"
    raise LimitReachedError(
        f"phase {phase}: memory ran out ({size}{reason}{held}). Set {REMEDIES[phase]}; the last checkpoint is kept"
    )
