"""YAML and JSON files that a launch script names: bounded in size and depth, and never more than data."""

import json
from collections.abc import Iterable
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any

from headway.foreign.shell import files
from headway.foreign.shell.values import Word, known

LARGEST = 256 << 10
"""Bytes of the largest configuration that is read."""
DEEPEST = 40
MOST_ALIASES = 64
MOST_MERGED = 10_000

Table = dict[str, Any]


class RefusedError(Exception):
    """A document that is not read, with the reason."""


def locate(word: Word, script: Path | None, root: Path | None, folder: Word | None = None) -> tuple[Path | None, str]:
    """The file below the script's tree that a word names, or why it is not read."""
    if script is None or root is None:
        return None, "no file is read here"
    found = files.find(word, folder or Word(), script, root)
    last = word.parts[-1] if word.parts else ""
    if found.path is None and word.holes and isinstance(last, str) and "/" in last:
        # what stands before the folder is not known, and mostly is the one that the script lies in or is started in
        for tail in (last.lstrip("/"), last.rpartition("/")[2]):
            near = files.find(known(tail), Word(), script, root)
            if near.path is not None:
                return near.path, ""
    return found.path, found.why


def table(path: Path) -> Table:
    """The top table of a YAML or JSON file. RefusedError where there is none, or it is too large or too deep."""
    try:
        state = path.stat()
    except OSError as error:
        raise RefusedError(f"{path.name} cannot be read: {error.strerror}") from None
    return deepcopy(_table(path, (state.st_size, state.st_mtime_ns)))


@lru_cache(maxsize=32)
def _table(path: Path, state: tuple[int, int]) -> Table:
    """The same, once for every state of the file: each way that a script may go asks for it."""
    if state[0] > LARGEST:
        raise RefusedError(f"{path.name} is larger than {LARGEST >> 10} KiB, which no configuration is")
    try:
        text = path.read_bytes()[:LARGEST].decode(errors="replace")
    except OSError as error:
        raise RefusedError(f"{path.name} cannot be read: {error.strerror}") from None
    found = from_json(text) if path.suffix == ".json" else from_yaml(text)
    if not isinstance(found, dict):
        raise RefusedError(f"{path.name} holds no table of keys")
    return {str(key): value for key, value in found.items()}


def from_json(text: str) -> Any:
    """What a JSON text holds. RefusedError where it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RefusedError(f"is not JSON ({str(error)[:80]})") from None


def from_yaml(text: str) -> Any:
    """What a YAML text holds: tables, lists and scalars. RefusedError where it is no YAML, or beyond the limits.

    >>> from_yaml("data: {max_length: 1024}")
    {'data': {'max_length': 1024}}
    """
    import yaml  # type: ignore[import-untyped]  # takes longer to load than most scripts to read, and few name a YAML file

    base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Loader(base):  # type: ignore[misc, valid-type]
        """A safe loader whose merged tables stay small: `<<` may repeat a table, and that one another."""

        def flatten_mapping(self, node: Any) -> None:
            super().flatten_mapping(node)
            if len(node.value) > MOST_MERGED:
                raise RefusedError("merges more keys than any configuration has")

    try:
        _check(yaml.parse(text, Loader=base), yaml)
        return yaml.load(text, Loader=Loader)
    except yaml.YAMLError as error:
        raise RefusedError(f"is not YAML ({' '.join(str(error).split())[:80]})") from None
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise RefusedError(f"is not YAML that can be read ({type(error).__name__})") from None


def _check(events: Iterable[Any], yaml: Any) -> None:
    depth = aliases = 0
    for event in events:
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        aliases += isinstance(event, yaml.AliasEvent)
        if depth > DEEPEST or aliases > MOST_ALIASES:
            raise RefusedError("is nested too deep" if depth > DEEPEST else "repeats itself too often")
