"""Files that a script imports or reads: only such as lie below its root, bounded in number and size."""

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.errors import InputError
from headway.foreign import documents
from headway.foreign.documents import RefusedError
from headway.foreign.python import source
from headway.foreign.python.values import LONGEST_LIST, MISSING, Obj, Text, Unknown
from headway.foreign.shell.values import known

if TYPE_CHECKING:
    import ast

    from headway.foreign.python.state import State

MOST_MODULES = 12
LIBRARIES = frozenset({
    "trl", "transformers", "peft", "torch", "unsloth", "accelerate", "datasets", "vllm", "sglang", "miles", "slime",
    "megatron", "deepspeed", "ray", "os", "sys", "re", "json", "yaml", "math", "random", "typing", "dataclasses",
    "argparse", "pathlib", "numpy", "pandas", "wandb", "huggingface_hub", "bitsandbytes", "verl", "openrlhf", "types",
    "functools", "collections", "logging", "warnings", "subprocess", "typer", "click", "fire", "tyro", "builtins",
    "tests", "unsloth_zoo", "tqdm", "copy", "time", "omegaconf", "hydra",
})  # fmt: skip
"""Packages that are not followed, also where a folder of that name lies beside the script."""


def module(name: str, level: int, script: Path, root: Path | None) -> Path | None:
    """The file of a module that a script imports, below its root; None for a library's."""
    if root is None or not script.suffix or (name.partition(".")[0] in LIBRARIES and not level):
        return None
    parts = [part for part in name.split(".") if part]
    if not all(part.isidentifier() for part in parts):
        return None
    folder = script.resolve().parent
    for _ in range(max(0, level - 1)):
        folder = folder.parent
    above = [each for each in folder.parents if root in each.parents]
    folders = [folder] if level else [folder, *above, root, root / "src"]
    for start in folders:
        for path in (
            start.joinpath(*parts).with_suffix(".py") if parts else None,
            start.joinpath(*parts, "__init__.py"),
        ):
            if path is None:
                continue
            try:
                real = path.resolve()
                if root in real.parents and real.is_file() and real.stat().st_size <= source.LARGEST // 4:
                    return real
            except (OSError, ValueError, RuntimeError):
                continue
    return None


@lru_cache(maxsize=16)
def _tree(path: Path, _state: tuple[int, int]) -> "ast.Module":
    return source.parse(source.text_of(path), str(path))


def tree(path: Path) -> "ast.Module":
    """The syntax tree of a module. InputError where it is no Python."""
    try:
        found = path.stat()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    return _tree(path, (found.st_size, found.st_mtime_ns))


def table(state: "State", name: Any, script: Path) -> dict[str, Any] | Unknown:
    """The top table of a YAML or JSON file below the root that a script names, or why it is not read."""
    if not isinstance(name, str):
        shown = name.shown if isinstance(name, Text) else "a file"
        return Unknown(f"{shown} is not read: its name is not known")
    near = script if script.suffix and script.parent.is_dir() else (state.root or Path()) / "script"
    path, why = documents.locate(known(name), near.resolve(), state.root)
    try:
        if path is None:
            raise RefusedError(why)
        return documents.table(path)
    except RefusedError as error:
        return Unknown(f"{name[-80:]} {error}")


def loaded(state: "State", path: str, value: Any, args: list[Any], at: tuple[str, int]) -> Any:
    """What a script loads from a file that lies below its root; MISSING for other calls."""
    if path in ("builtins.open", "pathlib.Path.open", "io.open"):
        made = Obj("builtins.open", *at)
        made.args = [args[0] if args else None] if path != "pathlib.Path.open" else list(value.args)
        return made
    if path in ("json.load", "yaml.safe_load", "yaml.load", "yaml.full_load", "toml.load") and args:
        file = args[0]
        name = file.args[0] if isinstance(file, Obj) and file.path == "builtins.open" and file.args else file
        if isinstance(name, Obj) and name.args:
            name = name.args[0]
        return table(state, name, Path(at[0]))
    if path in ("omegaconf.OmegaConf.load",) and args:
        found = table(state, args[0], Path(at[0]))
        return found if isinstance(found, Unknown) else dotted(found, at)
    if path == "json.loads" and args and isinstance(args[0], str):
        try:
            return documents.from_json(args[0])
        except RefusedError:
            return MISSING
    return MISSING


def dotted(table: dict[str, Any], at: tuple[str, int], depth: int = 0) -> Obj:
    """A table whose keys are attributes."""
    made = Obj("argparse.Namespace", *at)
    for key, value in list(table.items())[:LONGEST_LIST]:
        made.attrs[str(key)] = dotted(value, at, depth + 1) if isinstance(value, dict) and depth < 8 else value
    return made
