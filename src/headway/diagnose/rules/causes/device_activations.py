"""Forward and backward do not fit."""

from headway.diagnose.case import Case
from headway.diagnose.engines import at_start, engine_of
from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Claim, Rule
from headway.units import format_bytes

CALLS = (
    r"backward|autograd|forward\(|in forward|forward_backward|recompute|checkpoint_?fn|\bmlp|attention|attn|"
    r"experts|layernorm"
)


FULL = 0.85
"""Share of a device above which it is full of this process's own."""


ELSEWHERE = ("load", "step", "save", "sync", "sleep", "wake")
"""Phases whose requests are no activations."""


def _find(case: Case) -> Claim | None:
    if case.mechanism != "device-allocation-failure" or case.event is None or case.refusal.impossible:
        return None
    if at_start(case):
        return None
    place = case.frame(CALLS, within=24)
    if place is None:
        return None if engine_of(case) else _full(case)
    early = case.step is not None and case.step <= 1
    because = "the call that asked is in the forward or backward pass"
    return Claim("supported" if early else "open", because + (" of the first step" if early else ""), (place,))


def _full(case: Case) -> Claim | None:
    """A device that this process fills itself, without pieces: less per micro-batch is what makes room."""
    found = case.refusal
    if found.held is None or not found.total or found.held < FULL * found.total or case.event is None:
        return None
    if case.phase in ELSEWHERE:
        return None
    share = f"{format_bytes(found.held)} of {format_bytes(found.total)}, {100 * found.held / found.total:.0f} %"
    if found.itself is not None and found.used is None:
        share += f" (it is process {found.itself[0]} of the message)"
    return Claim("open", f"this process fills the device itself: {share}", (case.event.place,))


RULE = Rule(
    name="device-activations",
    level="cause",
    sees="A refused request in a layer's forward, in backward or in recomputation; a device that the process fills "
    "itself.",
    why="Activations grow with the tokens of a micro-batch; weights, gradients and moments leave a fixed rest.",
    sure="Open by the call alone; supported in the first step, where nothing can have grown.",
    look_alikes="Growth over steps and one long sample end in the same calls later in a run.",
    example="step 1: train\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n    "
    "loss.backward()",
    near_miss="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n    self.optimizer.step()",
    advice=(
        Advice(
            "lower the tokens of a micro-batch",
            "less memory in forward, backward and loss",
            "more micro-batches, slower",
            "fewer-tokens",
        ),
        Advice(
            "recompute activations in the backward pass",
            "keeps only each layer's input",
            "about a third more compute",
            "recompute",
        ),
        Advice("shorter sequences", "fewer tokens in the longest sample", "long data is cut", "shorter-sequences"),
    ),
    settle=(settle.MEMORY,),
    find=_find,
)
