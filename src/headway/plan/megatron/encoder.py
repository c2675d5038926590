"""What stands before and after the blocks of models that are no plain decoder: an encoder's tokens, BERT's head.

T5's decoder layers attend to the result of the encoder: it is kept once for all of them, with the input of the norm
that made it. BERT has a projection, its activation and a norm before the output layer, of all tokens of a rank, which
keep their inputs: the final norm's result, and two more as wide; the output layer keeps a third. Source:
`T5Model` and `BertLMHead` of Megatron Core.
"""

from math import ceil

from headway.plan.activations import Batch
from headway.plan.megatron.parts import stream
from headway.plan.megatron.run import Run


def batch(run: Run, decoder: Batch) -> Batch:
    """What the encoder reads of a micro-batch."""
    return Batch(decoder.rows, ceil(run.megatron.encoder_length / run.context))


def kept(run: Run, decoder: Batch) -> int:
    """Bytes kept once of a micro-batch between the encoder and the decoder's layers: the final norm's input and
    result, and the mask of the embedding's dropout."""
    if not run.shape.encoder_layers:
        return 0
    one = stream(run, batch(run, decoder))
    return 2 * one + (one // run.size if run.megatron.hidden_dropout else 0)


def before_logits(run: Run, last: Batch) -> int:
    """Bytes that BERT's head keeps before the output layer."""
    return 3 * stream(run, last) if run.shape.masked_head else 0
