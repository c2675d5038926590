"""From the words of a command line to sources: files, folders, standard input, and this machine as it is now."""

import io
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from headway.diagnose.lines import Source
from headway.errors import InputError

ENDINGS = {
    ".log",
    ".out",
    ".err",
    ".txt",
    ".gz",
    ".jsonl",
    ".json",
    ".events",
    ".peak",
    ".current",
    ".oom_control",
    ".failcnt",
    "",
}
MOST_FILES = 2000
SKIPPED = ("agent-", "dashboard_", ".safetensors", "events.out.tfevents", "rollouts.jsonl", "plan.json")
"""Beginnings of names of files that are no logs: what a model wrote or was planned is no evidence of an end."""

GIVE = (
    "give what the run that ended printed: standard output and error of its trainer or job, a folder of such logs, "
    "or what headway train or watch recorded"
)
"""What to give where there is nothing to read."""


def sources_of(logs: Sequence[str], runs: Sequence[str], *, live: bool) -> list[Source]:
    """What to read. Each of `runs` is an attempt of its own; `logs` belong to the first where there are none.

    InputError names every file that cannot be read, and where nothing is named at all.
    """
    problems: list[str] = []
    found: list[Source] = []
    for index, words in enumerate([list(logs), *([each] for each in runs)]):
        run = max(0, index - 1)
        for word in words:
            try:
                found += _of(word, run)
            except InputError as error:
                problems += error.problems
    if live:
        from headway.diagnose.live import live_sources

        found += live_sources(max((source.run for source in found), default=0))
    if problems:
        raise InputError(*problems)
    if not found:
        raise InputError("LOG: nothing to read; name a log, a folder of logs, or - for standard input, or use --live")
    return found


def _of(word: str, run: int) -> Iterator[Source]:
    if word == "-":
        yield Source("-", lambda: sys.stdin.buffer, run)
        return
    if re.match(r"[a-z]+://", word):
        raise InputError(f"{word}: is an address, and nothing is fetched; save the log and give its file, or -")
    path = Path(word).expanduser()
    if path.is_dir():
        boxes, of_boxes = boxes_in(path), set[str]()
        for box in boxes:
            yield from _box(box, run)
            of_boxes |= _kept(box)
        files = sorted(each for each in path.rglob("*") if each.suffix in ENDINGS and each.is_file())
        files = [each for each in files if not each.name.startswith(SKIPPED) and each.parent not in boxes]
        files = [each for each in files if str(each) not in of_boxes]
        full = [each for each in files if each.stat().st_size]
        if not full and not boxes:
            raise InputError(f"{word}: {_no_log(path, files)}; {GIVE}")
        for file in full[:MOST_FILES]:
            yield Source(str(file), opener(file), run)
        return
    opener(path)().close()
    yield Source(word, opener(path), run)


def _no_log(folder: Path, empty: Sequence[Path]) -> str:
    """Why nothing in a folder can be read: `empty` are its logs, which hold nothing."""
    if empty:
        return f"every log in the folder is empty ({', '.join(each.name for each in empty[:3])})"
    if not any(folder.iterdir()):
        return "the folder is empty"
    return "the folder holds no log (files that end in .log, .out, .err, .txt, .gz)"


def boxes_in(path: Path) -> list[Path]:
    """The black boxes in a folder, itself among them."""
    from headway.guard.blackbox import is_blackbox
    from headway.guard.boxrecords import EVENTS

    return sorted(file.parent for file in path.rglob(EVENTS) if is_blackbox(file.parent))


def _box(folder: Path, run: int) -> list[Source]:
    from headway.diagnose.readers.blackbox import box_sources  # here, because the readers need this module

    return box_sources(folder, run)


def _kept(folder: Path) -> set[str]:
    """The files in a black box's own subfolders: the box says itself which of them count."""
    from headway.guard.raylogs import kept

    return {str(path) for path in kept(folder)}


def opener(path: Path) -> Callable[[], BinaryIO]:
    """Opens a file; InputError where it cannot be."""

    def opened() -> BinaryIO:
        try:
            return path.open("rb")
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror})") from None

    return opened


def text_source(name: str, text: str, run: int = 0) -> Source:
    """A text as a source.

    >>> text_source("a", "Killed").open().read()
    b'Killed'
    """
    data = text.encode(errors="replace")
    return Source(name, lambda: io.BytesIO(data), run)
