"""Words of bash with their expansions made: quotes, variables, arithmetic, command substitutions, splitting."""

import re
from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct, field

from headway.foreign.shell import arithmetic, lexer, parameters
from headway.foreign.shell.parameters import Many
from headway.foreign.shell.state import DEEPEST, Budget, State, StoppedError
from headway.foreign.shell.values import Gap, Hole, Item, Origin, Word, join, known, unknown

NAME = re.compile(r"[A-Za-z_]\w*")
NO_WORDS = re.compile(r"\$@|\$\{(@|[A-Za-z_]\w*\[@\]).*\}", re.DOTALL)
SPECIAL = "@*#?$!-0123456789"
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "f": "\f", "v": "\v"}

Substitute = Callable[[str, Origin | None], Word]


class Fields(Struct):
    """The words that one word of the script becomes. `begun`: there is a word even where it has no text yet."""

    at: Origin | None
    items: list[Item] = field(default_factory=list)
    parts: list[str | Hole] = field(default_factory=list)
    begun: bool = False
    written: Origin | None = None

    def add(self, *parts: str | Hole) -> None:
        """More of the present word, which is then there."""
        self.begun = True
        self.parts += parts

    def end(self) -> None:
        """The present word is complete."""
        if self.begun:
            self.items.append(join(self.parts, self.written or self.at))
        self.parts, self.begun, self.written = [], False, None

    def split(self, parts: Iterable[str | Hole], separators: str) -> None:
        """An expansion without quotes: its text falls apart at the separators, a hole stays one piece."""
        for part in parts:
            if isinstance(part, Hole):
                self.add(part)
                continue
            pieces = re.split(f"[{re.escape(separators)}]+", part) if separators else [part]
            for index, piece in enumerate(pieces):
                if index:
                    self.end()
                if piece:
                    self.add(piece)

    def many(self, found: Many, quoted: bool, separators: str) -> None:
        """The words of an array: the first and the last touch what stands beside them."""
        for index, item in enumerate(found.items):
            if index:
                self.end()
            if not isinstance(item, Word):
                self.end()
                self.items.append(item)
                continue
            if not self.begun:  # the word is where the array has it, not where the array is used
                self.written = item.at
            if quoted:
                self.add(*item.parts)
            else:
                self.split(item.parts, separators)


class Expander:
    """Expands the words of one script in the state that it is in."""

    def __init__(self, state: State, budget: Budget, substitute: Substitute) -> None:
        self.state, self.budget, self.substitute = state, budget, substitute
        self.at: Origin | None = None

    def fields(self, text: str, at: Origin | None = None) -> tuple[Item, ...]:
        """The words that one word becomes."""
        found: list[Item] = []
        for piece in _braces(text):
            fields = Fields(at)
            self._scan(piece, fields, quoted=False)
            fields.end()
            found += fields.items
        return tuple(found)

    def single(self, text: str, at: Origin | None = None, *, quoted: bool = False) -> Word:
        """One word, not split: the value of an assignment, a pattern, a text in quotes."""
        fields = Fields(at)
        self._scan(text, fields, quoted=quoted, whole=True)
        fields.end()
        return as_word(fields.items, at)

    def separators(self) -> str:
        """What words are split at."""
        value = self.state.scalar("IFS")
        return " \t\n" if value is None or value.text is None else value.text

    def _scan(self, text: str, fields: Fields, *, quoted: bool, whole: bool = False) -> None:
        """Read a text into fields. `quoted`: it stands within double quotes; `whole`: nothing is split."""
        self.budget.spend()
        if self.budget.depth > DEEPEST:
            fields.add(Hole("expansions nested too deep", "expansion", "machine"))
            return
        self.budget.depth += 1
        try:
            place = self._tilde(text, fields) if not quoted else 0
            while place < len(text):
                place = self._step(text, place, fields, quoted=quoted, whole=whole)
        finally:
            self.budget.depth -= 1

    def _step(self, text: str, place: int, fields: Fields, *, quoted: bool, whole: bool) -> int:
        """Read one piece from a position; the position after it."""
        char, after = text[place], text[place + 1 : place + 2]
        if char == "\\":
            return _escape(text, place, fields, quoted)
        if char == "'" and not quoted:
            end = lexer.past_single(text, place)
            fields.add(text[place + 1 : end - 1 if text[end - 1] == "'" and end > place + 1 else end])
            return end
        if char == '"':
            if quoted:  # within ${A:-"..."} in double quotes: the quotes group, and fall away
                return place + 1
            end = lexer.past_double(text, place)
            inner = text[place + 1 : end - 1 if text[end - 1] == '"' and end > place + 1 else end]
            if not NO_WORDS.fullmatch(inner):  # "$@" may be no word at all
                fields.add("")
            self._scan(inner, fields, quoted=True)
            return end
        if char == "$" and after == "'" and not quoted:
            end = _past_ansi(text, place + 1)
            fields.add(_ansi(text[place + 2 : end - 1]))
            return end
        if char == "$" and after == '"' and not quoted:
            return place + 1
        if char in "$`" or (char in "<>" and after == "(" and not quoted):
            found, end = self._dollar(text, place, quoted or whole)
            self._put(found, fields, quoted=quoted, whole=whole)
            return end
        end = place + 1
        while end < len(text) and text[end] not in "\\'\"$`<>":
            end += 1
        fields.add(text[place:end])
        return end

    def _put(self, found: "Many | Word", fields: Fields, *, quoted: bool, whole: bool) -> None:
        if isinstance(found, Many):
            if whole or (found.star and quoted):
                fields.add(*parameters.joined(found.items, self.separators()[:1] if found.star else " ").parts)
            else:
                fields.many(found, quoted or found.split, self.separators())
        elif quoted or whole:
            fields.add(*found.parts)
        else:
            fields.split(found.parts, self.separators())

    def _tilde(self, text: str, fields: Fields) -> int:
        if not text.startswith("~") or (len(text) > 1 and text[1] != "/"):
            return 0
        home = self.state.scalar("HOME")
        fields.add(*(home.parts if home is not None else (self.state.hole("HOME"),)))
        return 1

    def _dollar(self, text: str, place: int, quoted: bool) -> tuple["Many | Word", int]:
        """What an expansion at a position becomes, and the position after it."""
        at = self.at
        if text[place] == "`":
            end = lexer.past_backtick(text, place)
            inner = re.sub(r"\\([`\\$])", r"\1", text[place + 1 : end - 1])
            return self.substitute(inner, at), end
        if text[place] in "<>":
            end = _past_bracket(text, place + 1)
            return unknown("the output of a process", text[place:end][:40], "machine"), end
        after = text[place + 1 : place + 2]
        if after == "(":
            end = _past_bracket(text, place + 1)
            inner = text[place + 2 : end - 1]
            if inner.startswith("(") and inner.endswith(")") and lexer.close(inner, 0) == len(inner) - 1:
                return self.arithmetic(inner[1:-1]), end
            return self.substitute(inner, at), end
        if after == "{":
            end = _past_bracket(text, place + 1)
            return parameters.expand(self, text[place + 2 : end - 1], quoted), end
        if after == "[":
            end = _past_bracket(text, place + 1)
            return self.arithmetic(text[place + 2 : end - 1]), end
        name = NAME.match(text, place + 1)
        if name is not None:
            return parameters.value(self.state, name[0]), name.end()
        if after and after in SPECIAL:
            return parameters.value(self.state, after), place + 2
        return known("$"), place + 1

    def arithmetic(self, text: str) -> Word:
        """The value of the text between `((` and `))`."""
        inner = self.single(text, quoted=True) if "$" in text or "`" in text else known(text)
        if inner.text is None:
            return unknown(inner.why, inner.holes[0].name, inner.holes[0].kind)
        return arithmetic.evaluate(inner.text, self.state)


def as_word(items: Sequence[Item], at: Origin | None = None) -> Word:
    """One word of several, with blanks between them."""
    if not items:
        return known("", at)
    if len(items) == 1 and isinstance(items[0], Word):
        return items[0].put(at) if at is not None else items[0]
    return parameters.joined(items).put(at)


def _past_bracket(text: str, start: int) -> int:
    """The position after the bracket that opens at `start` is closed; StoppedError where it is not."""
    end = lexer.close(text, start)
    if end < 0:
        raise StoppedError(f"a bracket that is not closed: {text[start : start + 40]!r}")
    return end + 1


def _escape(text: str, place: int, fields: Fields, quoted: bool) -> int:
    after = text[place + 1 : place + 2]
    if after == "\n":
        return place + 2
    if not after:
        fields.add("\\")
    elif quoted and after not in '$`"\\':
        fields.add("\\" + after)
    else:
        fields.add(after)
    return place + 2


def _past_ansi(text: str, start: int) -> int:
    place = start + 1
    while place < len(text):
        if text[place] == "\\":
            place += 2
        elif text[place] == "'":
            return place + 1
        else:
            place += 1
    return len(text) + 1


def _ansi(text: str) -> str:
    return re.sub(r"\\(.)", lambda match: ESCAPES.get(match[1], match[1]), text, flags=re.DOTALL)


RANGE = re.compile(r"\{(-?\d{1,6})\.\.(-?\d{1,6})(?:\.\.(-?\d{1,4}))?\}")
LIST = re.compile(r"\{([^{}$'\"`\\\s]*,[^{}$'\"`\\\s]*)\}")
MOST_BRACES, MOST_NESTED = 1000, 8


def _braces(text: str) -> list[str]:
    """The words of `a{1..3}` and `a{x,y}`; only of plain ones without quotes or expansions within the braces.

    >>> _braces("run{1..3}"), _braces("{rollout_id}.pt")
    (['run1', 'run2', 'run3'], ['{rollout_id}.pt'])
    """
    if "{" not in text or "'" in text or '"' in text:
        return [text]
    pieces = [text]
    for _ in range(MOST_NESTED):
        opened = [each for piece in pieces for each in _opened(piece)]
        if len(opened) > MOST_BRACES:
            return [text]
        if opened == pieces:
            break
        pieces = opened
    return pieces


def _opened(text: str) -> list[str]:
    """The words that the first brace of a word makes of it."""
    numbers = RANGE.search(text)
    options = LIST.search(text)
    found = min(
        (each for each in (numbers, options) if each is not None), key=lambda each: each.start(), default=None
    )
    if found is None or text[: found.start()].endswith("$"):
        return [text]
    if found is options:
        inner = found[1].split(",")
    else:
        first, last = int(found[1]), int(found[2])
        step = abs(int(found[3] or 1)) or 1
        if abs(last - first) // step >= MOST_BRACES:
            return [text]
        inner = [
            str(number)
            for number in range(first, last + (1 if last >= first else -1), step if last >= first else -step)
        ]
    return [text[: found.start()] + each + text[found.end() :] for each in inner]


def gap_of(word: Word) -> Gap:
    """An unknown word of which nobody knows how many words it is."""
    hole = word.holes[0]
    return Gap(word.why, hole.name, hole.kind)
