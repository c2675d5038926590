"""The names that an answer uses, from causes.csv: mechanisms (what ended a process) and causes (why), in families."""

import csv
from functools import cache
from importlib.resources import files
from typing import Literal

from msgspec import Struct

Level = Literal["mechanism", "cause"]

UNKNOWN = "unknown"
NOT_ESTABLISHED = "not-established"
FINISHED = "finished"
ASKED = "asked-to-stop"


class Name(Struct, frozen=True):
    """One mechanism or cause. `family` groups what is mended in the same place; "open" where that is not known and
    "none" where nothing is to be mended.

    >>> table("mechanism")["sigterm"].family
    'outside'
    """

    name: str
    level: Level
    family: str
    meaning: str


@cache
def table(level: Level) -> dict[str, Name]:
    """The mechanisms or the causes by name, in the table's order. `node-lost` is a name on both levels."""
    text = (files("headway.diagnose") / "causes.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines())
    return {
        row["name"]: Name(row["name"], level, row["family"], row["meaning"]) for row in rows if row["level"] == level
    }


def family(level: Level, name: str) -> str:
    """The family of a name.

    >>> family("cause", "device-logits"), family("mechanism", "unknown")
    ('device-memory', 'open')
    """
    return table(level)[name].family
