"""`headway rehearse SCRIPT`: a copy of a launch script of slime or Miles that makes four full-length steps."""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from headway.cli.launch import Launch, planned_workload, read_launch, root_of
from headway.errors import InputError
from headway.foreign.lint.rule import LintNote
from headway.foreign.readers import settings_of
from headway.foreign.rehearsal import variant
from headway.foreign.resume import resumed_script
from headway.foreign.shell import read_text

NO_START = ("batch-arithmetic", "broken-json", "empty-value")
"""Rules whose errors end a run before its first step: its copy would show nothing."""


class Written(Struct, frozen=True):
    """The variant's file, where its black box will be, and what there is to know."""

    path: Path
    box: Path
    notes: tuple[str, ...]


def write_variant(script: Path, out: Path | None) -> Written:
    """Write the variant into `out`, by default runs/rehearse-NAME. The script itself is left as it is.

    InputError where the script cannot be read or changed, is another system's, or the variant is there already, and
    for what would end the variant before its first step.
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
    if problems := list(_no_start(script, text)):
        raise InputError(*problems)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_text(text)
        temporary.chmod(script.stat().st_mode & 0o777 | 0o200)
        temporary.rename(path)
    except OSError as error:
        raise InputError(f"--out {folder}: cannot be written ({error.strerror})") from None
    return Written(path, folder / "watch", (*made.notes, *_warnings(_notes(launch))))


def _no_start(script: Path, text: str) -> Iterator[str]:
    """What the lint says would end the copy before its first step; what the copy leaves out does not count."""
    whole = script.resolve()
    copy = read_text(text, str(script), whole, root_of(script))
    for note in _notes(Launch(copy, settings_of(copy))):
        if note.severity == "error" and note.rule in NO_START:
            yield f"{note.file}:{note.line}: {note.text}: {note.why}; {note.instead}"


def _notes(launch: Launch) -> tuple[LintNote, ...]:
    """What `headway plan` says of a launch, with its plan's sizes where it can be planned."""
    workload = None
    with suppress(InputError):
        workload = planned_workload(launch.found, None, ())
    return launch.lint(workload, None)


def _warnings(notes: Sequence[LintNote]) -> Iterator[str]:
    """What the run has to be warned of: the copy has the same lines."""
    for note in notes:
        if note.severity != "note":
            too = " (so does its copy)" if note.rule == "kills-others" else ""
            yield f"{note.severity} line {note.line}: {note.text}{too}; {note.instead}"
