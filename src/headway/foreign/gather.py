"""From what a script gives to the keys of `Found`: values by their kind, defaults apart, unknowns with the reason."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import isfinite
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from headway.facts.names import like
from headway.foreign.command import Flag, Launch, Line, launches
from headway.foreign.found import KEYS, SHAPE_KEYS, Found, Setting
from headway.foreign.shell import Command, Script, files
from headway.foreign.shell.values import Gap, Origin, Placed, Word, worlds

LONGEST = 512


class Got(Placed, frozen=True):
    """What a script says of one setting: a raw value, nothing, or something that cannot be known (`why`).

    >>> Got("8", given=True).as_int()
    8
    """

    raw: object = None
    given: bool = False
    why: str = ""
    at: Origin | None = None
    word: Word | None = None

    def as_int(self) -> int | None:
        """A whole number; ValueError where it is none."""
        return whole(self.raw)


Kind = Callable[[object], Setting]


def whole(raw: object) -> int | None:
    """A whole number, or None. ValueError for anything else.

    >>> whole("1_024"), whole(8.0), whole("1e3")
    (1024, 8, 1000)
    """
    value = _numeral(raw, r"[-+]?[\d_]+")
    if value is None:
        return None
    if value != int(value):
        raise ValueError(raw)
    return int(value)


def number(raw: object) -> int | float | None:
    """A number, or None. ValueError for anything else.

    >>> number("1e-3"), number("2"), number(0.5)
    (0.001, 2, 0.5)
    """
    return _numeral(raw, r"[-+]?\d+")


def _numeral(raw: object, digits: str) -> int | float | None:
    """A finite number, an integer where the text is all `digits` (a pattern); None for None, else ValueError."""
    if raw is None:
        return None
    if isinstance(raw, bool):
        raise ValueError(raw)
    if isinstance(raw, int):
        return raw
    text = str(raw).strip()[:40]
    if re.fullmatch(digits, text):
        return int(text)
    value = float(text)
    if not isfinite(value):
        raise ValueError(raw)
    return value


TRUTHS = {"true": True, "yes": True, "y": True, "on": True, "1": True, "t": True}
TRUTHS |= {"false": False, "no": False, "n": False, "off": False, "0": False, "f": False}


def truth(raw: object) -> bool | None:
    """True or false, or None. ValueError for anything else.

    >>> truth("True"), truth("no"), truth(None)
    (True, False, None)
    """
    if raw is None or isinstance(raw, bool):
        return raw
    found = TRUTHS.get(str(raw).strip().lower()[:8])
    if found is None:
        raise ValueError(raw)
    return found


def text(raw: object) -> str | None:
    """Text, or None. ValueError for tables and lists, and for what is no name."""
    if raw is None:
        return None
    if isinstance(raw, dict | list | tuple):
        raise ValueError(raw)
    found = str(raw).strip()
    if len(found) > LONGEST or not found.isprintable():
        raise ValueError(raw)
    return found or None


DTYPES = {
    "bfloat16": "bf16", "bf16": "bf16", "float16": "fp16", "fp16": "fp16", "half": "fp16", "float32": "fp32",
    "fp32": "fp32", "float": "fp32",
}  # fmt: skip


def dtype(raw: object) -> str | None:
    """The name of a number format as headway has it; others, such as `auto`, as they are.

    >>> dtype("torch.bfloat16"), dtype("auto")
    ('bf16', 'auto')
    """
    name = text(raw)
    return None if name is None else DTYPES.get(name.lower().removeprefix("torch."), name)


def flag(line: Line, *names: str, switch: bool = False) -> Got:
    """What a command line says of a flag: of the last of these names.

    A `switch` alone is true. A flag that is not there is unknown where words are not known that may hold it.
    """
    last = line.last(*names)
    if last is None:
        hidden = hides(line)
        return Got(why=f"may be among words that are not known: {hidden}") if hidden else Got()
    return _value(last, switch)


def _value(last: Flag, switch: bool) -> Got:
    if last.why:
        return Got(given=True, why=last.why, at=last.written, word=last.values[0] if last.values else None)
    if switch and not last.values:
        return Got(True, given=True, at=last.written)
    if not last.values:
        return Got(None, given=True, at=last.written)
    return Got(last.values[0].text, given=True, at=last.written)


def hides(line: Line) -> str:
    """Why words of a command line are not known that may be flags; empty where there are none.

    An array or a variable that nothing sets is taken to be empty, as it is when the script runs as it stands.
    """
    found = [gap.why for gap in line.gaps if gap.kind != "unset"]
    for given in line.flags.values():
        for each in given:
            # a variable behind a flag's own value may hold further flags
            beyond = [word for word in each.values[1:] if len(word.parts) == 1 and word.holes]
            found += [word.why for word in beyond if word.holes[0].kind != "unset"]
    return "; ".join(dict.fromkeys(found))[:200]


class Gather(Struct):
    """Fills the keys of a `Found` one by one; every key that nothing fills is not given."""

    system: str
    settings: dict[str, Setting] = field(default_factory=dict)
    derived: dict[str, Setting] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    places: dict[str, Origin] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)

    def take(self, key: str, got: Got, kind: Kind, default: Setting = None, absent: Setting = None) -> None:
        """One key from what the script says. `default` is the system's where it says nothing."""
        if got.at is not None:
            self.places[key] = got.at
        if got.why:
            self.unknown[key] = got.why
            return
        if not got.given:
            self.settings[key] = absent
            self.derive(key, default)
            return
        try:
            self.settings[key] = kind(got.raw)
        except (ValueError, OverflowError):
            self.unknown[key] = f"{str(got.raw)[:60]!r} is not a value of this setting"
        if self.settings.get(key, 0) is None:
            self.derive(key, default)

    def said(self, key: str, value: Setting, places: Iterable[Got] = ()) -> None:
        """A key with a value that was worked out."""
        self.settings[key] = value
        at = next((got.at for got in places if got.at is not None), None)
        if at is not None:
            self.places[key] = at

    def derive(self, key: str, value: Setting) -> None:
        """What the system makes of a key that the script does not give."""
        if value is not None:
            self.derived[key] = value

    def cannot(self, key: str, why: str) -> None:
        """A key that cannot be told."""
        self.settings.pop(key, None)
        self.derived.pop(key, None)
        self.unknown[key] = why

    def value(self, key: str) -> Setting:
        """What a key is for the run; None where it is not known."""
        if key in self.unknown:
            return None
        said = self.settings.get(key)
        return self.derived.get(key) if said is None else said

    def count(self, key: str) -> int | None:
        """A key as a whole number above zero; None where it is none."""
        found = self.value(key)
        return found if isinstance(found, int) and not isinstance(found, bool) and found > 0 else None

    def shapes(self, model: str, shape: dict[str, int]) -> None:
        """The keys that describe the model, where the system reads them from the model's own files."""
        for key in SHAPE_KEYS:
            if key not in self.settings and key not in self.unknown:
                self.settings[key] = None
                self.derive(key, shape.get(key))
        if model and not shape and not like(model):
            self.notes.append(f"the sizes of {model} are in its config.json, which is not here")

    def found(self, **more: object) -> Found:
        """The record. What no one filled was not given."""
        for key in KEYS:
            if key not in self.settings and key not in self.unknown:
                self.settings[key] = None
        self.settings["system"] = self.system
        settings = {key: self.settings[key] for key in KEYS if key not in self.unknown}
        derived = {key: value for key, value in self.derived.items() if key not in self.unknown}
        record = Found(
            self.system, settings, derived, dict(self.unknown), tuple(self.unread), tuple(self.notes),
            places=dict(self.places),
        )  # fmt: skip
        return replace(record, **more)


def named(line: Line) -> Line:
    """The line with underscores for dashes in the names of its flags, where a parser takes both."""
    flags: dict[str, tuple[Flag, ...]] = {}
    for name, given in line.flags.items():
        key = name.replace("-", "_")
        flags[key] = (*flags.get(key, ()), *given)
    return Line(flags, line.words, line.gaps, line.loose, line.asked)


def checkpoint(into: Gather, got: Got) -> str:
    """The model's name, the last part of its path, with the keys of its shape; the path itself is returned.

    The name may be known where the folder before it is not.
    """
    path = "" if got.raw is None else str(got.raw)[:LONGEST]
    word = got.word
    if got.given and not path and word is not None:
        last = word.parts[-1] if word.parts else ""
        if isinstance(last, str) and "/" in last.rstrip("/"):
            got, path = replace(got, why="", raw=last), word.shown[:LONGEST]
    elif got.given and got.raw is not None and not isinstance(got.raw, str):
        path = ""
    into.take("model_name", got, _name)
    name = into.settings.get("model_name")
    into.shapes(path, shape_of(str(name or "")))
    if isinstance(name, str) and path and path != name and not got.why:
        into.derived["model_name"] = path
    return path


def _name(raw: object) -> str | None:
    """The last part of a path; of a folder of the hub's cache, the model's.

    >>> _name("Qwen/Qwen3-4B"), _name("/hub/models--Qwen--Qwen3-8B/snapshots/1cf/")
    ('Qwen3-4B', 'Qwen3-8B')
    """
    path = text(raw)
    if path is None:
        return None
    cached = re.search(r"models--[^/]*?--([^/]+)/snapshots", path)
    return cached[1] if cached else path.rstrip("/").rpartition("/")[2] or None


def shape_of(model: str) -> dict[str, int]:
    """The sizes of a model of the built-in table, by its name or the last part of its path; empty where unknown."""
    from headway.facts.shapes import by_name

    shape = by_name(model) or by_name(model.rstrip("/").rpartition("/")[2]) if model else None
    if shape is None:
        return {}
    sizes = {
        "num_layers": shape.layers, "hidden_size": shape.hidden, "ffn_hidden_size": shape.ffn,
        "num_attention_heads": shape.heads, "num_kv_heads": shape.kv_heads, "kv_channels": shape.head_dim,
        "vocab_size": shape.vocab,
    }  # fmt: skip
    if shape.experts:
        sizes |= {
            "num_experts": shape.experts, "moe_topk": shape.experts_per_token, "moe_ffn_hidden_size": shape.expert_ffn
        }  # fmt: skip
    return sizes


def agree(worlds: Sequence[Found], doubts: Sequence[str]) -> Found:
    """One record for several, one for each way in which the script may go: what they differ in is unknown."""
    first = worlds[0]
    if len(worlds) == 1:
        return first
    why = "; ".join(dict.fromkeys(doubts))[:200] or "depends on a condition"
    settings, unknown, derived = dict(first.settings), dict(first.unknown), dict(first.derived)
    for other in worlds[1:]:
        for key in KEYS:
            if key in unknown:
                continue
            if key in other.unknown:
                unknown[key] = other.unknown[key]
            elif other.settings.get(key) != settings.get(key):
                unknown[key] = why
            elif other.derived.get(key) != derived.get(key):
                derived.pop(key, None)
    for key in unknown:
        settings.pop(key, None)
        derived.pop(key, None)
    same = {
        name: value for name, value in first.flags.items() if all(each.flags.get(name) == value for each in worlds)
    }
    model = first.model if all(each.model == first.model for each in worlds) else ""
    unread = tuple(dict.fromkeys(text for each in worlds for text in each.unread))
    return replace(first, settings=settings, derived=derived, unknown=unknown, flags=same, model=model, unread=unread)


# -- scripts ------------------------------------------------------------------------------------------------

World = Callable[[Launch, list[Word | Gap]], Found]
MOST_WORLDS = 400


def tree(script: Script, root: Path | None = None) -> tuple[Path | None, Path | None]:
    """The script's file and the folder below which files that it names are read. What is no file is taken to be one
    in the root, and nothing is read where there is none."""
    path = Path(script.path)
    if not path.is_file():
        return (None, None) if root is None else (root.resolve() / "command", root.resolve())
    whole_path = path.resolve()
    return whole_path, root.resolve() if root is not None else files.root_of(whole_path)


MODULE = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")


def programs(command: Command) -> Iterator[Launch]:
    """The Python program that a command starts, also where the interpreter is a variable that nothing sets."""
    found = list(launches(command))
    if not found:
        for place, item in enumerate(command.argv[1:-1], 1):
            after, before = command.argv[place + 1], command.argv[place - 1]
            if not isinstance(item, Word) or item.text not in ("-m", "-um") or not isinstance(after, Word):
                continue
            started = isinstance(before, Word) and (before.holes or "python" in (before.text or ""))
            if started and MODULE.fullmatch(after.text or ""):
                rest = command.argv[place + 2 :]
                found = [Launch(after.text or "", rest, command.argv[:place], dict(command.environment), command)]
                break
    yield from found


def trainers(
    script: Script, claims: Callable[[Launch], bool], starts: Callable[[Command], Iterator[Launch]] = programs
) -> list[Launch]:
    """A system's training commands of a script: those up to the first that hangs on nothing."""
    found: list[Launch] = []
    for command in script.commands:
        for launch in starts(command):
            inner = unwrapped(launch)
            if claims(inner):
                found.append(inner)
                if not command.when:
                    return found
    return found


WRAPPERS = frozenset({"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"})


def unwrapped(launch: Launch) -> Launch:
    """The program behind `python -m torch.distributed.run`, which is a launcher."""
    if launch.program not in WRAPPERS:
        return launch
    words = (Word(("torchrun" if launch.program.startswith("torch") else "accelerate",)), *launch.arguments)
    inner = next(programs(Command(words, launch.command.at)), None)
    if inner is None:
        return launch
    return replace(inner, environment=launch.environment, command=launch.command)


def describe(
    script: Script, claims: Callable[[Launch], bool], world: World,
    starts: Callable[[Command], Iterator[Launch]] = programs,
) -> Found | None:  # fmt: skip
    """What a system's training commands say alike, in every way that the script may go; None where it has none."""
    found = trainers(script, claims, starts)
    if not found:
        return None
    read: list[Found] = []
    for launch in found:
        for words in worlds(launch.arguments):
            if len(read) < MOST_WORLDS:
                read.append(world(launch, list(words)))
    doubts = [why for launch in found for why in (*launch.command.when, *launch.doubts)]
    record, first = agree(read, doubts), found[0]
    notes = list(record.notes)
    if len(found) > 1:
        where = ", ".join(str(launch.command.at.line) for launch in found)
        notes.append(f"{script.path}: training commands in lines {where}; what they say alike is read")
    return replace(
        record, argv=first.arguments, program=first.program, at=first.command.at, sourced=script.sourced,
        unread=(*script.unread, *record.unread), notes=tuple(dict.fromkeys(notes)),
    )  # fmt: skip
