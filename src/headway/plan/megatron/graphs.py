"""Captured CUDA graphs of a trainer's layers (`--cuda-graph-impl`), and the cache of Megatron's own inference engine.

A graph works at fixed addresses, so its inputs, outputs and both their gradients are buffers that stay from the
capture on, each as large as the residual stream. Transformer Engine before 2.7 has all four for each layer and each
micro-batch of a step; later releases share them between micro-batches that are not in flight together
(`_reuse_graph_input_output_buffers`), and then an input and an output of each that is in flight stay, at the most all
four. Megatron Core's own graphs ("local") write a layer's output where the next one reads it, into one pool:
nothing is beside the inputs that layers keep anyway, or, in the bound, all four of what is in flight.

What layers keep inside their graphs is in the graphs' pool and is planned as activations. torch counts it as
allocated only while it captures; reserved it stays between steps too. Source: Megatron Core's `cuda_graphs.py`,
Transformer Engine's `make_graphed_callables`. Megatron-LM's test with graphs of attention holds 1,292 MiB more
between steps than a plan without them has, and its twins without graphs 265 MiB more: 1,027 MiB, where four buffers
of 8 layers and 4 micro-batches are 1,024.

Reinforcement learning in Megatron (`--perform-rl-step`) generates in the trainer's process from a cache of
`--inference-dynamic-batching-buffer-size-gb`, 40 GiB unless it is set.
"""

from headway.plan.activations import Batch
from headway.plan.item import Item
from headway.plan.megatron.parts import stream
from headway.plan.megatron.run import SOURCE, Run
from headway.plan.megatron.stages import Stage, in_flight
from headway.units import GIB

BUFFERS = 4
"""Input, output, and the gradients of both."""
INFERENCE = 3 * GIB
"""What generating holds beside its cache: graphs, tokens and states of requests. 2.2 and 4.3 GiB in two runs."""


def items(run: Run, stage: Stage, batch: Batch, micro_batches: int) -> list[Item]:
    """Fixed buffers of a stage's graphs, and what generating keeps."""
    found = [_buffers(run, stage, batch, micro_batches), _cache(run)]
    return [item for item in found if item.upper]


def _buffers(run: Run, stage: Stage, batch: Batch, micro_batches: int) -> Item:
    flights = in_flight(stage, micro_batches)
    flying = sum(number * count for number, groups in zip(flights, stage.chunks, strict=True) for _, count in groups)
    one, every = stream(run, batch), BUFFERS * stage.layers * micro_batches
    least, most = {
        "": (0, 0), "local": (0, BUFFERS * flying),
        "transformer_engine": (2 * flying, BUFFERS * flying) if run.te_since(2, 7) else (every, every),
    }[run.megatron.graphs]  # fmt: skip
    return Item("captured graphs", least * one, most * one, f"{stage.layers} layers, {run.megatron.graphs}", SOURCE)


def _cache(run: Run) -> Item:
    size = run.megatron.inference_cache
    more = INFERENCE if size else 0
    return Item(
        "inference cache", size + more, size + 2 * more, "buffer size, and 3 GiB of graphs and tokens", SOURCE
    )
