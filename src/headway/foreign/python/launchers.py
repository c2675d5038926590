"""Scripts that put a training command together and start it: Miles's and slime's launchers, and `subprocess.run`."""

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from headway.foreign.found import Found
from headway.foreign.python.state import Event, State
from headway.foreign.python.values import Obj
from headway.foreign.python.words import items_of
from headway.foreign.shell import Command, Script, files, read_script
from headway.foreign.shell.values import Array, Item, Origin, Word, known


def launched(state: State, path: Path, text: str) -> Found | None:
    """The run of the last command that a script starts with a trainer in it; None where there is none."""
    from headway.foreign.readers import known_run

    found: list[tuple[Event, Found]] = []
    for event in state.events:
        if event.kind not in ("launch", "command"):
            continue
        notes: list[str] = []
        made = _command(event, state, notes)
        script = Script(str(path), (made,), text=text)
        run = known_run(script, None if event.kind == "launch" else state.root)
        if run is not None:
            found.append((event, replace(run, notes=(*run.notes, *notes))))
    if not found:
        return None
    event, run = found[-1]
    others = [
        f"{each.file} line {each.line}: another run{f', {each.when}' if each.when else ''}; planned is that of line "
        f"{event.line}"
        for each, _ in found[:-1] if (each.file, each.line) != (event.file, event.line)
    ]  # fmt: skip
    return replace(run, notes=(*run.notes, *dict.fromkeys(others)))


def _command(event: Event, state: State, notes: list[str]) -> Command:
    at = Origin(event.file, event.line)
    when = (event.when,) if event.when else ()
    if event.kind == "command":
        return Command(items_of(event.what, at), at, when=when)
    said: dict[str, Any] = event.what
    script = said.get("train_script", "train.py")
    program = script if isinstance(script, str) else "train.py"
    model = _model_arguments(said.get("megatron_model_type"), state, notes)
    argv: tuple[Item, ...] = (
        known("python3", at), known(program, at), *model, *items_of(said.get("train_args", ""), at)
    )  # fmt: skip
    environment: list[tuple[str, Word]] = []
    given = said.get("extra_env_vars")
    table = {**given.kwargs, **given.attrs} if isinstance(given, Obj) else given
    if isinstance(table, dict):
        environment = [(name, known(text)) for name, text in table.items() if isinstance(text, str)]
    return Command(argv, at, tuple(environment), when)


def _model_arguments(name: Any, state: State, notes: list[str]) -> tuple[Item, ...]:
    """The model's arguments, which the launcher takes from a file of its repository."""
    if not isinstance(name, str) or not name.replace("-", "").replace("_", "").replace(".", "").isalnum():
        return ()
    root = state.root
    path = None if root is None else root / "scripts" / "models" / f"{name}.sh"
    if path is None or not path.is_file() or root not in path.resolve().parents:
        notes.append(
            f"the model's arguments are in scripts/models/{name}.sh of the repository, which is not here: the sizes are "
            "those of the model's name"
        )
        return ()
    if path.stat().st_size > files.LARGEST:
        return ()
    found = read_script(path, root).variables.get("MODEL_ARGS")
    return found.items if isinstance(found, Array) else ()
