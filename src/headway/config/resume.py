"""What may change when a run is resumed.

Four kinds of keys. Free ones (how long, how fast, how often, how much memory) change without a word from the user
and are said. Paths do not count: what they lead to is compared by its content. A changed reward, and changed data,
need the user's word (`--accept-changes`). Anything else is another run.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from msgspec import Struct

from headway.config.accept import Accept
from headway.config.sections import RunSpec
from headway.errors import InputError

FREE_SECTIONS = frozenset({"memory", "guard", "output", "eval"})
FREE_KEYS = frozenset(
    {
        *("train.steps", "train.lr", "train.warmup", "train.schedule", "train.weight_decay", "train.grad_clip"),
        *("train.cap", "train.checkpointing", "train.logprob_chunk", "rollout.kv_budget", "model.attention"),
        *("reward.timeout_s", "reward.memory"),
    }
)
"""Keys outside those sections that the optimizer takes anew at each step, that only trade memory for time (the sums
have another order at most), or that bound something."""

PATHS = frozenset({"model.path", "data.file", "eval.file", "reward.folder", "output.dir"})
"""Keys whose content is compared, never their text. The model of `init = "random"` is no path."""

_TASK_KEYS = frozenset({"data.task", "data.params", "data.shuffle"})
"""Keys of [data] that decide more than the problems' texts: which scorer reads them, and in what order they come."""


class Change(Struct, frozen=True):
    """A key, or a file by its name, that is no longer what it was.

    >>> str(Change("train.lr", 1e-5, 5e-6)), str(Change("reward", None, None, "mine.py"))
    ('train.lr 1e-05 -> 5e-06', 'mine.py (reward)')
    """

    key: str
    before: Any
    now: Any
    file: str | None = None

    def __str__(self) -> str:
        if self.file is not None:
            return f"{self.file} ({self.key})"
        return f"{self.key} {_text(self.before)} -> {_text(self.now)}"


class Content(Struct, frozen=True):
    """What the paths of a RunSpec lead to: SHA-256 by file name, and of the problems as the model sees them.

    `model` holds config, weights and tokenizer, nothing for random weights; `reward` the source files of a function;
    `files` name and SHA-256 of data.file and eval.file by key. `train` and `held_out` are digests of the problems;
    `held` is `eval.problems` at the start of the run where they are taken from the training source, else 0.

    >>> Content({}, {"mine.py": "ab"}, {"data.file": ("sums.jsonl", "12")}, "cd", "ef", 256).reward
    {'mine.py': 'ab'}
    """

    model: dict[str, str]
    reward: dict[str, str]
    files: dict[str, tuple[str, str]]
    train: str
    held_out: str
    held: int


def flat(spec: RunSpec) -> dict[str, Any]:
    """Every key of a RunSpec as `section.key` with its JSON value; an absent section is one key with None."""
    rows: dict[str, Any] = {}
    for section, content in spec.model_dump(mode="json").items():
        if content is None:
            rows[section] = None
        else:
            rows.update({f"{section}.{key}": value for key, value in content.items()})
    return rows


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[Change, ...]:
    """Each key of two flat RunSpecs that differs, in the order of the RunSpec."""
    keys = [*now, *(key for key in before if key not in now)]
    return tuple(
        Change(key, before.get(key), now.get(key))
        for key in keys
        if before.get(key, _ABSENT) != now.get(key, _ABSENT)
    )


def needs(key: str, *, random: bool) -> Accept | bool:
    """What a resume with another value of a key needs: True is nothing, False what no flag allows. A path, and a key
    that only says how problems are read, need nothing here: their content is compared.

    >>> needs("train.lr", random=False), needs("lora.rank", random=False), str(needs("reward.kind", random=False))
    (True, False, 'reward')
    """
    section = key.partition(".")[0]
    if key == "model.path":
        return not random
    if key in FREE_KEYS or key in PATHS or section in FREE_SECTIONS:
        return True
    if section == "reward":
        return Accept.REWARD
    return section == "data" and key not in _TASK_KEYS


def check_keys(run: str, step: int, found: Iterable[Change], accepted: Collection[Accept], *, random: bool) -> None:
    """InputError for changed keys that the run, which is at `step`, cannot go on with."""
    refused, flagged = [], []
    for change in found:
        need = needs(change.key, random=random)
        if need is False:
            refused.append(change)
        elif isinstance(need, Accept) and need not in accepted:
            flagged.append(change)
    problems = []
    if refused:
        them = "it" if len(refused) == 1 else "them"
        problems.append(
            f"output.dir = {run}: the run in it is at step {step} and cannot go on with {_list(refused)}; set {them} "
            f"back to resume, or set another output.dir for a new run, which can start from the weights of this one: "
            f"headway export {run} NEW --merge, and model.path = NEW"
        )
    if flagged:
        problems.append(_flagged(run, step, flagged, Accept.REWARD))
    if problems:
        raise InputError(*problems)


def check_content(
    run: str, step: int, before: Content, now: Content, found: Iterable[Change], accepted: Collection[Accept]
) -> tuple[Change, ...]:
    """The files that changed and that the user accepts, so that the run goes on with them.

    `found` are the keys that changed. InputError names each file with other content that the run, which is at `step`,
    cannot go on with.
    """
    keys = tuple(found)
    problems: list[str] = []
    if model := _differing(before.model, now.model, "model"):
        others = "other content" if len(model) == 1 else "other contents"
        problems.append(
            f"model.path: {', '.join(each.file or '' for each in model)} has {others} than the model that the run in "
            f"{run} was started with; set model.path to that model to resume, or set another output.dir for a new run"
        )
    reward = _differing(before.reward, now.reward, "reward")
    if reward and Accept.REWARD not in accepted:
        problems.append(_flagged(run, step, reward, Accept.REWARD))
    data = _data(before, now, keys)
    if data and Accept.DATA not in accepted:
        problems.append(_flagged(run, step, data, Accept.DATA))
    if problems:
        raise InputError(*problems)
    return (*reward, *(each for each in data if each not in keys))


def said(found: Iterable[Change]) -> str:
    """The changes on one line.

    >>> said((Change("train.lr", 1e-5, 5e-6), Change("train.steps", 5, 10)))
    'train.lr 1e-05 -> 5e-06, train.steps 5 -> 10'
    """
    return ", ".join(str(change) for change in found)


# -- helpers ---------------------------------------------------------------------------------------------

_ABSENT = object()
_NO_FILE = ("", "")


def _text(value: Any) -> str:
    return "(not set)" if value is None else repr(value)


def _list(found: Collection[Change]) -> str:
    return said(found) if len(found) < 7 else f"{said(list(found)[:6])} and {len(found) - 6} others"


def _flagged(run: str, step: int, found: Collection[Change], what: Accept) -> str:
    """That changes need the user's word."""
    them = "it" if len(found) == 1 else "them"
    verb = "has" if len(found) == 1 else "have"
    return (
        f"output.dir = {run}: {_list(found)} {verb} changed since step {step} of the run in it; put {them} back to "
        f"resume, or add --accept-changes {what} to go on with {them} from step {step + 1} on"
    )


def _differing(before: Mapping[str, str], now: Mapping[str, str], key: str) -> tuple[Change, ...]:
    """Files that are on one side only, or have other content."""
    names = sorted({*before, *now})
    return tuple(
        Change(key, before.get(name), now.get(name), name) for name in names if before.get(name) != now.get(name)
    )


def _data(before: Content, now: Content, keys: Collection[Change]) -> tuple[Change, ...]:
    """What made the problems others than they were: files by name, or the keys of [data]; nothing where none are.

    Other problems to evaluate on are no change of the data where [eval] says that they are to be others.
    """
    moved = {change.key for change in keys}
    evaluation = before.held_out != now.held_out and moved.isdisjoint({"eval.file", "eval.problems"})
    if before.train == now.train and not evaluation:
        return ()
    why = [change for change in keys if change.key.startswith("data.") and change.key not in PATHS]
    for key in ("data.file", "eval.file"):
        (name, old), (file, new) = before.files.get(key, _NO_FILE), now.files.get(key, _NO_FILE)
        if old != new:
            why.append(Change(key, old, new, file or name))
    return tuple(why) or (Change("data.task", before.train, now.train, "the set of problems"),)
