"""The answer inside a response. Every pattern runs under a time limit, because it meets text that a model wrote."""

from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from functools import lru_cache

import regex

DEFAULT_TIMEOUT_S = 1.0

_GROUPED = r"\d{1,3}(?:,\d{3})+(?!\d|,\d)"
_NUMBER = regex.compile(
    rf"(?:(?<![\w)\]}}.])[-+\u2212])?(?:(?:{_GROUPED}|\d+)(?:\.\d+)?|(?<![\w.])\.\d+)(?:e[-+]?\d+)?",
    regex.ASCII | regex.IGNORECASE,
)


def extract(text: str, how: str, pattern: str | None = None, timeout_s: float = DEFAULT_TIMEOUT_S) -> str | None:
    """The answer in a response, or None where there is none. `how` is `reward.extract`.

    >>> extract("12 + 7 = 19.", "last-number"), extract(r"so \\boxed{\\frac{1}{2}}", "boxed")
    ('19', '\\\\frac{1}{2}')

    Raises TimeoutError when a pattern takes longer than `timeout_s` seconds.
    """
    if how == "pattern":
        if pattern is None:
            raise ValueError('extract = "pattern" needs a pattern')
        return last_match(text, pattern, timeout_s)
    return _EXTRACTORS[how](text)


def last_match(text: str, pattern: str, timeout_s: float) -> str | None:
    """First group of the last match of a pattern, stripped; None without a match."""
    answer = None
    for match in compile_pattern(pattern).finditer(text, timeout=timeout_s):
        answer = match[1]
    return None if answer is None else answer.strip() or None


def matches_whole(text: str, pattern: str, timeout_s: float) -> bool:
    """Whether a pattern matches the whole text. Raises TimeoutError after `timeout_s` seconds."""
    return compile_pattern(pattern).fullmatch(text, timeout=timeout_s) is not None


@lru_cache(maxsize=4096)
def compile_pattern(pattern: str) -> regex.Pattern[str]:
    """A compiled pattern. Raises regex.error where it is not one."""
    return regex.compile(pattern)


def last_number(text: str) -> str | None:
    """The last number, as digits with an optional sign, point and exponent.

    A minus belongs to the number unless something stands right before it: "10-3" ends in 3. Commas count as
    thousands separators only in groups of three: "1,234" is 1234 and "1,2,3" ends in 3.
    """
    found = None
    for match in _NUMBER.finditer(text):
        found = match[0]
    return None if found is None else _normalise(found)


def last_boxed(text: str) -> str | None:
    r"""Content of the last \boxed{...} that closes, with its inner braces."""
    end = len(text)
    while (start := text.rfind(r"\boxed", 0, end)) >= 0:
        content = _braced(text, start + len(r"\boxed"))
        if content is not None:
            return content.strip() or None
        end = start
    return None


def equal_answers(answer: str, label: str) -> bool:
    """Equal as text without outer space, or equal as decimal numbers: "07" is "7" and "3.0" is "3"."""
    answer, label = answer.strip(), label.strip()
    if answer == label:
        return True
    numbers = _decimal(answer), _decimal(label)
    return numbers[0] is not None and numbers[0] == numbers[1]


def _decimal(text: str) -> Decimal | None:
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    try:
        return Decimal(_normalise(match[0]))
    except InvalidOperation:  # an exponent beyond what Decimal holds
        return None


def _normalise(number: str) -> str:
    sign = "-" if number[0] in "-\u2212" else ""
    digits = number.lstrip("+-\u2212").replace(",", "")
    return sign + ("0" + digits if digits.startswith(".") else digits)


def _braced(text: str, position: int) -> str | None:
    while position < len(text) and text[position].isspace():
        position += 1
    if position >= len(text) or text[position] != "{":
        return None
    depth, index = 0, position
    while index < len(text):
        character = text[index]
        if character == "\\":  # an escaped brace is text
            index += 2
            continue
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return text[position + 1 : index]
        index += 1
    return None


def _whole(text: str) -> str | None:
    return text.strip() or None


def _first_line(text: str) -> str | None:
    return next((line.strip() for line in text.splitlines() if line.strip()), None)


def _last_line(text: str) -> str | None:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), None)


_EXTRACTORS: dict[str, Callable[[str], str | None]] = {
    "whole": _whole,
    "first-line": _first_line,
    "last-line": _last_line,
    "last-number": last_number,
    "boxed": last_boxed,
}
