"""What a prediction of one measured row is, for the benchmark and for the files that predict rows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]
"""A row of the measured data, in the form of its README."""


class NotCovered(Exception):  # noqa: N818  # not a failure: the reason is printed beside the row
    """Why a row is not predicted, in words."""


@dataclass(frozen=True)
class Prediction:
    """Expected bytes (or tokens) of a row's own quantity and their upper bound.

    `also` has predictions for other figures of the row, by `figure_name`.
    """

    bytes: int
    upper: int
    also: tuple[tuple[str, "Prediction"], ...] = ()


def figure_name(entry: Mapping[str, Any]) -> str:
    """What an entry of a row's `also` is called: its quantity, or "non-torch" where its phase says so.

    >>> figure_name({"quantity": "device_used", "phase": "non-torch"})
    'non-torch'
    """
    return "non-torch" if entry.get("phase") == "non-torch" else str(entry.get("quantity"))


def need(record: Mapping[str, Any], *keys: str, of: str) -> int:
    """The first of these keys that has a positive whole number; NotCovered that names them where none has."""
    for key in keys:
        value = record.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    raise NotCovered(f"{of} has no usable {' or '.join(keys)}")


def section(row: Row, key: str) -> Mapping[str, Any]:
    """A part of a row; empty where it is absent. NotCovered where it is no table of keys."""
    value = row.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise NotCovered(f"{key} is no table of keys")
    return value
