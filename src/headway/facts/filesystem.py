"""Asks this machine about the file system that a path is on."""

import os
from pathlib import Path

from msgspec import Struct

from headway.units import format_bytes

ROOT = Path("/")


class FileSystem(Struct, frozen=True):
    """A mounted file system; sizes in bytes. `kind` is empty where the system does not tell.

    >>> str(FileSystem("/scratch", "ext4", 2 << 40, 3 << 30))
    '/scratch (ext4)'
    """

    mount: str
    kind: str
    total: int
    free: int

    def __str__(self) -> str:
        return f"{self.mount} ({self.kind})" if self.kind else self.mount

    def room(self) -> str:
        """What is free of it, in words."""
        return f"{format_bytes(self.free)} of {format_bytes(self.total)} are free on {self}"


def file_system(path: Path, root: Path = ROOT) -> FileSystem | None:
    """The file system that `path` is on, or will be once it is made; None where that cannot be asked, or
    where it counts no blocks.

    `free` is what this user may use; a quota is not in it.
    """
    found = path.absolute()
    while not found.exists() and found != found.parent:
        found = found.parent
    try:
        size = os.statvfs(found)
        mount, kind = _mount(found.resolve(), root)
    except OSError:
        return None
    if not size.f_blocks:  # /proc and the like count nothing
        return None
    return FileSystem(mount, kind, size.f_blocks * size.f_frsize, size.f_bavail * size.f_frsize)


def _mount(path: Path, root: Path) -> tuple[str, str]:
    """(mount point, kind) of a path; of two file systems mounted in one place the later one is seen."""
    try:
        lines = (root / "proc/self/mounts").read_text(errors="replace").splitlines()
    except OSError:
        return str(path), ""
    found = (Path("/"), "")
    for line in lines:
        words = line.split()
        if len(words) < 3:
            continue
        mount = Path(words[1].replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\"))
        if path.is_relative_to(mount) and len(mount.parts) >= len(found[0].parts):
            found = mount, words[2]
    return str(found[0]), found[1]
