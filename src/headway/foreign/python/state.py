"""What a Python script has set so far, and how two ways that it may go are joined to one."""

from pathlib import Path
from time import monotonic
from typing import Any

from msgspec import Struct, field

from headway.foreign.python.values import MISSING, Either, Func, Obj, Scope, Unknown, either, options, same

MOST_STEPS = 300_000
MOST_SECONDS = 2.0
DEEPEST_CALL = 14
MOST_NAMES = 500
MOST_FORKS = 160
"""Conditions that the script does not decide, each of which is followed both ways."""


class StoppedError(Exception):
    """Reading a script took more steps or time than it may."""


LENGTHS = frozenset({
    "max_length", "max_seq_length", "model_max_length", "block_size", "cutoff_len", "max_seq_len", "context_length",
    "max_len", "seq_len", "seq_length", "max_source_length", "max_target_length", "source_max_len", "target_max_len",
})  # fmt: skip
"""Names that scripts give to the length to which they cut their data."""


class Event(Struct, frozen=True):
    """Something that matters and happens when the script runs: a trainer is made (`made`), trains (`train`), or a
    launcher starts a command (`launch`, `command`). `when`: what it hangs on, where the script does not tell."""

    kind: str
    what: Any
    file: str
    line: int
    when: str = ""


class State(Struct):
    """All of it. `arguments` are the words of the command after the script, `environment` what is set for it."""

    root: Path | None
    arguments: tuple[Any, ...] = ()
    environment: dict[str, Any] = field(default_factory=dict)
    scopes: list[Scope] = field(default_factory=list)
    modules: dict[str, Scope] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    notes: dict[str, None] = field(default_factory=dict)
    asked: dict[str, str] = field(default_factory=dict)
    when: list[str] = field(default_factory=list)
    imported: list[str] = field(default_factory=list)
    """Names of libraries that the script uses and does not import."""
    ended: str = ""
    """Where the script ends by itself, by an error or an exit."""
    lengths: dict[str, tuple[int, str, int]] = field(default_factory=dict)
    """Numbers of tokens by the names that lengths have, with file and line: of flags, fields and parameters."""
    numbers: dict[str, tuple[int, str, int]] = field(default_factory=dict)
    """The same of every name."""
    steps: int = MOST_STEPS
    forks: int = MOST_FORKS
    depth: int = 0
    deadline: float = field(default_factory=lambda: monotonic() + MOST_SECONDS)

    def spend(self, steps: int = 1) -> None:
        """Count steps. StoppedError where none is left."""
        self.steps -= steps
        if self.steps < 0:
            raise StoppedError(f"more than {MOST_STEPS:,} steps")
        if self.steps % 64 < steps and monotonic() > self.deadline:
            raise StoppedError(f"longer than {MOST_SECONDS:g} s")

    def note(self, text: str) -> None:
        """Something that was assumed."""
        if len(self.notes) < 40:
            self.notes[text] = None

    def length(self, name: str, value: Any, file: str, line: int) -> None:
        """A name that has a value: kept where it is a number, and as a length where it is the name of one."""
        if type(value) is not int or not 0 < value < 10**7:
            return
        if len(self.numbers) < MOST_NAMES:
            self.numbers[name.lower()] = (value, file, line)
        if name.lower() in LENGTHS:
            self.lengths[name.lower()] = (value, file, line)

    def event(self, kind: str, what: Any, file: str, line: int) -> None:
        """Something happens."""
        if len(self.events) < 200:
            self.events.append(Event(kind, what, file, line, self.when[-1] if self.when else ""))


class Saved:
    """A copy of what can change: the variables of all scopes that can be reached, the environment, the events."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.memo: dict[int, Any] = {}
        self.names: dict[Scope, dict[str, Any]] = {}
        self.events: list[Event] = []
        waiting = [*state.scopes, *state.modules.values()]
        self.found = waiting
        while waiting:
            scope = waiting.pop()
            if scope in self.names:
                continue
            self.names[scope] = {}
            self.names[scope] = {name: self.copy(value) for name, value in scope.names.items()}
            if scope.outer is not None:
                waiting.append(scope.outer)
        self.environment = {name: self.copy(value) for name, value in state.environment.items()}
        self.events = [
            Event(each.kind, self.copy(each.what), each.file, each.line, each.when) for each in state.events
        ]

    def copy(self, value: Any) -> Any:
        """A copy of a value, once for each that there is."""
        if isinstance(value, Func):
            self.found.append(value.scope)
            return value
        if not isinstance(value, list | dict | tuple | Obj | Either):
            return value
        known = self.memo.get(id(value))
        if known is not None:
            return known[0]
        self.state.spend()
        if isinstance(value, Obj):
            made = Obj(value.path, value.file, value.line, value.cls)
            made.serial = value.serial
            self.memo[id(value)] = (made, value)
            made.args = [self.copy(each) for each in value.args]
            made.kwargs = {name: self.copy(each) for name, each in value.kwargs.items()}
            made.attrs = {name: self.copy(each) for name, each in value.attrs.items()}
            made.calls = list(value.calls)
            made.places = dict(value.places)
            return made
        if isinstance(value, list):
            rows: list[Any] = []
            self.memo[id(value)] = (rows, value)
            rows.extend(self.copy(each) for each in value)
            return rows
        if isinstance(value, dict):
            table: dict[Any, Any] = {}
            self.memo[id(value)] = (table, value)
            table.update((key, self.copy(each)) for key, each in value.items())
            return table
        whole: Any
        if isinstance(value, Either):
            whole = Either(tuple(self.copy(each) for each in value.options), value.why)
        else:
            whole = tuple(self.copy(each) for each in value)
        self.memo[id(value)] = (whole, value)
        return whole

    def restore(self) -> None:
        """Put it back. It can be put back once."""
        for scope, names in self.names.items():
            scope.names = names
        self.state.environment = self.environment
        self.state.events = self.events


def join(state: State, other: Saved, why: str) -> None:
    """Make of the state, which went one way, and of the saved one, which went another, one for both."""
    memo: dict[int, Obj] = {}
    for scope, names in other.names.items():
        scope.names = _tables(names, scope.names, why, memo, absent=False)
    state.environment = _tables(other.environment, state.environment, why, memo, absent=True)
    shared = 0
    while shared < min(len(state.events), len(other.events)):
        one, two = state.events[shared], other.events[shared]
        if (one.kind, one.file, one.line) != (two.kind, two.file, two.line):
            break
        shared += 1
    both = zip(state.events[:shared], other.events[:shared], strict=True)
    state.events = [
        *(Event(one.kind, merge(two.what, one.what, why, memo), one.file, one.line, one.when) for one, two in both),
        *other.events[shared:], *state.events[shared:],
    ]  # fmt: skip


def _tables(
    one: dict[Any, Any], other: dict[Any, Any], why: str, memo: dict[int, Obj], *, absent: bool
) -> dict[Any, Any]:
    """Tables joined key by key. A name that only one has holds what it has there, unless `absent` counts."""
    found = {}
    for key in dict.fromkeys((*one, *other)):
        if key in one and key in other:
            found[key] = merge(one[key], other[key], why, memo)
        else:
            there = one[key] if key in one else other[key]
            found[key] = either((MISSING, there), why) if absent else there
    return found


def merge(one: Any, other: Any, why: str, memo: dict[int, Obj]) -> Any:
    """What a variable holds after one way or the other."""
    if one is other:
        return one
    if isinstance(one, Obj) and isinstance(other, Obj) and one.serial == other.serial:
        known = memo.get(one.serial)
        if known is not None:
            return known
        memo[one.serial] = other
        other.args = [merge(*pair, why, memo) for pair in zip(one.args, other.args, strict=False)]
        other.kwargs = _tables(one.kwargs, other.kwargs, why, memo, absent=True)
        attrs = {}
        for name in dict.fromkeys((*one.attrs, *other.attrs)):
            attrs[name] = merge(one.get(name), other.get(name), why, memo)
        other.attrs = attrs
        other.places = {**one.places, **other.places}
        other.calls = [*other.calls, *(call for call in one.calls if call not in other.calls)]
        return other
    if isinstance(one, dict) and isinstance(other, dict):
        return _tables(one, other, why, memo, absent=True)
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [merge(*pair, why, memo) for pair in zip(one, other, strict=True)]
    if isinstance(one, Unknown) and isinstance(other, Unknown):
        return one
    if isinstance(one, tuple) and isinstance(other, tuple) and _twins(one, other):
        return tuple(merge(*pair, why, memo) for pair in zip(one, other, strict=True))
    if isinstance(one, Either) or isinstance(other, Either):
        return _several(one, other, why, memo)
    return one if same(one, other) else either((one, other), why)


def _several(one: Any, other: Any, why: str, memo: dict[int, Obj]) -> Any:
    """One of several values on one way or both: what is the same object on both ways counts once."""
    found = list(options(one))
    for each in options(other):
        twin = next((place for place, known in enumerate(found) if _twins(known, each)), None)
        if twin is None:
            found.append(each)
        else:
            found[twin] = merge(found[twin], each, why, memo)
    before = next(each for each in (one, other) if isinstance(each, Either))
    return either(found, before.why if len(found) == len(before.options) else why)


def _twins(one: Any, other: Any) -> bool:
    """Whether two values are one on two ways of a script: copies of an object, or rows of such."""
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_twins, one, other))
    if isinstance(one, Obj) and isinstance(other, Obj):
        return one.serial == other.serial
    return same(one, other)
