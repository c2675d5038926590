"""Python scripts and notebooks that train with TRL, Unsloth or transformers, or that launch Miles or slime.

The syntax tree is read and its values are worked out as far as the script tells them; nothing is imported or run.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from headway.errors import InputError
from headway.foreign import documents
from headway.foreign.command import Launch
from headway.foreign.found import Found
from headway.foreign.gather import agree, programs, tree, unwrapped
from headway.foreign.launcher import Processes, processes
from headway.foreign.python import launchers, settings, source, trainers
from headway.foreign.python.source import is_python
from headway.foreign.python.state import State, StoppedError
from headway.foreign.python.statements import Statements
from headway.foreign.python.values import Scope
from headway.foreign.python.words import value_of
from headway.foreign.shell import Script, files
from headway.foreign.shell.values import Word, known, worlds

__all__ = ["is_python", "read", "read_program", "refused"]

MOST_WORLDS = 8


def read_program(
    path: Path,
    root: Path | None = None,
    arguments: Sequence[Any] = (),
    environment: dict[str, Any] | None = None,
    started: Processes | None = None,
) -> Found:
    """The settings of the run that a script starts, with the arguments of its command behind it.

    InputError where it cannot be read, or starts no trainer that is known. Files that it imports or names are read
    below `root` (its repository, where not given).
    """
    text = source.text_of(path)
    parsed = source.parse(text, str(path))
    root = (root or files.root_of(path.resolve())).resolve()
    state = State(root, tuple(arguments), dict(environment or {}))
    run = Statements(state)
    unread: tuple[str, ...] = ()
    top = Scope(str(path))
    try:
        run.module(parsed, top)
    except (StoppedError, RecursionError) as stop:
        why = str(stop) if isinstance(stop, StoppedError) else "nested too deep"
        unread = (f"{path}: read in part only: {why}",)
    state.depth, state.steps = 0, 20_000
    made = trainers.trainers(state.events)
    found = launchers.launched(state, path, text) if not made else None
    if found is None:
        if not made:
            raise trainers.refusal(state.events, str(path), state.ended, parsed)
        event, trainer, notes = trainers.chosen(made)
        try:
            record = trainers.made_of(run, event, trainer, top, parsed)
        except (StoppedError, RecursionError):
            raise InputError(f"{path}: takes longer to read than any training script") from None
        record.notes[:0] = notes
        found = settings.found_of(record, started or Processes(), path, root, state.environment)
    assumed = [*state.notes, *state.asked.values()]
    if state.imported:
        names = ", ".join(list(dict.fromkeys(state.imported))[:8])
        assumed.append(f"{path} does not import {names}, taken to be the libraries' own")
    return replace(found, notes=(*found.notes, *assumed), unread=(*unread, *found.unread))


def read(script: Script, root: Path | None = None) -> Found | None:
    """The run of a Python script that a shell script or a command starts, in a file below the root; None where there
    is none, or where the script's own flags tell as much."""
    found = _programs(script, root)
    for launch, path, below in found:
        try:
            run = _launched(launch, path, below, script)
        except InputError:
            continue
        if run.value("model_name") is None and not run.model:
            from headway.foreign import trl_claims

            if trl_claims.claims(launch):
                return None
        return run
    return None


def refused(script: Script, root: Path | None = None) -> str:
    """Why the first Python script that a script starts is not read; empty where it starts none that is here."""
    for launch, path, below in _programs(script, root):
        try:
            _launched(launch, path, below, script)
        except InputError as error:
            return "; ".join(error.problems)
    return ""


def _programs(script: Script, root: Path | None) -> list[tuple[Launch, Path, Path]]:
    """The Python files that a script starts."""
    near, below = tree(script, root)
    found = []
    for command in script.commands:
        for launch in programs(command):
            inner = unwrapped(launch)
            name = inner.program
            name = name if name.endswith(".py") else name.replace(".", "/") + ".py"
            path, _ = documents.locate(known(name), near, below)
            if path is not None and below is not None:
                here = Path.cwd()
                found.append((inner, path.relative_to(here) if here in path.parents else path, below))
    return found[:8]


def _launched(launch: Launch, path: Path, root: Path, script: Script) -> Found:
    environment = {
        name: value_of(value) for name, value in script.variables.items()
        if name in script.exports and isinstance(value, Word)
    }  # fmt: skip
    environment |= {name: value_of(word) for name, word in launch.environment.items()}
    started = processes(launch.launcher)
    read_: list[Found] = []
    for words in worlds(launch.arguments):
        if len(read_) < MOST_WORLDS:
            values = [value_of(item) for item in words]
            read_.append(read_program(path, root, values, environment, started))
    found = agree(read_, [*launch.command.when, *launch.doubts])
    return replace(found, unread=(*script.unread, *found.unread))
