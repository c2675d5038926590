"""Whole-number arithmetic of bash: `$(( ))`, `(( ))`, array indices and the numbers of tests."""

import re
from collections.abc import Callable

from headway.foreign.shell.state import DEEPEST, State, element
from headway.foreign.shell.values import Array, Table, Word, known, unknown

TOKEN = re.compile(
    r"\s*(?:(0[xX][0-9a-fA-F]+|\d+#\w+|\d+)|([A-Za-z_]\w*(?:\[[^\]]*\])?)"
    r"|(\*\*|<<=|>>=|\+\+|--|&&|\|\||<<|>>|[<>=!+\-*/%&|^]=|[-+*/%()<>!~&|^?:=,]))"
)
LARGEST = 1 << 63


class Unclear(Exception):  # noqa: N818 - no error: a value that the script does not tell
    """An expression whose value the script does not tell, with the reason as a word."""

    def __init__(self, word: Word) -> None:
        super().__init__(word.why)
        self.word = word


def evaluate(text: str, state: State) -> Word:
    """The value of an expression whose expansions are made; a hole where it hangs on something unknown.

    >>> evaluate("(1 + 3) * 1024 ** 2", State()).text
    '4194304'
    >>> evaluate("TP * 2", State()).why
    'variable TP is not set in the script'
    """
    try:
        value = Parser(text, state).whole()
    except Unclear as found:
        return found.word
    except (ZeroDivisionError, OverflowError, ValueError, LookupError, RecursionError):
        return unknown(f"the arithmetic {text.strip()[:60]!r} has no value", "arithmetic")
    return known(str(value))


class Parser:
    """Precedence climbing over the operators of C, on 64-bit whole numbers."""

    LEVELS: tuple[tuple[str, ...], ...] = (
        ("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", "<=", ">", ">="), ("<<", ">>"), ("+", "-"),
        ("*", "/", "%"),
    )  # fmt: skip

    def __init__(self, text: str, state: State, depth: int = 0) -> None:
        self.state, self.depth = state, depth
        self.tokens: list[tuple[str, str]] = []
        place = 0
        text = text.replace("\\\n", " ").replace('"', "").rstrip()
        while place < len(text):
            match = TOKEN.match(text, place)
            if match is None:
                raise Unclear(unknown(f"the arithmetic {text.strip()[:60]!r} is not understood", "arithmetic"))
            kind = "number" if match[1] else "name" if match[2] else "sign"
            self.tokens.append((kind, match[match.lastindex or 0]))
            place = match.end()
        if len(self.tokens) > 500:
            raise Unclear(unknown("the arithmetic is too long", "arithmetic"))
        self.place = 0

    def peek(self) -> str:
        """The next sign or name; empty at the end."""
        return self.tokens[self.place][1] if self.place < len(self.tokens) else ""

    def whole(self) -> int:
        """The value of everything; an empty expression is 0."""
        if not self.tokens:
            return 0
        value = self.comma()
        if self.place != len(self.tokens):
            raise ValueError
        return value

    def comma(self) -> int:
        value = self.assignment()
        while self.peek() == ",":
            self.place += 1
            value = self.assignment()
        return value

    def assignment(self) -> int:
        after = self.tokens[self.place + 1][1] if self.place + 1 < len(self.tokens) else ""
        if self.place < len(self.tokens) and self.tokens[self.place][0] == "name" and _assigns(after):
            name = self.tokens[self.place][1]
            self.place += 2
            value = self.assignment()
            if after != "=":
                value = _apply(after[:-1], self.variable(name), value)
            return self.put(name, value)
        return self.ternary()

    def ternary(self) -> int:
        condition = self.binary(0)
        if self.peek() != "?":
            return condition
        self.place += 1
        yes = self.assignment()
        if self.peek() != ":":
            raise ValueError
        self.place += 1
        no = self.assignment()
        return yes if condition else no

    def binary(self, level: int) -> int:
        if level == len(self.LEVELS):
            return self.power()
        value = self.binary(level + 1)
        while (sign := self.peek()) in self.LEVELS[level] and self.tokens[self.place][0] == "sign":
            self.place += 1
            value = _apply(sign, value, self.binary(level + 1))
        return value

    def power(self) -> int:
        value = self.unary()
        if self.peek() == "**":
            self.place += 1
            value = _apply("**", value, self.power())
        return value

    def unary(self) -> int:
        kind, text = self.tokens[self.place]
        self.place += 1
        if kind == "number":
            return _number(text)
        if kind == "name":
            value = self.variable(text)
            if self.peek() in ("++", "--"):
                self.put(text, value + (1 if self.peek() == "++" else -1))
                self.place += 1
            return value
        if text == "(":
            value = self.comma()
            if self.peek() != ")":
                raise ValueError
            self.place += 1
            return value
        if text in ("++", "--"):
            name = self.tokens[self.place][1]
            self.place += 1
            return self.put(name, self.variable(name) + (1 if text == "++" else -1))
        operand = self.unary()
        return {"-": -operand, "+": operand, "!": int(not operand), "~": ~operand}[text]

    def variable(self, name: str) -> int:
        base, bracket, index = name.partition("[")
        word = self.state.scalar(base)
        if bracket:
            word = _element(self.state, base, index.rstrip("]"))
        if word is None:
            raise Unclear(Word((self.state.hole(base),)))
        if word.text is None:
            raise Unclear(word)
        text = word.text.strip()
        if not text:
            return 0
        if re.fullmatch(r"[-+]?\d+", text):
            return int(text)
        if self.depth > DEEPEST:
            raise ValueError
        return Parser(text, self.state, self.depth + 1).whole()

    def put(self, name: str, value: int) -> int:
        value = _wrap(value)
        if "[" not in name:
            self.state.set(name, known(str(value)))
        return value


def _element(state: State, base: str, index: str) -> Word | None:
    value = state.get(base)
    if isinstance(value, Table):
        return dict(value.entries).get(index)
    place = evaluate(index, state)
    if place.text is None:
        return place
    if isinstance(value, Array):
        return element(value, int(place.text))
    return value if isinstance(value, Word) and place.text == "0" else None


def _assigns(sign: str) -> bool:
    return sign == "=" or (sign.endswith("=") and sign not in ("==", "!=", "<=", ">="))


def _number(text: str) -> int:
    if "#" in text:
        base, digits = text.split("#")
        return int(digits, int(base))
    if text[:2].lower() == "0x":
        return int(text, 16)
    if len(text) > 40:
        raise ValueError
    return int(text, 8) if text.startswith("0") and len(text) > 1 else int(text)


def _wrap(value: int) -> int:
    """The value as bash's 64-bit numbers hold it."""
    return (value + LARGEST) % (2 * LARGEST) - LARGEST


def _apply(sign: str, left: int, right: int) -> int:
    if sign in ("/", "%"):
        quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
        return quotient if sign == "/" else left - quotient * right
    if sign == "**" and not 0 <= right <= 64:
        raise ValueError
    if sign in ("<<", ">>"):
        right &= 63
    return _wrap(int(_SIGNS[sign](left, right)))


_SIGNS: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "**": lambda a, b: a**b,
    "<<": lambda a, b: a << b, ">>": lambda a, b: a >> b, "&": lambda a, b: a & b, "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b, "&&": lambda a, b: bool(a and b), "||": lambda a, b: bool(a or b),
    "==": lambda a, b: a == b, "!=": lambda a, b: a != b, "<": lambda a, b: a < b, "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b, ">=": lambda a, b: a >= b,
}  # fmt: skip
