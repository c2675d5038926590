"""Hydra's command line and YAML files: overrides, lists, quoted values, defaults and interpolation, as far as known.

What Hydra would ask at run time (environment, resolvers of a program's own) stays unknown, with the reason.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from headway.foreign import documents
from headway.foreign.documents import RefusedError, Table
from headway.foreign.gather import Got
from headway.foreign.shell.values import Gap, Origin, Placed, Word, join, known

OVERRIDE = re.compile(r"(\+\+|\+|~)?([A-Za-z_][\w.\-/]*(?:@[\w.\-]*(?::[\w.\-]+)?)?)(=)?")
DEEPEST = 16
MOST_PARENTS = 32
MOST_REFERENCES = 2000
LONGEST = 4096
OPTIONS = {
    "--config-path": "path", "-cp": "path", "--config-name": "name", "-cn": "name", "--config-dir": "dir",
    "-cd": "dir", "--multirun": "multirun", "-m": "multirun",
}  # fmt: skip


class Override(Placed, frozen=True):
    """One `key=value` of the command line; `sign` is `+`, `++`, `~` or nothing.

    >>> override(known("+trainer.logger=[console,wandb]")) == Override("trainer.logger", ["console", "wandb"], "+")
    True
    """

    key: str
    value: object = None
    sign: Literal["", "+", "++", "~"] = ""
    why: str = ""
    at: Origin | None = None
    word: Word | None = None


def override(word: Word) -> Override | None:
    """The override that a word is; None where it is none."""
    first = word.parts[0] if word.parts and isinstance(word.parts[0], str) else ""
    match = OVERRIDE.match(first)
    if match is None:
        return None
    sign, key, equals = match[1] or "", match[2], match[3]
    if not equals:
        deleted = sign == "~" and match.end() == len(first) and len(word.parts) == 1
        return Override(key, None, "~", at=word.at) if deleted else None
    if word.text is None:
        rest = replace(word, parts=(first[match.end() :], *word.parts[1:]))
        return Override(key, None, sign, word.why, word.at, rest)  # type: ignore[arg-type]
    return Override(key, value(first[match.end() :]), sign, "", word.at)  # type: ignore[arg-type]


# -- values -------------------------------------------------------------------------------------------------

NUMBER = re.compile(r"[-+]?(?:\d[\d_]*)(?:\.\d*)?(?:[eE][-+]?\d+)?|[-+]?\.\d+(?:[eE][-+]?\d+)?")


def value(text: str) -> object:
    """A value as Hydra's grammar has it. What is not of the grammar stays text.

    >>> value("[1, 'a b', null]"), value("{lr: 1e-6}"), value("True"), value("'8'")
    ([1, 'a b', None], {'lr': 1e-06}, True, '8')
    """
    text = text.strip()
    if text[:1] in ("[", "{") and len(text) <= documents.LARGEST:
        found, end = _nested(text, 0, 0)
        if end == len(text):
            return found
        return text
    return scalar(text)


def scalar(text: str) -> object:
    """A value without brackets: quoted text, null, true or false, a number, or plain text."""
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1].replace("\\" + text[0], text[0])
    low = text.lower()
    if low == "null" or not text:
        return None
    if low in ("true", "false"):
        return low == "true"
    if len(text) <= 40 and NUMBER.fullmatch(text):
        return int(text) if re.fullmatch(r"[-+]?[\d_]+", text) else float(text)
    return text


def _nested(text: str, place: int, depth: int) -> tuple[object, int]:
    """A list or a table from its bracket, and the position after it; -1 where it is not closed."""
    if depth > DEEPEST:
        return None, -1
    is_list, close = text[place] == "[", "]" if text[place] == "[" else "}"
    items: list[object] = []
    entries: Table = {}
    place += 1
    while place < len(text):
        while place < len(text) and text[place] in " ,\n\t":
            place += 1
        if text[place : place + 1] == close:
            return (items if is_list else entries), place + 1
        if text[place : place + 1] in ("]", "}"):
            return None, -1  # it closes what was not opened
        name = ""
        if not is_list:
            key, place = _piece(text, place, ":=,]}")
            if text[place : place + 1] not in (":", "="):
                return None, -1
            name, place = str(scalar(key.strip())), place + 1
            while text[place : place + 1] == " ":
                place += 1
        one: object
        if text[place : place + 1] in ("[", "{"):
            one, place = _nested(text, place, depth + 1)
            if place < 0:
                return None, -1
        else:
            piece, place = _piece(text, place, ",]}")
            one = scalar(piece.strip())
        if is_list:
            items.append(one)
        else:
            entries[name] = one
    return None, -1


def _piece(text: str, place: int, stops: str) -> tuple[str, int]:
    """The text up to one of the stops outside quotes and `${...}`, and the position there."""
    start, quote, braces = place, "", 0
    while place < len(text):
        char = text[place]
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif text.startswith("${", place):
            braces += 1
        elif char == "}" and braces:
            braces -= 1
        elif char in stops and not braces:
            break
        place += 1
    return text[start:place], place


# -- the configuration ---------------------------------------------------------------------------------------


class Config(Struct):
    """Overrides over YAML files over a program's own defaults, asked by a dotted path.

    `hidden` says why a key that is not found may be set all the same. `name` is the configuration that the command
    line names, `parents` those that stand below it and were not read, `options` what it gives Hydra itself.
    """

    overrides: list[Override] = field(default_factory=list)
    base: Table = field(default_factory=dict)
    base_name: str = ""
    defaults: Table = field(default_factory=dict)
    hidden: str = ""
    name: str = ""
    parents: tuple[str, ...] = ()
    options: dict[str, Word] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)
    budget: int = MOST_REFERENCES
    asked: set[str] = field(default_factory=set)

    def get(self, *paths: str) -> Got:
        """What is set at the first of these paths that is set."""
        self.asked.update(paths)
        for path in paths:
            found = self._at(path)
            if found is not None:
                return found
        return Got(why=self.hidden) if self.hidden else Got()

    def group(self, name: str) -> Got:
        """The option chosen of a group of configurations: `name=option` or `name@package=option`."""
        self.asked.update(each.key for each in self.overrides if each.key.partition("@")[0] == name)
        for each in reversed(self.overrides):
            if each.key == name or each.key.startswith(f"{name}@"):
                return Got(each.value, given=True, why=each.why, at=each.at)
        return Got()

    def _at(self, path: str) -> Got | None:
        for each in reversed(self.overrides):
            inner = _inside(path, each.key)
            if inner is None:
                continue
            if each.sign == "~":
                return Got()
            if each.why:
                return Got(given=True, why=each.why, at=each.at, word=each.word if not inner else None)
            found, raw = _dig(each.value, inner)
            if found:
                return self._resolved(raw, path, each.at)
        found, raw = _dig(self.base, path.split("."))
        return self._resolved(raw, path, Origin(self.base_name, 1) if self.base_name else None) if found else None

    def _resolved(self, raw: object, path: str, at: Origin | None) -> Got:
        try:
            return Got(self.resolve(raw, path), given=True, at=at)
        except RefusedError as error:
            return Got(given=True, why=str(error), at=at)

    def resolve(self, raw: object, path: str, depth: int = 0) -> object:
        """A value with its interpolations made. RefusedError where one cannot be known."""
        if not isinstance(raw, str) or "${" not in raw:
            return raw
        self.budget -= 1
        if depth > DEEPEST or self.budget < 0 or len(raw) > LONGEST:
            raise RefusedError(f"{path} refers to too much, or to itself")
        pieces: list[object] = []
        place = 0
        while place < len(raw):
            start = raw.find("${", place)
            if start < 0:
                pieces.append(raw[place:])
                break
            if start > place:
                pieces.append(raw[place:start])
            inner, end = _piece(raw, start + 2, "}")
            if raw[end : end + 1] != "}":
                raise RefusedError(f"{path} has an interpolation that is not closed")
            pieces.append(self._interpolated(inner.strip(), path, depth + 1))
            place = end + 1
        if len(pieces) == 1:
            return pieces[0]
        return "".join("null" if one is None else str(one)[:LONGEST] for one in pieces)[:LONGEST]

    def _interpolated(self, inner: str, path: str, depth: int) -> object:
        resolver, colon, rest = inner.partition(":")
        if not colon:
            return self._other(inner, path, depth, None)
        name, comma, default = rest.partition(",")
        if resolver == "oc.select":
            return self._other(name.strip(), path, depth, default.strip() if comma else "null")
        if resolver == "oc.env" and comma:
            return self.resolve(value(default.strip()), path, depth)
        raise RefusedError(f"{path} asks the machine: ${{{inner[:60]}}}")

    def _other(self, target: str, path: str, depth: int, default: str | None) -> object:
        """What another key is."""
        if target.startswith("."):
            up = len(target) - len(target.lstrip("."))
            above = path.split(".")[:-up]
            target = ".".join([*above, target.lstrip(".")])
        for each in reversed(self.overrides):
            inner = _inside(target, each.key)
            if inner is None or each.sign == "~":
                continue
            if each.why:
                raise RefusedError(each.why)
            found, raw = _dig(each.value, inner)
            if found:
                return self.resolve(raw, target, depth)
        found, raw = _dig(self.base, target.split("."))
        if found:
            return self.resolve(raw, target, depth)
        if target in self.defaults:
            return self.defaults[target]
        if default is None or self.hidden:
            raise RefusedError(f"{path} refers to {target}, which is not in what was read")
        return self.resolve(value(default), path, depth)


def _inside(path: str, key: str) -> list[str] | None:
    """The steps from a key down to a path; None where the path is not there."""
    if path == key:
        return []
    return path[len(key) + 1 :].split(".") if path.startswith(key + ".") else None


def _dig(found: object, steps: Sequence[str]) -> tuple[bool, object]:
    for step in steps:
        if not isinstance(found, dict) or step not in found:
            return False, None
        found = found[step]
    return True, found


# -- from words and files ------------------------------------------------------------------------------------


def config(words: Iterable[Word | Gap], defaults: Table | None = None) -> Config:
    """The overrides and options of a command line; words that are neither are left alone."""
    made = Config(defaults=defaults or {})
    waiting = ""
    for word in words:
        if isinstance(word, Gap):
            if word.kind != "unset":
                made.hidden = made.hidden or f"may be among words that are not known: {word.why}"
            continue
        plain = word.parts[0] if word.parts and isinstance(word.parts[0], str) else ""
        if waiting:
            made.options[waiting], waiting = word, ""
            continue
        option, equals, rest = plain.partition("=")
        if option in OPTIONS:
            if OPTIONS[option] == "multirun":
                made.hidden = "several runs are started with different values (--multirun)"
            elif equals:
                made.options[OPTIONS[option]] = join((rest, *word.parts[1:]), word.at)
            else:
                waiting = OPTIONS[option]
            continue
        found = override(word)
        if found is not None:
            made.overrides.append(found)
        elif word.holes and not word.never_set and not plain:
            made.unread.append(f"{word.at or 'a word'}: {word.shown[:60]} may set any key: {word.why}")
    named = made.options.get("name")
    if named is not None:
        made.name = (named.text or "").removesuffix(".yaml").removesuffix(".yml")
        if named.text is None:
            made.hidden = made.hidden or f"the configuration's name is not known: {named.why}"
    return made


def read_files(made: Config, builtin: frozenset[str], script: Path | None, root: Path | None) -> None:
    """Put the YAML files that the command line names under its overrides. `builtin` are the program's own
    configurations, whose values are its defaults."""
    if not made.name or made.name.rpartition("/")[2] in builtin:
        made.parents = (made.name,) if made.name else ()
        return
    folder = made.options.get("path") or made.options.get("dir")
    found = None
    for suffix in (".yaml", ".yml"):
        name = known(f"{made.name}{suffix}")
        word = name if folder is None else join((*folder.parts, f"/{made.name}{suffix}"))
        found, why = documents.locate(word, script, root)
        if found is None and folder is not None and folder.text is not None and not folder.text.startswith("/"):
            found, why = documents.locate(join(("config/", f"{made.name}{suffix}")), script, root)
        if found is not None:
            break
    if found is None:
        made.hidden = made.hidden or f"the configuration {made.name}.yaml {why}"
        made.unread.append(f"{made.name}.yaml: {why}")
        return
    made.base_name = str(found)
    try:
        made.base, parents = _composed(found, builtin, found.parent, 0)
    except RefusedError as error:
        made.hidden = made.hidden or f"the configuration {made.name}.yaml {error}"
        made.unread.append(f"{made.name}.yaml: {error}")
        return
    made.parents = tuple(dict.fromkeys(parents))
    missing = [name for name in made.parents if name.rpartition("/")[2] not in builtin]
    made.unread += [f"{found.name}: its default {name} was not found beside it" for name in missing]
    if missing:
        made.hidden = (
            made.hidden or f"may be set in {missing[0]}, which {found.name} is based on and which is not here"
        )


def _composed(path: Path, builtin: frozenset[str], top: Path, depth: int) -> tuple[Table, list[str]]:
    """A file with its defaults below it, and the defaults that are not files beside it."""
    own = documents.table(path)
    listed = own.pop("defaults", [])
    made: Table = {}
    parents: list[str] = []
    is_merged = False
    for entry in listed[:MOST_PARENTS] if isinstance(listed, list) else []:
        if entry == "_self_":
            _merge(made, own, 0)
            is_merged = True
            continue
        name, package = _entry(entry)
        if not name:
            continue
        beside = next(
            (each for each in (path.parent / f"{name}.yaml", top / f"{name}.yaml") if _within(each, top)), None
        )
        if beside is None or depth > 4:
            parents.append(name)
            continue
        inner, more = _composed(beside, builtin, top, depth + 1)
        parents += more
        for step in reversed(package.split(".") if package and package != "_global_" else []):
            inner = {step: inner}
        _merge(made, inner, 0)
    if not is_merged:
        _merge(made, own, 0)
    return made, parents


def _within(path: Path, top: Path) -> bool:
    try:
        real = path.resolve()
        return real.is_file() and top.resolve() in real.parents
    except (OSError, ValueError, RuntimeError):
        return False


def _entry(entry: object) -> tuple[str, str]:
    """(file, package) of an entry of a defaults list: `name`, `group: option` or `group@package: option`."""
    if isinstance(entry, str):
        name, _, package = entry.partition("@")
        return name.removesuffix(".yaml"), package
    if not isinstance(entry, dict) or len(entry) != 1:
        return "", ""
    key, option = next(iter(entry.items()))
    group, _, package = str(key).removeprefix("override ").removeprefix("optional ").partition("@")
    if not isinstance(option, str):
        return "", ""
    return f"{group}/{option.removesuffix('.yaml')}", package or group.strip("/").replace("/", ".")


def _merge(below: Table, above: Any, depth: int) -> None:
    """Put a table over another, key by key."""
    if not isinstance(above, dict) or depth > DEEPEST:
        return
    for key, item in above.items():
        name = str(key)
        if isinstance(item, dict) and isinstance(below.get(name), dict):
            _merge(below[name], item, depth + 1)
        else:
            below[name] = dict(item) if isinstance(item, dict) else item
