"""Logits and what the loss makes of them, on the last stage; bytes per logit of one rank (tokens x vocabulary / t).

Pretraining: logits in half precision (2). "te" computes the gradient in place (2 throughout). Megatron's own cross
entropy makes an fp32 copy (4) that becomes the softmax in place and is kept; backward it becomes the gradient in
place, which is cast to half precision (2). Compiled ("native"), the exponentials are a tensor of their own beside
that copy (4 more), and so is the gradient.

Reinforcement learning: logits leave the model in fp32 whatever is asked of them (4); dividing by a temperature makes
another copy (4); log-probs keep a softmax (4), and the gradient is one more (4). Entropy is computed from a copy and
its softmax (4 + 4), one sample at a time. Source: slime's loss and the model wrapper of Megatron Core.
"""

from typing import NamedTuple

from headway.plan.activations import Batch
from headway.plan.megatron.run import FP32, Run


class Loss(NamedTuple):
    """Bytes of logits while the loss goes forward and backward, in a pass that only scores, and of the gradient
    alone, when it goes back through the output layer.

    >>> Loss(6, 6, 6, 2).forward
    6
    """

    forward: int
    backward: int
    score: int
    gradient: int


def loss(run: Run, batch: Batch) -> Loss:
    """The loss of one micro-batch; layers for multi-token prediction keep theirs until the backward pass."""
    cells = batch.tokens * run.vocab
    if run.rl:
        made = FP32 * (3 if run.trainer.temperature else 2)
        sample = min(batch.tokens, batch.reach or batch.longest) * run.vocab
        forward = made * cells + (2 * FP32 * sample if run.trainer.entropy else 0)
        return Loss(forward, (made + FP32) * cells, forward, 2 * FP32 * cells)
    size, depths = run.size, run.shape.mtp_layers
    if run.megatron.cross_entropy == "te":
        both, held = size, size * depths
    else:
        both, held = size + FP32 * (2 if run.megatron.cross_entropy == "native" else 1), FP32 * depths
    return Loss((both + held) * cells, (both + held) * cells, both * cells, (size + held) * cells)
