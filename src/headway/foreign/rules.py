"""From flags to settings: one rule a key, read in every world that a script's open conditions allow."""

import re
from collections.abc import Iterable, Sequence
from math import isfinite
from typing import Literal

from msgspec import Struct

from headway.foreign.command import Flag, Line
from headway.foreign.found import SHAPE_KEYS, Setting
from headway.foreign.shell.values import Origin


class Unclear(Struct, frozen=True):
    """A setting that the script does not tell, and why."""

    why: str


Answer = Setting | Unclear
Answers = dict[str, Answer]


class Rule(Struct, frozen=True):
    """One key and the flags that set it. `default` is the system's own where none of them is given.

    >>> from headway.foreign.command import split
    >>> Rule("tp", ("tensor-model-parallel-size",), "int", 1).answer(split([]))
    """

    key: str
    flags: tuple[str, ...]
    kind: Literal["int", "float", "text", "switch", "given"] = "int"
    default: Setting = None

    def answer(self, line: Line) -> Answer:
        """The value in one command line; None, or False for an on/off flag, where it is not given."""
        flag = line.last(*self.flags)
        if flag is None:
            gap = next((gap for gap in line.gaps if may_hold(gap.name, self.key)), None)
            if gap is not None:
                return Unclear(gap.why)
            return False if self.kind in ("switch", "given") else None
        if self.kind == "given":
            return True
        if self.kind == "switch":
            return _switch(flag)
        return value(flag, self.kind)


ONLY_SHAPE = re.compile(r"MODEL|ARCH", re.IGNORECASE)
NO_SETTINGS = re.compile(r"WANDB|LOG|TENSORBOARD|SWANLAB|ENV|DEBUG|DATA|PROFIL", re.IGNORECASE)


def may_hold(name: str, key: str) -> bool:
    """Whether unknown words that go by a name may hold a key: model arguments hold the model's shape, and so on.

    >>> may_hold("MODEL_ARGS", "num_layers"), may_hold("MODEL_ARGS", "tp"), may_hold("EXTRA_ARGS", "tp")
    (True, False, True)
    """
    if ONLY_SHAPE.search(name):
        return key in SHAPE_KEYS
    return not NO_SETTINGS.search(name)


def _switch(flag: Flag) -> Answer:
    """An on/off flag; some parsers take its value as a word."""
    if len(flag.values) != 1:
        return True
    text = flag.text
    if text is None:
        return True if flag.values[0].never_set else Unclear(flag.why)
    return text.lower() not in ("false", "0", "no", "off")


NUMBER = re.compile(r"[-+]?(\d[\d_]*\.?\d*|\.\d+)([eE][-+]?\d+)?")


def value(flag: Flag, kind: str) -> Answer:
    """The value of a flag as its parser reads it."""
    if not flag.values:
        return Unclear(f"--{flag.name} has no value")
    text = flag.values[0].text
    if text is None:
        return Unclear(flag.values[0].why)
    return parsed(text, kind, f"--{flag.name}")


def parsed(text: str, kind: str, name: str) -> Answer:
    """A text as a whole number, a number or itself.

    >>> parsed("1e-6", "float", "--lr"), parsed("8", "int", "--tp"), parsed("full", "text", "--recompute-granularity")
    (1e-06, 8, 'full')
    """
    text = text.strip()
    if kind == "text":
        return text or None
    if not NUMBER.fullmatch(text) or len(text) > 30:
        return Unclear(f"{name} {text[:40] or 'empty'}: is no number")
    number = float(text)
    if not isfinite(number):
        return Unclear(f"{name} {text}: is too large")
    if kind == "float":
        return number
    if not re.fullmatch(r"[-+]?[\d_]+", text):
        return int(number) if number == int(number) else Unclear(f"{name} {text}: is no whole number")
    return int(text)


def answers(rules: Iterable[Rule], line: Line) -> Answers:
    """What one command line says to each rule."""
    return {rule.key: rule.answer(line) for rule in rules}


def defaults(rules: Iterable[Rule], said: Answers) -> dict[str, Setting]:
    """The system's own values of what is not given."""
    return {rule.key: rule.default for rule in rules if rule.default is not None and said.get(rule.key) is None}


def merged(worlds: Sequence[Answers], doubts: Sequence[str]) -> tuple[dict[str, Setting], dict[str, str]]:
    """What all worlds say alike, and the reasons for the rest.

    >>> merged([{"tp": 4, "pp": 1}, {"tp": 8, "pp": 1}], ["depends on $SIZE"])
    ({'pp': 1}, {'tp': 'depends on $SIZE: 4 or 8'})
    """
    settings: dict[str, Setting] = {}
    unknown: dict[str, str] = {}
    for key in dict.fromkeys(key for world in worlds for key in world):
        found = list(dict.fromkeys((type(world.get(key)), world.get(key)) for world in worlds))
        values = [each for _, each in found]
        unclear = [each for each in values if isinstance(each, Unclear)]
        first = values[0]
        if unclear:
            unknown[key] = unclear[0].why
        elif len(values) == 1 and not isinstance(first, Unclear):
            settings[key] = first
        else:
            told = " or ".join("not given" if each is None else str(each) for each in values[:4])
            unknown[key] = f"{'; '.join(doubts)[:200] or 'the script has several commands'}: {told}"
    return settings, unknown


def places(rules: Iterable[Rule], lines: Sequence[Line]) -> dict[str, Origin]:
    """Where each key is written, in the first world that gives it."""
    found: dict[str, Origin] = {}
    for line in lines:
        for rule in rules:
            flag = line.last(*rule.flags)
            if flag is not None and rule.key not in found and flag.written is not None:
                found[rule.key] = flag.written
    return found
