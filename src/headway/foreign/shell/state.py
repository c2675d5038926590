"""Everything that a script has set so far: variables, functions, arguments, folder."""

from collections.abc import Sequence
from time import monotonic
from typing import TYPE_CHECKING

from msgspec import Struct, field

from headway.foreign import jobs
from headway.foreign.shell.values import (
    Array,
    Hole,
    Item,
    Table,
    Value,
    Word,
    array,
    join,
    known,
    merge,
    unknown,
)

if TYPE_CHECKING:
    from headway.foreign.shell.parse import Node, Unit

MOST_STEPS = 30_000
MOST_SECONDS = 1.0
DEEPEST = 48

FROM_OUTSIDE = frozenset({
    "HOME", "USER", "LOGNAME", "PATH", "PWD", "OLDPWD", "SHELL", "HOSTNAME", "UID", "EUID", "PPID", "RANDOM",
    "SECONDS", "OSTYPE", "HOSTTYPE", "BASHPID", "EPOCHSECONDS", "TERM", "LANG",
})  # fmt: skip
"""Variables that are set wherever a script runs, to what only that machine knows."""


class StoppedError(Exception):
    """Reading a script took more steps or time than it may."""


class Budget(Struct):
    """Steps and seconds that reading one script may take."""

    steps: int = MOST_STEPS
    deadline: float = field(default_factory=lambda: monotonic() + MOST_SECONDS)
    depth: int = 0

    def spend(self, steps: int = 1) -> None:
        """Count a step. StoppedError where none is left."""
        self.steps -= steps
        if self.steps < 0:
            raise StoppedError(f"more than {MOST_STEPS:,} steps")
        if monotonic() > self.deadline:
            raise StoppedError(f"longer than {MOST_SECONDS:g} s")


class State(Struct):
    """What the script has set. A branch that may or may not be taken works on a copy.

    `output` holds what was printed, where somebody reads it, else None. `missing` are files that were to be sourced
    and were not read: what nothing else sets may be set there. `asked` are the variables that were used and that
    nothing sets, of all branches together.
    """

    variables: dict[str, Value] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    functions: "dict[str, tuple[Unit, Node]]" = field(default_factory=dict)
    arguments: tuple[Item, ...] = ()
    script: Word = field(default_factory=lambda: known("script"))
    sources: tuple[Word, ...] = ()
    folder: Word = field(
        default_factory=lambda: unknown("the folder that the script is started in is not known", "PWD")
    )
    references: dict[str, str] = field(default_factory=dict)
    shadowed: list[dict[str, Value | None]] = field(default_factory=list)
    output: Word | None = None
    missing: tuple[str, ...] = ()
    asked: set[str] = field(default_factory=set)

    def copy(self) -> "State":
        """A state that changes apart from this one."""
        return State(
            dict(self.variables), set(self.exported), dict(self.functions), self.arguments, self.script, self.sources,
            self.folder, dict(self.references), [dict(frame) for frame in self.shadowed], self.output, self.missing,
            self.asked,
        )  # fmt: skip

    def take(self, other: "State") -> None:
        """Become the other state."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(other, name))

    def name(self, name: str) -> str:
        """The variable that a name stands for (`local -n`)."""
        for _ in range(8):
            if name not in self.references:
                break
            name = self.references[name]
        return name

    def get(self, name: str) -> Value | None:
        """What a variable holds; None where nothing set it."""
        return self.variables.get(self.name(name))

    def set(self, name: str, value: Value) -> None:
        """Set a variable."""
        self.variables[self.name(name)] = value

    def hole(self, name: str) -> Hole:
        """What stands where a variable is used that nothing set."""
        if name in FROM_OUTSIDE:
            return Hole(f"variable {name} is the machine's", name, "machine")
        self.asked.add(name)
        if who := jobs.setter(name):
            return Hole(f"variable {name} is set by {who}, not in the script", name, "unset")
        if self.missing:
            files = ", ".join(self.missing[:3])
            return Hole(f"variable {name} is not set in the script, nor was {files} read", name, "unread")
        return Hole(f"variable {name} is not set in the script", name, "unset")

    def argument(self, number: int) -> Word | None:
        """A positional argument as far as it is known; None where it was not given."""
        if number == 0:
            return self.script
        if number <= len(self.arguments):
            item = self.arguments[number - 1]
            before = self.arguments[: number - 1]
            if isinstance(item, Word) and all(isinstance(each, Word) for each in before):
                return item
            return unknown(f"argument {number} is not known", str(number), "branch")
        return None

    def scalar(self, name: str) -> Word | None:
        """The text of a variable, of an array its first word; None where nothing set it."""
        value = self.get(name)
        if value is None or isinstance(value, Word):
            return value
        if isinstance(value, Table):
            return dict(value.entries).get("0")
        return element(value, 0)

    def append(self, name: str, value: Value) -> None:
        """`name+=value`."""
        before = self.get(name)
        if isinstance(value, Array):
            held = before if isinstance(before, Array) else Array((before,) if isinstance(before, Word) else ())
            keys = (*held.keys, *range(held.next, held.next + len(value.items))) if held.keys else ()
            self.set(name, array((*held.items, *value.items), keys))
        elif isinstance(value, Table) and isinstance(before, Table):
            self.set(name, Table(tuple({**dict(before.entries), **dict(value.entries)}.items())))
        elif isinstance(value, Word) and isinstance(before, Array):
            first = element(before, 0)
            put_element(self, name, 0, value if first is None else join((*first.parts, *value.parts), value.at))
        elif isinstance(value, Word) and isinstance(before, Word):
            self.set(name, join((*before.parts, *value.parts), value.at))
        else:
            self.set(name, value)

    def write(self, text: Word) -> None:
        """Print, where somebody reads it."""
        if self.output is not None:
            self.output = join((*self.output.parts, *text.parts))


def element(value: Array, index: int) -> Word | None:
    """The word at an index of an array; None where there is none, a hole where words before it are not known."""
    if all(isinstance(item, Word) for item in value.items):
        place = value.place(index + value.next if index < 0 else index)
        found = value.items[place] if place is not None else None
        return found if isinstance(found, Word) else None
    before = value.items[index:] if index < 0 else value.items[: index + 1]
    doubt = next((item for item in before if not isinstance(item, Word)), None)
    if doubt is not None or len(before) < abs(index):
        return unknown(doubt.why if doubt is not None else "the array's words are not all known", "element", "branch")
    found = before[0] if index < 0 else before[-1]
    return found if isinstance(found, Word) and (index < 0 or len(before) > index) else None


def put_element(state: State, name: str, index: int, word: Word) -> None:
    """`name[index]=word`. Where the words before are not known, it is added at the end."""
    before = state.get(name)
    held = before if isinstance(before, Array) else Array((before,) if isinstance(before, Word) else ())
    if not all(isinstance(item, Word) for item in held.items):
        known_before = all(isinstance(item, Word) for item in held.items[: index + 1])
        items = list(held.items)
        if 0 <= index < len(items) and known_before:
            items[index] = word
        else:
            items.append(word)
        state.set(name, array(items))
        return
    keys = held.keys or tuple(range(len(held.items)))
    entries = dict(zip(keys, held.items, strict=True))
    entries[index + held.next if index < 0 else index] = word
    ordered = sorted(entries.items())
    state.set(name, array((item for _, item in ordered), (key for key, _ in ordered)))


def merged(states: Sequence[State], why: str) -> State:
    """One state for several that a condition decides between."""
    result = states[0].copy()
    names = dict.fromkeys(name for state in states for name in state.variables)
    for name in names:
        value = merge([state.variables.get(name) for state in states], why)
        if value is not None:
            result.variables[name] = value
    result.exported = set().union(*(state.exported for state in states))
    for state in states[1:]:
        result.functions = {**state.functions, **result.functions}
        result.missing = tuple(dict.fromkeys((*result.missing, *state.missing)))
    folders = merge([state.folder for state in states], why)
    result.folder = folders if isinstance(folders, Word) else result.folder
    if len({state.arguments for state in states}) > 1:
        result.arguments = ()
    outputs = [state.output for state in states]
    if any(output is not None for output in outputs):
        output = merge(outputs, why)
        result.output = output if isinstance(output, Word) else None
    return result
