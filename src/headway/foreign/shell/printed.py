"""What commands print that ask nobody: echo, printf, dirname, basename, seq and plain filters of text."""

import posixpath
import re
from collections.abc import Callable, Sequence

from msgspec import Struct

from headway.foreign.shell import arithmetic
from headway.foreign.shell.state import State
from headway.foreign.shell.values import LONGEST_TEXT, Hole, Word, join, known

MOST_LINES = 2000


class Given(Struct, frozen=True):
    """What a command is given: its arguments, what is piped in, and the state of the shell."""

    arguments: Sequence[Word]
    piped: Word | None
    state: State


Print = Callable[[Given], Word | None]
"""What is given -> what is printed; None where only the machine knows."""


def _texts(words: Sequence[Word]) -> list[str] | None:
    texts = [word.text for word in words]
    return None if any(text is None for text in texts) else [text or "" for text in texts]


def _echo(given: Given) -> Word | None:
    words, newline, escapes = list(given.arguments), "\n", False
    while words and words[0].text and re.fullmatch(r"-[neE]+", words[0].text):
        newline = "" if "n" in words[0].text else newline
        escapes = escapes or "e" in words[0].text
        words.pop(0)
    parts: list[str | Hole] = []
    for index, word in enumerate(words):
        parts += [" "] if index else []
        parts += [_escaped(part) if escapes and isinstance(part, str) else part for part in word.parts]
    return join([*parts, newline])


def _escaped(text: str) -> str:
    return text.replace(r"\n", "\n").replace(r"\t", "\t").replace(r"\\", "\\")


DIRECTIVE = re.compile(r"%([-0+ ]*)(\d*)(?:\.(\d+))?([sdiqbfgexXu%])")


def printf(arguments: Sequence[Word]) -> Word | None:
    """The text of `printf format arguments`; the format is used again while arguments are left.

    >>> printf([known("%s-%02d "), known("run"), known("3")]).text
    'run-03 '
    """
    if not arguments or arguments[0].text is None:
        return None
    pattern, rest = _escaped(arguments[0].text), list(arguments[1:])
    parts: list[str | Hole] = []
    while True:
        used, place = 0, 0
        for match in DIRECTIVE.finditer(pattern):
            parts.append(pattern[place : match.start()])
            place = match.end()
            if match[4] == "%":
                parts.append("%")
                continue
            word = rest[used] if used < len(rest) else known("")
            used += 1
            if word.text is None:
                parts += word.parts
                continue
            formatted = _formatted(match, word.text)
            if formatted is None:
                return None
            parts.append(formatted)
        parts.append(pattern[place:])
        rest = rest[used:]
        if not rest or not used or len(parts) > MOST_LINES:
            return join(parts)


def _formatted(match: re.Match[str], text: str) -> str | None:
    flags, width, precision, kind = match.groups()
    if int(width or 0) > 1000 or int(precision or 0) > 100:
        return None
    try:
        if kind in "sqb":
            text = _escaped(text) if kind == "b" else text
            return f"%{flags}{width}s" % (text[: int(precision)] if precision else text)
        number: float | int = float(text or 0) if kind in "fge" else int(text or "0", 0 if text[:2] == "0x" else 10)
        return f"%{flags}{width}{'.' + precision if precision else ''}{'d' if kind in 'iu' else kind}" % number
    except ValueError:
        return None


def _printf(given: Given) -> Word | None:
    return printf(given.arguments)


def _path(arguments: Sequence[Word], apart: Callable[[str], str]) -> Word | None:
    """A part of a path whose last piece is known; what stands before it may be a hole."""
    words = [word for word in arguments if word.text is None or not word.text.startswith("-")]
    if not words:
        return None
    parts = list(words[0].parts)
    if all(isinstance(part, str) for part in parts):
        return known(apart("".join(str(part) for part in parts)) + "\n")
    last = parts[-1]
    if isinstance(last, str) and "/" in last.rstrip("/"):
        last = last.rstrip("/")
        if apart is _base:
            return known(_base(last) + "\n")
        return join((*parts[:-1], last.rpartition("/")[0], "\n"))
    return None


def _base(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2] or ("/" if path.startswith("/") else "")


def _folder(path: str) -> str:
    return posixpath.dirname(path.rstrip("/")) or ("/" if path.startswith("/") else ".")


def _dirname(given: Given) -> Word | None:
    return _path(given.arguments, _folder)


def _basename(given: Given) -> Word | None:
    words = [word for word in given.arguments if word.text is None or not word.text.startswith("-")]
    found = _path(words, _base)
    if found is None or found.text is None or len(words) < 2 or words[1].text is None:
        return found
    base = found.text.rstrip("\n")
    return known((base.removesuffix(words[1].text) if base != words[1].text else base) + "\n")


def _realpath(given: Given) -> Word | None:
    """A path without `..`, taken as it is written: links are not followed."""
    words = [word for word in given.arguments if word.text is None or not word.text.startswith("-")]
    if len(words) != 1:
        return None
    path = words[0].text
    if path is None:
        return join((*words[0].parts, "\n"))
    if path.startswith("/"):
        return known(posixpath.normpath(path) + "\n")
    if given.state.folder.text is None:
        return join((*given.state.folder.parts, "/", path, "\n"))
    return known(posixpath.normpath(posixpath.join(given.state.folder.text, path)) + "\n")


def _pwd(given: Given) -> Word | None:
    return join((*given.state.folder.parts, "\n"))


def _seq(given: Given) -> Word | None:
    texts = _texts(given.arguments)
    if texts is None:
        return None
    separator = "\n"
    while texts and texts[0][:1] == "-" and not re.fullmatch(r"-?\d+", texts[0]):
        option = texts.pop(0)
        if option.startswith("-s"):
            separator = option[2:] or (texts.pop(0) if texts else "\n")
    if not 1 <= len(texts) <= 3 or not all(re.fullmatch(r"-?\d{1,9}", text) for text in texts):
        return None
    numbers = [int(text) for text in texts]
    first, step, last = (1, 1, numbers[0]) if len(numbers) == 1 else (numbers[0], 1, numbers[-1])
    step = numbers[1] if len(numbers) == 3 else step
    if not step or (last - first) // step > MOST_LINES:
        return None
    found = range(first, last + (1 if step > 0 else -1), step)
    return known(separator.join(map(str, found)) + ("\n" if found else ""))


def _expr(given: Given) -> Word | None:
    texts = _texts(given.arguments)
    if texts is None or any(re.search(r"[^-+*/%()\d<>=!&| ]", text) for text in texts):
        return None
    value = arithmetic.evaluate(" ".join("==" if text == "=" else text for text in texts), given.state)
    return None if value.text is None else known(value.text + "\n")


def _cat(given: Given) -> Word | None:
    return given.piped if not [word for word in given.arguments if word.text != "-"] else None


def _tr(given: Given) -> Word | None:
    texts = _texts(given.arguments)
    if texts is None or given.piped is None or given.piped.text is None or not texts:
        return None
    options = [text for text in texts if re.fullmatch(r"-[dsc]+", text)]
    sets = [_characters(text) for text in texts if text not in options]
    if not sets or any("c" in option for option in options):
        return None
    if any("d" in option for option in options):
        return known("".join(char for char in given.piped.text if char not in sets[0]))
    if len(sets) < 2 or not sets[1]:
        return None
    target = sets[1] + sets[1][-1] * (len(sets[0]) - len(sets[1]))
    return known(given.piped.text.translate({ord(a): b for a, b in zip(sets[0], target, strict=False)}))


def _characters(text: str) -> str:
    text = _escaped(text).replace("[:upper:]", "A-Z").replace("[:lower:]", "a-z").replace("[:space:]", " \t\n")
    found = ""
    for low, dash, high in re.findall(r"(.)(?:(-)(.))?", text, flags=re.DOTALL):
        found += "".join(map(chr, range(ord(low), ord(high) + 1))) if dash and low <= high else low + dash + high
    return found[:512]


def _wc(given: Given) -> Word | None:
    texts = _texts(given.arguments)
    if given.piped is None or given.piped.text is None or texts is None or len(texts) != 1:
        return None
    counts = {
        "-l": given.piped.text.count("\n"),
        "-w": len(given.piped.text.split()),
        "-c": len(given.piped.text.encode()),
    }
    return known(f"{counts[texts[0]]}\n") if texts[0] in counts else None


def _awk(given: Given) -> Word | None:
    """Only `awk -F, '{print NF}'` and `'{print $2}'`."""
    texts = _texts(given.arguments)
    if texts is None or given.piped is None or given.piped.text is None:
        return None
    match = re.fullmatch(r"(?:-F\s?(.))?\s?\{\s*print (NF|\$\d|\$NF)\s*\}", " ".join(texts).replace("-F ", "-F"))
    if match is None:
        return None
    lines = []
    for line in given.piped.text.splitlines()[:MOST_LINES]:
        fields = line.split(match[1]) if match[1] else line.split()
        if match[2] == "NF":
            lines.append(str(len(fields)))
        else:
            index = len(fields) if match[2] == "$NF" else int(match[2][1:])
            lines.append(line if not index else fields[index - 1] if index <= len(fields) else "")
    return known("".join(f"{line}\n" for line in lines))


def _cut(given: Given) -> Word | None:
    texts = _texts(given.arguments)
    if texts is None or given.piped is None or given.piped.text is None:
        return None
    match = re.fullmatch(r"-d\s?(.)\s-f\s?(\d)|-f\s?(\d)\s-d\s?(.)", " ".join(texts))
    if match is None:
        return None
    separator, index = match[1] or match[4], int(match[2] or match[3])
    lines = [line.split(separator) for line in given.piped.text.splitlines()[:MOST_LINES]]
    return known(
        "".join(f"{line[0] if len(line) == 1 else (line[index - 1 : index] or [''])[0]}\n" for line in lines)
    )


def _sed(given: Given) -> Word | None:
    """Only a replacement of plain text."""
    texts = _texts(given.arguments)
    if texts is None or given.piped is None or given.piped.text is None:
        return None
    texts = [text for text in texts if text not in ("-e", "-E", "-r")]
    match = re.fullmatch(r"s([/|#,])([\w:. @=-]*)\1([\w:. @=/-]*)\1(g?)", texts[0]) if len(texts) == 1 else None
    if match is None or "." in match[2] or not match[2]:
        return None
    lines = given.piped.text.split("\n")
    return known("\n".join(line.replace(match[2], match[3], -1 if match[4] else 1) for line in lines))


def _bc(given: Given) -> Word | None:
    if (
        given.piped is None
        or given.piped.text is None
        or given.arguments
        or not re.fullmatch(r"[-+*/%()\d\s]+", given.piped.text)
    ):
        return None
    value = arithmetic.evaluate(given.piped.text, given.state)
    return None if value.text is None else known(value.text + "\n")


PRINTS: dict[str, Print] = {
    "echo": _echo, "printf": _printf, "dirname": _dirname, "basename": _basename, "realpath": _realpath,
    "readlink": _realpath, "pwd": _pwd, "seq": _seq, "expr": _expr, "cat": _cat, "tr": _tr, "wc": _wc, "awk": _awk,
    "cut": _cut, "sed": _sed, "bc": _bc, "xargs": _cat, "tee": lambda given: given.piped,
}  # fmt: skip


def printed(name: str, arguments: Sequence[Word], piped: Word | None, state: State) -> Word | None:
    """What a command prints; None where only the machine knows.

    >>> printed("basename", [known("/root/Qwen3-4B/")], None, State()).text
    'Qwen3-4B\\n'
    """
    if name not in PRINTS or (piped is not None and piped.text is not None and len(piped.text) > LONGEST_TEXT):
        return None
    try:
        return PRINTS[name](Given(arguments, piped, state))
    except (ValueError, IndexError, OverflowError):
        return None
