"""Patterns of bash (`*`, `?`, `[a-z]`) against texts: cutting, replacing, matching."""

import re
from functools import lru_cache

LONGEST = 1024
"""Characters of a text or a pattern that are matched; no launch script has longer ones."""


@lru_cache(maxsize=256)
def regex(pattern: str, greedy: bool = True) -> re.Pattern[str] | None:
    """A pattern as a regular expression; None where it is not understood.

    >>> bool(regex("qwen3-*B").fullmatch("qwen3-30B"))
    True
    """
    found, place = "", 0
    star = ".*" if greedy else ".*?"
    while place < len(pattern):
        char = pattern[place]
        if char == "*":
            if not found.endswith(star):
                found += star
        elif char == "?":
            found += "."
        elif char == "[":
            end = pattern.find("]", place + 2)
            if end < 0:
                found += re.escape(char)
            else:
                inner = pattern[place + 1 : end].replace("\\", "\\\\").replace("[:digit:]", "0-9")
                found += f"[{'^' + inner[1:] if inner[:1] in ('!', '^') else inner}]"
                place = end
        elif char == "\\" and place + 1 < len(pattern):
            place += 1
            found += re.escape(pattern[place])
        else:
            found += re.escape(char)
        place += 1
    try:
        return re.compile(found, re.DOTALL)
    except re.error:
        return None


def _wild(pattern: str) -> bool:
    """Many stars make matching slow."""
    return len(pattern) > LONGEST or pattern.count("*") > 8


def matches(text: str, pattern: str) -> bool | None:
    """Whether the whole text matches; None where that cannot be told.

    >>> matches("bf16", "bf*"), matches("fp32", "bf*")
    (True, False)
    """
    if _wild(pattern) or len(text) > LONGEST or "(" in pattern:
        return True if pattern == text else None
    compiled = regex(pattern)
    return None if compiled is None else compiled.fullmatch(text) is not None


def cut(text: str, pattern: str, sign: str) -> str:
    """The text without what matches at its beginning (`#`, `##`) or end (`%`, `%%`).

    >>> cut("/root/Qwen3-4B", "*/", "##"), cut("model.tar.gz", ".*", "%")
    ('Qwen3-4B', 'model.tar')
    """
    if _wild(pattern) or len(text) > LONGEST:
        return text
    compiled = regex(pattern)
    if compiled is None:
        return text
    ends = range(len(text) + 1)
    if sign[0] == "#":
        lengths = ends if sign == "#" else reversed(ends)
        return next((text[end:] for end in lengths if compiled.fullmatch(text, 0, end)), text)
    starts = reversed(ends) if sign == "%" else ends
    return next((text[:start] for start in starts if compiled.fullmatch(text, start)), text)


def replace(text: str, pattern: str, new: str, sign: str) -> str:
    """The text with what matches replaced: once (`/`), everywhere (`//`), at the beginning (`/#`) or end (`/%`).

    >>> replace("a-b-c", "-", "_", "//"), replace("a-b-c", "-", "_", "/")
    ('a_b_c', 'a_b-c')
    """
    if _wild(pattern) or len(text) > LONGEST:
        return text
    if not pattern:
        return new + text if sign == "/#" else text + new if sign == "/%" else text
    compiled = regex(pattern)
    if compiled is None:
        return text
    if sign == "/#":
        found = compiled.match(text)
        return new + text[found.end() :] if found else text
    if sign == "/%":
        found = next((m for start in range(len(text) + 1) if (m := compiled.fullmatch(text, start))), None)
        return text[: found.start()] + new if found else text
    return compiled.sub(lambda _: new, text, count=0 if sign == "//" else 1)
