"""The forward and backward passes of one optimizer step, micro-batch by micro-batch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from headway.config.sections import ObjectiveSection
from headway.errors import LimitReachedError
from headway.rollout.samples import Sample
from headway.train.logprob import token_logprobs
from headway.train.loss import LossStats, policy_loss
from headway.train.model import backbone, head_weight
from headway.train.pack import micro_batches, token_weights
from headway.train.records import MicroBatch

Rows = Sequence[Sequence[float]]
"""One log-prob per response token, sample by sample."""


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


@torch.no_grad()
def score(
    model: nn.Module, samples: Sequence[Sample], kept: Sequence[int], how: Pass, check: Callable[[], None]
) -> tuple[tuple[float, ...], ...]:
    """Log-probs of the response tokens of the samples at `kept`, under the model as it is; empty for the others."""
    found: list[tuple[float, ...]] = [()] * len(samples)
    zeros = [0.0] * len(kept)
    for batch in micro_batches([samples[i] for i in kept], zeros, zeros, None, None, how.cap, how.pad_id):
        check()
        values, _ = response_logprobs(model, batch.to(how.device), how)
        places = [kept[index] for index in batch.samples]
        pieces = values.split([len(samples[place].response_ids) for place in places])
        for place, piece in zip(places, pieces, strict=True):
            found[place] = tuple(piece.tolist())
    return tuple(found)


def accumulate(
    model: nn.Module, update: Update, objective: ObjectiveSection, how: Pass, check: Callable[[], None]
) -> tuple[LossStats, Pass]:
    """Add the gradient of one optimizer step to the parameters; returns its statistics and the pass that worked.

    When memory runs out, all gradients are dropped and the step starts again with half the cap: every token keeps its
    weight, so the gradient is the same. LimitReachedError when every sample is alone already. `check` is called
    before each micro-batch and may raise.
    """
    while True:
        batches = micro_batches(
            update.samples, update.advantages, update.weights, update.old, update.ref, how.cap, how.pad_id
        )
        stats = LossStats()
        try:
            for batch in batches:
                check()
                stats = stats + _backward(model, batch.to(how.device), objective, how)
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            reason = str(error)
        else:
            return stats, how
        model.zero_grad(set_to_none=True)
        if all(len(batch.samples) == 1 for batch in batches):
            raise LimitReachedError(
                "phase train: memory ran out though each sample is trained alone; the longest has "
                f"{batches[0].tokens} tokens ({reason}). Set train.checkpointing = true, a smaller "
                "rollout.max_answer, or [lora]; the last checkpoint is kept"
            )
        how = replace(how, cap=max(batch.tokens for batch in batches) // 2)


def _backward(model: nn.Module, batch: MicroBatch, objective: ObjectiveSection, how: Pass) -> LossStats:
    logprobs, entropy = response_logprobs(model, batch, how, with_entropy=objective.entropy_coef > 0)
    loss, stats = policy_loss(logprobs, entropy, batch, objective)
    loss.backward()
    return stats


def out_of_memory(error: RuntimeError) -> bool:
    """Whether torch failed to allocate: CUDA raises its own type, the CPU allocator a plain RuntimeError."""
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)
