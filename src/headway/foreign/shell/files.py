"""Which files may be read beside a script: those that it sources, within the tree that it lies in."""

import os
from pathlib import Path

from msgspec import Struct

from headway.foreign.shell.values import Hole, Word

LARGEST = 1 << 20
MOST_FOLDERS = 2000
CROWDED = frozenset({"node_modules", "site-packages", "__pycache__", "venv"})
"""Folders that no script of a run lies in."""
MARKS = (".git", "pyproject.toml", "setup.py")
ENVIRONMENTS = frozenset({
    "activate", "activate.sh", ".bashrc", ".bash_profile", ".profile", ".zshrc", "conda.sh", "setvars.sh",
    "set_env.sh", "profile", "modules.sh", "bash.sh",
})  # fmt: skip
"""Files that set up an environment, and none of the arguments of a training run."""


class Found(Struct, frozen=True):
    """A file that a script sources, or why it is not read."""

    path: Path | None
    why: str = ""


def root_of(script: Path) -> Path:
    """The folder that a script's `..` may lead up to: its repository, or three folders up where none is seen."""
    folder = script.resolve().parent
    for parent in (folder, *folder.parents)[:8]:
        if len(parent.parts) > 1 and any((parent / mark).exists() for mark in MARKS):
            return parent
    up = [parent for parent in (folder, *folder.parents)[:4] if len(parent.parts) > 2]
    return up[-1] if up else folder


def find(word: Word, folder: Word, script: Path, root: Path) -> Found:
    """The file that `source word` means. Where the folder that the run starts in is not known, the script's own
    folder and those above it are tried, and then the end of the path below the root."""
    parts = word.parts
    last = parts[-1] if parts else ""
    if not isinstance(last, str) or (len(parts) > 1 and "/" not in last):
        return Found(None, word.why or "its name is empty")
    tail = last
    whole = word.text is not None
    candidates: list[Path] = []
    if whole and tail.startswith("/"):
        candidates.append(Path(tail))
    elif whole:
        if folder.text is not None:
            candidates.append(Path(folder.text) / tail)
        near = script.parent
        candidates += [parent / tail for parent in (near, *near.parents)[:8] if _within(parent, root)]
    pieces = [piece for piece in tail.split("/") if piece not in ("", ".")]
    while ".." in pieces:
        pieces = pieces[pieces.index("..") + 1 :]
    candidates += [
        root.joinpath(*pieces[start:]) for start in range(max(len(pieces) - 1, 0)) if len(pieces) - start > 1
    ]
    candidates = candidates[:32]
    if len(pieces) > 1 and not any(candidate.is_file() for candidate in candidates):
        candidates += _elsewhere(pieces[-2], pieces[-1], root)
    outside = False
    for candidate in candidates:
        path = Path(os.path.normpath(candidate))
        if not _within(path, root):
            outside = True
            continue
        try:
            real = path.resolve()
            if not real.is_file():
                continue
            if not _within(real, root.resolve()):
                outside = True
                continue
            if real.stat().st_size > LARGEST:
                return Found(None, "is larger than 1 MiB")
        except (OSError, ValueError, RuntimeError):
            continue
        return Found(path)
    return Found(
        None, "lies outside the script's tree" if outside and not whole else "was not found in the script's tree"
    )


def _elsewhere(folder: str, name: str, root: Path) -> list[Path]:
    """`folder/name` in another place of the tree, where just one place has it: a script that was copied out of its
    folder still names its neighbours."""
    found: list[Path] = []
    waiting, looked = [root], 0
    while waiting:
        looked += 1
        if looked > MOST_FOLDERS:
            return []
        here = waiting.pop()
        try:
            folders = [each for each in here.iterdir() if each.is_dir() and not each.is_symlink()]
        except OSError:
            continue
        found += [each / name for each in folders if each.name == folder and (each / name).is_file()]
        waiting += [each for each in folders if not each.name.startswith(".") and each.name not in CROWDED]
    return found if len(found) == 1 else []


def _within(path: Path, root: Path) -> bool:
    return path == root or root in path.parents


def read(path: Path) -> str | None:
    """The text of a file; None where it cannot be read as text."""
    try:
        data = path.read_bytes()[: LARGEST + 1]
    except OSError:
        return None
    return None if b"\0" in data[:4096] else data.decode(errors="replace").replace("\r\n", "\n")


def no_file(path: Path) -> str:
    """Why a path is no file that can be read; empty where it is one.

    >>> no_file(Path("/"))
    'is a folder; name the file in it'
    """
    if path.is_file():
        return ""
    if path.is_dir():
        return "is a folder; name the file in it"
    return "is no plain file" if path.exists() else "no such file"


def name_of(word: Word) -> str:
    """A file's last name, for messages."""
    last = word.parts[-1] if word.parts else ""
    if isinstance(last, Hole):
        return word.shown[-60:]
    return last.rpartition("/")[2] or word.shown[-60:]
