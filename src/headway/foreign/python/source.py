"""The text of a Python script or notebook as a syntax tree: bounded, and never more than data."""

import ast
import json
import re
import warnings
from pathlib import Path

from headway.errors import InputError
from headway.foreign.shell import files

LARGEST = 2 << 20
"""Bytes of a script; notebooks carry pictures and may be four times as large."""
MOST_NODES = 400_000
DEEPEST = 120
"""Levels of a syntax tree that are read; what people write has below 40."""
SUFFIXES = (".py", ".ipynb")


def is_python(path: Path) -> bool:
    """Whether a file is called a Python script or a notebook.

    >>> is_python(Path("train.py")), is_python(Path("run.sh"))
    (True, False)
    """
    return path.suffix.lower() in SUFFIXES


def text_of(path: Path) -> str:
    """The text of a script, or of a notebook's code cells. InputError where it cannot be read."""
    if why := files.no_file(path):
        raise InputError(f"{path}: {why}")
    notebook = path.suffix.lower() == ".ipynb"
    largest = LARGEST * 4 if notebook else LARGEST
    try:
        with path.open("rb") as file:
            data = file.read(largest + 1)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > largest:
        raise InputError(f"{path}: is larger than {largest >> 20} MiB, which no training script is")
    if b"\0" in data:
        raise InputError(f"{path}: cannot be read as text")
    text = data.decode("utf-8-sig", errors="replace").replace("\r\n", "\n")
    return _cells(text, path) if notebook else text


def _cells(text: str, path: Path) -> str:
    """The code cells of a notebook, one behind the other, with what only IPython understands left out."""
    try:
        cells = json.loads(text)["cells"]
        sources = [cell["source"] for cell in cells if cell["cell_type"] == "code"]
        found = [source if isinstance(source, str) else "".join(source) for source in sources]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InputError(f"{path}: is no notebook that can be read; export it as a script") from None
    return "\n".join(plain(cell) for cell in found)


MAGIC = re.compile(r"(\s*)(?:[%!?]|\w[\w, ]*= *[%!]).*")
"""A line for IPython or the shell: `!pip install trl`, `%env X=1`, `files = !ls`."""


def plain(cell: str) -> str:
    """A notebook's cell as Python: lines for IPython become `pass`; nothing is left of a cell of another language.

    >>> plain("!pip install trl\\nx = 1")
    'pass\\nx = 1'
    """
    if re.match(r"\s*%%(?!capture|time)", cell):
        return ""
    try:
        ast.parse(cell)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        pass
    else:
        return cell
    lines, more = [], False
    for line in cell.split("\n"):
        match = MAGIC.fullmatch(line)
        if more or match is not None:
            lines.append(f"{match[1]}pass" if match is not None and not more else "")
            more = line.endswith("\\")
        else:
            lines.append(line)
    text = "\n".join(lines)
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""  # a cell that is no Python does nothing
    return text


def parse(text: str, name: str) -> ast.Module:
    """The syntax tree of a script. InputError with the line where it is no Python, or deeper than any script is.

    >>> parse("x = 1", "train.py").body[0].lineno
    1
    """
    try:
        tree = _parsed(text)
    except SyntaxError as error:
        line = f" line {error.lineno}" if error.lineno else ""
        raise InputError(
            f"{name}{line}: is no Python 3 ({error.msg}); name the script that starts the training"
        ) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise InputError(f"{name}: is no Python that can be read ({type(error).__name__})") from None
    _check(tree, name)
    return tree


NEWER = re.compile(r"""\b[rR]?[fF][rR]?(['"])(?!\1\1).*\1""")
"""A text of Python 3.12 that has its own quotes inside, which older versions cannot parse."""
MOST_NEWER = 40


def _without_dots(lines: list[str]) -> list[str]:
    """The lines without `...` that stand for further arguments, as documents and reports have them."""
    found: list[str] = []
    for line in lines:
        before = next((plain for each in reversed(found) if (plain := each.partition("#")[0].rstrip())), "")
        dots = line.partition("#")[0].strip().rstrip(",") == "..." and before.endswith((",", "("))
        found.append("" if dots else re.sub(r",\s*\.\.\.\s*\)", ")", line))
    return found


def _parsed(text: str) -> ast.Module:
    """The tree; texts that only a newer Python understands become ones that nobody knows."""
    lines = text.split("\n")
    for _ in range(MOST_NEWER):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return ast.parse("\n".join(lines))
        except SyntaxError as error:
            at = (error.lineno or 0) - 1
            if "positional argument follows keyword" in str(error.msg):
                lines = _without_dots(lines)
                continue
            if "f-string" not in str(error.msg) or not 0 <= at < len(lines):
                raise
            changed = NEWER.sub('f"{a_text_of_newer_python}"', lines[at])
            if changed == lines[at]:
                raise
            lines[at] = changed
    return ast.parse("\n".join(lines))


def _check(tree: ast.Module, name: str) -> None:
    """InputError where a tree is deeper or larger than any script's. Sums and texts may be as long as they like."""
    nodes: list[tuple[ast.AST, int]] = [(tree, 0)]
    seen = 0
    while nodes:
        node, depth = nodes.pop()
        seen += 1
        if depth > DEEPEST or seen > MOST_NODES:
            what = "nested deeper" if depth > DEEPEST else "longer"
            raise InputError(f"{name} line {getattr(node, 'lineno', 1)}: is {what} than any training script")
        nodes += [(child, depth + 1) for child in ast.iter_child_nodes(node)]
