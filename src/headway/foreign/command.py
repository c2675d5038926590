"""A command line taken apart: the program behind its launchers, its flags with their values, its other words."""

import re
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from headway.foreign.shell.commands import Command
from headway.foreign.shell.values import Choice, Gap, Hole, Item, Origin, Placed, Word, known, reasons, worlds

FLAG = re.compile(r"--?[A-Za-z][\w.\-/]*")


class Flag(Placed, frozen=True):
    """One flag as it is given once. `at` is where the flag is written, each value knows its own place.

    >>> flags(["--eval-prompt-data", "aime", "/data/aime.jsonl", "--colocate"])["eval-prompt-data"][0].text
    'aime /data/aime.jsonl'
    """

    name: str
    values: tuple[Word, ...] = ()
    at: Origin | None = None
    place: int = 0
    """Its number among the flags of the line."""

    @property
    def text(self) -> str | None:
        """The values with blanks between them; None where one is not known."""
        texts = [value.text for value in self.values]
        return None if any(text is None for text in texts) else " ".join(text or "" for text in texts)

    @property
    def why(self) -> str:
        """Why the values are not known; empty where they are."""
        return "; ".join(dict.fromkeys(value.why for value in self.values if value.why))

    @property
    def written(self) -> Origin | None:
        """Where its value is written, or the flag itself where it has none."""
        return self.values[-1].at if self.values and self.values[-1].at is not None else self.at


class Line(Struct, frozen=True):
    """The flags of one plain command line. `words` are those before the first flag and after a flag that takes none.

    `gaps` stand for words that are not known: a flag that is not given may be among them. `loose` are unset variables
    in a place of their own, which are empty unless whoever runs the script sets them.
    """

    flags: dict[str, tuple[Flag, ...]]
    words: tuple[Word, ...] = ()
    gaps: tuple[Gap, ...] = ()
    loose: tuple[Word, ...] = ()
    asked: set[str] = field(default_factory=set)
    """The flags that were asked for, given or not."""

    def last(self, *names: str) -> Flag | None:
        """The flag of one of these names that is given last; None where none is."""
        self.asked.update(names)
        found = [self.flags[name][-1] for name in names if name in self.flags]
        return max(found, key=lambda flag: flag.place, default=None)

    def __contains__(self, name: str) -> bool:
        self.asked.add(name)
        return name in self.flags


def split(items: Iterable[Word | Gap], switches: frozenset[str] = frozenset(), *, single: bool = False) -> Line:
    """Flags and words of a plain command line, names without their dashes and with dashes for underscores as written.

    A flag takes the words up to the next flag, one after `=`, or none where it is one of `switches`; a flag with an
    empty value takes nothing from the next. `single`: one dash begins a flag as well.

    >>> words = [known(text) for text in ("--prompt-data", "--tp=4", "--colocate", "x")]
    >>> line = split(words, frozenset({"colocate"}))
    >>> line.flags["prompt-data"][0].values, line.flags["tp"][0].text, line.words[0].text
    ((), '4', 'x')
    """
    found: dict[str, list[Flag]] = {}
    words: list[Word] = []
    gaps: list[Gap] = []
    loose: list[Word] = []
    name, open_ = "", False
    values: list[Word] = []
    at: Origin | None = None

    def end() -> None:
        if name:
            place = sum(map(len, found.values()))
            found.setdefault(name, []).append(Flag(name, tuple(values), at, place))

    for item in items:
        if isinstance(item, Gap):
            end()
            name, values, open_ = "", [], False
            gaps.append(item)
            continue
        flag = _flag(item, single)
        if flag is not None:
            end()
            name, value = flag
            values, at = ([value] if value is not None else []), item.at
            open_ = value is None and name not in switches
        elif open_ and values and _asked(item):
            gaps.append(Gap(item.why, item.holes[0].name, item.holes[0].kind))
        elif open_:
            values.append(item)
        else:
            _beside(item, words, gaps, loose)
    end()
    plain = {key: tuple(_without_unset(flag) for flag in flags) for key, flags in found.items()}
    return Line(plain, tuple(words), tuple(gaps), tuple(loose))


def _flag(item: Word, single: bool) -> tuple[str, Word | None] | None:
    """The name of a flag and its value after `=`; None for any other word."""
    first = item.parts[0] if item.parts and isinstance(item.parts[0], str) else ""
    match = FLAG.match(first)
    if match is None or not (first.startswith("--") or single):
        return None
    name, rest = match[0].lstrip("-"), first[match.end() :]
    if not rest and len(item.parts) == 1:
        return name, None
    if rest.startswith("="):
        return name, replace(item, parts=tuple(part for part in (rest[1:], *item.parts[1:]) if part != ""))
    return (
        (name + "".join(f"${{{part.name}}}" if isinstance(part, Hole) else part for part in item.parts[1:]), None)
        if (not rest)
        else None
    )


def _asked(item: Word) -> bool:
    """Whether a word is what a program prints, as in `$(python args.py)`: behind a value it may be further flags."""
    hole = item.parts[0] if len(item.parts) == 1 else None
    return isinstance(hole, Hole) and hole.kind == "machine" and hole.name in PRINTERS


def _beside(item: Word, words: list[Word], gaps: list[Gap], loose: list[Word]) -> None:
    """A word that no flag takes."""
    if not item.holes or any(isinstance(part, str) for part in item.parts):
        words.append(item)
    elif all(hole.kind == "unset" for hole in item.holes):
        loose.append(item)
    else:
        hole = item.holes[0]
        gaps.append(Gap(item.why, hole.name, hole.kind))


def _without_unset(flag: Flag) -> Flag:
    """A flag with values, and after them a variable that nothing sets: further arguments, of which there are none."""
    values = list(flag.values)
    while len(values) > 1 and values[-1].never_set and values[-1].at != values[0].at:
        values.pop()
    return replace(flag, values=tuple(values)) if len(values) < len(flag.values) else flag


def flags(argv: Sequence[str], switches: frozenset[str] = frozenset()) -> dict[str, tuple[Flag, ...]]:
    """The flags of a command line of plain texts."""
    return split([known(text) for text in argv], switches).flags


class Launch(Struct, frozen=True):
    """A program with its arguments as something starts it: `ray job submit -- env A=B torchrun ... train.py --x`.

    `launcher` are the words before the program, `environment` the variables that are set for it.
    """

    program: str
    arguments: tuple[Item, ...]
    launcher: tuple[Item, ...]
    environment: dict[str, Word]
    command: Command

    @property
    def name(self) -> str:
        """The program's file without its folder, or the module's whole name.

        >>> Launch("slime/train.py", (), (), {}, Command((), Origin("run.sh", 1))).name
        'train.py'
        """
        return self.program.rpartition("/")[2]

    def lines(self, switches: frozenset[str] = frozenset(), *, single: bool = False) -> list[Line]:
        """The flags in every world that the script's open conditions allow."""
        return [split(world, switches, single=single) for world in worlds(self.arguments)]

    @property
    def doubts(self) -> tuple[str, ...]:
        """The conditions that decide between the worlds."""
        choices = tuple(item for item in self.arguments if isinstance(item, Choice))
        return reasons(choices)


PRINTERS = frozenset({"python", "python3", "cat", "jq", "yq", "envsubst", "sed", "grep", "awk", "xargs"})
"""Programs that launch scripts ask for arguments."""
PYTHON = re.compile(r"(python|pypy)[\d.]*|accelerate|deepspeed|torchrun|uv|xtorchrun")
PROGRAM = re.compile(r"[\w./\-~${}]*\.py")
NO_STARTERS = frozenset({
    "echo", "printf", "cat", "grep", "pkill", "kill", "pip", "pip3", "cp", "mv", "rm", "ls", "sed", "scp", "rsync",
    "tar", "vim", "chmod", "test", "find", "git", "wc", "head", "tail", "tee", "touch", "mkdir",
})  # fmt: skip
"""Programs that only name a file, and start none."""
TAKES = frozenset({"-m", "--module"})


def launches(command: Command) -> Iterator[Launch]:
    """The Python program that a command starts, behind whatever starts it; nothing where it starts none.

    >>> from headway.foreign.shell import read_text
    >>> command = read_text("ray job submit -- python3 -u train.py --colocate").commands[0]
    >>> [launch.program for launch in launches(command)]
    ['train.py']
    """
    items = command.argv
    if command.program in (
        "echo",
        "printf",
        "cat",
        "grep",
        "pkill",
        "kill",
        "pip",
        "pip3",
        "cp",
        "mv",
        "rm",
        "ls",
        "sed",
    ):
        return
    environment = dict(command.environment)
    for place, item in enumerate(items):
        word = _plain(item)
        if word is None:
            continue
        match = re.fullmatch(r"([A-Za-z_]\w*)=(.*)", word, re.DOTALL)
        if match is not None and not word.startswith("-"):
            environment[match[1]] = known(match[2])
        before = _plain(items[place - 1]) if place else None
        if before in TAKES and not word.startswith("-") and any(_starts(_plain(each)) for each in items[: place - 1]):
            yield Launch(word, items[place + 1 :], items[: place - 1], environment, command)
            return
        if PROGRAM.fullmatch(word) and (not place or _starter(items[:place])):
            last = _innermost(items, place)
            yield Launch(_plain(items[last]) or word, items[last + 1 :], items[:last], environment, command)
            return


def _innermost(items: Sequence[Item], place: int) -> int:
    """The place of the program that a program starts: `python hooks.py train.py`, also with `python` between."""
    while place + 1 < len(items):
        after = 2 if _starts(_plain(items[place + 1])) else 1
        word = _plain(items[place + after]) if place + after < len(items) else None
        if word is None or not PROGRAM.fullmatch(word):
            break
        place += after
    return place


def _plain(item: Item) -> str | None:
    """The text of a word; of one with holes, what stands after the last of them where that is a file's name."""
    if not isinstance(item, Word):
        return None
    if item.text is not None:
        return item.text
    last = item.parts[-1]
    return f"{item.shown}" if isinstance(last, str) and last.endswith(".py") and "/" in last else None


def _starts(word: str | None) -> bool:
    return word is not None and PYTHON.fullmatch(word.rpartition("/")[2]) is not None


def _starter(before: Sequence[Item]) -> bool:
    """Whether the words before a file's name start it: Python or a launcher, or a submitter's `--`."""
    if any(_starts(_plain(item)) for item in before):
        return True
    if any(isinstance(item, Word) and item.holes for item in before):
        return True
    return _plain(before[-1]) in ("--", "exec", "nohup", "sudo", "time")
