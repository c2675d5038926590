"""What Megatron and Transformer Engine allocate beside the model: dummy gradients, workspaces, communicators."""

from headway.plan.item import Item
from headway.plan.megatron import float8
from headway.plan.megatron.moe import STREAMS
from headway.plan.megatron.run import SOURCE, Run
from headway.plan.megatron.stages import Stage
from headway.plan.megatron.widths import distinct
from headway.units import MIB

WORKSPACE = 32 * MIB
"""One cuBLAS workspace on Hopper and Blackwell, of torch and of Transformer Engine each."""
COMMUNICATOR = 600 * MIB
"""Device memory of a first NCCL communicator between more than one rank: 544 MB for two, 688 MB for more were
reported (NCCL issue 964)."""
NEXT_COMMUNICATOR = 300 * MIB
"""The same of each further group."""


def dummies(run: Run, stage: Stage) -> int:
    """Bytes of Transformer Engine's dummy weight gradients.

    Where weight gradients are added straight to the gradient buffer, autograd still wants a tensor of the weight's
    shape. Transformer Engine keeps one for each distinct shape and dtype: for linear layers from release 2.3, for
    experts from 2.10, where one serves all experts of a shape. Megatron Core's output layer shares them from 0.14.
    """
    if not run.megatron.fused_gradients or run.trainer.lora is not None or not run.te_since(2, 3):
        return 0
    plain, grouped = distinct(run.shape, stage.kinds, run.tensor, run.expert_tensor)
    shapes = plain | grouped if run.te_since(2, 10) else plain
    if stage.head and run.core_since(0, 14):
        shapes |= {(run.shape.hidden, run.vocab)}
    return run.size * sum(inputs * outputs for inputs, outputs in shapes)


def items(run: Run, stage: Stage) -> list[Item]:
    """All of it that tensors' counters see."""
    size = dummies(run, stage)
    spaces = 3 + (STREAMS if run.shape.experts and run.te and run.megatron.grouped_experts else 0)
    found = [
        Item.exact("dummy weight gradients", size, "one for each distinct shape of a weight", SOURCE),
        Item("workspaces", spaces * WORKSPACE, 2 * spaces * WORKSPACE, f"{spaces} x 32 MiB", "cuBLAS"),
    ]
    return [item for item in found if item.upper] + float8.items(run, stage)


def communicators(run: Run) -> Item:
    """Device memory of process groups: one for each kind of group with more than one rank."""
    groups = (run.tensor, run.context, run.data, run.layout.pipeline, run.expert, run.expert_data)
    number = sum(size > 1 for size in groups)
    size = COMMUNICATOR + (number - 1) * NEXT_COMMUNICATOR if number else 0
    return Item("communicators", size, 3 * size, f"{number} groups", "NCCL, reported")
