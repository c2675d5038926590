"""Which models of the table stand in for a larger one, and which are headway's own, for rehearsals."""

import re
from functools import cache

from headway.facts.shapes import ModelShape, table

SIZES = 4
"""Smaller models that are tried."""
_SIZE = re.compile(r"[-_]?\d+(?:\.\d+)?[bm](?![a-z0-9.])", re.IGNORECASE)


def series(shape: ModelShape) -> str:
    """What a model's name says before its size, without separators: models of one series replace each other.

    >>> series(table()["qwen3-30b-a3b"]), series(table()["qwen2.5-1.5b"])
    ('qwen3', 'qwen2.5')
    """
    return re.sub(r"[-_]", "", _SIZE.split(shape.name.rpartition("/")[2], maxsplit=1)[0]).lower()


def is_rehearsal(shape: ModelShape) -> bool:
    """Whether a shape of the table is headway's own, for tests and rehearsals, and no published model."""
    return shape.name.startswith(("tiny-", "small-"))


def _letters(shape: ModelShape) -> str:
    return re.split(r"[^a-z]", shape.name.rpartition("/")[2].lower(), maxsplit=1)[0]


@cache
def smaller_models(model: ModelShape) -> tuple[str, ...]:
    """Smaller models of the same family, the largest first: of its series, or of its maker and with its vocabulary.

    llama3.1-8B has no smaller one in its series, but llama3.2-3B reads the same tokens.

    >>> smaller_models(table()["qwen3-4b"])
    ('qwen3-1.7B', 'qwen3-0.6B')
    """
    found: dict[int, ModelShape] = {}
    for shape in table().values():
        if shape.family != model.family or is_rehearsal(shape):
            continue
        near = series(shape) == series(model)
        count = shape.parameters()
        if count < model.parameters() and (near or _akin(shape, model)) and (near or count not in found):
            found[count] = found[count] if count in found and series(found[count]) == series(model) else shape
    return tuple(found[count].name for count in sorted(found, reverse=True))[:SIZES]


def _akin(one: ModelShape, other: ModelShape) -> bool:
    return _letters(one) == _letters(other) and one.vocab == other.vocab
