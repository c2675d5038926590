"""A Mamba 2 layer: what it keeps and what it needs while it runs.

Megatron Core trains it with one kernel from the projection to the gated norm (`mamba_split_conv1d_scan_combined` of
mamba-ssm), which computes the convolution and the chunks' states again in the backward pass. Kept per token, over t
tensor ranks and, because context parallel ranks exchange heads for tokens, the same for each of them: the norm's
output 2h / s; what the projection makes, in the order of samples and tokens, 2 (2d + 2gn + heads); the scan's result
before the norm 2d; and the norm's result, which the output projection takes, 2d. d is heads x head_dim, n the state
and g the groups.

While the kernel runs: the convolution's result 2 (d + 2gn), time steps and decays in fp32 (2 x 4 heads), and the
states of chunks of 128 tokens, 4 dn / 128, once of each chunk and once passed on. Backward beside that: the gradients
of what the projection made and of the convolution's result, and of the states in fp32. Source: `MambaMixer` of
Megatron Core, `ssd_combined.py` of mamba-ssm 2.2.
"""

from headway.plan.activations import Batch
from headway.plan.megatron import float8
from headway.plan.megatron.parts import Part, gathered, stream
from headway.plan.megatron.run import FP32, Run

CHUNK = 128
"""Tokens of a chunk, for which the scan makes a state."""


def mixer(run: Run, batch: Batch) -> Part:
    """The norm's output, the projections and the scan."""
    kind = run.shape.mamba
    assert kind is not None
    normed, whole = stream(run, batch), gathered(run, batch)
    wide = batch.tokens * run.size
    made, inner = wide * kind.projected // run.tensor, wide * kind.inner // run.tensor
    conv = wide * kind.conv_width // run.tensor
    steps = 2 * batch.tokens * kind.heads * FP32 // run.tensor
    states = batch.tokens * kind.inner * kind.state * FP32 // (CHUNK * run.tensor)
    working = conv + steps + 2 * states
    backward = working + made + conv + 2 * inner + states
    kept = float8.saved(run, normed) + made + inner + float8.saved(run, inner)
    return Part(kept, 0, working + whole, backward + normed + whole)
