"""One sample is far above the cap."""

from headway.diagnose.case import Case
from headway.diagnose.numbers import format_request
from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Claim, Rule
from headway.units import format_bytes

CALLS = r"logits|log_?probs?\b|log_softmax|entropy|cross_entropy|lm_head|float_conversion"


def _find(case: Case) -> Claim | None:
    if case.mechanism != "device-allocation-failure":
        return None
    vocab, cap, found = case.settings.vocab_per_rank, case.settings.cap, case.refusal
    tokens = found.tokens(vocab) if vocab else None
    if vocab is None or tokens is None or cap is None or case.event is None or tokens < 2 * cap:
        return _impossible(case)
    if case.frame(CALLS) is None and abs(tokens - round(tokens)) * vocab * 4 > 0.005 * 2**30:
        return None  # the size is no whole number of rows, and no call says that it is rows
    because = (
        f"{format_bytes(found.asked or 0)} / ({vocab:,} x 4 B) = {tokens:,.0f} tokens in one micro-batch, "
        f"{tokens / cap:.0f} times the cap of {cap:,}"
    )
    return Claim("supported", because, (case.event.place,))


def _impossible(case: Case) -> Claim | None:
    found = case.refusal
    if not found.impossible or found.asked is None or found.total is None or case.event is None:
        return None
    because = (
        f"the request for {format_request(found.asked)} alone is larger than the device "
        f"({format_bytes(found.total)}): "
        "far too long a sample or micro-batch, or a wrong shape; no share makes it fit"
    )
    return Claim("open", because, (case.event.place,))


RULE = Rule(
    name="device-oversize-sample",
    level="cause",
    sees="A request for logits that divided by vocabulary x 4 bytes is several times the cap on tokens, or one "
    "that is "
    "larger than the whole device.",
    why="A cap is no cap where one sample may be longer than it, or where a version packs without one.",
    sure="Supported by arithmetic where vocabulary, tensor parallel size and cap are known; open for a request "
    "larger than the device, which a wrong shape makes too.",
    look_alikes="The same call at or below the cap is logits that do not fit.",
    example="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 58.15 GiB\n    return "
    "compute_log_probs(logits.clone(), tokens, group)",
    near_miss="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.60 GiB\n    return "
    "compute_log_probs(logits.clone(), tokens, group)",
    advice=(
        Advice(
            "cap the response length to the token cap, or drop and count longer samples",
            "no micro-batch above the cap",
            "data above it is lost",
            "shorter-sequences",
        ),
        Advice("use a version whose scheduler balances by tokens", "micro-batches stay under the cap", "an upgrade"),
        Advice(
            "take log-probs in chunks",
            "logits never exist whole",
            "a mitigation: activations still grow with the sample",
            "chunked-logprobs",
        ),
    ),
    settle=(settle.MEMORY,),
    find=_find,
)
