"""What a word of a script may be: text, text with holes, a stretch of unknown words, or one of several stretches."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

Kind = Literal["unset", "unread", "machine", "branch"]
"""Why something is unknown: a variable that nothing sets, one that a file which was not read may set, something that
only the machine at run time tells, or branches of the script that differ."""

LONGEST_TEXT = 1 << 16
LONGEST_ARRAY = 4096


class Origin(Struct, frozen=True):
    """Where a word is written: the file, its line from 1, and the byte positions of its text (-1: not known).

    >>> str(Origin("run.sh", 12))
    'run.sh line 12'
    """

    file: str
    line: int
    start: int = -1
    end: int = -1

    def __str__(self) -> str:
        return f"{self.file} line {self.line}"


class Placed(Struct, frozen=True, eq=False):
    """A record that knows where it was written: two that say the same are equal wherever that was."""

    def _said(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in self.__struct_fields__ if name not in _PLACES)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Placed) and type(other) is type(self) and other._said() == self._said()

    def __hash__(self) -> int:
        return hash(self._said())


_PLACES = frozenset(("at", "word", "place"))


class Hole(Struct, frozen=True):
    """A part of a word that the script does not tell. `name` is the variable or the command that would."""

    why: str
    name: str
    kind: Kind = "unset"


class Word(Placed, frozen=True):
    """One word: text, or text with holes in it.

    >>> word = Word(("/models/", Hole("variable MODEL is not set in the script", "MODEL")))
    >>> word.text is None, word.shown, word.why
    (True, '/models/${MODEL}', 'variable MODEL is not set in the script')
    """

    parts: tuple["str | Hole", ...] = ()
    at: Origin | None = None

    @property
    def text(self) -> str | None:
        """The whole text; None where a part is unknown."""
        if not self.parts:
            return ""
        if len(self.parts) == 1:
            part = self.parts[0]
            return part if isinstance(part, str) else None
        return None if self.holes else "".join(part for part in self.parts if isinstance(part, str))

    @property
    def holes(self) -> tuple[Hole, ...]:
        """The unknown parts."""
        return tuple(part for part in self.parts if isinstance(part, Hole))

    @property
    def shown(self) -> str:
        """The text with holes by their names, for messages."""
        return "".join(part if isinstance(part, str) else f"${{{part.name}}}" for part in self.parts)

    @property
    def why(self) -> str:
        """Why it is unknown; empty where it is text."""
        return "; ".join(dict.fromkeys(hole.why for hole in self.holes))

    @property
    def never_set(self) -> bool:
        """Whether it is nothing but variables that nothing sets: empty unless whoever runs the script sets them."""
        return bool(self.parts) and all(
            isinstance(part, Hole) and part.kind in ("unset", "unread") for part in self.parts
        )

    def put(self, at: Origin | None) -> "Word":
        """The same word, written at another place."""
        return replace(self, at=at)


class Gap(Struct, frozen=True):
    """Any number of unknown words, such as an array that a file which was not read would set.

    >>> Gap("MODEL_ARGS is not set in the script", "MODEL_ARGS").kind
    'unset'
    """

    why: str
    name: str
    kind: Kind = "unset"


class Choice(Struct, frozen=True):
    """One of several stretches of words, by a condition that the script alone does not decide.

    >>> Choice(((known("--colocate"),), ()), "depends on $MODE").options[1]
    ()
    """

    options: tuple[tuple["Item", ...], ...]
    why: str


Item = Word | Gap | Choice


class Array(Struct, frozen=True):
    """The words of an array, in the order of their indices, which are `keys` where some are left out.

    >>> Array((known("a"), known("b")), (0, 5)).place(5), Array((known("a"),)).place(5)
    (1, None)
    """

    items: tuple[Item, ...] = ()
    keys: tuple[int, ...] = ()

    def place(self, index: int) -> int | None:
        """Where the word of an index stands among the items; None where there is none."""
        if self.keys:
            return self.keys.index(index) if index in self.keys else None
        return index if 0 <= index < len(self.items) else None

    @property
    def next(self) -> int:
        """The index of a word that is added."""
        return self.keys[-1] + 1 if self.keys else len(self.items)


class Table(Struct, frozen=True):
    """An associative array."""

    entries: tuple[tuple[str, Word], ...] = ()


Value = Word | Array | Table


def known(text: str, at: Origin | None = None) -> Word:
    """A word of text.

    >>> known("train.py").text
    'train.py'
    """
    return Word((text,) if text else (), at)


def unknown(why: str, name: str, kind: Kind = "machine", at: Origin | None = None) -> Word:
    """A word that is one hole."""
    return Word((Hole(why, name, kind),), at)


def join(parts: Iterable[str | Hole], at: Origin | None = None) -> Word:
    """One word of parts, neighbouring texts put together. What is longer than any real word becomes a hole."""
    found: list[str | Hole] = []
    size = 0
    for part in parts:
        if isinstance(part, str):
            size += len(part)
            if not part:
                continue
            if found and isinstance(found[-1], str):
                found[-1] += part
                continue
        found.append(part)
        if size > LONGEST_TEXT or len(found) > LONGEST_ARRAY:
            return unknown("its text is longer than 64 KiB", "text", at=at)
    if size > LONGEST_TEXT:
        return unknown("its text is longer than 64 KiB", "text", at=at)
    return Word(tuple(found), at)


def array(items: Iterable[Item], keys: Iterable[int] = ()) -> Array:
    """An array; the words past the largest number that is kept become a gap."""
    found, places = tuple(items), tuple(keys)
    if len(found) > LONGEST_ARRAY:
        return Array((*found[:LONGEST_ARRAY], Gap(f"more than {LONGEST_ARRAY} words", "words", "machine")))
    dense = places == tuple(range(len(found))) or not all(isinstance(item, Word) for item in found)
    return Array(found, () if dense else places)


def merge(values: Sequence[Value | None], why: str) -> Value | None:
    """What a variable holds after branches that left it with these values; None is not set.

    >>> same, other = known("8"), known("4")
    >>> merge([same, same], "depends on $MODE") == same, merge([same, other], "depends on $MODE").text
    (True, None)
    """
    first = values[0]
    if all(value == first for value in values):
        return first
    if any(isinstance(value, Array) for value in values):
        joined = merge_items([_items(value) for value in values], why)
        sparse = any(isinstance(value, Array) and value.keys for value in values)
        # with indices left out no place is sure any more
        return Array((Choice(((),), why), *joined) if sparse else joined)
    if any(isinstance(value, Table) for value in values):
        tables = [dict(value.entries) if isinstance(value, Table) else {} for value in values]
        keys = dict.fromkeys(key for table in tables for key in table)
        merged = ((key, merge([table.get(key) for table in tables], why)) for key in keys)
        return Table(tuple((key, word) for key, word in merged if isinstance(word, Word)))
    shown = dict.fromkeys(value.shown if isinstance(value, Word) else "not set" for value in values)
    told = " or ".join(text[:40] or "empty" for text in shown)
    return unknown(f"{why} ({told[:120]})", "branch", "branch")


def _items(value: Value | None) -> tuple[Item, ...]:
    if isinstance(value, Array):
        return value.items
    return (value,) if isinstance(value, Word) else ()


def merge_items(lists: Sequence[tuple[Item, ...]], why: str) -> tuple[Item, ...]:
    """One stretch of words for several: what they share at both ends, and a choice of what is between."""
    lists = list(dict.fromkeys(lists))
    if len(lists) == 1:
        return lists[0]
    shortest = min(map(len, lists))
    head = 0
    while head < shortest and all(each[head] == lists[0][head] for each in lists):
        head += 1
    tail = 0
    while tail < shortest - head and all(each[-1 - tail] == lists[0][-1 - tail] for each in lists):
        tail += 1
    options = tuple(each[head : len(each) - tail] for each in lists)
    return (*lists[0][:head], Choice(options, why), *lists[0][len(lists[0]) - tail :])


MOST_WORLDS = 64


def worlds(items: Sequence[Item]) -> Iterator[tuple[Word | Gap, ...]]:
    """The command lines that the choices among the words allow: all of them where they are few, else those that
    differ from the first and from the last options in one choice.

    >>> line = (known("a"), Choice(((known("b"),), ()), "depends on $MODE"))
    >>> [[word.text for word in world] for world in worlds(line)]
    [['a', 'b'], ['a']]
    """
    choices: list[Choice] = []
    _collect(items, choices)
    counts = [len(choice.options) for choice in choices]
    total = 1
    for count in counts:
        total = min(total * count, MOST_WORLDS + 1)
    if total <= MOST_WORLDS:
        picks: Iterable[tuple[int, ...]] = product(*(range(count) for count in counts))
    else:
        picks = _near(counts)
    for pick in picks:
        yield tuple(_picked(items, iter(pick)))


def _near(counts: Sequence[int]) -> Iterator[tuple[int, ...]]:
    first, last = tuple(0 for _ in counts), tuple(count - 1 for count in counts)
    yield first
    yield last
    for base in (first, last):
        for index, count in enumerate(counts):
            for option in range(count):
                if option != base[index]:
                    yield (*base[:index], option, *base[index + 1 :])


def _collect(items: Sequence[Item], found: list[Choice]) -> None:
    for item in items:
        if isinstance(item, Choice):
            found.append(item)
            for option in item.options:
                _collect(option, found)


def _picked(items: Sequence[Item], pick: Iterator[int]) -> Iterator[Word | Gap]:
    """The words of one world. Choices within options that are not taken use up their picks too."""
    for item in items:
        if not isinstance(item, Choice):
            yield item
            continue
        chosen = next(pick)
        for index, option in enumerate(item.options):
            words = list(_picked(option, pick))
            if index == chosen:
                yield from words


def reasons(items: Sequence[Item]) -> tuple[str, ...]:
    """Why the words are not fully known, each reason once."""
    found: list[str] = []
    for item in items:
        if isinstance(item, Choice):
            found.append(item.why)
            for option in item.options:
                found += reasons(option)
        elif isinstance(item, Gap) or item.holes:
            found.append(item.why)
    return tuple(dict.fromkeys(found))
