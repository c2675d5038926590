"""Scripts that put a training command together and start it: Miles's and slime's launchers, and `subprocess.run`."""

import re
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from headway.foreign.found import Found
from headway.foreign.python import parsers
from headway.foreign.python.state import Event, State
from headway.foreign.python.statements import Statements
from headway.foreign.python.values import Obj
from headway.foreign.python.words import items_of
from headway.foreign.shell import Command, Script, files, read_script
from headway.foreign.shell.values import Array, Choice, Item, Origin, Word, known

FLAG = re.compile(r"--[A-Za-z][\w-]*")


def launched(state: State, path: Path, text: str) -> Found | None:
    """The run of the last command that a script starts with a trainer in it; None where there is none."""
    from headway.foreign.readers import known_run

    found: list[tuple[Event, Found]] = []
    for event in state.events:
        if event.kind not in ("launch", "command"):
            continue
        notes: list[str] = []
        made = _command(event, state, text, notes)
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


def _command(event: Event, state: State, text: str, notes: list[str]) -> Command:
    at = Origin(event.file, event.line)
    when = (event.when,) if event.when else ()
    if event.kind == "command":
        return Command(items_of(event.what, at), at, when=when)
    said: dict[str, Any] = event.what
    script = said.get("train_script", "train.py")
    program = script if isinstance(script, str) else "train.py"
    model = _model_arguments(said.get("megatron_model_type"), event.file, state, notes)
    argv: tuple[Item, ...] = (
        known("python3", at), known(program, at), *model,
        *_placed(items_of(said.get("train_args", ""), at), text),
    )  # fmt: skip
    environment: list[tuple[str, Word]] = []
    given = said.get("extra_env_vars")
    table = {**given.kwargs, **given.attrs} if isinstance(given, Obj) else given
    if isinstance(table, dict):
        environment = [(name, known(text)) for name, text in table.items() if isinstance(text, str)]
    return Command(argv, at, tuple(environment), when)


def _model_arguments(name: Any, script: str, state: State, notes: list[str]) -> tuple[Item, ...]:
    """The model's arguments, which the launcher takes from a file of its repository."""
    if not isinstance(name, str) or not name.replace("-", "").replace("_", "").replace(".", "").isalnum():
        return ()
    root = state.root
    near = Path(script).resolve().parent
    folders = () if root is None else (near / "models", near / "scripts" / "models", root / "scripts" / "models")
    for path in (folder / f"{name}{end}" for folder in folders for end in (".py", ".sh")):
        if (
            root is None
            or not path.is_file()
            or root not in path.resolve().parents
            or path.stat().st_size > files.LARGEST
        ):
            continue
        if path.suffix == ".sh":
            found = read_script(path, root).variables.get("MODEL_ARGS")
            return found.items if isinstance(found, Array) else ()
        return items_of(parsers.model_arguments(Statements(State(root)), path, {}), Origin(str(path), 1))
    notes.append(
        f"the model's arguments are in scripts/models/{name} of the repository, which is not here: the sizes "
        "are those of the model's name"
    )
    return ()


def printed(name: str, script: Path, root: Path) -> str:
    """A model's arguments as one line, for a script of the repository; empty where they are not all known."""
    items = _model_arguments(name, str(script), State(root), [])
    texts = [item.text if isinstance(item, Word) else None for item in items]
    return " ".join(text for text in texts if text) if all(texts) else ""


def _placed(items: tuple[Item, ...], text: str) -> tuple[Item, ...]:
    """The words with the line of the script that their flag is written in, where only one line has it."""
    lines: dict[str, list[int]] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.lstrip().startswith("#"):
            for flag in dict.fromkeys(FLAG.findall(line)):
                lines.setdefault(flag, []).append(number)
    found: list[Item] = []
    at = 0
    for item in items:
        if isinstance(item, Choice):
            found.append(replace(item, options=tuple(_placed(each, text) for each in item.options)))
            continue
        if isinstance(item, Word) and isinstance(item.parts[0] if item.parts else None, str):
            match = FLAG.match(str(item.parts[0]))
            if match is not None:
                there = lines.get(match[0], [])
                at = there[0] if len(there) == 1 else 0
        if at and isinstance(item, Word) and item.at is not None:
            item = item.put(Origin(item.at.file, at))
        found.append(item)
    return tuple(found)
