"""Forward and backward do not fit."""

from headway.diagnose.case import Case
from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Claim, Rule

CALLS = (
    r"backward|autograd|forward\(|in forward|forward_backward|recompute|checkpoint_?fn|\bmlp|attention|attn|"
    r"experts|layernorm"
)


def _find(case: Case) -> Claim | None:
    if case.mechanism != "device-allocation-failure":
        return None
    place = case.frame(CALLS, within=24)
    if place is None:
        return None
    early = case.step is not None and case.step <= 1
    because = "the call that asked is in the forward or backward pass"
    return Claim("supported" if early else "open", because + (" of the first step" if early else ""), (place,))


RULE = Rule(
    name="device-activations",
    level="cause",
    sees="A refused request in a layer's forward, in backward or in recomputation.",
    why="Activations grow with the tokens of a micro-batch; weights, gradients and moments leave a fixed rest.",
    sure="Open by the call alone; supported in the first step, where nothing can have grown.",
    look_alikes="Growth over steps and one long sample end in the same calls later in a run.",
    example="step 1: train\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n    "
    "loss.backward()",
    near_miss="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n    self.optimizer.step()",
    advice=(
        Advice(
            "lower the cap on tokens of a micro-batch (slime, Miles: --max-tokens-per-gpu; verl: "
            "ppo_max_token_len_per_gpu)",
            "less memory in forward, backward and loss",
            "more micro-batches, slower",
        ),
        Advice(
            "recompute activations (--recompute-granularity full; gradient_checkpointing)",
            "keeps only each layer's input",
            "about a third more compute",
        ),
    ),
    settle=(settle.MEMORY,),
    find=_find,
)
