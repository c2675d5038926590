"""What an expression of a Python script is found to be: a plain value, one of several, or unknown with the reason."""

from collections.abc import Callable, Iterable
from itertools import count
from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    import ast

LONGEST_TEXT = 1 << 16
"""Characters of a text that is kept."""
LONGEST_LIST = 1024
MOST_OPTIONS = 8
LARGEST = 10**30
"""The largest number that is worked out; no setting of a run comes near it."""


class Unknown(Struct, frozen=True):
    """A value that the script does not tell.

    `variable`: it is a variable of the environment, which may not be set.

    >>> Unknown("train.py line 3: what load() gives is known only at run time").why
    'train.py line 3: what load() gives is known only at run time'
    """

    why: str
    variable: str = ""


class Missing(Struct, frozen=True):
    """Nothing is there: an argument that is not given in one of the ways that a script may go."""


MISSING = Missing()


class Either(Struct, frozen=True):
    """One of several values, by a condition that is decided at run time.

    >>> either((8, 4, 8), "depends on args.fast").options
    (8, 4)
    """

    options: tuple[Any, ...]
    why: str


class Text(Struct, frozen=True):
    """Text with parts that are not known: pieces of text, `Unknown` and `Either`.

    >>> Text(("--lr ", Unknown("depends on args.lr"))).shown
    '--lr ...'
    """

    parts: tuple[Any, ...]

    @property
    def shown(self) -> str:
        """The text with dots for what is not known."""
        return "".join(part if isinstance(part, str) else "..." for part in self.parts)

    @property
    def why(self) -> str:
        """Why it is not known."""
        return next((part.why for part in self.parts if not isinstance(part, str)), "")


class Ref(Struct, frozen=True):
    """A name of a library, such as `trl.GRPOConfig` or `torch.bfloat16`; nothing of the library is looked at.

    >>> Ref("torch.bfloat16").last
    'bfloat16'
    """

    path: str

    @property
    def last(self) -> str:
        """The name alone."""
        return self.path.rpartition(".")[2]


class Scope:
    """The variables of a module, a function's call, or a class; `outer` is where other names are looked for."""

    __slots__ = ("file", "names", "outer")

    def __init__(self, file: str, outer: "Scope | None" = None) -> None:
        self.file, self.outer = file, outer
        self.names: dict[str, Any] = {}

    def find(self, name: str) -> Any:
        """What a name stands for; MISSING where nothing set it."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.outer
        return MISSING


class Func(Struct, frozen=True, eq=False):
    """A function of the script; `defaults` are those of its parameters, `bound` the object of a method."""

    node: "ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda"
    scope: Scope
    defaults: dict[str, Any]
    bound: Any = MISSING
    decorators: tuple[Any, ...] = ()


class Cls(Struct, frozen=True, eq=False):
    """A class of the script. `fields` are the names with a type, in order; `types` what is written for them."""

    name: str
    bases: tuple[Any, ...]
    scope: Scope
    fields: tuple[str, ...]
    types: dict[str, str]
    line: int


_serial = count(1)


class Obj:
    """Something that a call made: of a library (`path`) or of a class of the script (`cls`).

    `args` and `kwargs` are those of the call, `attrs` what was set later, `calls` the methods called on it, `places`
    the line of each argument. `serial` stays the same in copies, so that two ways of a script can be joined.
    """

    __slots__ = ("args", "attrs", "calls", "cls", "file", "kwargs", "line", "path", "places", "serial")

    def __init__(self, path: str, file: str = "", line: int = 0, cls: Cls | None = None) -> None:
        self.path, self.file, self.line, self.cls = path, file, line, cls
        self.args: list[Any] = []
        self.kwargs: dict[str, Any] = {}
        self.attrs: dict[str, Any] = {}
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any], int]] = []
        self.places: dict[str, tuple[str, int]] = {}
        self.serial = next(_serial)

    @property
    def last(self) -> str:
        """The name of what was called, without its module."""
        return self.path.rpartition(".")[2]

    def get(self, name: str) -> Any:
        """An attribute, else the argument of that name; MISSING where there is neither."""
        return self.attrs[name] if name in self.attrs else self.kwargs.get(name, MISSING)

    def set(self, name: str, value: Any, file: str, line: int) -> None:
        """Set an attribute."""
        self.attrs[name], self.places[name] = value, (file, line)


def same(one: Any, other: Any) -> bool:
    """Whether two values are the same for a run: of one type, and equal."""
    if isinstance(one, Obj | Func | Cls | Scope) or isinstance(other, Obj | Func | Cls | Scope):
        return one is other
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    return bool(one == other)


def options(value: Any) -> tuple[Any, ...]:
    """The values that something may have."""
    return value.options if isinstance(value, Either) else (value,)


def either(values: Iterable[Any], why: str) -> Any:
    """One value of several: itself where all are the same."""
    found: list[Any] = []
    for value in values:
        for each in options(value):
            if not any(same(each, known) for known in found):
                found.append(each)
            if len(found) > MOST_OPTIONS:
                return Unknown(why)
    return found[0] if len(found) == 1 else Either(tuple(found), why)


def lift(function: Callable[..., Any], *values: Any) -> Any:
    """A function of values of which some are one of several: for every combination of a few, else unknown."""
    place = next((place for place, value in enumerate(values) if isinstance(value, Either)), None)
    if place is None:
        return function(*values)
    why = values[place].why
    found = [lift(function, *values[:place], each, *values[place + 1 :]) for each in values[place].options]
    return either(found, why)


def reason(*values: Any) -> str:
    """Why one of the values is not known; empty where all are."""
    for value in values:
        if isinstance(value, Unknown | Either | Text):
            return value.why
        if isinstance(value, list | tuple):
            why = reason(*value)
            if why:
                return why
    return ""


def is_plain(value: Any) -> bool:
    """Whether a value is known through and through: numbers, texts, truths, None, and lists and tables of them."""
    if isinstance(value, list | tuple):
        return all(map(is_plain, value))
    if isinstance(value, dict):
        return all(map(is_plain, value.values()))
    return value is None or isinstance(value, bool | int | float | str)


def joined(parts: Iterable[Any]) -> Any:
    """Text of parts: a plain one where all are known."""
    found: list[Any] = []
    size = 0
    for part in parts:
        for piece in part.parts if isinstance(part, Text) else (part,):
            if isinstance(piece, bool | int | float):
                piece = str(piece)
            if not isinstance(piece, str | Unknown | Either):
                piece = Unknown("a part of a text is known only when it runs")
            if isinstance(piece, str):
                size += len(piece)
                if found and isinstance(found[-1], str):
                    found[-1] += piece
                    continue
            found.append(piece)
            if size > LONGEST_TEXT or len(found) > LONGEST_LIST:
                return Unknown("its text is longer than 64 KiB")
    if not found:
        return ""
    return found[0] if len(found) == 1 and isinstance(found[0], str) else Text(tuple(found))
