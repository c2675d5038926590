"""A text that a script puts together for a shell -> the words of a command, with holes where it is not known."""

from collections.abc import Iterator
from typing import Any

from headway.foreign.python.values import Either, Missing, Text, Unknown, options
from headway.foreign.shell.values import Choice, Gap, Hole, Item, Origin, Word, join

BLANK = " \t\n"
ONE_WORD = frozenset({"RANDOM", "SRANDOM", "SECONDS", "UID", "EUID", "PPID", "HOME", "USER", "HOSTNAME", "PWD", "$"})
"""Variables of the shell that are one word, whatever it is: no flag hides in them."""


def items_of(value: Any, at: Origin) -> tuple[Item, ...]:
    """The words of a text, or of a list of texts.

    >>> [item.text for item in items_of("--lr 1e-6 --name 'two words'", Origin("run.py", 1))]
    ['--lr', '1e-6', '--name', 'two words']
    """
    if isinstance(value, list | tuple):
        return tuple(_word([each], at) for each in value if not isinstance(each, Missing))
    if isinstance(value, Unknown):
        return (Gap(value.why, "arguments", "machine"),)
    return tuple(_items(value.parts if isinstance(value, Text) else options(value), at, whole=value))


def _items(parts: tuple[Any, ...], at: Origin, whole: Any) -> Iterator[Item]:
    if isinstance(whole, Either):
        parts = (whole,)
    found: list[Any] = []
    quote, begun, flag = "", False, False

    def end() -> Iterator[Item]:
        nonlocal found, begun, flag
        if begun:
            word = _word(found, at)
            flag = word.shown.startswith("--") and "=" not in word.shown
            yield word
        found, begun = [], False

    for place, part in enumerate(parts):
        if not isinstance(part, str):
            after = parts[place + 1] if place + 1 < len(parts) else " "
            if isinstance(part, Either) and not begun and not quote and _apart(part, after):
                yield Choice(tuple(items_of("" if each is None else each, at) for each in part.options), part.why)
            elif not begun and not quote and not flag and isinstance(part, Unknown) and _blank(after):
                yield Gap(part.why, "arguments", "machine")
            else:
                found.append(part)
                begun = True
            continue
        escaped = False
        for sign in part:
            if escaped:
                found.append("" if sign == "\n" else sign)
                escaped, begun = False, True
            elif sign == "\\" and quote != "'":
                escaped = True
            elif sign in "'\"" and quote in ("", sign):
                quote, begun = "" if quote else sign, True
            elif sign in BLANK and not quote:
                yield from end()
            else:
                found.append(sign)
                begun = True
    yield from end()


def _blank(after: Any) -> bool:
    return isinstance(after, str) and (not after or after[0] in BLANK)


def _apart(part: Either, after: Any) -> bool:
    """Whether what may stand here ends before the next word begins."""
    texts = [each if isinstance(each, str) else "" for each in part.options]
    if not all(isinstance(each, str | Text | None) for each in part.options):
        return False
    return _blank(after) or all(not text or text[-1] in BLANK for text in texts)


def _word(parts: list[Any], at: Origin) -> Word:
    """One word of pieces."""
    found: list[str | Hole] = []
    for part in parts:
        if isinstance(part, str):
            found.append(part)
        elif isinstance(part, Text):
            found += [each if isinstance(each, str) else _hole(each) for each in part.parts]
        elif isinstance(part, bool | int | float):
            found.append(str(part))
        else:
            found.append(_hole(part))
    return join(found, at)


def _hole(part: Any) -> Hole:
    why = part.why if isinstance(part, Unknown | Either) else "is known only when it runs"
    return Hole(why, "value", "machine")


def value_of(item: Item) -> Any:
    """A word of a command as a value of a script."""
    if not isinstance(item, Word):
        return Unknown(item.why)
    if item.text is not None:
        return item.text
    parts = tuple(part if isinstance(part, str) else Unknown(part.why) for part in item.parts)
    one = item.parts[0] if len(parts) == 1 else None
    if one is not None and not (isinstance(one, Hole) and one.name in ONE_WORD):
        return parts[0]
    return Text(parts)
