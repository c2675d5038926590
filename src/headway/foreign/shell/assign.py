"""`name=value`, `name+=(...)`, `name[i]=value`: from the text of an assignment to the variable."""

import re
from typing import TYPE_CHECKING

from headway.foreign.shell import lexer, parse
from headway.foreign.shell.expand import Expander
from headway.foreign.shell.state import put_element
from headway.foreign.shell.values import Array, Item, Origin, Table, Value, Word, array, known, unknown

if TYPE_CHECKING:
    from headway.foreign.shell.parse import Node, Unit

TARGET = re.compile(r"([A-Za-z_]\w*)(\[)?")
KEYED = re.compile(r"\[([^\]]*)\]=", re.DOTALL)


def assign(expander: Expander, unit: "Unit", node: "Node", *, table: bool = False) -> str:
    """Carry out the assignment that a node is; the name of its variable, empty where it is not understood."""
    text = unit.text(node)
    match = TARGET.match(text)
    if match is None:
        return ""
    name, place, index = match[1], match.end(1), None
    if match[2]:
        end = lexer.close(text, place)
        if end < 0:
            return ""
        index, place = text[place + 1 : end], end + 1
    append = text[place : place + 1] == "+"
    place += append
    if text[place : place + 1] != "=":
        return ""
    place += 1
    raw = text[place:]
    value: Value
    if raw.startswith("("):
        is_table = table or isinstance(expander.state.get(name), Table)
        value = _array(expander, unit, node, text, place, is_table)
    else:
        value = expander.single(raw, unit.within(node, text, place, len(raw)))
    put(expander, name, index, value, append=append)
    return name


def _array(expander: Expander, unit: "Unit", node: "Node", text: str, place: int, table: bool) -> Value:
    """The words between the brackets of an array."""
    items: list[Item] = []
    entries: dict[str, Word] = {}
    for offset, word in parse.words(text[place:]):
        at = unit.within(node, text, place + offset, len(word))
        keyed = KEYED.match(word)
        if keyed is None:
            items += expander.fields(word, at)
            continue
        value = expander.single(word[keyed.end() :], at)
        if table:
            key = expander.single(keyed[1])
            if key.text is not None:
                entries[key.text] = value
            continue
        index = expander.arithmetic(keyed[1])
        if index.text is None or not 0 <= int(index.text) < len(items):
            items.append(value)
        else:
            items[int(index.text)] = value
    return Table(tuple(entries.items())) if table else array(items)


def put(expander: Expander, name: str, index: str | None, value: Value, *, append: bool = False) -> None:
    """Set a variable, or one word of an array."""
    state = expander.state
    if index is None or not isinstance(value, Word):
        if append:
            state.append(name, value)
        elif isinstance(value, Word) and isinstance(state.get(name), Array):
            put_element(state, name, 0, value)
        else:
            state.set(name, value)
        return
    held = state.get(name)
    if isinstance(held, Table):
        key = expander.single(index)
        if key.text is None:
            state.set(name, Table(tuple((each, unknown(key.why, each)) for each, _ in held.entries)))
            return
        before = dict(held.entries).get(key.text, known(""))
        added = Word((*before.parts, *value.parts), value.at) if append else value
        state.set(name, Table(tuple({**dict(held.entries), key.text: added}.items())))
        return
    place = expander.arithmetic(index)
    if place.text is None:
        _blur(expander, name, place)
    else:
        put_element(state, name, int(place.text), value)


def _blur(expander: Expander, name: str, place: Word) -> None:
    """A word at an unknown index was set: each of them may be another now."""
    held = expander.state.get(name)
    items = held.items if isinstance(held, Array) else ()
    expander.state.set(name, Array(tuple(unknown(place.why, name) for _ in items)))


def target(expander: Expander, name: str, value: Word) -> None:
    """Set what a name in a command stands for: `printf -v "ARGS[3]"`, `read line`."""
    match = re.fullmatch(r"([A-Za-z_]\w*)(?:\[(.*)\])?", name, re.DOTALL)
    if match is not None:
        put(expander, match[1], match[2], value)


def where(at: Origin | None, fallback: Origin) -> Origin:
    """A place, or the one that is known at least."""
    return at if at is not None else fallback
