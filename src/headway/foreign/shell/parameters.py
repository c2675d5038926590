"""`$name` and everything that `${...}` may hold."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from headway.foreign.shell import patterns
from headway.foreign.shell.state import FROM_OUTSIDE, State, element, put_element
from headway.foreign.shell.values import (
    Array,
    Choice,
    Gap,
    Hole,
    Item,
    Table,
    Word,
    join,
    known,
    reasons,
    unknown,
)

if TYPE_CHECKING:
    from headway.foreign.shell.expand import Expander

SUBJECT = re.compile(r"([A-Za-z_]\w*|\d+|[@*#?$!-])(\[)?")
DEFAULTS = re.compile(r":?[-=+?]")


class Many(Struct, frozen=True):
    """The words of an array or of the arguments. `star`: in quotes they are one word; `split`: they are words
    already, whatever blanks they have."""

    items: tuple[Item, ...]
    star: bool = False
    split: bool = False


def joined(items: Sequence[Item], between: str = " ") -> Word:
    """Words with something between them, as `$*` in quotes joins them."""
    parts: list[str | Hole] = []
    for index, item in enumerate(items):
        parts += [between] if index else []
        if isinstance(item, Word):
            parts += item.parts
        elif isinstance(item, Gap):
            parts.append(Hole(item.why, item.name, item.kind))
        else:
            parts.append(Hole(item.why, "branch", "branch"))
    return join(parts)


def value(state: State, name: str) -> Many | Word:
    """What `$name` is, whether a variable, an argument or one of the shell's own."""
    if name in "@*":
        return Many(state.arguments, star=name == "*")
    if name == "#":
        return length(state.arguments, "#")
    if name.isdigit():
        word = state.argument(int(name))
        return word if word is not None else unknown(f"argument ${name} is not given in the script", name, "unset")
    if name in "?$!-":
        return unknown(f"${name} is known only when it runs", name)
    if name == "BASH_SOURCE":
        return state.sources[-1] if state.sources else state.script
    word = state.scalar(name)
    return word if word is not None else Word((state.hole(name),))


def length(items: Sequence[Item], name: str) -> Word:
    """How many words an array has."""
    counts = [_sizes(item) for item in items]
    if all(len(count) == 1 for count in counts):
        return known(str(sum(min(count) for count in counts)))
    return unknown("; ".join(reasons(items))[:200] or f"the number of words of {name} is not known", name, "branch")


def _sizes(item: Item) -> frozenset[int]:
    """How many words an item of an array may be; empty where any number."""
    if isinstance(item, Word):
        return frozenset({1})
    if isinstance(item, Gap):
        return frozenset()
    found = set()
    for option in item.options:
        if not all(isinstance(each, Word) for each in option):
            return frozenset()
        found.add(len(option))
    return frozenset(found)


def expand(expander: "Expander", text: str, quoted: bool) -> Many | Word:
    """What `${text}` is."""
    state = expander.state
    if text.startswith("#") and len(text) > 1 and SUBJECT.match(text, 1) and text[1] not in "#?-":
        return _length(expander, text[1:])
    if text.startswith("!") and len(text) > 1:
        return _indirect(expander, text[1:], quoted)
    match = SUBJECT.match(text)
    if match is None:
        return unknown(f"${{{text[:40]}}} is not understood", text[:40])
    name, rest = match[1], text[match.end(1) :]
    index = ""
    if match[2]:
        end = rest.find("]")
        if end < 0:
            return unknown(f"${{{text[:40]}}} is not understood", text[:40])
        index, rest = rest[1:end], rest[end + 1 :]
    found = _subject(expander, name, index)
    if not rest:
        return found if found is not None else _absent(state, name, index)
    if DEFAULTS.match(rest):
        return _default(expander, name, index, found, rest, quoted)
    if found is None:
        return _absent(state, name, index)
    held = state.get(name)
    if rest.startswith(":") and index in ("@", "*") and isinstance(held, Array) and held.keys:
        return _part(expander, found, rest[1:], held.keys)
    if rest.startswith(":") and name in "@*" and isinstance(found, Many):
        return _part(expander, Many((state.script, *found.items), found.star), rest[1:])  # $0 counts among them
    return _changed(expander, found, rest)


def _subject(expander: "Expander", name: str, index: str) -> Many | Word | None:
    """What a name with its index holds; None where nothing set it."""
    state = expander.state
    if name in "@*#?$!-" or name == "BASH_SOURCE":
        return value(state, name)
    if name.isdigit():
        return state.argument(int(name))
    held = state.get(name)
    if held is None:
        return None
    if index in ("@", "*"):
        if isinstance(held, Table):
            return Many(tuple(word for _, word in held.entries), index == "*")
        return Many(held.items if isinstance(held, Array) else (held,), index == "*")
    if not index:
        return state.scalar(name)
    if isinstance(held, Table):
        key = expander.single(index)
        if key.text is None:
            return unknown(key.why, key.holes[0].name, key.holes[0].kind)
        return dict(held.entries).get(key.text)
    place = expander.arithmetic(index)
    if place.text is None:
        return place
    if isinstance(held, Array):
        return element(held, int(place.text))
    return held if place.text in ("0", "-1") else None


def _absent(state: State, name: str, index: str) -> Many | Word:
    """What stands for something that nothing set."""
    if index in ("@", "*"):
        hole = state.hole(name)
        return Many((Gap(hole.why, hole.name, hole.kind),) if hole.kind == "unread" else ())
    if name.isdigit():
        return unknown(f"argument ${name} is not given in the script", name, "unset")
    held = state.get(name)
    if isinstance(held, Array | Table):
        return unknown(f"{name}[{index}] is not set in the script", f"{name}[{index}]", "unset")
    return Word((state.hole(name),))


def _length(expander: "Expander", text: str) -> Word:
    match = SUBJECT.match(text)
    assert match is not None
    name, rest = match[1], text[match.end(1) :]
    if name in "@*":
        return length(expander.state.arguments, name)
    found = _subject(expander, name, rest[1:-1] if rest.startswith("[") else "")
    if isinstance(found, Many):
        return length(found.items, name)
    if found is None:
        held = expander.state.get(name)
        hole = expander.state.hole(name)
        return known("0") if held is not None or hole.kind == "unset" else Word((hole,))
    return found if found.text is None else known(str(len(found.text)))


def _indirect(expander: "Expander", text: str, quoted: bool) -> Many | Word:
    """`${!name}`, `${!name[@]}` and `${!prefix@}`."""
    state = expander.state
    match = re.fullmatch(r"([A-Za-z_]\w*)\[[@*]\]", text)
    if match is not None:
        held = state.get(match[1])
        if isinstance(held, Table):
            return Many(tuple(known(key) for key, _ in held.entries))
        items = held.items if isinstance(held, Array) else (held,) if isinstance(held, Word) else ()
        if not all(isinstance(item, Word) for item in items):
            return Many((Gap("; ".join(reasons(items)), match[1], "branch"),))
        keys = held.keys if isinstance(held, Array) and held.keys else range(len(items))
        return Many(tuple(known(str(index)) for index in keys))
    match = re.fullmatch(r"([A-Za-z_]\w*)[@*]", text)
    if match is not None:
        return Many(tuple(known(name) for name in sorted(state.variables) if name.startswith(match[1])))
    match = re.match(r"[A-Za-z_]\w*|\d+", text)
    name = (
        state.scalar(match[0])
        if match and not match[0].isdigit()
        else state.argument(int(match[0]))
        if match
        else None
    )
    if (
        match is None
        or name is None
        or name.text is None
        or not re.fullmatch(r"[A-Za-z_]\w*(\[[^\]]*\])?", name.text)
    ):
        why = name.why if name is not None and name.text is None else f"${{!{text[:40]}}} names no variable"
        return unknown(why, text[:40], "unset" if name is None else "machine")
    return expand(expander, name.text + text[match.end() :], quoted)


def _default(
    expander: "Expander", name: str, index: str, found: Many | Word | None, rest: str, quoted: bool
) -> Many | Word:
    """`:-`, `:=`, `:+`, `:?` and the same without the colon."""
    colon = rest.startswith(":")
    sign, operand = rest[colon], rest[colon + 1 :]
    there = _there(name, found, colon)
    if sign == "+":
        if there is None:
            return unknown(_why(found), name, "machine")
        return _operand(expander, operand, quoted) if there else _nothing(quoted)
    if there is None and isinstance(found, Word):
        return found
    if there or there is None:
        return found if found is not None else Word((expander.state.hole(name),))
    if sign == "?":
        about = f": {operand[:60]}" if operand else ""
        return unknown(f"variable {name} must be set by whoever runs the script{about}", name, "unset")
    chosen = _operand(expander, operand, quoted)
    if sign == "=":
        word = chosen if isinstance(chosen, Word) else joined(chosen.items)
        if index:
            place = expander.arithmetic(index)
            if place.text is not None:
                put_element(expander.state, name, int(place.text), word)
        elif not name.isdigit():
            expander.state.set(name, word)
    return chosen


def _nothing(quoted: bool) -> Many | Word:
    return known("") if quoted else Many(())


def _why(found: Many | Word | None) -> str:
    if isinstance(found, Word):
        return found.why
    return "; ".join(reasons(found.items)) if found is not None else ""


def _there(name: str, found: Many | Word | None, colon: bool) -> bool | None:
    """Whether a variable is set, and with a colon not empty; None where the script does not tell."""
    if found is None:
        return None if not name.isdigit() and name in FROM_OUTSIDE else False
    if isinstance(found, Many):
        if any(isinstance(item, Word) for item in found.items):
            return True
        return None if found.items else False
    if found.never_set:
        return not colon
    if any(isinstance(part, str) for part in found.parts) or not colon:
        return True
    return None if found.holes else False


def _operand(expander: "Expander", text: str, quoted: bool) -> Many | Word:
    if quoted:
        return expander.single(text, quoted=True)
    items: list[Item] = []
    from headway.foreign.shell.lexer import words

    pieces = [piece for _, piece in words(text)] if "#" not in text else [text]
    for piece in pieces:
        items += expander.fields(piece)
    return Many(tuple(items), split=True)


def _changed(expander: "Expander", found: Many | Word, rest: str) -> Many | Word:
    """Patterns cut off, replaced, case changed, a part taken: of one word, or of each."""
    if rest.startswith(":"):
        return _part(expander, found, rest[1:])
    if isinstance(found, Many):
        changed = tuple(
            _change(expander, item, rest) if isinstance(item, Word) else _forget(item, rest) for item in found.items
        )
        return Many(changed, found.star)
    return _change(expander, found, rest)


def _forget(item: Gap | Choice, rest: str) -> Item:
    return Gap(f"{item.why} (changed by {rest[:20]})", "words", "branch")


def _change(expander: "Expander", word: Word, rest: str) -> Word:
    expander.budget.spend(1 + len(word.parts))
    match = re.match(r"##|#|%%|%|\^\^|\^|,,|,|//|/#|/%|/|@[A-Za-z]", rest)
    if match is None:
        return unknown(f"the expansion {rest[:40]!r} is not understood", rest[:40])
    sign, operand = match[0], rest[match.end() :]
    if sign.startswith("@"):
        return word
    if sign[0] in "%#" and not word.text:
        return _cut_around_holes(expander, word, sign, operand)
    if word.text is None:
        return unknown(word.why, word.holes[0].name, word.holes[0].kind)
    if sign[0] in "^,":
        change = str.upper if sign[0] == "^" else str.lower
        return known(change(word.text) if len(sign) == 2 else change(word.text[:1]) + word.text[1:], word.at)
    if sign[0] == "/":
        pattern, _, new = _halves(operand)
        with_text = expander.single(new)
        wanted = expander.single(pattern)
        if wanted.text is None or with_text.text is None:
            why = wanted.why or with_text.why
            return unknown(why, "pattern")
        return known(patterns.replace(word.text, wanted.text, with_text.text, sign), word.at)
    wanted = expander.single(operand)
    return known(patterns.cut(word.text, wanted.text, sign), word.at) if wanted.text is not None else wanted


def _cut_around_holes(expander: "Expander", word: Word, sign: str, operand: str) -> Word:
    """A plain ending or beginning cut off a word that has holes elsewhere; `##*/` keeps what is after the last."""
    wanted = expander.single(operand)
    parts = list(word.parts)
    if not parts:
        return word
    edge = parts[-1] if sign[0] == "%" or sign == "##" else parts[0]
    if isinstance(edge, str) and wanted.text:
        if wanted.text == "*/" and sign == "##" and "/" in edge:
            return known(edge.rpartition("/")[2], word.at)
        if wanted.text == "/*" and sign == "%" and "/" in edge:
            return join((*parts[:-1], edge.rpartition("/")[0]), word.at)
        if not re.search(r"[*?\[]", wanted.text):
            if sign[0] == "%":
                return join((*parts[:-1], edge.removesuffix(wanted.text)), word.at)
            return join(
                (parts[0].removeprefix(wanted.text) if isinstance(parts[0], str) else parts[0], *parts[1:]), word.at
            )
    return unknown(word.why, word.holes[0].name, word.holes[0].kind)


def _halves(operand: str) -> tuple[str, str, str]:
    """The pattern and what replaces it, at the first slash that is not escaped or quoted."""
    place = 0
    while place < len(operand):
        if operand[place] == "\\":
            place += 2
            continue
        if operand[place] in "'\"":
            closing = operand.find(operand[place], place + 1)
            place = len(operand) if closing < 0 else closing + 1
            continue
        if operand[place] == "/":
            return operand[:place], "/", operand[place + 1 :]
        place += 1
    return operand, "", ""


def _part(expander: "Expander", found: Many | Word, text: str, keys: Sequence[int] = ()) -> Many | Word:
    """`${A:offset:length}`; of an array with indices left out, the offset is an index."""
    first, colon, second = text.partition(":")
    offset, size = expander.arithmetic(first), expander.arithmetic(second) if colon else None
    if offset.text is None or (size is not None and size.text is None):
        return offset if offset.text is None else size or offset
    start = int(offset.text)
    stop = None if size is None or size.text is None else int(size.text)
    if isinstance(found, Word):
        return found if found.text is None else known(found.text[_slice(len(found.text), start, stop)], found.at)
    if not all(isinstance(item, Word) for item in found.items):
        return Many((Gap("; ".join(reasons(found.items)), "words", "branch"),))
    if keys:
        start += keys[-1] + 1 if start < 0 else 0
        start = sum(key < start for key in keys)
    return Many(found.items[_slice(len(found.items), start, stop)], found.star)


def _slice(whole: int, start: int, size: int | None) -> slice:
    """`:start:size` of something `whole` long."""
    start = max(0, whole + start) if start < 0 else start
    if size is None:
        return slice(start, None)
    return slice(start, start + size if size >= 0 else max(whole + size, start))
