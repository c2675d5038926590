"""The syntax tree of a script, by tree-sitter-bash, with the text that each node stands for."""

import re
from dataclasses import dataclass
from functools import cache

import tree_sitter_bash
from tree_sitter import Language, Node, Parser, Tree

from headway.foreign.shell import lexer
from headway.foreign.shell.values import Origin

__all__ = ["Node", "Unit", "parse", "parts", "words"]

ARRAY = re.compile(r"^[ \t]*(?:export |local |declare (?:-\w+ )*|readonly )?[A-Za-z_]\w*\+?=\(", re.MULTILINE)


@cache
def _parser() -> Parser:
    return Parser(Language(tree_sitter_bash.language()))


@dataclass(frozen=True)
class Unit:
    """One text that is evaluated: a file, or a text within it (`bash -c "..."`), which starts at `line`.

    `exact`: positions in the text are positions in the file.
    """

    file: str
    data: bytes
    tree: Tree
    line: int = 1
    exact: bool = True

    def text(self, node: Node) -> str:
        """The text of a node."""
        return self.data[node.start_byte : node.end_byte].decode(errors="replace")

    def origin(self, node: Node) -> Origin:
        """Where a node is."""
        if not self.exact:
            return Origin(self.file, self.line + node.start_point.row)
        return Origin(self.file, self.line + node.start_point.row, node.start_byte, node.end_byte)

    def within(self, node: Node, text: str, offset: int, size: int) -> Origin:
        """Where a stretch of a node's text is: `size` characters from `offset`."""
        before = text[:offset]
        line = self.line + node.start_point.row + before.count("\n")
        if not self.exact:
            return Origin(self.file, line)
        start = node.start_byte + len(before.encode())
        return Origin(self.file, line, start, start + len(text[offset : offset + size].encode()))


def parse(text: str, file: str, line: int = 1, *, exact: bool = True) -> Unit:
    """The tree of a text. Where the grammar stumbles over the words of an array, they are hidden from it.

    >>> parse("A=(--tp 4)", "run.sh").tree.root_node.children[0].type
    'variable_assignment'
    """
    data = text.encode(errors="replace")
    tree = _parser().parse(data)
    if tree.root_node.has_error:
        plain = _without_arrays(text).encode(errors="replace")
        if plain != data:
            again = _parser().parse(plain)
            if _errors(again.root_node) < _errors(tree.root_node):
                tree = again
    return Unit(file, data, tree, line, exact)


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
