"""The forward and backward passes of one optimizer step, micro-batch by micro-batch.

A micro-batch over which memory runs out is split in two and tried again, down to one sample; a sample alone is tried
again with half the logits at a time, twice, and dropped if that fails too. Every token keeps its weight in the loss,
so that the gradient stays the same, less the dropped samples' own terms.

Where the forward pass failed, no gradient was touched, and only this micro-batch is repeated. Where the backward
pass failed, some parameters have a part of its gradient already: all gradients of the optimizer step are dropped, and
it starts again with the parts first, so that what may fail again fails before anything else is repeated.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from headway.config.sections import ObjectiveSection
from headway.errors import LimitReachedError
from headway.plan.ledger import Phase
from headway.rollout.allocation import asked_bytes, first_line, out_of_memory
from headway.rollout.samples import Sample
from headway.train.failures import REMEDIES, Failure, give_back
from headway.train.logprob import token_logprobs
from headway.train.loss import LossStats, policy_loss
from headway.train.model import backbone, head_weight
from headway.train.pack import groups, micro_batch, token_weights
from headway.train.records import MicroBatch

Rows = Sequence[Sequence[float]]
"""One log-prob per response token, sample by sample."""

Check = Callable[[], None]
"""Called before each micro-batch; may raise to end the pass."""

Report = Callable[[Failure], None]
"""Called with each allocation that failed."""

RETRIES = 2
"""How often a sample that fails alone is tried again."""


@dataclass(frozen=True)
class Pass:
    """How log-probs are computed: sampling `temperature`, `chunk` tokens of logits and `cap` tokens at a time."""

    temperature: float
    chunk: int
    cap: int
    pad_id: int
    device: torch.device


@dataclass(frozen=True)
class Update:
    """The samples of one optimizer step, with one advantage and one token weight each.

    `old` and `ref` hold log-probs per response token; None where the objective does not need them.
    """

    samples: Sequence[Sample]
    advantages: Sequence[float]
    weights: Sequence[float]
    old: Rows | None
    ref: Rows | None


def make_update(
    samples: Sequence[Sample],
    part: Sequence[int],
    advantages: Sequence[float],
    old: Rows | None,
    ref: Rows | None,
    objective: ObjectiveSection,
    max_answer: int,
) -> Update:
    """The optimizer step on the samples at `part`.

    Without KL and entropy terms a sample whose advantage is 0 has no gradient, so it is left out; it still counts in
    the others' weights.
    """
    weights = token_weights([len(samples[i].response_ids) for i in part], objective.normalise, max_answer)
    always = objective.kl_coef > 0 or objective.entropy_coef > 0
    used = [(i, weight) for i, weight in zip(part, weights, strict=True) if always or advantages[i] != 0]
    return Update(
        samples=[samples[i] for i, _ in used],
        advantages=[advantages[i] for i, _ in used],
        weights=[weight for _, weight in used],
        old=None if old is None else [old[i] for i, _ in used],
        ref=None if ref is None else [ref[i] for i, _ in used],
    )


def response_logprobs(
    model: nn.Module, batch: MicroBatch, how: Pass, *, with_entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Log-probs [T] (and entropies [T]) of the response tokens, without logits for any other token."""
    hidden = backbone(model)(input_ids=batch.ids, use_cache=False).last_hidden_state
    states = hidden[batch.rows, batch.columns]
    del hidden
    return token_logprobs(states, head_weight(model), batch.targets, how.temperature, how.chunk, with_entropy)


@dataclass(frozen=True)
class Part:
    """Positions of samples that go through the model together, `chunk` tokens of logits at a time."""

    group: tuple[int, ...]
    chunk: int
    retries: int = 0

    def split(self) -> tuple["Part", ...]:
        """What to try when memory ran out over it: two halves, or a sample alone with half the logits; () is nothing.

        >>> Part((4, 7, 9), 256).split()
        (Part(group=(4,), chunk=256, retries=0), Part(group=(7, 9), chunk=256, retries=0))
        >>> Part((4,), 256).split(), Part((4,), 64, retries=2).split()
        ((Part(group=(4,), chunk=128, retries=1),), ())
        """
        middle = len(self.group) // 2
        if middle:
            return replace(self, group=self.group[:middle]), replace(self, group=self.group[middle:])
        if self.retries < RETRIES:
            return (replace(self, chunk=max(1, self.chunk // 2), retries=self.retries + 1),)
        return ()


def plan_parts(samples: Sequence[Sample], how: Pass) -> list[Part]:
    """The micro-batches before any fails. No chunk is longer than what it is cut from, so that half of it is less."""
    return [
        Part(group, min(how.chunk, sum(len(samples[i].response_ids) for i in group)))
        for group in groups(samples, how.cap)
    ]


@torch.no_grad()
def score(
    model: nn.Module, samples: Sequence[Sample], kept: Sequence[int], how: Pass, check: Check, report: Report
) -> tuple[tuple[float, ...], ...]:
    """Log-probs of the response tokens of the samples at `kept`, under the model as it is.

    Empty for the others, and for a sample that failed alone.
    """
    found: list[tuple[float, ...]] = [()] * len(samples)
    asked, zeros = [samples[i] for i in kept], [0.0] * len(kept)
    waiting = plan_parts(asked, how)
    while waiting:
        check()
        part = waiting.pop(0)
        try:
            batch = micro_batch(asked, zeros, zeros, None, None, part.group, how.pad_id)
            values, _ = response_logprobs(model, batch.to(how.device), replace(how, chunk=part.chunk))
            pieces = [piece.tolist() for piece in values.split([len(asked[i].response_ids) for i in part.group])]
        except (RuntimeError, MemoryError) as error:
            failure = _failure(error, Phase.SCORE, "forward", asked, part)
        else:
            for index, piece in zip(part.group, pieces, strict=True):
                found[kept[index]] = tuple(piece)
            continue
        waiting[:0] = part.split()
        give_back()
        report(failure)
    return tuple(found)


@dataclass(frozen=True)
class Accumulated:
    """What the passes of one optimizer step gave. `trained` are the tokens of the samples that have a gradient.

    `largest` are the tokens of the largest micro-batch, padding included; `failed` those of the smallest one of
    several samples over which memory ran out, None if none.
    """

    stats: LossStats
    trained: int
    largest: int
    failed: int | None


def accumulate(
    model: nn.Module, update: Update, objective: ObjectiveSection, how: Pass, check: Check, report: Report
) -> Accumulated:
    """Add the gradient of one optimizer step to parameters that have none yet.

    `check` may raise: the gradients are then unfinished. LimitReachedError where no sample could be trained.
    """
    parts, at = plan_parts(update.samples, how), 0
    stats, lost, failed, dropped = LossStats(), LossStats(), None, []
    while at < len(parts):
        check()
        part, stage, loss = parts[at], "forward", None
        try:
            loss, found = _forward(model, update, objective, part, how)
            stage = "backward"
            loss.backward()
        except (RuntimeError, MemoryError) as error:
            failure = _failure(error, Phase.TRAIN, stage, update.samples, part)
        else:
            stats, at = stats + found, at + 1
            continue
        del loss  # and with it the graph, whose activations may be most of what is held
        halves = part.split()
        if stage == "forward":
            parts[at : at + 1] = halves
        else:
            model.zero_grad(set_to_none=True)
            parts, stats, at = [*halves, *parts[:at], *parts[at + 1 :]], LossStats(), 0
        lost = lost + LossStats(splits=float(bool(halves)), dropped=float(not halves))
        dropped += [] if halves else part.group
        failed = failed if failure.samples == 1 else min(failure.tokens, failed or failure.tokens)
        give_back()
        report(failure)
    if dropped and not parts:
        raise LimitReachedError(_nothing_left(failure))
    trained = sum(sample.tokens for index, sample in enumerate(update.samples) if index not in dropped)
    largest = max((_tokens(update.samples, part) for part in parts), default=0)
    return Accumulated(stats + lost, trained, largest, failed)


def _tokens(samples: Sequence[Sample], part: Part) -> int:
    """Tokens of a micro-batch, padding included."""
    return len(part.group) * max(samples[index].tokens for index in part.group)


def _forward(
    model: nn.Module, update: Update, objective: ObjectiveSection, part: Part, how: Pass
) -> tuple[Tensor, LossStats]:
    batch = micro_batch(
        update.samples, update.advantages, update.weights, update.old, update.ref, part.group, how.pad_id
    ).to(how.device)
    logprobs, entropy = response_logprobs(
        model, batch, replace(how, chunk=part.chunk), with_entropy=objective.entropy_coef > 0
    )
    return policy_loss(logprobs, entropy, batch, objective)


def _failure(
    error: RuntimeError | MemoryError,
    phase: Phase,
    stage: Literal["forward", "backward"],
    samples: Sequence[Sample],
    part: Part,
) -> Failure:
    """What is said of an allocation that failed; any other error goes on its way."""
    if not out_of_memory(error):
        raise error
    longest, count = max(samples[index].tokens for index in part.group), len(part.group)
    left = f"It is split into {count // 2} and {count - count // 2} samples and tried again"
    if count == 1:
        left = f"It is tried again with {part.chunk // 2 or 1} tokens of logits at a time" if part.split() else ""
    return Failure(phase, stage, asked_bytes(error), count * longest, count, longest, first_line(error), left)


def _nothing_left(failure: Failure) -> str:
    return (
        f"phase train: memory ran out over every sample of an optimizer step, each alone; the last has "
        f"{failure.longest} tokens ({failure.reason}). Set {REMEDIES[Phase.TRAIN]}, a smaller rollout.max_answer, "
        "or [lora]; the last checkpoint is kept"
    )
