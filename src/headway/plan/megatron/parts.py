"""What a layer and its halves are counted in, and the residual stream that both share."""

from math import ceil
from typing import NamedTuple

from headway.plan.activations import Batch
from headway.plan.megatron.run import Run


class Layer(NamedTuple):
    """Bytes of one layer for one micro-batch. `kept` contains the input; `forward` and `backward` are the most that
    is alive beside what is kept while it runs; `again`: what recomputation brings back while it goes backward.
    `hosted`: what each of its offloaded modules has in host memory, which is not in `kept`.

    >>> Layer(source=2, kept=20, forward=3, backward=4).again
    0
    """

    source: int
    kept: int
    forward: int
    backward: int
    again: int = 0
    hosted: tuple[int, ...] = ()


class Part(NamedTuple):
    """Bytes of an attention or an MLP: `kept` and `dropped` of it, which is computed again; then as in Layer.
    `hosted` is still in `kept` here."""

    kept: int
    dropped: int
    forward: int
    backward: int
    hosted: tuple[int, ...] = ()


NOTHING = Part(0, 0, 0, 0)
"""The half that a block does not have."""


def stream(run: Run, batch: Batch) -> int:
    """The residual stream between two layers."""
    return ceil(batch.tokens * run.shape.hidden * run.size / run.stream)


def unfused(run: Run) -> int:
    """Further tensors as wide as the gate that a gated MLP keeps without a fused kernel: the gate's result, and the
    other half with its offset added."""
    return 0 if run.megatron.fused_activation or not run.shape.gated else 2


def gathered(run: Run, batch: Batch) -> int:
    """The residual stream of all tokens, where a projection gathers what sequence parallelism divides; else 0."""
    return batch.tokens * run.shape.hidden * run.size if run.gathers else 0
