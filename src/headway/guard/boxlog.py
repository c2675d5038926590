"""A command's output in a black box: its beginning and its end, in bounded files, as it came and at once."""

import os
import re
from collections import deque
from pathlib import Path
from typing import BinaryIO

HEAD, BEFORE, LATEST = "log.0.txt", "log.1.txt", "log.2.txt"
"""The beginning; what stood before the latest; the latest. In this order they are the output, with a gap at most."""
HEAD_BYTES = 256 << 10
LINES, TURN_BYTES, MOST_BYTES = 500, 1 << 20, 4 << 20
"""The latest becomes `BEFORE` at so many lines and bytes together, or at most bytes, whatever its lines."""
ERROR_BYTES = 8 << 10
"""Bytes of standard error that are kept for the end."""
LONGEST = 4096
"""Bytes of a line that are kept."""
CUT = b" ... (cut)"
OLD = 5
"""Logs of earlier attempts that are kept."""
_PIECES = re.compile(rb"[^\r\n]+|[\r\n]+")


def write_all(file: BinaryIO, data: bytes) -> None:
    """Write to a file without a buffer: a disk that fills up takes a part first and refuses the rest."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


def replace_file(path: Path, data: bytes) -> None:
    """Write a file whole: under another name, then renamed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(data)
        temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)


def ends_unfinished(path: Path) -> bool:
    """Whether the last line of a file lacks its end, as where the writing process was killed."""
    if not path.exists() or not path.stat().st_size:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


class LogTail:
    """Writes pieces of output as they come. A line that is too long is cut; a carriage return begins it anew."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = (folder / HEAD).open("wb", buffering=0)
        self._in_head = True
        self._size = self._lines = self._column = self._stream = 0

    def write(self, data: bytes, stream: int = 1) -> None:
        """Keep a piece. One of another stream does not go on in a line that the first has not finished."""
        if stream != self._stream and self._column:
            data = b"\n" + data
        self._stream = stream
        data = self._cut(data)
        write_all(self._file, data)
        self._size += len(data)
        self._lines += data.count(b"\n")
        if self._in_head:
            if self._size >= HEAD_BYTES:
                self._turn()
        elif (self._lines >= LINES and self._size >= TURN_BYTES) or self._size >= MOST_BYTES:
            (self._folder / LATEST).replace(self._folder / BEFORE)
            self._turn()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _turn(self) -> None:
        self._file.close()
        self._file = (self._folder / LATEST).open("wb", buffering=0)
        self._in_head, self._size, self._lines = False, 0, 0

    def _cut(self, data: bytes) -> bytes:
        """Without what is too much of a line."""
        kept = []
        for piece in _PIECES.findall(data):
            if piece[0] in b"\r\n":
                self._column = 0
            else:
                room, self._column = LONGEST - self._column, self._column + len(piece)
                if len(piece) > room:
                    piece = piece[:room] + CUT if room > 0 else b""
            kept.append(piece)
        return b"".join(kept)


class ErrorTail:
    """The end of what a command writes to standard error, in bounded memory; nothing where it has none of its own."""

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self._size = 0

    def write(self, data: bytes) -> None:
        """Take a piece."""
        self._pieces.append(data[-ERROR_BYTES:])
        self._size += len(self._pieces[-1])
        while self._size - len(self._pieces[0]) >= ERROR_BYTES:
            self._size -= len(self._pieces.popleft())

    @property
    def text(self) -> str:
        """The last bytes, as text."""
        return b"".join(self._pieces)[-ERROR_BYTES:].decode(errors="replace")


def logs_of(folder: Path) -> list[Path]:
    """The files of the latest attempt's output, in order."""
    return [path for name in (HEAD, BEFORE, LATEST) if (path := folder / name).exists()]


def last_lines(folder: Path, count: int = LINES) -> tuple[str, ...]:
    """The last lines of the latest attempt's output; of a line that a progress bar writes anew, what it says last."""
    lines: deque[bytes] = deque(maxlen=count)
    for path in logs_of(folder):
        with path.open("rb") as file:
            lines.extend(file)
    return tuple(line.rstrip(b"\r\n").rpartition(b"\r")[2].decode(errors="replace") for line in lines)


def move_old_logs(folder: Path, attempt: int) -> None:
    """Keep the last lines of the attempt before as attempt-N.log, and of those a few."""
    lines = last_lines(folder)
    if attempt and lines:
        (folder / f"attempt-{attempt}.log").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for path in logs_of(folder):
        path.unlink()
    for number in range(attempt - OLD, 0, -1):
        path = folder / f"attempt-{number}.log"
        if not path.exists():
            break
        path.unlink()
