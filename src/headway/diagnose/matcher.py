"""One search for all fixed texts at once. RE2 reads a log at hundreds of MB/s; a Python pattern of this size not."""

from collections.abc import Iterable
from functools import cache
from typing import Protocol

import re2

EXTRA = (
    rb"(?-i:[A-Za-z](?:Error|Exception|Interrupt|Exit|Failure)(?:: |\n|\r|$))",
    rb"(?-i:\n|^)Killed",
)
"""What has no fixed text: the last line of a Python traceback, and what a shell says of a killed command."""
MOST_MEMORY = 48 << 20
"""Bytes that RE2 may use for its states."""


class Matcher(Protocol):
    """Searches bytes for any of the texts that it was made of."""

    def search(self, data: bytes, start: int, end: int) -> tuple[int, int] | None:
        """The first place from `start` to `end`: where the text begins and ends."""
        ...


class _Re2Matcher:
    def __init__(self, needles: Iterable[str]) -> None:
        options = re2.Options()
        options.case_sensitive = False
        options.never_capture = True
        options.encoding = re2.Options.Encoding.LATIN1
        options.max_mem = MOST_MEMORY
        options.log_errors = False
        parts = [re2.escape(needle.encode()) for needle in sorted(set(needles))]
        self._pattern = re2.compile(b"|".join([*EXTRA, *parts]), options)

    def search(self, data: bytes, start: int, end: int) -> tuple[int, int] | None:
        match = self._pattern.search(data, start, end)
        if match is None:
            return None
        found: tuple[int, int] = match.span()
        return found


@cache
def matcher(needles: tuple[str, ...]) -> Matcher:
    """A matcher for fixed texts in lower case; it takes upper case as the same."""
    return _Re2Matcher(needles)
