"""The experts of a layer: routing, the copies that go to other ranks and back, and what stays of them.

A token's k copies are permuted by expert, exchanged between the expert ranks, and sorted by local expert; on the way
back the same in reverse. Kept for the backward pass, per token before sequence parallelism divides it by s, with E
experts of width f: the norm's output 2h; scores, probabilities and the routing in fp32 and their map (3 x 4E + E);
of each copy its input 2h, gate and up 4f, their product 2f and its probability 4. The copies before and after an
exchange need not be kept, because exchanging and sorting need only their indices to go backward. Megatron Core
before 0.13 weighs a copy's result with its probability on the way back and keeps it for that (2h a copy).

While the layer runs forward, four of them are alive at once, since each is held by the function that made it until
the layer returns: permuted and received tokens, and on the way back sorted and returned ones; with them the result
and that of the shared experts. Source: Megatron Core's `MoELayer.forward` and `MoEAlltoAllTokenDispatcher`.
"""

from math import ceil

from headway.plan.activations import Batch
from headway.plan.megatron import float8, offload
from headway.plan.megatron.parts import Part, gathered, stream, unfused
from headway.plan.megatron.run import FP32, Run
from headway.plan.megatron.widths import mlp

STREAMS = 4
"""Streams on which Transformer Engine's grouped products run, each with a workspace of its own."""


def rows(run: Run, batch: Batch) -> int:
    """Token copies that one rank's experts take: its even share, times how uneven the routing is."""
    share = run.shape.experts_per_token * batch.tokens / run.stream * run.expert_tensor
    factor = run.megatron.capacity or run.megatron.imbalance
    return ceil(share * factor)


def experts(run: Run, batch: Batch) -> Part:
    """The MLP of a layer with experts."""
    shape, size, tokens = run.shape, run.size, batch.tokens
    hidden, copies = shape.hidden, rows(run, batch)
    normed = stream(run, batch)
    routing = ceil(tokens * shape.experts * (3 * FP32 + 1) / run.stream)
    up, down = mlp(shape, shape.expert_ffn, run.expert_tensor)
    moved, first, second = (copies * width * size for width in (hidden, up.outputs, down.inputs))
    shared = 0
    if shape.shared_ffn:
        wide, narrow = mlp(shape, shape.shared_ffn, run.tensor)
        shared = tokens * (wide.outputs + narrow.inputs * unfused(run)) * size
        shared += float8.saved(run, tokens * narrow.inputs * size)
    sent = ceil(shape.experts_per_token * tokens * hidden * size / run.stream)
    weighed = 0 if run.core_since(0, 13) else sent
    # without a fused kernel the product is a tensor of its own before a probability weighs it
    second = float8.saved(run, second) + second * (unfused(run) + 1 if unfused(run) else 0)
    received = float8.saved(run, moved)
    inside = routing + received + first + second + weighed + copies * FP32 + shared
    kept, dropped = normed + inside, 0
    hosted: tuple[int, ...] = ()
    if run.drops("moe"):
        kept, dropped = normed, inside
    else:
        hosted = offload.experts(run, normed, received, first, second)
        if run.drops("moe_act"):
            kept, dropped = kept - second, dropped + second
        if run.drops("shared_experts"):
            kept, dropped = kept - shared, dropped + shared
        if run.drops("layernorm"):
            kept, dropped = kept - normed, dropped + normed
    forward = 2 * (sent + moved) + 2 * normed
    if run.megatron.dispatcher == "allgather":
        # every rank sees all tokens of its expert group, and reduces all results in fp32
        everyone = normed * run.expert * run.expert_tensor
        forward = everyone + moved + everyone * FP32 // size + 2 * normed
    backward = max(2 * moved, moved + first) + 2 * normed + gathered(run, batch)
    return Part(kept, dropped, forward, backward, hosted)
