"""What the trainer's process and its allocator were measured to hold on this machine beside live tensors:
`headway rehearse --calibrate`.

Kept below `XDG_CACHE_HOME`, or else `~/.cache`, one record for each machine, device and version of Python and torch.
"""

import os
import platform
from importlib import metadata
from pathlib import Path

import msgspec
from msgspec import Struct

from headway.errors import InputError


class Overhead(Struct, frozen=True):
    """What the allocator takes beyond live tensors while a phase computes: `holes` bytes in the middle of the phases
    measured, `spread` bytes more in the one furthest from that. `share` is the most that was seen beyond `holes` of
    a phase's tensors; None where no phase had enough of them to tell.

    >>> Overhead(2 << 20, 3 << 20, 0.01).share
    0.01
    """

    holes: int
    spread: int
    share: float | None


class ProcessBase(Struct, frozen=True):
    """Resident bytes of the trainer's process without tensors: `loaded` when the model has been loaded, `running`
    once it has generated and trained. `measured` is when, as a date.

    `overhead` is the allocator's where the tensors are, None where only the process was measured; `context` what the
    process holds of a CUDA device outside of its allocator, in bytes, None on the CPU.

    >>> base = ProcessBase("cpu", 380 << 20, 400 << 20, "2026-01-31")
    >>> base.source
    'calibrated on this machine, 2026-01-31'
    """

    device: str
    loaded: int
    running: int
    measured: str
    overhead: Overhead | None = None
    context: int | None = None

    @property
    def source(self) -> str:
        """What a line of a plan says of its origin."""
        return f"calibrated on this machine, {self.measured}"


def calibration_file() -> Path:
    """Where the records are."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "headway" / "calibration.json"


def key() -> str:
    """The machine with the versions that the sizes depend on."""
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        torch = "none"
    return f"{platform.node()}, Python {platform.python_version()}, torch {torch}"


def read() -> tuple[ProcessBase, ...]:
    """This machine's records, one a device; () where it was not calibrated, or not with these versions."""
    return tuple(_all().get(key(), {}).values())


def keep(base: ProcessBase) -> Path:
    """Keep a record in place of an older one; its file. InputError where it cannot be written."""
    path, found = calibration_file(), _all()
    found.setdefault(key(), {})[base.device] = base
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
        temporary.rename(path)
    except OSError as error:
        raise InputError(f"--calibrate: {path} cannot be written ({error.strerror})") from None
    return path


def _all() -> dict[str, dict[str, ProcessBase]]:
    """Every record. A file that is torn, or of another version, holds none: calibrating again writes it anew."""
    try:
        return msgspec.json.decode(calibration_file().read_bytes(), type=dict[str, dict[str, ProcessBase]])
    except (OSError, msgspec.MsgspecError):
        return {}
