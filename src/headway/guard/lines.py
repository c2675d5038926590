"""Lines at the end of a file: each whole, or not there at all."""

import os
from contextlib import suppress


def append_line(handle: int, line: str) -> None:
    """Append a line and its end to a file that one process writes to. OSError where it cannot be written, as on a
    full disk: the file is as it was then."""
    data = f"{line}\n".encode()
    at, done = os.lseek(handle, 0, os.SEEK_END), 0
    try:
        while done < len(data):
            done += os.write(handle, data[done:])
    except OSError:
        with suppress(OSError):
            os.ftruncate(handle, at)
        raise
