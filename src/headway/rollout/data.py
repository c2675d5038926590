"""The problems of a run: which are trained on, which are held out, and in what order they come."""

import hashlib
import heapq
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

from headway.config.fits import held_out
from headway.config.sections import DataSection, EvalSection
from headway.errors import InputError
from headway.rollout.files import Record, read_records
from headway.rollout.prompts import Tokenizer, prompt_ids
from headway.rollout.tasks import draw_records

TOKEN_BYTES = 512
"""No token of a usual vocabulary stands for as many bytes of text; the longest are runs of some 100 spaces."""


@dataclass(frozen=True)
class Problem:
    """A problem with its prompt.

    `index` is its place among the training or the held-out problems; `prompt` the problem's own text, without
    template; `prompt_ids` what the model sees; `entry` is for the task's own scorer, which alone can read it.

    >>> Problem(0, "2 + 2?", (17, 5, 17), "4", None).label
    '4'
    """

    index: int
    prompt: str
    prompt_ids: tuple[int, ...]
    label: str
    entry: bytes | None


@dataclass(frozen=True)
class ProblemSet:
    """Problems for training, and others held out for evaluation: no prompt text is in both, or twice in one.

    `dropped_long` counts those over data.max_prompt, `duplicates` the repeated ones of the source, `overlap` the
    training problems left out because they are in eval.file.
    """

    train: tuple[Problem, ...]
    held_out: tuple[Problem, ...]
    dropped_long: int
    duplicates: int
    overlap: int = 0


def digest_of(problems: Iterable[Problem]) -> str:
    """SHA-256 of every prompt and label, to tell whether a resumed run still has the same data."""
    total = hashlib.sha256()
    for problem in problems:
        total.update(repr((problem.index, problem.prompt_ids, problem.label)).encode("utf-8", "surrogatepass"))
    return total.hexdigest()


def load_problems(data: DataSection, evaluation: EvalSection, tokenizer: Tokenizer, seed: int) -> ProblemSet:
    """Read or draw the problems, hold some out, and turn each into a prompt.

    Which problems are held out depends on the source, `eval` and `seed`, never on data.problems.

    Raises InputError for a source that cannot be read, has too few distinct problems, or none within
    data.max_prompt.
    """
    train, held, tally = select(data, evaluation, seed)
    return _problem_set(train, held, data, tokenizer, tally)


def select(data: DataSection, evaluation: EvalSection, seed: int) -> tuple[list[Record], list[Record], Counter[str]]:
    """The records of training and of evaluation, and how many were left out as repeated ("duplicates") or because
    they are in eval.file ("overlap").

    Raises InputError for a source that cannot be read, or has too few distinct problems.
    """
    tally: Counter[str] = Counter()
    held = _evaluation_file(data, evaluation)
    exclude = {record.prompt for record in held}
    wanted = 0 if evaluation.file is not None else evaluation.problems
    if data.task is not None:
        with closing(draw_records(data.task, data.params, seed)) as records:
            train, taken = _first(_distinct(records, exclude, tally), data, held_out(wanted, None))
    elif data.file is not None:
        with closing(read_records(data.file, data.prompt_key, data.label_key)) as records:
            train, taken = _split(_distinct(records, exclude, tally), data, wanted, seed)
    else:
        raise InputError("data.task and data.file are both unset: set one of them")
    return train, held or taken, tally


def prompts_for_step(count: int, per_step: int, step: int, seed: int, shuffle: bool) -> tuple[tuple[int, ...], int]:
    """Indices of the problems of a step (from 0), and the pass over the problems in which it starts.

    A pass takes every problem once; a step may end one pass and begin the next. It then takes none of them twice as
    long as there are at least 2 x `per_step` problems. Nothing is carried from step to step, so a resumed run needs
    only the number of its step.

    >>> [prompts_for_step(4, 3, step, seed=0, shuffle=False) for step in range(3)]
    [((0, 1, 2), 0), ((3, 0, 1), 0), ((2, 3, 0), 1)]
    """
    start = step * per_step
    places = (divmod(position, count) for position in range(start, start + per_step))
    return tuple(_order(count, per_step, seed, epoch, shuffle)[place] for epoch, place in places), start // count


@lru_cache(maxsize=4)
def _order(count: int, per_step: int, seed: int, epoch: int, shuffle: bool) -> tuple[int, ...]:
    """The problems of one pass. `random.Random` of a text is the same in every process and Python version."""
    if not shuffle:
        return tuple(range(count))
    order = _shuffled(count, seed, epoch)
    before = epoch * count % per_step  # problems of the pass before in the step where this pass begins
    if before == 0 or count < 2 * per_step:
        return tuple(order)
    # The first of this pass share a step with the last of the one before: put those that are in both behind. This
    # looks at no more than `per_step` problems, so the end of the pass, which the next one looks at, stays as it is.
    recent = set(_shuffled(count, seed, epoch - 1)[-before:])
    head: list[int] = []
    late: list[int] = []
    rest = iter(order)
    while len(head) < per_step - before:
        index = next(rest)
        (late if index in recent else head).append(index)
    return (*head, *late, *rest)


def _shuffled(count: int, seed: int, epoch: int) -> list[int]:
    order = list(range(count))
    random.Random(f"{seed} {epoch}").shuffle(order)
    return order


# -- selection -------------------------------------------------------------------------------------------


def _distinct(records: Iterable[Record], exclude: Set[str], tally: Counter[str]) -> Iterator[Record]:
    """The first record of each prompt text that is not excluded; counts the others."""
    seen: set[bytes] = set()
    for record in records:
        key = hashlib.blake2b(record.prompt.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if record.prompt in exclude:
            tally["overlap"] += 1
        elif key in seen:
            tally["duplicates"] += 1
        else:
            seen.add(key)
            yield record


def _first(distinct: Iterator[Record], data: DataSection, held: int) -> tuple[list[Record], list[Record]]:
    """Training and held-out problems of a task: held out are the first, so that they do not follow data.problems."""
    taken = list(islice(distinct, held))
    train = list(islice(distinct, data.problems))
    there = len(taken) + len(train)
    if there < held + data.problems:
        raise InputError(
            f'data.task = "{data.task}" has only {there} distinct problems with these data.params; '
            f"data.problems = {data.problems} and eval.problems = {held} ask for {data.problems + held}: set the two "
            f"to {there} or less in all, or parameters that make more problems"
        )
    return train, taken


def _split(
    distinct: Iterator[Record], data: DataSection, asked: int | None, seed: int
) -> tuple[list[Record], list[Record]]:
    """Training and held-out problems of a file, in its order: held out are those whose keyed hash is lowest, as many
    as are `asked` for, or else `held_out` of the file.

    Keeps no more than data.problems + 2 x the held-out records of a file of any length.
    """
    held = held_out(asked, None)
    candidates: list[Record] = []
    lowest: list[tuple[int, int, Record]] = []
    total = 0
    for total, record in enumerate(distinct, start=1):
        if len(candidates) < data.problems + held:
            candidates.append(record)
        if held:
            push = heapq.heappush if len(lowest) < held else heapq.heappushpop
            push(lowest, (-_rank(record, seed), -total, record))
    lowest = sorted(lowest, reverse=True, key=lambda item: item[:2])[: held_out(asked, total)]
    taken = [record for _, _, record in sorted(lowest, key=lambda item: -item[1])]
    names = {record.prompt for record in taken}
    train = [record for record in candidates if record.prompt not in names][: data.problems]
    if not train:
        raise InputError(_none_left(data, total, held))
    return train, taken


def _none_left(data: DataSection, total: int, held: int) -> str:
    """Why a file of `total` distinct problems leaves none for training when `held` are asked for evaluation."""
    if not held:
        return f'data.file = "{data.file}": every problem is also in eval.file; give other problems to one of them'
    plural = "" if total == 1 else "s"
    fewer = "eval.problems = 0" if total == 1 else f"eval.problems below {total}"
    return (
        f'data.file = "{data.file}": has {total} distinct problem{plural}, and eval.problems = {held} holds '
        f"{'it' if total == 1 else min(held, total)} out, which leaves none for training: set {fewer}, give more "
        "problems, or set eval.file"
    )


def _rank(record: Record, seed: int) -> int:
    text = record.prompt.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8, key=str(seed).encode()).digest())


def _evaluation_file(data: DataSection, evaluation: EvalSection) -> list[Record]:
    """The first eval.problems distinct problems of eval.file, if there is one."""
    wanted = held_out(evaluation.problems, None)
    if evaluation.file is None or wanted == 0:
        return []
    with closing(read_records(evaluation.file, data.prompt_key, data.label_key, "eval.file")) as records:
        return list(islice(_distinct(records, frozenset(), Counter()), wanted))


def all_too_long(data: DataSection, setting: str, records: Sequence[Record], shortest: int | None) -> str:
    """No prompt is within data.max_prompt. `shortest` is in tokens, None where none was worth counting."""
    least = (
        f"{min(map(_bytes, records))} bytes: give shorter problems, or set data.max_prompt far higher"
        if shortest is None
        else f"{shortest} tokens: set data.max_prompt to that or more"
    )
    return (
        f"data.max_prompt = {data.max_prompt}: all {len(records)} {setting} prompts are longer; the shortest has "
        f"{least}"
    )


def surely_too_long(record: Record, data: DataSection) -> bool:
    """Whether a text is certain to be over data.max_prompt. It is not tokenized: megabytes would take minutes."""
    return _bytes(record) > TOKEN_BYTES * data.max_prompt


def _bytes(record: Record) -> int:
    """UTF-8 bytes of the problem's own text."""
    return len(record.prompt.encode("utf-8", "surrogatepass"))


def _problem_set(
    train: list[Record], held: list[Record], data: DataSection, tokenizer: Tokenizer, tally: Counter[str]
) -> ProblemSet:
    kept: list[tuple[Problem, ...]] = []
    for setting, records in (("training", train), ("evaluation", held)):
        sized = [record for record in records if not surely_too_long(record, data)]
        encoded = [(record, prompt_ids(record, data, tokenizer)) for record in sized]
        short = [(record, ids) for record, ids in encoded if len(ids) <= data.max_prompt]
        if records and not short:
            shortest = min((len(ids) for _, ids in encoded), default=None)
            raise InputError(all_too_long(data, setting, records, shortest))
        tally["long"] += len(records) - len(short)
        kept.append(
            tuple(
                Problem(index, record.prompt, ids, record.label, record.entry)
                for index, (record, ids) in enumerate(short)
            )
        )
    return ProblemSet(kept[0], kept[1], tally["long"], tally["duplicates"], tally["overlap"])
