"""What a RunSpec's keys say against each other: each key fine alone, together no run."""

import re
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from headway.config.keys import show
from headway.config.sections import (
    DataSection,
    EvalSection,
    RewardSection,
    RolloutSection,
    RunSpec,
    TrainSection,
)

DATA_SUFFIXES = (".jsonl", ".json", ".parquet")
_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


class Contradiction(Struct, frozen=True):
    """Keys that cannot stand together: what is set, what contradicts it, what to set instead.

    >>> next(_updates(TrainSection(updates=3), RolloutSection(prompts=8))).keys
    ('train.updates', 'rollout.prompts')
    """

    keys: tuple[str, ...]
    text: str


def contradictions(spec: RunSpec) -> Iterator[Contradiction]:
    """Every contradiction of the RunSpec, in the order of its sections."""
    yield from _source(spec.data)
    yield from _prompt(spec.data)
    yield from _reward(spec.reward, spec.data)
    yield from _patterns(spec.reward)
    yield from _rollout(spec.rollout)
    yield from _updates(spec.train, spec.rollout)
    yield from _betas(spec.train)
    yield from _evaluation(spec.eval, spec.data)


def _source(data: DataSection) -> Iterator[Contradiction]:
    keys = ("data.task", "data.file")
    if data.task is None and data.file is None:
        yield Contradiction(
            keys,
            "data.task and data.file are both unset: set task to the name of a reasoning-gym dataset, or file to "
            "problems of your own",
        )
    if data.task is not None and data.file is not None:
        yield Contradiction(
            keys,
            f"data.task = {show(data.task)} and data.file = {show(data.file)}: a run has one source of problems; "
            "remove one of the two",
        )
    if data.params and data.task is None:
        yield Contradiction(
            (*keys, "data.params"),
            "data.params is set, but only a reasoning-gym dataset takes parameters: set data.task, or remove params",
        )
    if data.file is not None:
        yield from _suffix("data.file", data.file)


def _suffix(key: str, file: Path) -> Iterator[Contradiction]:
    if file.suffix.lower() not in DATA_SUFFIXES:
        yield Contradiction(
            (key,), f"{key} = {show(file)}: is read by its ending; it must be one of {', '.join(DATA_SUFFIXES)}"
        )


def _prompt(data: DataSection) -> Iterator[Contradiction]:
    if "{prompt}" not in data.template:
        yield Contradiction(
            ("data.template",),
            f"data.template = {show(data.template)}: has no {{prompt}}, so no problem would reach the model; "
            "write {prompt} where it goes",
        )
    if data.system is not None and data.format == "text":
        yield Contradiction(
            ("data.system", "data.format"),
            'data.system is set, but format = "text" has no system message: set format = "chat", or write it into '
            "data.template",
        )


def _reward(reward: RewardSection, data: DataSection) -> Iterator[Contradiction]:
    if reward.kind == "task" and data.task is None and data.file is not None:
        yield Contradiction(
            ("reward.kind", "data.task"),
            'reward.kind = "task": is the scorer of a reasoning-gym dataset, and data.task is not set; set kind to '
            '"exact", "regex", "math" or "function"',
        )
    if reward.kind == "function" and reward.function is None:
        yield Contradiction(
            ("reward.kind", "reward.function"),
            'reward.kind = "function": needs reward.function = "module:function"',
        )
    if reward.kind != "function" and reward.function is not None:
        yield Contradiction(
            ("reward.kind", "reward.function"),
            f"reward.function = {show(reward.function)}: is not called with kind = {show(reward.kind)}; "
            'set kind = "function", or remove it',
        )
    if reward.folder is not None and reward.function is None:
        yield Contradiction(
            ("reward.folder", "reward.function"),
            "reward.folder is set, but reward.function, which is looked for there, is not; set it, or remove folder",
        )
    if reward.function is not None and _FUNCTION.fullmatch(reward.function) is None:
        yield Contradiction(
            ("reward.function",),
            f'reward.function = {show(reward.function)}: must be "module:function", such as "my_rewards:score"',
        )


def _patterns(reward: RewardSection) -> Iterator[Contradiction]:
    if reward.extract == "pattern" and reward.pattern is None:
        yield Contradiction(
            ("reward.extract", "reward.pattern"),
            'reward.extract = "pattern": needs reward.pattern, a regular expression whose first group is the answer',
        )
    if reward.extract != "pattern" and reward.pattern is not None:
        yield Contradiction(
            ("reward.extract", "reward.pattern"),
            f"reward.pattern = {show(reward.pattern)}: is not used with extract = {show(reward.extract)}; "
            'set extract = "pattern", or remove it',
        )
    for key, pattern, groups in (
        ("reward.pattern", reward.pattern, 1),
        ("reward.format_pattern", reward.format_pattern, 0),
    ):
        if pattern is not None and (fault := _pattern_fault(pattern, groups)):
            yield Contradiction((key,), f"{key} = {show(pattern)}: {fault}")
    if reward.format_weight > 0 and reward.format_pattern is None:
        yield Contradiction(
            ("reward.format_weight", "reward.format_pattern"),
            f"reward.format_weight = {show(reward.format_weight)}: nothing says which format earns it; set "
            "reward.format_pattern, or format_weight = 0",
        )


def _pattern_fault(pattern: str, groups: int) -> str | None:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        return f"is not a regular expression ({error}); mend it, or write it in single quotes so that \\ stays"
    if compiled.groups < groups:
        return "has no group; put ( ) around the part that is the answer"
    return None


def _rollout(rollout: RolloutSection) -> Iterator[Contradiction]:
    if rollout.top_k == 1:
        yield Contradiction(
            ("rollout.top_k",),
            "rollout.top_k = 1: the answers of a group would be equal, so nothing is learned; set 0 for all tokens, "
            "or more than 1",
        )
    if "" in rollout.stop:
        yield Contradiction(
            ("rollout.stop",), "rollout.stop: holds an empty text, which would end every answer at once; remove it"
        )


def _updates(train: TrainSection, rollout: RolloutSection) -> Iterator[Contradiction]:
    if rollout.prompts % train.updates:
        candidates = range(1, min(train.updates, rollout.prompts + 1))
        near = max(count for count in candidates if rollout.prompts % count == 0)
        yield Contradiction(
            ("train.updates", "rollout.prompts"),
            f"train.updates = {train.updates}: does not split rollout.prompts = {rollout.prompts} evenly; set "
            f"updates = {near}, or prompts = {_round_up(rollout.prompts, train.updates)}",
        )


def _round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def _betas(train: TrainSection) -> Iterator[Contradiction]:
    if not all(0 <= beta < 1 for beta in train.betas):
        yield Contradiction(
            ("train.betas",),
            f"train.betas = {show(train.betas)}: each must be at least 0 and below 1, such as [0.9, 0.95]",
        )


def _evaluation(evaluation: EvalSection, data: DataSection) -> Iterator[Contradiction]:
    if evaluation.every and evaluation.problems == 0:
        yield Contradiction(
            ("eval.every", "eval.problems"),
            f"eval.every = {evaluation.every}: evaluates nothing with eval.problems = 0; set problems, or every = 0",
        )
    if evaluation.file is None:
        return
    yield from _suffix("eval.file", evaluation.file)
    if evaluation.problems == 0:
        yield Contradiction(
            ("eval.file", "eval.problems"),
            f"eval.file = {show(evaluation.file)}: is not read with eval.problems = 0; set problems to the most that "
            "is read from it, or remove it",
        )
    if data.file is None:
        yield Contradiction(
            ("eval.file", "data.file"),
            f"eval.file = {show(evaluation.file)}: goes with data.file, which is not set; remove it: eval.problems "
            "are then held out from data.task",
        )
