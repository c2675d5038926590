"""What TRL's trainers make their loss of: pairs of sequences, one value a sequence, logits whole or in chunks."""

from typing import TYPE_CHECKING

from msgspec.structs import replace

from headway.facts.workload import Trainer

if TYPE_CHECKING:
    from headway.foreign.runs import Reading

PAIRED = ("dpo", "orpo", "cpo", "reward")
"""Trainers whose samples are a chosen and a rejected sequence, which pass the model together."""
CHUNK = 256
"""Tokens whose logits SFTTrainer makes at a time (`_CHUNKED_LM_HEAD_CHUNK_SIZE`)."""
SINCE = "1.7"
"""The release of TRL whose SFTTrainer computes its loss in chunks unless it is told otherwise."""


def with_loss(reading: "Reading", trainer: Trainer) -> Trainer:
    """The trainer with the loss of its kind.

    A reward model, and a model for classification, has a head of few outputs in place of logits. SFTTrainer's
    `chunked_nll` goes from hidden states to the loss of a chunk and makes its logits again in the backward pass;
    Liger forms gradients chunk by chunk.
    """
    kind = reading.text("script_kind", "trl_kind") or ""
    given = reading.text("loss_type")
    if kind in PAIRED:
        trainer = replace(trainer, rows=2 * trainer.rows)
        reading.notes.append(f"trainer.rows = {trainer.rows}: a sample of {kind} is a chosen and a rejected sequence")
    if kind == "reward" or reading.flag("few_outputs"):
        return replace(trainer, loss="value")
    if reading.flag("use_liger_kernel", "use_liger_loss"):
        return replace(trainer, loss="fused")
    if kind != "sft":
        return trainer
    if given == "chunked_nll":
        return replace(trainer, loss="hidden-chunks", logprob_chunk=CHUNK)
    if given is None and reading.found.system == "trl":
        reading.notes.append(
            f"loss_type = nll, logits of all tokens (not in the script; from TRL {SINCE} on SFTTrainer has those of "
            f"{CHUNK} tokens at a time: --set trainer.loss=hidden-chunks --set trainer.logprob_chunk={CHUNK})"
        )
    return trainer
