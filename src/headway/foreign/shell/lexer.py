"""Where quotes, brackets and words of bash begin and end, found in plain text."""

from collections.abc import Iterator

CLOSERS = {"(": ")", "{": "}", "[": "]"}
BLANKS = " \t\r\n"


def close(text: str, start: int) -> int:
    """The position of the bracket that closes the one at `start`, quotes and escapes respected; -1 for none.

    >>> close("${A:-${B}} x", 1)
    9
    """
    opener, closer = text[start], CLOSERS[text[start]]
    depth, place, end = 0, start, len(text)
    while place < end:
        char = text[place]
        if char == "\\":
            place += 2
            continue
        if char == "'" and opener != "{":
            place = past_single(text, place)
            continue
        if char == '"':
            place = past_double(text, place)
            continue
        if char == "#" and opener == "(" and place > start and text[place - 1] in "\n;" + BLANKS:
            line = text.find("\n", place)
            place = end if line < 0 else line
            continue
        if char == "$" and place + 1 < end and text[place + 1] in "({" and text[place + 1] != opener:
            inner = close(text, place + 1)
            place = end if inner < 0 else inner + 1
            continue
        if char == opener:
            depth += 1
        elif char == closer:
            depth -= 1
            if not depth:
                return place
        place += 1
    return -1


def past_single(text: str, start: int) -> int:
    """The position after a '...' that begins at `start`; the end of the text where it is not closed."""
    found = text.find("'", start + 1)
    return len(text) if found < 0 else found + 1


def past_double(text: str, start: int) -> int:
    """The position after a "..." that begins at `start`; the end of the text where it is not closed.

    >>> past_double('"a $(echo "b") c" d', 0)
    17
    """
    place = start + 1
    while place < len(text):
        char = text[place]
        if char == '"':
            return place + 1
        if char == "\\":
            place += 2
        elif char == "$" and text[place + 1 : place + 2] in ("(", "{"):
            inner = close(text, place + 1)
            place = len(text) if inner < 0 else inner + 1
        elif char == "`":
            place = past_backtick(text, place)
        else:
            place += 1
    return len(text)


def past_backtick(text: str, start: int) -> int:
    """The position after a `...` that begins at `start`."""
    place = start + 1
    while place < len(text):
        if text[place] == "\\":
            place += 2
        elif text[place] == "`":
            return place + 1
        else:
            place += 1
    return len(text)


def past_word(text: str, start: int) -> int:
    """The position after the word that begins at `start`."""
    place = start
    while place < len(text):
        char = text[place]
        if char in BLANKS:
            return place
        if char == "\\":
            place += 2
        elif char == "'":
            place = past_single(text, place)
        elif char == '"':
            place = past_double(text, place)
        elif char == "`":
            place = past_backtick(text, place)
        elif (char == "$" and text[place + 1 : place + 2] in ("(", "{")) or (
            char in "<>" and text[place + 1 : place + 2] == "("
        ):
            inner = close(text, place + 1)
            place = len(text) if inner < 0 else inner + 1
        else:
            place += 1
    return min(place, len(text))


def words(text: str) -> Iterator[tuple[int, str]]:
    """The words of a text with their positions; comments and joined lines are left out.

    >>> [word for _, word in words("--tp 4  # two\\n  #--pp 2\\n --name 'a b'")]
    ['--tp', '4', '--name', "'a b'"]
    """
    place = 0
    while place < len(text):
        char = text[place]
        if char in BLANKS:
            place += 1
        elif char == "\\" and text[place + 1 : place + 2] == "\n":
            place += 2
        elif char == "#":
            line = text.find("\n", place)
            place = len(text) if line < 0 else line
        else:
            end = max(past_word(text, place), place + 1)
            yield place, text[place:end]
            place = end
