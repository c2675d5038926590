"""Megatron's own FSDP: what its ranks divide beside the optimizer's part, and what they gather while they work.

The ranks that hold the same parameters divide them (`optim_grads_params`), and gradients (from `optim_grads`); each
layer is a unit. While a stage works, two units are there in whole, the one that computes and the next, and so are the
tables, which are no unit; backward each has its gradient in whole as well until it is scattered, in the dtype of the
gradient buffer. Source: Megatron Core's `distributed/fsdp/src/README.md` and `param_and_grad_buffer.py`.
"""

from headway.plan.megatron import states
from headway.plan.megatron.run import Run
from headway.plan.megatron.stages import Stage

UNITS = 2
"""Layers that are gathered at once: one computes, the next one comes in."""


def gathered(run: Run, stage: Stage) -> int:
    """Bytes of parameters and gradients that a stage has in whole at the most."""
    if not run.divides("grads"):
        return 0
    groups = run.tensor, run.expert, run.expert_tensor
    blocks = [states.block_counts(run.shape, block, *groups).all for block in stage.kinds]
    largest = UNITS * max(blocks, default=0) + run.shape.hidden * run.vocab * (stage.embedding or stage.head)
    per = states.gradient_size(run) + (states.param_size(run) if run.divides("params") else 0)
    return largest * per
