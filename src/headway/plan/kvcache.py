"""What generation holds beside the weights: KV cache, activations of a forward, logits, the sampler."""

from math import ceil

from msgspec import Struct

from headway.facts.workload import DTYPE_BYTES, Workload
from headway.plan.activations import Batch, Precision, replay_block, shared_bytes
from headway.units import MIB

PREFILL_TOKENS = 4096
"""Prompt tokens of one prefill; a single prompt may be longer. As in rollout/kvplan.py."""
SLICE_BYTES = {"cpu": 4 * MIB, "cuda": 64 * MIB}
"""One fp32 [rows, vocabulary] temporary of the sampler. As in rollout/kvplan.py."""
TEMPORARIES = 3
"""Sampler temporaries at a time: gathered rows, scaled logits, probabilities."""
ANSWER_TOKEN_BYTES = 130
"""Python objects of one answer token: an int in two lists, a float and a version; on CPython 3.11."""


class Generation(Struct, frozen=True):
    """Bytes of generating a number of answers; `sequences` of them are in flight at once."""

    sequences: int
    cache: int
    working: int
    logits: int
    answers: int


def token_bytes(workload: Workload) -> int:
    """K and V of one token in all layers."""
    shape = workload.model
    return 2 * shape.layers * shape.kv_width * DTYPE_BYTES[workload.trainer.param_dtype]


def generation(workload: Workload, answers: int, *, per_prompt: int) -> Generation:
    """Generating `answers` answers, `per_prompt` to each prompt, all prompts and answers at their longest.

    The cache is one allocation of sequences x longest tokens, filled with zeros when it is made.
    """
    shape, rollout = workload.model, workload.rollout
    precision = Precision.of(workload.trainer)
    per_sequence = token_bytes(workload) * rollout.longest
    sequences = min(answers, max(1, workload.rollout.kv_budget // per_sequence))
    prompts = min(ceil(sequences / per_prompt), max(1, PREFILL_TOKENS // rollout.max_prompt))
    prefill = Batch(prompts, rollout.max_prompt)
    working = max(_forward(workload, prefill), _forward(workload, Batch(sequences, 1)))
    slice_rows = max(1, SLICE_BYTES[workload.device] // (4 * shape.vocab))
    rows = min(sequences, slice_rows)
    return Generation(
        sequences=sequences,
        cache=sequences * per_sequence,
        working=working,
        logits=sequences * shape.vocab * precision.size + TEMPORARIES * rows * shape.vocab * 4,
        answers=answers * (rollout.max_answer * ANSWER_TOKEN_BYTES + 36 * rollout.max_prompt // per_prompt),
    )


def _forward(workload: Workload, batch: Batch) -> int:
    """Activations of a forward without gradients; the embeddings are held until it is over."""
    shape, precision = workload.model, Precision.of(workload.trainer)
    body, counts = replay_block(shape, precision), batch.counts
    return body.forward_free.at(counts) + body.source.at(counts) + shared_bytes(shape, precision, batch)
