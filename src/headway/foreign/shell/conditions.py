"""Tests: `[ ... ]`, `[[ ... ]]`, `test`. True, False, or a Maybe with the reason."""

import re
from collections.abc import Callable

from msgspec import Struct

from headway.foreign.shell import arithmetic, lexer, patterns
from headway.foreign.shell.expand import Expander
from headway.foreign.shell.values import Word


class Maybe(Struct, frozen=True):
    """A condition that the script does not decide. `lean`: what it is where `name` stays unset."""

    why: str
    name: str = ""
    lean: bool | None = None


Status = bool | Maybe

FILES = frozenset("abcdefghkprstuwxLOGSN")
NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda a, b: a == b, "-ne": lambda a, b: a != b, "-lt": lambda a, b: a < b, "-le": lambda a, b: a <= b,
    "-gt": lambda a, b: a > b, "-ge": lambda a, b: a >= b,
}  # fmt: skip
TEXTS = {"=", "==", "!=", "=~", "<", ">"}


def negated(status: Status) -> Status:
    """The opposite."""
    if isinstance(status, bool):
        return not status
    return Maybe(status.why, status.name, None if status.lean is None else not status.lean)


def both(left: Status, right: Status) -> Status:
    """`left && right`."""
    if left is False or right is False:
        return False
    if isinstance(left, Maybe) and isinstance(right, Maybe) and left.name != right.name:
        return Maybe(f"{left.why}; {right.why}")
    return right if left is True else left


def either(left: Status, right: Status) -> Status:
    """`left || right`."""
    return negated(both(negated(left), negated(right)))


class Test:
    """One test's words, read by precedence: `||`, `&&`, `!`, brackets, an operator with its operands."""

    def __init__(self, expander: Expander, text: str, *, double: bool) -> None:
        self.expander, self.double = expander, double
        self.words = list(_split(text, double))
        self.place = 0

    def whole(self) -> Status:
        """Whether the test holds."""
        if not self.words:
            return False
        return self._or()

    def _peek(self) -> str:
        return self.words[self.place] if self.place < len(self.words) else ""

    def _or(self) -> Status:
        status = self._and()
        while self._peek() in ("||", "-o"):
            self.place += 1
            status = either(status, self._and())
        return status

    def _and(self) -> Status:
        status = self._not()
        while self._peek() in ("&&", "-a"):
            self.place += 1
            status = both(status, self._not())
        return status

    def _not(self) -> Status:
        count = 0
        while self._peek() == "!" and self.place + 1 < len(self.words):
            self.place += 1
            count += 1
        status = self._one()
        return negated(status) if count % 2 else status

    def _one(self) -> Status:
        word = self._peek()
        if word in ("(", r"\("):
            self.place += 1
            status = self._or()
            self.place += 1
            return status
        following = self.words[self.place + 1 : self.place + 3]
        if following and (following[0] in TEXTS or following[0] in NUMBERS):
            self.place += 3
            return self._compare(word, following[0], following[1] if len(following) > 1 else "")
        if re.fullmatch(r"-[a-zA-Z]", word) and following and following[0] not in ("&&", "||", "-a", "-o", ")"):
            self.place += 2
            return self._unary(word[1], following[0])
        self.place += 1
        return self._filled(self._word(word))

    def _word(self, text: str) -> Word:
        return self.expander.single(text)

    def _filled(self, word: Word) -> Status:
        if word.never_set:
            return Maybe(word.why, word.holes[0].name, False)
        if word.text is None:
            return True if any(isinstance(part, str) for part in word.parts) else Maybe(word.why)
        return bool(word.text)

    def _unary(self, sign: str, operand: str) -> Status:
        if sign == "v":
            name = self._word(operand)
            there = name.text is not None and self.expander.state.get(name.text.partition("[")[0]) is not None
            return True if there else Maybe(f"variable {name.shown} is not set in the script", name.shown, False)
        word = self._word(operand)
        if sign == "n":
            return self._filled(word)
        if sign == "z":
            return negated(self._filled(word))
        if sign in FILES:
            return Maybe(f"asks the machine: [ -{sign} {word.shown[:60]} ]")
        return Maybe(f"the test -{sign} is not understood")

    def _compare(self, left: str, sign: str, right: str) -> Status:
        first = self._word(left)
        if sign == "=~":
            return self._regex(first, right)
        second = self._word(right) if not self.double or sign in NUMBERS else self._pattern(right)
        unset = next((word for word in (first, second) if word.never_set), None)
        for word in (first, second):
            if word.text is None and word is not unset:
                return Maybe(word.why)
        texts = [word.text or "" for word in (first, second)]
        result = self._numbers(sign, *texts) if sign in NUMBERS else self._texts(sign, *texts)
        if unset is None or isinstance(result, Maybe):
            return result if unset is None else Maybe(unset.why, unset.holes[0].name)
        return Maybe(unset.why, unset.holes[0].name, result)

    def _pattern(self, text: str) -> Word:
        """The right side of `==` in double brackets: what is quoted stands for itself."""
        pieces: list[Word] = []
        place = 0
        while place < len(text):
            end = place + 1
            if text[place] == '"':
                end = lexer.past_double(text, place)
            elif text[place] == "'":
                end = lexer.past_single(text, place)
            else:
                while end < len(text) and text[end] not in "'\"":
                    end += 2 if text[end] == "\\" else 1
            piece = text[place:end]
            if piece[0] in "'\"":
                word = self._word(piece)
                pieces.append(word if word.text is None else Word((re.sub(r"([*?\[\\(])", r"\\\1", word.text),)))
            else:
                pieces.append(self._word(piece) if "\\" not in piece else Word((piece,)))
            place = end
        return Word(tuple(part for piece in pieces for part in piece.parts))

    def _texts(self, sign: str, first: str, second: str) -> Status:
        if sign in ("<", ">"):
            return first < second if sign == "<" else first > second
        same = patterns.matches(first, second) if self.double else first == second
        if same is None:
            return Maybe(f"the pattern {second[:40]!r} is not understood")
        return same if sign != "!=" else not same

    def _numbers(self, sign: str, first: str, second: str) -> Status:
        values = []
        for text in (first, second):
            if not self.double and text.isdigit():
                values.append(int(text[:40]))  # `[` knows no octal numbers
                continue
            word = arithmetic.evaluate(text or "0", self.expander.state)
            if word.text is None:
                return Maybe(word.why)
            values.append(int(word.text))
        return NUMBERS[sign](*values)

    def _regex(self, first: Word, right: str) -> Status:
        pattern = self._word(right) if "$" in right.rstrip("$)") or right[:1] in "'\"" else Word((right,))
        for word in (first, pattern):
            if word.text is None:
                lean = False if word is first and word.never_set else None
                return Maybe(word.why, word.holes[0].name, lean)
        assert first.text is not None
        assert pattern.text is not None
        if not re.fullmatch(r"[\^$\w\s./:+*?\\\[\]()|,-]{0,80}", pattern.text) or re.search(
            r"[+*)][+*]", pattern.text
        ):
            return Maybe(f"the pattern {pattern.text[:40]!r} is not understood")
        if len(first.text) > 200 or pattern.text.count("*") + pattern.text.count("+") > 3:
            return Maybe(f"the pattern {pattern.text[:40]!r} is not understood")
        try:
            return re.search(pattern.text, first.text) is not None
        except re.error:
            return Maybe(f"the pattern {pattern.text[:40]!r} is not understood")


def _split(text: str, double: bool) -> list[str]:
    """The words of a test; brackets and `&&` within double brackets stand alone."""
    found: list[str] = []
    for _, word in lexer.words(text.replace(" #", " \\#")):
        if not double:
            found.append(word)
            continue
        after_match = bool(found) and found[-1] == "=~"
        while word.startswith("(") and not after_match and len(word) > 1:
            found.append("(")
            word = word[1:]
        closing = 0
        while word.endswith(")") and len(word) > 1 and word.count("(") < word.count(")") and "$(" not in word:
            word, closing = word[:-1], closing + 1
        found += [word, *([")"] * closing)]
    return found
