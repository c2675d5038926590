"""Rewards: what an answer earns, any finite number, and what training adds for its format."""

import base64
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import regex

from headway.config.sections import DataSection, RewardSection
from headway.errors import InputError
from headway.rollout.data import Problem
from headway.rollout.extract import compile_pattern, equal_answers, extract, matches_whole
from headway.rollout.frames import Message
from headway.rollout.tasks import task_setup
from headway.rollout.worker import START_TIMEOUT_S, Worker, WorkerLostError

FUNCTION_START_S = 30.0
"""For the imports of the user's module; `reward.timeout_s` where that is longer."""

LOGGED_FAILURES = 5
"""Failures of each kind that the log tells of; all are counted."""

EXCERPT = 80
"""Characters from the end of a response in the log."""


@dataclass(frozen=True)
class Answer:
    """A model's whole response to a problem."""

    problem: Problem
    text: str


@dataclass(frozen=True)
class Score:
    """What an answer earns.

    `reward` is for training; `score` is the answer's own, without any credit for format, for evaluation. `failure`
    says what kept it from being scored: a key of `Scorer.failures`, then what happened. There is then no reward if
    the user's function failed, whose least is not known, or the label; else the score is 0. `note` says why it is 0.

    >>> Score(reward=0.9, score=1.0).score
    1.0
    """

    reward: float | None
    score: float | None
    failure: str | None = None
    note: str | None = None


class Scorer(Protocol):
    """Scores answers.

    `failures` counts what kept answers from being scored: "exception", "timeout", "died" (the process), "result" (no
    finite number), "label" (not mathematics, with kind = "math"). `first_failure` is the first of them on one
    line, as "exception: ZeroDivisionError: division by zero (mine.py:2)".
    """

    failures: Counter[str]
    first_failure: str | None

    def check(self, problems: Iterable[Problem]) -> None:
        """Raise InputError for what would fail every answer: call it once, before training."""
        ...

    def score(self, items: Sequence[Answer]) -> list[Score]:
        """Score each answer, in order."""
        ...

    def pids(self) -> tuple[int, ...]:
        """Processes that score answers and run now."""
        ...

    def close(self) -> None:
        """End those processes."""
        ...


def make_scorer(
    section: RewardSection,
    data: DataSection,
    folders: Sequence[Path] = (),
    log: Path | None = None,
    between: Callable[[], None] = lambda: None,
) -> Scorer:
    """The scorer of a RunSpec. Starts nothing yet: `check` does. `between` is called before each answer; what it
    raises ends the scoring.

    A `function` is looked for in `folders` (the RunSpec's own), then in the current directory, then among the
    installed packages. What the reward process prints goes to the end of `log`, else to standard error; the first
    failures of each kind are written to `log` too.

    Raises InputError for settings that are missing or are no patterns.
    """
    for setting, pattern in (("pattern", section.pattern), ("format_pattern", section.format_pattern)):
        if pattern is not None:
            try:
                compile_pattern(pattern)
            except regex.error as error:
                raise InputError(f"reward.{setting} = {pattern!r}: is not a regular expression: {error}") from None
    return SectionScorer(section, _judge(section, data, folders, log), log, between)


@dataclass(frozen=True)
class Extracted:
    """An answer found in a response."""

    problem: Problem
    answer: str
    response: str


@dataclass(frozen=True)
class Verdict:
    """A judge's score of one answer; `failure` is a key of `Scorer.failures`, `trace` the end of a traceback.

    With a failure `value` is 0.
    """

    value: float
    note: str | None = None
    failure: str | None = None
    trace: tuple[str, ...] = ()


class Judge(Protocol):
    """Compares an extracted answer with the problem's label, or asks code that can."""

    def check(self, problems: Iterable[Problem]) -> None: ...
    def judge(self, item: Extracted) -> Verdict: ...
    def pids(self) -> tuple[int, ...]: ...
    def close(self) -> None: ...


class SectionScorer:
    """Extraction, then the judge, then the format's share: the scorer of every `reward.kind`."""

    def __init__(
        self,
        section: RewardSection,
        judge: Judge,
        log: Path | None = None,
        between: Callable[[], None] = lambda: None,
    ) -> None:
        self._section = section
        self._between = between
        self._judge = judge
        self._log = log
        self.failures: Counter[str] = Counter()
        self.first_failure: str | None = None

    def check(self, problems: Iterable[Problem]) -> None:
        self._judge.check(problems)

    def score(self, items: Sequence[Answer]) -> list[Score]:
        scores = []
        for item in items:
            self._between()
            scores.append(self._one(item))
        return scores

    def pids(self) -> tuple[int, ...]:
        return self._judge.pids()

    def close(self) -> None:
        self._judge.close()

    def _one(self, item: Answer) -> Score:
        section = self._section
        found = self._verdict(item)
        failure = None
        if found.failure is not None:
            failure = self._failed(found.failure, found.note or "", item.text, found.trace)
            # Elsewhere the answer itself was too much for its scorer, and 0 is the least that can be earned.
            if section.kind == "function" or found.failure == "label":
                return Score(None, None, failure, found.note)
        # A task's scorer may give an answer some credit for trying; only the full score is a right answer.
        score = float(found.value >= 1) if section.kind == "task" else found.value
        form, too_long = self._format(item.text)
        reward = (1 - section.format_weight) * found.value + section.format_weight * form
        return Score(reward, score, failure or too_long, found.note)

    def _verdict(self, item: Answer) -> Verdict:
        section = self._section
        try:
            answer = extract(item.text, section.extract, section.pattern, section.timeout_s)
        except TimeoutError:
            return Verdict(0.0, f"reward.pattern took longer than {section.timeout_s:g} s", "timeout")
        if answer is None and section.kind != "function":
            return Verdict(0.0, "no answer found")
        # 0 may be more than a function gives for a wrong answer, so it is asked about no answer too
        return self._judge.judge(Extracted(item.problem, answer or "", item.text))

    def _format(self, text: str) -> tuple[float, str | None]:
        """1 where the format is right, else 0; and the failure where its pattern took too long."""
        pattern = self._section.format_pattern
        if pattern is None or self._section.format_weight == 0:
            return 0.0, None
        try:
            return float(matches_whole(text.strip(), pattern, self._section.timeout_s)), None
        except TimeoutError:
            note = f"reward.format_pattern took longer than {self._section.timeout_s:g} s"
            return 0.0, self._failed("timeout", note, text)

    def _failed(self, failure: str, note: str, response: str, trace: Sequence[str] = ()) -> str:
        """Count a failure and put it into words; the first ones of a kind are written to the log."""
        self.failures[failure] += 1
        told = f"{failure}: {note}"
        if self.first_failure is None:
            self.first_failure = told
        if self._log is None or self.failures[failure] > LOGGED_FAILURES:
            return told
        excerpt = f"{'...' if len(response) > EXCERPT else ''}{response[-EXCERPT:]}"
        lines = [
            f"headway: reward failure, {failure}: {note}",
            f"  answer: {excerpt!r}",
            *(f"  {line}" for line in trace),
        ]
        if self.failures[failure] == LOGGED_FAILURES:
            lines.append(f"headway: further failures of the kind {failure} are only counted")
        with self._log.open("a", encoding="utf-8", errors="backslashreplace") as log:
            log.write("\n".join(lines) + "\n")
        return told


class ExactJudge:
    """The answer equals the label as text or as a number."""

    def check(self, problems: Iterable[Problem]) -> None:
        """Any label will do."""

    def judge(self, item: Extracted) -> Verdict:
        return Verdict(float(equal_answers(item.answer, item.problem.label)))

    def pids(self) -> tuple[int, ...]:
        return ()

    def close(self) -> None:
        """Nothing runs."""


class RegexJudge:
    """The answer matches the label, a regular expression, whole."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s

    def check(self, problems: Iterable[Problem]) -> None:
        for problem in problems:
            try:
                compile_pattern(problem.label)
            except regex.error as error:
                raise InputError(
                    f'reward.kind = "regex": the label {problem.label!r} of problem {problem.prompt[:60]!r} is not a '
                    f'regular expression: {error}; mend it, or set reward.kind = "exact"'
                ) from None

    def judge(self, item: Extracted) -> Verdict:
        try:
            return Verdict(float(matches_whole(item.answer, item.problem.label, self._timeout_s)))
        except TimeoutError:
            return Verdict(0.0, f"the label's pattern took longer than {self._timeout_s:g} s", "timeout")

    def pids(self) -> tuple[int, ...]:
        return ()

    def close(self) -> None:
        """Nothing runs."""


class ProcessJudge:
    """Asks the reward process; what it does not answer in time is a failure."""

    def __init__(self, worker: Worker, request: Callable[[Extracted], Message], timeout_s: float) -> None:
        self._worker = worker
        self._request = request
        self._timeout_s = timeout_s

    def check(self, problems: Iterable[Problem]) -> None:
        for problem in problems:
            self._request(Extracted(problem, "", ""))
        self._worker.start()

    def judge(self, item: Extracted) -> Verdict:
        try:
            reply = self._worker.ask(self._request(item), self._timeout_s)
        except WorkerLostError as lost:
            return Verdict(0.0, lost.note, lost.failure)
        if "failure" in reply:
            return Verdict(0.0, reply["note"], reply["failure"], tuple(reply.get("trace", ())))
        return Verdict(reply["value"])

    def pids(self) -> tuple[int, ...]:
        return () if self._worker.pid is None else (self._worker.pid,)

    def close(self) -> None:
        self._worker.close()


# -- judges by kind --------------------------------------------------------------------------------------


def _judge(section: RewardSection, data: DataSection, folders: Sequence[Path], log: Path | None) -> Judge:
    setup: Message
    start_s = START_TIMEOUT_S
    request: Callable[[Extracted], Message]
    match section.kind:
        case "exact":
            return ExactJudge()
        case "regex":
            return RegexJudge(section.timeout_s)
        case "math":
            setup, request = {"kind": "math", "memory": section.memory, "folders": []}, _math_request
        case "task":
            if data.task is None:
                raise InputError(
                    'reward.kind = "task": is the scorer of a reasoning-gym dataset, and data.task is not set; set '
                    'kind to "exact", "regex", "math" or "function"'
                )
            setup, request = task_setup(data.task, data.params, section.memory), _task_request
        case "function":
            if section.function is None:
                raise InputError('reward.kind = "function": needs reward.function = "module:function"')
            setup, request = _function_setup(section.function, section.memory, folders), _function_request
            start_s = max(FUNCTION_START_S, section.timeout_s)
    return ProcessJudge(Worker(setup, log, start_s), request, section.timeout_s)


def _function_setup(function: str, memory: int, folders: Sequence[Path]) -> Message:
    where = [str(folder.absolute()) for folder in (*folders, Path.cwd())]
    return {"kind": "function", "function": function, "memory": memory, "folders": where}


def _function_request(item: Extracted) -> Message:
    problem = item.problem
    return {"prompt": problem.prompt, "answer": item.answer, "label": problem.label, "response": item.response}


def _math_request(item: Extracted) -> Message:
    return {"answer": item.answer, "label": item.problem.label}


def _task_request(item: Extracted) -> Message:
    entry = item.problem.entry
    if entry is None:
        raise InputError(
            f'reward.kind = "task": problem {item.problem.prompt[:60]!r} is not from data.task, so its scorer cannot '
            'score it; remove eval.file, or set reward.kind = "exact"'
        )
    return {"answer": item.answer, "entry": base64.b64encode(entry).decode("ascii")}
