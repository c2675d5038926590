"""Evaluation that makes longer samples than training can hold, or than the engine was planned for."""

from collections.abc import Iterator

from headway.foreign.lint.cap_below_sample import permitted
from headway.foreign.lint.rule import Rule, Sighting, Subject


def find(subject: Subject) -> Iterator[Sighting]:
    """Evaluation samples above the cap, or above the lengths of training."""
    answer = subject.count("eval_max_response_len")
    if answer is None or not subject.is_given("eval_max_response_len") or not _evaluates(subject):
        return
    trained = subject.count("max_response_len")
    longest, shown, open_ends = permitted(subject, "eval_max_response_len")
    cap, ranks = subject.count("max_tokens_per_gpu"), subject.count("cp")
    said = []
    if subject.found.value("dynamic_batch") is True and cap is not None and ranks and longest > cap * ranks:
        said.append(f"above {subject.flag('max_tokens_per_gpu')} x context parallel ranks ({cap * ranks:,})")
    if trained is not None and answer > trained:
        said.append(f"answers of up to {answer:,} tokens, where training has {trained:,}")
    if said:
        tail = f" ({'; '.join(open_ends)})" if open_ends else ""
        text = f"evaluation makes samples of {shown}: {', and '.join(said)}{tail}"
        yield Sighting(text, subject.place("eval_max_response_len"))


def _evaluates(subject: Subject) -> bool:
    return subject.found.value("eval_interval") is not None or "eval_interval" in subject.found.unknown


RULE = Rule(
    name="eval-above-cap",
    severity="note",
    title="longer samples in evaluation",
    sees="evaluation runs, and its answers are longer than those of training or than the token cap.",
    why="what is evaluated is not trained, so the trainer's cap does not bound it: the engine's KV pool and the host "
    "hold these samples, and only at the steps that evaluate, so a run may end there that was well before",
    example="python3 train.py --rollout-batch-size 8 --rollout-max-response-len 8192 --eval-interval 20 "
    "--eval-max-response-len 32768",
    instead="plan the engine for the evaluation's lengths, or lower --eval-max-response-len",
    near_miss="python3 train.py --rollout-batch-size 8 --rollout-max-response-len 8192 --eval-max-response-len 32768",
    not_this="a length for evaluation without `--eval-interval` is never used.",
    find=find,
)
