"""Logits do not fit."""

from headway.diagnose.case import Case
from headway.diagnose.engines import at_start
from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Claim, Rule

CALLS = (
    r"logits|log_softmax|cross_entropy|vocab_parallel|lm_head|float_conversion|float16_to_fp32|output_layer|"
    r"selective_log|entropy_from|gather_log_?probs|prompt_logprobs|compute_entropy|sampler"
)
"""Calls on a tensor of tokens x vocabulary. Megatron's `float_conversion` casts the last stage's output."""


def _find(case: Case) -> Claim | None:
    if case.mechanism != "device-allocation-failure" or at_start(case):
        return None
    place = case.frame(CALLS, within=16)
    if place is None:
        return None
    vocab, asked = case.settings.vocab_per_rank, case.refusal.asked
    because = "the call that asked works on logits or log-probs"
    if vocab and asked:
        because += f"; {asked / (vocab * 4):,.0f} rows of {vocab:,} numbers in fp32 are as large as the request"
    return Claim("supported", because, (place,))


RULE = Rule(
    name="device-logits",
    level="cause",
    sees="A refused request in a call on logits, log-probs, entropy, softmax or cross entropy.",
    why="Logits are tokens x vocabulary (over tensor parallel ranks): 152,064 numbers a token, 4 bytes each in "
    "fp32, and losses make several copies.",
    sure="Supported by the call; the size divided by vocabulary x 4 bytes gives the tokens, to compare with the cap.",
    look_alikes="A forward pass of the layers below compute_log_prob is activations. Far more tokens than the "
    "cap are an "
    "oversized sample.",
    example="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 11.60 GiB.\n    log_probs = "
    "torch.log_softmax(logits.float(), dim=-1)",
    near_miss="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
    "79.11 GiB of which 1.50 GiB is free. \n    hidden_states = self.mlp(hidden_states)",
    advice=(
        Advice(
            "take log-probs or the loss in chunks, or with a kernel that fuses them with the last layer",
            "never a full tensor of logits",
            "a little time",
            "chunked-logprobs",
        ),
        Advice(
            "lower the tokens of a micro-batch",
            "less memory in forward, backward and loss",
            "more micro-batches, slower",
            "fewer-tokens",
        ),
    ),
    settle=(settle.MEMORY,),
    find=_find,
)
