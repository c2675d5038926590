"""Launchers that are not here, read by the flags that they are given, and jobs that a manifest describes."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from headway.errors import InputError
from headway.foreign import manifests
from headway.foreign.documents import RefusedError
from headway.foreign.jobs import Counts
from headway.foreign.shell import Command, Script, files, read_text
from headway.foreign.shell.calls import inner_file
from headway.foreign.shell.values import Item, Word, known


def stand_ins(script: Script) -> Iterator[Script]:
    """For each launcher that a script starts and that is not here, a program with the launcher's arguments: its flags
    tell the system where enough of them are the system's own.

    What the launcher sets beside them is not known: the system's defaults stand for it, and the plan says so.
    """
    for command in script.commands:
        inner = inner_file(command.argv)
        name = files.name_of(inner.file) if inner is not None else ""
        if inner is None or not any(_is_flag(item) for item in inner.arguments):
            continue
        program = (known("python3", command.at), known(f"{name.rpartition('.')[0] or name}.py", command.at))
        stand_in = Command(
            (*program, *inner.arguments), command.at, (*command.environment, *inner.environment), command.when
        )
        note = (
            f"{name}, which was not found: the flags behind it are read, and defaults stand for what it sets itself"
        )
        yield Script(
            script.path, (stand_in,), script.variables, script.exports, script.sourced, (*script.unread, note),
            script.text, script.started,
        )  # fmt: skip


def _is_flag(item: Item) -> bool:
    first = item.parts[0] if isinstance(item, Word) and item.parts else None
    return isinstance(first, str) and (first.startswith("-") or "=" in first)


def started_by(path: Path, counts: Counts | None = None) -> tuple[list[Script], bool]:
    """What a manifest starts, each as a script that was read, and whether it describes a pod; scripts of a ConfigMap
    are read where it starts one. `counts` stands for the machine where a script asks that how many devices it has.

    InputError where the manifest cannot be read, or starts nothing.
    """
    try:
        text = manifests.read(path)
        found = manifests.starts(text)
    except RefusedError as error:
        raise InputError(f"{path}: {error}") from None
    if not found:
        raise InputError(
            f"{path}: starts nothing that is written in it (no entrypoint, and no command of a container); pass the "
            f"command that its image runs, as in: headway plan --pod {path} -- bash run.sh"
        )
    whole = path.resolve()
    return [_script(start, whole, files.root_of(whole), counts) for start in found], "containers" in text


def _script(start: manifests.Start, path: Path, root: Path, counts: Counts | None) -> Script:
    name = f"{path.name} ({start.name})"
    script = read_text(start.script, name, path, root, follows=True, counts=counts)
    for command in script.commands:
        inner = inner_file(command.argv)
        held = start.files.get(files.name_of(inner.file)) if inner is not None else None
        if inner is not None and held is not None:
            text, words = f"{_exports(start.script)}{held}", _texts(inner.arguments)
            return read_text(text, name, path, root, words, follows=True, counts=counts)
    return script


def _exports(script: str) -> str:
    """The lines that set a job's variables."""
    return "".join(f"{line}\n" for line in script.split("\n") if line.startswith("export "))


def _texts(items: Sequence[Item]) -> list[str]:
    return [item.text or "" for item in items if isinstance(item, Word)]
