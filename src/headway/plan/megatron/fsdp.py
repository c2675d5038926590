"""Megatron's own FSDP: what its ranks divide beside the optimizer's part, and what they gather while they work.

The ranks that hold the same parameters divide them (`optim_grads_params`), and gradients (from `optim_grads`); each
layer is a unit. While a stage works, the layer that computes is there in whole, the tables, which are no unit, and
the layers that are gathered ahead until they have 500 million elements, or as many as a layer where layers are
larger. Backward, gradients in whole wait for their reduction until they have twice as many elements, in the dtype of
the gradient buffer. Source: Megatron Core's `distributed/fsdp/src/README.md`, `param_and_grad_buffer.py`
(`wait_for_previous_grad_reduce`) and `megatron_fsdp.py` (`suggested_communication_unit_size`, at least 10^9).
"""

from math import ceil
from typing import NamedTuple

from headway.plan.megatron import states
from headway.plan.megatron.run import Run
from headway.plan.megatron.stages import Stage

QUEUE = 1_000_000_000
"""Elements of gradients that may wait for their reduction, where two layers have fewer."""


class Gathered(NamedTuple):
    """Bytes that a stage has in whole at the most: of parameters; of gradients when its backward pass begins, and
    when as many wait as may, which is after so many `layers`.

    >>> Gathered(parameters=10, gradients=20, waiting=40, layers=2).waiting
    40
    """

    parameters: int = 0
    gradients: int = 0
    waiting: int = 0
    layers: int = 0


def gathered(run: Run, stage: Stage) -> Gathered:
    """Bytes of parameters and gradients that a stage has in whole at the most."""
    if not run.divides("grads"):
        return Gathered()
    groups = run.tensor, run.expert, run.expert_tensor
    units = [(states.block_counts(run.shape, block, *groups).all, number) for block, number in stage.groups]
    every, layers = sum(size * number for size, number in units), max(1, stage.layers)
    queue = max(QUEUE, 2 * every // layers)
    largest = max((size for size, _ in units), default=0)
    table = run.shape.hidden * run.vocab * (stage.embedding or stage.head)
    # the last layer that is gathered ahead or waits may go over the limit
    ahead = largest + ceil(queue / 2 / max(1, largest)) * largest
    held = (min(every, ahead) + table) * states.param_size(run) if run.divides("params") else 0
    size, most = states.gradient_size(run), min(every, largest + queue)
    return Gathered(held, (largest + table) * size, (most + table) * size, min(layers, most // max(1, largest)))
