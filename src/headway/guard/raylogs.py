"""Keeps the ends of a Ray session's own logs beside a recording: after a pod's end the session's folder is gone.

What a session's files hold is never trusted: links are not followed, only plain files of the folder itself are read,
and of each no more than its last part.
"""

import os
import re
import stat
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from headway.guard.boxlog import replace_file

FOLDER = "ray"
"""The folder in a black box."""
SIZE, LARGEST, LARGEST_OF_WORKER, SMALLEST = 4 << 20, 512 << 10, 64 << 10, 1 << 10
"""Bytes of all files together, of one, and of one that a worker wrote; with less room left nothing is kept."""
EVERY_S, SOONEST_S = 30.0, 2.0
"""How often it is looked while the run goes on, and how soon again where processes have ended since."""
MOST_NAMES = 20_000
"""Names of a session's folder that are looked at."""
_SESSION = re.compile(r"^session_[\w-]{1,100}$")
_NODE = re.compile(r"^(?:raylet|gcs_server)\.(?:out|err)$|^monitor\.log$")
_JOB = re.compile(r"^job-driver-[\w.-]{1,100}\.log$")
_WORKER = re.compile(r"^worker-[0-9a-f]{1,80}-[0-9a-f]{1,20}-(?P<pid>\d{1,9})\.(?:err|out)$")


def chosen(names: Collection[str], ended: Sequence[int]) -> list[str]:
    """Those of a session's files that tell of an end, what says most first: the node's, the jobs', and those of the
    workers that ended, in that order.

    >>> chosen({"worker-0f-01-7.err", "worker-0f-01-8.err", "raylet.out", "dashboard.log", "x"}, [8])
    ['raylet.out', 'worker-0f-01-8.err']
    """
    node = sorted(name for name in names if _NODE.match(name))
    jobs = sorted(name for name in names if _JOB.match(name))
    place = {pid: number for number, pid in enumerate(ended)}
    workers = [(name, int(match["pid"])) for name in names if (match := _WORKER.match(name)) is not None]
    order = sorted((place[pid], not name.endswith(".err"), name) for name, pid in workers if pid in place)
    return [*node, *jobs, *(name for *_, name in order)]


class SessionLogs:
    """Copies the ends of a run's session logs into the folder of its black box; what an earlier attempt left goes.

    What cannot be read or written is left out: the run's recording does not depend on it.
    """

    def __init__(self, box: Path, size: int = SIZE) -> None:
        self._folder, self._size = box / FOLDER, size
        self._seen: dict[tuple[str, str], tuple[int, int]] = {}
        self._due = time.monotonic() + EVERY_S
        self._asked = 0
        for path in kept(box):
            _remove(path)

    def look(self, sessions: Sequence[str], ended: Sequence[int], *, now: bool = False) -> int:
        """Keep what has changed where that is due, or `now`; how many files were written. `ended`: the processes of
        the run that have ended badly, in their order."""
        t = time.monotonic()
        if len(ended) > self._asked:
            self._due = min(self._due, t + SOONEST_S)
            self._asked = len(ended)
        if not sessions or (t < self._due and not now):
            return 0
        self._due = t + EVERY_S
        written, room = 0, self._size
        for session in reversed(sessions):  # the latest first
            name = os.path.basename(session)
            if not _SESSION.match(name):
                continue
            try:
                folder = os.open(os.path.join(session, "logs"), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            except OSError:
                continue
            try:
                for file in chosen(_names(folder), ended):
                    size, wrote = self._keep(folder, name, file, room)
                    written, room = written + wrote, room - size
            finally:
                os.close(folder)
        self._bound()
        return written

    def _bound(self) -> None:
        """Files that were kept before others came first are too much with those; the latest session stays."""
        total = 0
        for path in sorted(kept(self._folder.parent), key=lambda each: each.parent.name, reverse=True):
            total += _size(path)
            if total > self._size:
                _remove(path)
                self._seen.pop((path.parent.name, path.name), None)

    def _keep(self, folder: int, session: str, name: str, room: int) -> tuple[int, bool]:
        """Bytes that a file takes of what is left, and whether it was written anew."""
        try:
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        except OSError:
            return 0, False
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or not found.st_size:
                return 0, False
            size = min(found.st_size, LARGEST_OF_WORKER if _WORKER.match(name) else LARGEST, room)
            changed = found.st_size, found.st_mtime_ns
            if room < SMALLEST or self._seen.get((session, name)) == changed:
                return size, False
            data = os.pread(descriptor, size, found.st_size - size)
            if size < found.st_size:  # the line that the cut goes through
                data = data.partition(b"\n")[2]
            path = self._folder / session / name
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, data)
            self._seen[session, name] = changed
            return size, True
        except OSError:
            return 0, False
        finally:
            os.close(descriptor)


def _names(folder: int) -> set[str]:
    try:
        with os.scandir(folder) as entries:
            return {entry.name for entry, _ in zip(entries, range(MOST_NAMES), strict=False)}
    except OSError:
        return set()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


def kept(box: Path) -> list[Path]:
    """The files that were kept of the sessions' logs of a box's latest attempt, the node's own first."""
    return sorted(_kept(box / FOLDER), key=lambda path: (path.parent.name, bool(_WORKER.match(path.name)), path.name))


def _kept(folder: Path) -> Iterator[Path]:
    for path in folder.glob("session_*/*"):
        known = _NODE.match(path.name) or _JOB.match(path.name) or _WORKER.match(path.name)
        if known and path.is_file() and not path.is_symlink():
            yield path
