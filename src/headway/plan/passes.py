"""Forward and backward passes of the whole model: what is alive at the moments that can be the peak."""

from msgspec import Struct
from msgspec.structs import replace

from headway.facts.workload import Workload
from headway.plan import logits
from headway.plan.activations import Batch, Precision, replay_block, replay_final_norm, shared_bytes
from headway.plan.weights import block_gradient_bytes, gradient_bytes, head_gradient_bytes


class Moment(Struct, frozen=True):
    """Bytes alive at one moment of a pass, beside weights and optimizer state. `at` says when.

    >>> Moment("forward, last block", gradients=1, kept=2, working=3, logits=4, head_gradient=5).bytes
    15
    """

    at: str
    gradients: int
    kept: int
    working: int
    logits: int
    head_gradient: int

    @property
    def bytes(self) -> int:
        """All of it."""
        return self.gradients + self.kept + self.working + self.logits + self.head_gradient


def batch_bytes(batch: Batch) -> int:
    """The micro-batch itself: ids, and per response token its place, target, advantage, weight and old log-probs,
    with the small vectors of the loss."""
    return 8 * batch.tokens + 120 * batch.responses


def training_moments(workload: Workload, batch: Batch, *, accumulate: bool) -> tuple[Moment, ...]:
    """Moments of one micro-batch. `accumulate`: an earlier micro-batch has left its gradients."""
    shape, trainer = workload.model, workload.trainer
    precision = Precision.of(trainer)
    size, layers = precision.size, shape.layers
    body, tail = replay_block(shape, precision), replay_final_norm(shape, precision)
    counts = batch.counts
    entering, tail_kept = body.source.at(counts), tail.kept.at(counts)
    per_block = entering if trainer.checkpointing else body.kept.at(counts)
    always = shared_bytes(shape, precision, batch) + batch_bytes(batch)
    kept = layers * per_block + always
    states = tail.result.at(counts) + logits.result_bytes(batch.responses, entropy=trainer.entropy)
    chunk = logits.forward_bytes(shape.vocab, batch.responses, trainer.logprob_chunk, size)
    chunk_back = logits.backward_bytes(shape.vocab, shape.hidden, batch.responses, trainer.logprob_chunk, size)
    everything = gradient_bytes(workload)
    before = everything if accumulate else 0
    head, own = head_gradient_bytes(workload), block_gradient_bytes(workload)
    # a tied head's gradient waits for that of the embedding; an untied one is added to the parameter's at once
    waiting = head if shape.tied or not accumulate else 0

    forward = (body.forward_free if trainer.checkpointing else body.forward).at(counts)
    backward = (body.accumulating if accumulate else body.backward).at(counts)
    if trainer.checkpointing:
        lasting = 0 if body.source_kept else entering
        backward = max(backward + lasting, body.recompute.at(counts))
    norm = (tail.accumulating if accumulate else tail.backward).at(counts)
    left = (layers - 1) * per_block + always
    rest = 0 if accumulate else (layers - 1) * own
    return (
        Moment("forward, last block", before, left, forward, 0, 0),
        Moment("log-probs, forward", before, kept, tail_kept + states, chunk, 0),
        Moment("log-probs, backward", before, kept, tail_kept + states, chunk_back, head),
        Moment("backward, final norm", before, kept, norm, 0, waiting),
        Moment("backward, last block", before, left, backward, 0, waiting),
        Moment("backward, first block", before + rest, always, backward, 0, waiting),
        Moment(
            "backward, embedding", everything if accumulate else layers * own, always, entering,
            0, waiting + head,
        ),
    )  # fmt: skip


def scoring_moments(workload: Workload, batch: Batch) -> tuple[Moment, ...]:
    """Moments of a forward pass without gradients, and its log-probs."""
    shape, trainer = workload.model, workload.trainer
    precision = Precision.of(trainer)
    body, tail = replay_block(shape, precision), replay_final_norm(shape, precision)
    counts = batch.counts
    # the embeddings are held until the model returns
    embeddings = body.source.at(counts)
    always = shared_bytes(shape, precision, batch) + batch_bytes(batch)
    states = tail.result.at(counts) + logits.result_bytes(batch.responses, entropy=False)
    chunk = logits.forward_bytes(shape.vocab, batch.responses, trainer.logprob_chunk, precision.size)
    return (
        Moment("forward, a block", 0, always + embeddings, body.forward_free.at(counts), 0, 0),
        Moment("forward, final norm", 0, always + embeddings, tail.forward_free.at(counts), 0, 0),
        Moment("log-probs", 0, always, states, chunk, 0),
    )


def highest(moments: tuple[Moment, ...]) -> Moment:
    """The moment that holds the most."""
    return max(moments, key=lambda moment: moment.bytes)


def without_adapter(workload: Workload) -> Workload:
    """The same run with its adapter off."""
    return replace(workload, trainer=replace(workload.trainer, lora=None))
