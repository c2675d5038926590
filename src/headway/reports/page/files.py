"""Reading the files of a run: line by line, in bounded memory, and never failing on what a killed process left."""

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headway.reports.page.records import FileRow

LINE = 8 << 20
"""Bytes of the longest line that is read; a longer one is passed over."""
DOCUMENT = 64 << 20
"""Bytes of the largest JSON document that is read."""
SHOWN_FILES = 100
"""Files that are listed."""
ENDS = 4 << 20
"""Bytes that are read of the beginning, and of the end, of a file of samples."""

ABOUT = {
    "runspec.toml": "the RunSpec as run, every default filled in",
    "plan.json": "the plan: verdicts, lines, limits",
    "recording.jsonl": "measured memory, phase by phase",
    "metrics.jsonl": "one record a step",
    "evaluations.jsonl": "one record an evaluation",
    "rollouts.jsonl": "sample answers",
    "tensorboard": "the metrics as TensorBoard events",
    "checkpoints": "to go on from",
    "final": "the trained model or adapter",
    "summary.json": "how it ended",
    "reward.log": "what reward code printed",
    "events.jsonl": "beginnings, actions, forecasts, signals and ends of processes",
    "log.0.txt": "the first lines of the command's output",
    "log.1.txt": "the last lines of the output, before log.2.txt",
    "log.2.txt": "the last lines of the output",
    "report.html": "this page",
}


def lines(path: Path, longest: int = LINE) -> Iterator[bytes]:
    """The lines of a file, without those that are longer. OSError where it cannot be read."""
    with path.open("rb") as file:
        skipping = False
        while line := file.readline(longest):
            whole = line.endswith(b"\n") or len(line) < longest
            if whole and not skipping:
                yield line
            skipping = not whole


def rows(path: Path, longest: int = LINE) -> Iterator[dict[str, Any] | None]:
    """The JSON objects of a file, one a line; None for a line that is none. OSError where it cannot be read."""
    for line in lines(path, longest):
        if line.strip():
            yield row(line)


def row(line: bytes | str) -> dict[str, Any] | None:
    """The object on a line; None where it is not whole, or something else."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def document(path: Path) -> dict[str, Any] | None:
    """A JSON document; None where there is none, or no whole one. OSError where it is there and cannot be read."""
    if not path.is_file() or path.stat().st_size > DOCUMENT:
        return None
    return row(path.read_bytes())


def both_ends(path: Path, size: int = ENDS) -> Iterator[dict[str, Any]]:
    """The objects in the first and the last bytes of a file of any size. OSError where it cannot be read."""
    with path.open("rb") as file:
        whole = os.fstat(file.fileno()).st_size
        first = file.read(size)
        at = max(size, whole - size)
        file.seek(at)
        rest = file.read(size)
    head, tail = first.split(b"\n"), rest.split(b"\n")
    if at > size:
        head, tail = head[:-1], tail[1:]
    else:
        head, tail = (first + rest).split(b"\n"), []
    for line in (*head, *tail):
        if (found := row(line)) is not None:
            yield found


def number(value: object) -> float | None:
    """A finite number, as a float; None for anything else.

    >>> number(3), number(float("nan")), number(True), number("3")
    (3.0, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def size_of(value: object) -> int | None:
    """A size in bytes; None for anything that is none.

    >>> size_of(3), size_of(-1), size_of(2.0), size_of(10**30), size_of(None)
    (3, None, 2, None, None)
    """
    found = number(value)
    return int(found) if found is not None and 0 <= found < 2**62 else None


def listing(folder: Path) -> tuple[FileRow, ...]:
    """The files and folders of a run, those that are known first. OSError where the folder cannot be read."""
    found = []
    for entry in sorted(os.scandir(folder), key=lambda each: each.name):
        if entry.name.startswith("."):
            continue
        if entry.is_dir(follow_symlinks=False):
            found.append(FileRow(entry.name + "/", tree_size(Path(entry.path)), ABOUT.get(entry.name, "")))
        else:
            found.append(FileRow(entry.name, entry.stat(follow_symlinks=False).st_size, about(entry.name)))
    order = list(ABOUT)
    found.sort(key=lambda each: (order.index(name) if (name := each.name.rstrip("/")) in ABOUT else 99, each.name))
    return tuple(found[:SHOWN_FILES])


def about(name: str) -> str:
    """What a file is, by its name.

    >>> about("frames-000003.60s.jsonl"), about("attempt-1.log"), about("other")
    ('frames: memory over time', 'the last lines of an earlier attempt', '')
    """
    if name.startswith("frames-"):
        return "frames: memory over time"
    if name.startswith("attempt-"):
        return "the last lines of an earlier attempt"
    return ABOUT.get(name, "")


def tree_size(folder: Path, most: int = 10_000) -> int:
    """Bytes of the files below a folder, of that many at most. What cannot be read counts nothing."""
    total = 0
    for at, found in enumerate(folder.rglob("*")):
        if at >= most:
            break
        try:
            total += found.lstat().st_size if found.is_file() and not found.is_symlink() else 0
        except OSError:
            continue
    return total
