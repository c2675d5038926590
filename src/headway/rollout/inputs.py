"""What a run reads beside its model, looked through before the model is loaded: what is wrong is known in seconds."""

import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from headway.config.fits import too_few
from headway.config.sections import RunSpec
from headway.errors import InputError
from headway.rollout.data import Problem, ProblemSet, load_problems
from headway.rollout.rewards import make_scorer

STARTED = ("exact", "regex", "function")
"""Kinds of rewards that are tried beforehand: of a function its module is imported."""


class _AnyTokenizer:
    """Stands for a tokenizer that is not loaded yet: every prompt is one token, so that none is too long."""

    chat_template = ""

    def __call__(self, text: str) -> Mapping[str, Sequence[int]]:  # noqa: ARG002 - the tokenizers' own names
        return {"input_ids": [0]}

    def apply_chat_template(self, conversation: list[dict[str, str]], **how: bool) -> list[int]:  # noqa: ARG002
        return [0]


def check_inputs(spec: RunSpec, *, whole: bool = False) -> None:
    """Read the problem files, and start the reward once: what only the model's tokenizer can tell is left open.

    Unless `whole`, problems of a task are not drawn, and its scorer and that of mathematics, which import much, are
    not started: a run does that anyway.
    InputError for what a run would refuse once its model is loaded.
    """
    folders = () if spec.reward.folder is None else (spec.reward.folder,)
    with closing(make_scorer(spec.reward, spec.data, folders, Path(os.devnull))) as scorer:
        problems: tuple[Problem, ...] = ()
        if whole or spec.data.task is None:
            found = load_problems(spec.data, spec.eval, _AnyTokenizer(), spec.train.seed)
            enough(found, spec)
            problems = (*found.train, *found.held_out)
        if whole or spec.reward.kind in STARTED:
            scorer.check(problems)


def enough(problems: ProblemSet, spec: RunSpec) -> None:
    """InputError where a step asks for more problems than there are."""
    for problem in too_few(spec, len(problems.train), len(problems.held_out)):
        raise InputError(problem)
