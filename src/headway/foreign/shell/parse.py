"""The syntax tree of a script, by tree-sitter-bash, with the text that each node stands for."""

import re
from bisect import bisect_left
from collections.abc import Iterator
from functools import cache

import tree_sitter_bash
from msgspec import Struct
from tree_sitter import Language, Node, Parser, Tree

from headway.foreign.shell import lexer
from headway.foreign.shell.values import Origin

__all__ = ["Node", "Unit", "parse", "parts", "words"]

ARRAY = re.compile(r"^[ \t]*(?:export |local |declare (?:-\w+ )*|readonly )?[A-Za-z_]\w*\+?=\(", re.MULTILINE)


@cache
def _parser() -> Parser:
    return Parser(Language(tree_sitter_bash.language()))


class Unit(Struct, frozen=True):
    """One text that is evaluated: a file, or a text within it (`bash -c "..."`), which starts at `line`.

    `exact`: positions in the text are positions in the file. `breaks` are the positions of its newlines.
    """

    file: str
    data: bytes
    tree: Tree
    breaks: tuple[int, ...] = ()
    line: int = 1
    exact: bool = True

    def text(self, node: Node) -> str:
        """The text of a node."""
        return self.data[node.start_byte : node.end_byte].decode(errors="replace")

    def place(self, start: int, end: int) -> Origin:
        """Where a stretch of the text is, from its positions in bytes."""
        line = self.line + bisect_left(self.breaks, start)
        return Origin(self.file, line, start, end) if self.exact else Origin(self.file, line)

    def origin(self, node: Node) -> Origin:
        """Where a node is."""
        return self.place(node.start_byte, node.end_byte)

    def within(self, node: Node, text: str, offset: int, size: int) -> Origin:
        """Where a stretch of a node's text is: `size` characters from `offset`."""
        start = node.start_byte + len(text[:offset].encode())
        return self.place(start, start + len(text[offset : offset + size].encode()))


MOST_REPAIRS = 8
PID = re.compile(rb"\$\$(?=\w)")
"""`$$` with a letter behind it."""
COMMENT = re.compile(rb"(?<![^ \t\n])`#[^`\n]*`(?=[ \t\n]|$)")
"""A comment among the words of a command: a substitution that holds nothing else, and gives no word."""


def parse(text: str, file: str, line: int = 1, *, exact: bool = True) -> Unit:
    """The tree of a text, where the grammar's four known slips are mended.

    Words of an array over which it stumbles are hidden from it. Two assignments on a line are to it the beginning of
    the command on the next one, so a semicolon takes the place of the blank or newline behind them. A word with `$$`
    in it ends for it before the next variable, so letters take its place. A comment in backquotes runs for it to the
    end of the line; blanks take its place.

    >>> parse("A=(--tp 4)", "run.sh").tree.root_node.children[0].type
    'variable_assignment'
    >>> [node.type for node in parse("A=1 B=2\\necho", "run.sh").tree.root_node.children]
    ['variable_assignments', ';', 'command']
    """
    data = text.encode(errors="replace")
    seen = bytearray(_plain(data))
    tree = _parser().parse(bytes(seen))
    if tree.root_node.has_error:
        plain = _plain(_without_arrays(text).encode(errors="replace"))
        if plain != seen and _errors((again := _parser().parse(plain)).root_node) < _errors(tree.root_node):
            tree, seen = again, bytearray(plain)
    for _ in range(MOST_REPAIRS):
        ends = list(_run_on(tree.root_node, bytes(seen)))
        if not ends:
            break
        for end in ends:
            seen[end] = ord(";")
        tree = _parser().parse(bytes(seen))
    breaks = tuple(match.start() for match in re.finditer(b"\n", data))
    return Unit(file, data, tree, breaks, line, exact)


def _plain(data: bytes) -> bytes:
    """The text as the grammar reads it rightly, of the same size."""
    return COMMENT.sub(lambda found: b" " * len(found[0]), PID.sub(b"__", data))


def _run_on(root: Node, data: bytes) -> Iterator[int]:
    """Where assignments end that the grammar takes for the beginning of a command on a later line."""
    stack = [root]
    while stack:
        node = stack.pop()
        stack += node.children
        if node.type != "command":
            continue
        before: Node | None = None
        for child in node.children:
            if before is not None and b"\n" in data[before.end_byte : child.start_byte].replace(b"\\\n", b""):
                yield before.end_byte
            if child.type == "command_name":
                break
            before = child if child.type == "variable_assignment" else None if child.type != "comment" else before


def _without_arrays(text: str) -> str:
    """The text with the words of arrays as blanks of the same size."""
    place, found = 0, []
    for match in ARRAY.finditer(text):
        if match.start() < place:
            continue
        end = lexer.close(text, match.end() - 1)
        if end < 0:
            continue
        inner = re.sub(r"[^\n]", lambda char: " " * len(char[0].encode(errors="replace")), text[match.end() : end])
        found += [text[place : match.end()], inner]
        place = end
    return "".join([*found, text[place:]])


def _errors(node: Node) -> int:
    """Bytes of the text that the grammar did not understand."""
    stack, count = [node], 0
    while stack:
        one = stack.pop()
        if one.is_error:
            count += max(one.end_byte - one.start_byte, 1)
        elif one.has_error:
            count += one.is_missing
            stack += one.children
    return count


def parts(node: Node, *types: str) -> list[Node]:
    """The children of these types."""
    return [child for child in node.children if child.type in types]


def words(text: str) -> list[tuple[int, str]]:
    """The words between the brackets of an array, with their positions in the text that begins with its bracket."""
    end = lexer.close(text, 0)
    inner = text[1:end] if end > 0 else text[1:]
    return [(offset + 1, word) for offset, word in lexer.words(inner)]
