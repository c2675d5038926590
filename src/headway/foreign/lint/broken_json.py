"""JSON in a command's words that does not parse."""

import json
import re
from collections.abc import Iterator

from headway.foreign.lint.rule import Rule, Sighting, Subject
from headway.foreign.shell.values import Item, Word

NAMED = re.compile(r"-{1,2}([\w.-]*(?:json|kwargs|env-vars|env_vars|override-args)[\w.-]*)")
LIKE_JSON = re.compile(r"\s*\{\s*(\"|\}|$)")
LONGEST = 1 << 16
_JSON_S = {"None": "null", "True": "true", "False": "false"}


def find(subject: Subject) -> Iterator[Sighting]:
    """Values of flags that take JSON, and words that are meant as it."""
    named_only = subject.system == "verl"  # Hydra's own braces are no JSON
    for command in subject.commands:
        for flag, word, more in _words(command.argv):
            text = _text(word)
            meant = bool(flag) or (not named_only and LIKE_JSON.match(text) is not None)
            if not meant or not text.lstrip().startswith("{") or len(text) > LONGEST:
                continue
            told = _problem(text, more)
            if told:
                name = f"--{flag}" if flag else f"an argument of {command.program or 'a command'}"
                yield Sighting(
                    f"the JSON of {name} does not parse: {told}", subject.source(word.shown, word.at or command.at)
                )


def _words(items: tuple[Item, ...]) -> Iterator[tuple[str, Word, bool]]:
    """(flag that takes JSON or nothing, its value, whether further words follow that are no flags)."""
    name = ""
    for place, item in enumerate(items):
        if not isinstance(item, Word):
            name = ""
            continue
        match = NAMED.match(item.shown)
        if match is not None and item.shown[match.end() :].startswith("="):
            first = item.parts[0]
            rest = first[match.end() + 1 :] if isinstance(first, str) else ""
            yield match[1], Word((rest, *item.parts[1:]), item.at), False
            name = ""
            continue
        if match is not None and item.shown == match[0]:
            name = match[1]
            continue
        after = items[place + 1] if place + 1 < len(items) else None
        yield name, item, isinstance(after, Word) and not after.shown.startswith("-")
        name = ""


def _text(word: Word) -> str:
    """The text with 0 for what is not known, which is right inside of quotes and outside."""
    return "".join(part if isinstance(part, str) else "0" for part in word.parts)


def _problem(text: str, more: bool) -> str:
    """Why a text is no JSON; empty where it is some."""
    try:
        json.loads(text)
    except RecursionError:
        return ""
    except ValueError as error:
        line, column = getattr(error, "lineno", 1), getattr(error, "colno", 1)
        lines = text.split("\n")
        before = "\n".join([*lines[: line - 1], lines[line - 1][: column - 1]]).rstrip()
        after = "\n".join([lines[line - 1][column - 1 :], *lines[line:]]).lstrip()
        if (before.endswith(",") and after[:1] in ("}", "]")) or re.match(r",\s*[}\]]", after):
            return "a comma stands before a closing bracket, which JSON does not take"
        if "'" in text and '"' not in text:
            return "names and texts need double quotes, and these are single ones"
        if '"' not in text and (more or ":" in text):
            return "no double quotes are left in it: the shell takes them away where single ones do not stand around"
        place = f"in line {line}, column {column} of it"
        if "',' delimiter" in str(error) and after:
            return f"a comma is missing before {after.split()[0][:40]} {place}"
        if word := re.match(r"(None|True|False)\b", after):
            return f"{word[1]} is Python's: JSON has {_JSON_S[word[1]]} ({place})"
        if re.match(r"[A-Za-z_]\w*\s*:", after):
            return f"the name {after.partition(':')[0].strip()[:40]} needs double quotes ({place})"
        if not after:
            return "it ends before all of its brackets and quotes are closed"
        return f"{getattr(error, 'msg', error)} {place}"
    return ""


RULE = Rule(
    name="broken-json",
    severity="error",
    title="JSON that does not parse",
    sees="the value of a flag such as `--runtime-env-json`, or a word that begins as a JSON table, is no JSON once "
    "the shell has made its words.",
    why="Ray, SGLang and slime read it with a strict parser and end at once, or the environment that it was to set "
    "is not there",
    example='RUNTIME=\'{"env_vars": {"A": "1",}}\'\n'
    'ray job submit --runtime-env-json="$RUNTIME" -- python3 train.py --rollout-batch-size 8',
    instead="mend it there, with double quotes inside and single ones around; python3 -m json.tool checks it",
    near_miss='FLAG=$(nvidia-smi -L | wc -l)\nRUNTIME="{\\"env_vars\\": {\\"A\\": \\"$FLAG\\", \\"B\\": $FLAG}}"\n'
    'ray job submit --runtime-env-json="$RUNTIME" -- python3 train.py --rollout-batch-size 8',
    not_this="a variable in it that only the machine tells is no mistake, within quotes or as a number. Hydra's "
    "`{a: 1}` is not meant as JSON.",
    find=find,
)
