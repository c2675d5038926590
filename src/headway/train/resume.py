"""From the last checkpoint into a live run: whether it is this run's, what has changed since, and from which step."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from msgspec import convert, to_builtins
from torch import Tensor

from headway.config.accept import Accept
from headway.config.resume import PATHS, Change, Content, changes, check_content, check_keys, flat, said
from headway.config.sections import DataSection, EvalSection, RunSpec, TrainSection
from headway.errors import InputError
from headway.rollout.data import ProblemSet, load_problems
from headway.rollout.prompts import Tokenizer
from headway.train import checkpoint
from headway.train.checkpoint import Progress
from headway.train.optim import AdamW, learning_rate
from headway.train.output import RunFolder


class Told(Protocol):
    """Who shows messages."""

    def message(self, text: str) -> None: ...


@dataclass(frozen=True)
class Before:
    """What the last checkpoint says of its run: the flat RunSpec and the content that it was trained with until
    `step`."""

    step: int
    spec: dict[str, Any]
    content: Content


def mark_of(spec: RunSpec, content: Content) -> dict[str, Any]:
    """What a checkpoint keeps to tell whose it is; `last_of` reads it back."""
    return {"spec": flat(spec), "content": to_builtins(content)}


def last_of(folder: RunFolder) -> Before | None:
    """The run that the last checkpoint in a folder is of; None without a checkpoint."""
    found = checkpoint.folders(folder.checkpoints)
    if not found:
        return None
    step, mark = checkpoint.identity_of(found[-1])
    return Before(step, mark["spec"], convert(mark["content"], Content))


def claim(folder: RunFolder, spec: RunSpec, accepted: Collection[Accept]) -> None:
    """Check that a run's folder is this run's or free, before anything is loaded. Writes nothing.

    InputError where it holds another run that has learned something, or files of something else.
    """
    written = folder.claim()
    if written is None or not folder.started():
        return
    before = last_of(folder)
    step, was = (0, flat(written)) if before is None else (before.step, before.spec)
    random = "random" in (was["model.init"], spec.model.init)
    check_keys(str(folder.root), step, changes(was, flat(spec)), accepted, random=random)


def problems_of(
    data: DataSection, evaluation: EvalSection, tokenizer: Tokenizer, seed: int, before: Before | None
) -> ProblemSet:
    """The problems of a run. One that is resumed trains on those that it began with, whatever [eval] says by now.

    InputError where [eval] asks for problems that training may have seen.
    """
    if before is None:
        return load_problems(data, evaluation, tokenizer, seed)
    held = before.content.held
    asked = held if evaluation.problems is None else evaluation.problems
    if evaluation.file is None and asked > held:
        raise InputError(
            f"eval.problems = {asked}: {held or 'no'} problems were held out when the run began, and "
            f"training may have seen the others; set {'at most ' if held else ''}{held}, or set eval.file to "
            "problems of its own"
        )
    if not held:
        return load_problems(data, evaluation, tokenizer, seed)
    began = load_problems(data, evaluation.model_copy(update={"file": None, "problems": held}), tokenizer, seed)
    if evaluation.file is None:
        return replace(began, held_out=began.held_out[:asked])
    other = load_problems(data, evaluation, tokenizer, seed)
    if other.overlap:
        raise InputError(
            f"eval.file = {evaluation.file}: {other.overlap} of its problems are in the training data; take them out "
            "of it"
        )
    return replace(began, held_out=other.held_out)


def restore(
    folder: RunFolder,
    spec: RunSpec,
    content: Content,
    accepted: Collection[Accept],
    parameters: Mapping[str, Tensor],
    optimizer: AdamW,
    view: Told,
) -> Progress:
    """Restore the last checkpoint into the live parameters and the optimizer, if there is one, and say what changed.

    InputError where it is torn, foreign, or of a run with which this one cannot go on.
    """
    found = checkpoint.folders(folder.checkpoints)
    if not found:
        if folder.metrics.exists():
            view.message("no checkpoint to resume from: the run starts again at step 0")
        folder.truncate(0)
        return Progress()
    loaded = checkpoint.load(found[-1])
    progress, was = loaded.progress, loaded.identity["spec"]
    root, keys = str(folder.root), changes(was, flat(spec))
    check_keys(root, progress.step, keys, accepted, random="random" in (was["model.init"], spec.model.init))
    files = check_content(root, progress.step, convert(loaded.identity["content"], Content), content, keys, accepted)
    checkpoint.read_parameters(loaded.folder, parameters)
    optimizer.load_state_dict(checkpoint.read_optimizer(loaded.folder))
    folder.truncate(progress.step)
    view.message(f"resuming from {loaded.folder.name}")
    note_changes(progress, spec, TrainSection(**_section(was, "train")), (*keys, *files), view)
    return progress


def note_changes(
    progress: Progress, spec: RunSpec, before: TrainSection, found: Collection[Change], view: Told
) -> None:
    """Keep what changed, with the step that is the first to be trained with it, and say it.

    Answers that a changed reward or other data made useless are generated again, unless some of them are already
    learned from: then the step is finished as it began.
    """
    files = {change.key for change in found if change.file is not None}
    same = [each for each in found if each.file is None and each.key in PATHS and each.key not in files]
    real = [each for each in found if each not in same]
    other = [each for each in real if each.key.partition(".")[0] in ("reward", "data") and not _bound(each)]
    if other and progress.rollout and not progress.updates:
        progress.rollout, progress.old_logprobs, progress.ref_logprobs = (), None, None
    later = other if progress.updates else []
    for first, those in (
        (progress.step + 1, [each for each in real if each not in later]),
        (progress.step + 2, later),
    ):
        progress.changes = (*progress.changes, *(_row(each, first) for each in those))
        if those:
            view.message(f"from step {first} on: {said(those)}{_rate(progress, spec, before, those)}")
    moved = [f"{each.key} {each.now}" for each in same if each.key != "output.dir"]
    if moved:
        view.message(f"the same content as before: {', '.join(moved)}")


def _bound(change: Change) -> bool:
    return change.key in ("reward.timeout_s", "reward.memory")


def _row(change: Change, step: int) -> dict[str, Any]:
    """A change as the summary has it."""
    named = {} if change.file is None else {"file": change.file}
    return {"step": step, "key": change.key, **named, "before": change.before, "now": change.now}


def _rate(progress: Progress, spec: RunSpec, before: TrainSection, found: Collection[Change]) -> str:
    """The next step's learning rate, where a change of another key moves it."""
    keys = {change.key for change in found}
    if "train.lr" in keys or keys.isdisjoint({"train.steps", "train.warmup", "train.schedule"}):
        return ""
    was, now = (
        learning_rate(section, progress.optimizer_steps, section.steps * section.updates)
        for section in (before, spec.train)
    )
    return "" if was == now else f"; the next learning rate is {now:.3g} instead of {was:.3g}"


def _section(rows: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key.partition(".")[2]: value for key, value in rows.items() if key.startswith(f"{name}.")}
