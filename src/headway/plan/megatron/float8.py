"""Transformer Engine's float8: which tensors of a layer are a byte an element, and which copies of weights stay.

A projection saves its input cast for the gradient of its weight (`Linear`, `LayerNormLinear` and `GroupedLinear`
save the column-wise data), so these are a byte an element instead of two: the result of a norm that is in one module
with the projection, the MLP's product, the experts' inputs and products. In half precision stay: the residual
stream, queries, keys, values and attention, gate and up, and what Megatron Core tells a projection to save as it
came (`set_save_original_input`): attention's result, which attention has anyway, and the shared experts' input, which
the router has. With the "delayed" recipe that is not possible, and the output projection has a copy of its own.
Latent attention has two projections of one input, each with a copy: together as in half precision.

Weights are cast once a step and the copies stay from then on (`cache_weight`): a byte an element, and another for the
transposed copy that Hopper's products need; Blackwell's with one scale a tensor need none. Stored in float8
(`--fp8-param-gather`) weights are these copies alone. Scales of "mxfp8" and "blockwise" are a byte in 32.

Counted on Megatron-LM's functional tests: the same model with and without (0.9 % apart), and one stored in float8 on
Hopper and on Blackwell (exact).
"""

from math import ceil

from headway.plan.item import Item
from headway.plan.megatron.run import SOURCE, Run
from headway.plan.megatron.stages import Stage
from headway.plan.megatron.widths import attention_of, mlp, plain_width

SCALED = {"mxfp8": 33 / 32, "blockwise": 33 / 32}
"""Bytes of an element with its part of a scale, where scales are many."""
BOTH_WAYS = frozenset(SCALED)
"""Recipes whose scales run along rows or columns, so that the transposed copy is never the same data."""


def on(run: Run) -> bool:
    """Whether projections compute in float8: all are trained, and layers are Transformer Engine's."""
    return run.trainer.float8 is not None and run.te and run.trainer.lora is None


def saved(run: Run, size: int) -> int:
    """Bytes of a projection's input that has `size` in half precision.

    A run without float8 keeps it as it is.
    """
    float8 = run.trainer.float8
    if float8 is None or not on(run):
        return size
    return ceil(size // run.size * SCALED.get(float8.recipe, 1))


def attended(run: Run, out: int) -> int:
    """What the output projection saves of attention's result beside what attention has, which is the result itself
    unless attention runs in plain torch: that has no use for it, so the cast copy is there in its place."""
    float8 = run.trainer.float8
    if float8 is None or not on(run) or (float8.recipe != "delayed" and run.te_since(2, 6)):
        return 0
    return saved(run, out) - (out if run.trainer.attention == "eager" else 0)


def elements(run: Run, stage: Stage) -> int:
    """Elements of a stage's projections on one rank."""
    shape = run.shape
    found = 0
    widest = max((block for block, _ in shape.blocks()), key=shape.block_parameters)
    for block, number in (*stage.groups, (widest, stage.mtp)):
        one = sum(linear.size for linear in attention_of(shape, block, run.tensor))
        if block.mlp:
            one += sum(linear.size for linear in mlp(shape, plain_width(shape, block), run.tensor))
        if block.experts:
            each = sum(linear.size for linear in mlp(shape, shape.expert_ffn, run.expert_tensor))
            one += shape.experts // run.expert * each
        found += number * one
    return found + stage.mtp * ceil(2 * shape.hidden**2 / run.tensor)


def copies(run: Run, stage: Stage) -> int:
    """Bytes of a stage's weights in float8, transposed ones among them."""
    float8 = run.trainer.float8
    if float8 is None or not on(run):
        return 0
    ways = 2 if float8.transposed or float8.recipe in BOTH_WAYS else 1
    return ceil(ways * elements(run, stage) * SCALED.get(float8.recipe, 1))


def stored(run: Run, stage: Stage) -> int:
    """Bytes that weights have more (or, below 0, fewer) than in half precision where they are stored in float8."""
    float8 = run.trainer.float8
    if float8 is None or not float8.gather or not on(run):
        return 0
    return copies(run, stage) - run.size * elements(run, stage)


def items(run: Run, stage: Stage) -> list[Item]:
    """The copies beside half-precision weights, from the first forward pass on."""
    float8 = run.trainer.float8
    size = 0 if float8 is None or float8.gather else copies(run, stage)
    return [Item.exact("float8 weights", size, f"{elements(run, stage):,} elements", SOURCE)] if size else []
