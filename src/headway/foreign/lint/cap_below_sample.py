"""Samples that may be longer than a micro-batch may be."""

from collections.abc import Iterator

from headway.foreign.lint.rule import Rule, Sighting, Subject

ALONE = "such a sample is trained alone, in a micro-batch that is larger than the cap: the cap bounds no memory then"
REFUSED = "verl asserts that the longest sample fits the cap, and ends where one does not"
CUSTOM = ("custom-generate-function-path", "rollout-function-path", "agent-func-path", "agent_func_path")
"""Flags that bring a program of the user's own into generation: what tools and turns add, no flag of it bounds."""


def find(subject: Subject) -> Iterator[Sighting]:
    """Cap x context parallel ranks below the longest sample that the script permits."""
    cap, ranks = subject.count("max_tokens_per_gpu"), subject.count("cp")
    if subject.found.value("dynamic_batch") is not True or cap is None or ranks is None:
        return
    longest, shown, open_ends = permitted(subject, "max_response_len")
    if longest <= cap * ranks:
        return
    times = f" x {ranks} context parallel ranks = {cap * ranks:,}" if ranks > 1 else ""
    text = f"{subject.flag('max_tokens_per_gpu')} {cap:,}{times} tokens, and samples of {shown} are permitted"
    yield Sighting(
        text + (f" ({'; '.join(open_ends)})" if open_ends else ""), subject.place("max_tokens_per_gpu"),
        "error" if subject.system == "verl" else None, REFUSED if subject.system == "verl" else ALONE,
    )  # fmt: skip


def permitted(subject: Subject, answer: str) -> tuple[int, str, tuple[str, ...]]:
    """The longest sample that the script surely permits, the same in words, and what it does not bound.

    A bound of the whole sample is one only where it is below the sum of its parts.
    """
    length, prompt, total = subject.count(answer), subject.count("max_prompt_len"), subject.count("max_total_len")
    if length is None and total is None:
        return 0, "", ()
    longest = min(size for size in ((length or 0) + (prompt or 0) or None, total) if size is not None)
    if total is not None and longest == total:
        return total, f"up to {total:,} tokens", ()
    open_ends = ["no flag bounds the prompt"] if prompt is None else []
    custom = subject.last(*CUSTOM) is not None or any(name in subject.found.flags for name in CUSTOM)
    if custom:
        open_ends.append("a function of the user's own generates: what its tools and turns add, no flag bounds")
    if not open_ends:
        return longest, f"{longest:,} tokens", ()
    return longest, f"{longest:,} tokens and more", tuple(open_ends)


RULE = Rule(
    name="cap-below-sample",
    severity="warning",
    title="a token cap below a permitted sample",
    sees="micro-batches are bounded by tokens (`--use-dynamic-batch-size`), and cap x context parallel ranks is less "
    "than the longest prompt and answer together.",
    why=ALONE,
    example="python3 train.py --rollout-batch-size 8 --use-dynamic-batch-size --max-tokens-per-gpu 20480 "
    "--rollout-max-response-len 32768",
    instead="plan for the longest sample: raise the context parallel ranks, bound the samples "
    "(--rollout-max-context-len, which counts prompt and tool turns too), or see what fits alone in the plan",
    near_miss="python3 train.py --rollout-batch-size 8 --use-dynamic-batch-size --max-tokens-per-gpu 20480 "
    "--context-parallel-size 2 --rollout-max-response-len 32768 --rollout-max-prompt-len 4096",
    not_this="the cap is per GPU: context parallel ranks share a sample, so each adds to what fits. Without dynamic "
    "batches a micro-batch is `--micro-batch-size` samples, and there is no cap.",
    find=find,
)
