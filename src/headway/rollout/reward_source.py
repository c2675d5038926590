"""The source files of a user's reward function, found without importing anything."""

import ast
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import PathFinder
from pathlib import Path


def source_files(function: str, folders: Sequence[Path]) -> dict[str, Path]:
    """The file of `module:function` and, as far as they lie in `folders`, those of what it imports, by their name
    there. Of an installed package the module's own file alone.

    A module that is built in, compiled or not there has none: that it cannot be imported is told elsewhere.
    """
    found: dict[str, Path] = {}
    module = function.partition(":")[0]
    waiting = [module]
    seen = set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        local = _local(name, folders)
        if local is None:
            if name == module and (file := _installed(name)) is not None:
                found[file.name] = file
            continue
        shown, file = local
        found[shown] = file
        waiting += _imported(file, name)
        waiting += [parent for parent in (name.rpartition(".")[0],) if parent]
    return dict(sorted(found.items()))


def _local(name: str, folders: Iterable[Path]) -> tuple[str, Path] | None:
    """A module's file below one of the folders, with its name there."""
    for folder in folders:
        for tail in (Path(*name.split(".")).with_suffix(".py"), Path(*name.split("."), "__init__.py")):
            if (folder / tail).is_file():
                return str(tail), folder / tail
    return None


def _installed(name: str) -> Path | None:
    """The file of an installed module, looked up part by part, as `import` would, but without running a package."""
    path: Sequence[str] | None = sys.path
    origin = None
    for at in range(1, name.count(".") + 2):
        spec = PathFinder.find_spec(".".join(name.split(".")[:at]), path)
        if spec is None:
            return None
        origin, path = spec.origin, list(spec.submodule_search_locations or ())
    file = Path(origin) if origin else None
    return file if file is not None and file.suffix == ".py" and file.is_file() else None


def _imported(file: Path, module: str) -> Iterator[str]:
    """Names of modules that a file imports anywhere in it; nothing where it is not Python."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, RecursionError, OSError):
        return
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = package.split(".") if package else []
                parts = parts[: len(parts) - node.level + 1]
                base = ".".join([*parts, *([base] if base else [])])
            if base:
                yield base
            yield from (f"{base}.{alias.name}" if base else alias.name for alias in node.names)
