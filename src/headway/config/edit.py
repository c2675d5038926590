"""Values written into the text of a RunSpec: what they do not change, comments and order included, stays."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tomlkit

from headway.config.sections import RunSpec

Leaf = tuple[str, ...]


def with_values(text: str, values: Mapping[Leaf, Any]) -> str:
    """The text with each key at its value; None takes a key away. A section that is not there is put at the end.

    >>> print(with_values("[train]\\nsteps = 9  # enough\\n", {("train", "steps"): 3, ("lora", "rank"): 16}))
    [train]
    steps = 3  # enough
    <BLANKLINE>
    [lora]
    rank = 16
    <BLANKLINE>
    """
    document = tomlkit.parse(text)
    for (*path, name), value in values.items():
        table: Any = document
        for part in path:
            if part not in table:
                if value is None:
                    break
                if table is document and len(document) > 0:
                    document.add(tomlkit.nl())
                table[part] = tomlkit.table()
            table = table[part]
        else:
            if value is not None:
                table[name] = _plain(value)
            elif name in table:
                del table[name]
    return tomlkit.dumps(document)


def differences(before: RunSpec, after: RunSpec) -> dict[Leaf, Any]:
    """The keys whose values differ, with those of `after`; a section that is gone is one key."""
    found, old = (dict(_leaves(each.model_dump())) for each in (after, before))
    return {key: value for key, value in found.items() if key not in old or old[key] != value}


def _leaves(tables: Mapping[str, Any], path: Leaf = ()) -> Iterator[tuple[Leaf, Any]]:
    for key, value in tables.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*path, key))
        else:
            yield (*path, key), value


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, Path) else value
