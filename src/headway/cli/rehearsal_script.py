"""`headway rehearse SCRIPT`: a copy of a launch script of slime or Miles that makes four full-length steps."""

import os
from pathlib import Path

from msgspec import Struct

from headway.cli.launch import read_launch
from headway.errors import InputError
from headway.foreign.rehearsal import variant
from headway.foreign.resume import resumed_script


class Written(Struct, frozen=True):
    """The variant's file, where its black box will be, and what there is to know."""

    path: Path
    box: Path
    notes: tuple[str, ...]


def write_variant(script: Path, out: Path | None) -> Written:
    """Write the variant into `out`, by default runs/rehearse-NAME. The script itself is left as it is.

    InputError where the script cannot be read or changed, is another system's, or the variant is there already.
    """
    launch = read_launch([str(script)])
    if launch.path is None:
        raise InputError(
            f"{script}: only a script that starts the trainer itself can be copied; name that script, or rehearse "
            "by hand with the flags of docs/rehearse.md"
        )
    folder = (out or Path("runs") / f"rehearse-{script.stem}").resolve()
    path = folder / f"{script.stem}-rehearsal{script.suffix}"
    if path.exists() or (folder / "checkpoints").exists():
        raise InputError(f"--out {folder}: holds a rehearsal already; name a folder that is new")
    made = variant(launch.found, folder)
    text = resumed_script(script, made.edits)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_text(text)
        temporary.chmod(script.stat().st_mode & 0o777 | 0o200)
        temporary.rename(path)
    except OSError as error:
        raise InputError(f"--out {folder}: cannot be written ({error.strerror})") from None
    notes = launch.lint(None, None)
    killers = [f"line {note.line}: {note.text}; so does its copy" for note in notes if note.rule == "kills-others"]
    return Written(path, folder / "watch", (*made.notes, *killers))
