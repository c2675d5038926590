"""A sign: a fixed text that some program prints, what it proves, and the fields to take from it."""

import re
from functools import cached_property

from msgspec import Struct

from headway.diagnose.evidence import Evidence, Line, Role
from headway.diagnose.text import without_prefix


class Sign(Struct, frozen=True, dict=True):
    """One text to look for. `needles`: fixed parts in lower case, one of which stands in every such line; they are
    what a large log is searched for. `pattern`: what the line must match as well, its named groups are the fields.
    `unless`: what makes the line something else. `says`: what the text proves, and what it does not.

    >>> sign = Sign("ray-exit-code", "context", ("exits with an exit code",), r"exit code (?P<code>None|-?\\d+)")
    >>> from headway.diagnose.evidence import Place
    >>> sign.read(Line(Place("a", 1, "Worker exits with an exit code 1."), 0)).fields
    {'code': '1'}
    """

    kind: str
    role: Role
    needles: tuple[str, ...]
    pattern: str = ""
    unless: str = ""
    says: str = ""

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile(self.pattern, re.IGNORECASE)

    @cached_property
    def _unless(self) -> re.Pattern[str]:
        return re.compile(self.unless, re.IGNORECASE)

    def read(self, line: Line, plain: str | None = None, lowered: str = "") -> Evidence | None:
        """The evidence in a line; None where the sign is not in it. `plain`: its text without its process's prefix,
        and `lowered` the same in lower case, so that a caller of many signs makes them once."""
        text = without_prefix(line.text) if plain is None else plain
        lowered = lowered or text.lower()
        if not any(needle in lowered for needle in self.needles):
            return None
        if self.unless and self._unless.search(text):
            return None
        if not self.pattern:
            return Evidence(self.kind, self.role, line)
        match = self._pattern.search(text)
        if match is None:
            return None
        fields = {name: value for name, value in match.groupdict().items() if value is not None}
        return Evidence(self.kind, self.role, line, fields)
