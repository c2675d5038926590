"""How fast a device is by its data sheet, and how fast this machine was in earlier runs of `headway train`.

Earlier runs are kept below `XDG_CACHE_HOME`, or else `~/.cache`, beside the calibration (facts/calibration.py).
"""

import csv
import os
import re
from functools import cache
from pathlib import Path

import msgspec
from msgspec import Struct

from headway.facts.calibration import calibration_file, key


class DeviceSpeed(Struct, frozen=True):
    """One device's peaks: `bandwidth` of its memory in bytes/s, `flops` of dense half-precision products in FLOP/s.

    >>> device_speed("8xh100-80")
    DeviceSpeed(bandwidth=3350000000000.0, flops=989000000000000.0)
    """

    bandwidth: float
    flops: float


class Rate(Struct, frozen=True):
    """What a run reached here, in tokens/s: answer tokens of the rollout, and prompt and answer tokens trained.

    `parameters` are those that a token passes; `lora`: adapters alone were trained. `ended` is a date. `answered`
    counts the answer tokens of a step: the more there are at once, the faster they come.

    >>> Rate("smollm2-135m-instruct", 134_515_008, "cpu", "fp32", True, 100.0, 90.0, "2026-01-31").train
    90.0
    """

    model: str
    parameters: int
    device: str
    dtype: str
    lora: bool
    rollout: float
    train: float
    ended: str
    answered: int = 0


LEAST_ANSWERED = 64
"""Answer tokens of a step whose rate is worth keeping; with fewer, what comes once for a step is most of its time."""
KEPT = 20
"""Rates that are kept of a machine, the newest."""


@cache
def _table() -> dict[str, DeviceSpeed]:
    text = (Path(__file__).parent / "tables" / "speeds.csv").read_text()
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return {row["name"]: DeviceSpeed(float(row["bandwidth"]) * 1e9, float(row["tflops"]) * 1e12) for row in rows}


def device_speed(machine: str) -> DeviceSpeed | None:
    """The speed of one device of a machine of the table, by the machine's name; None for any other machine."""
    return _table().get(re.sub(r"^(\d+x){0,2}", "", machine))


def rates_file() -> Path:
    """Where the rates of earlier runs are."""
    return calibration_file().with_name("rates.json")


def earlier() -> tuple[Rate, ...]:
    """Rates of earlier runs on this machine with these versions, the newest first."""
    return _all().get(key(), ())


def keep(rate: Rate) -> None:
    """Keep the rate of a run that ended, unless its steps were too short to tell, or much shorter than those of the
    rate that is known. A cache that cannot be written is left as it is."""
    found = _all()
    known = next((each for each in found.get(key(), ()) if _same(each, rate)), None)
    if rate.answered < max(LEAST_ANSWERED, known.answered / 4 if known is not None else 0):
        return
    others = [each for each in found.get(key(), ()) if each is not known]
    found[key()] = (rate, *others[: KEPT - 1])
    path = rates_file()
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
        temporary.rename(path)
    except OSError:
        temporary.unlink(missing_ok=True)


def _same(one: Rate, other: Rate) -> bool:
    return (one.model, one.device, one.dtype, one.lora) == (other.model, other.device, other.dtype, other.lora)


def _all() -> dict[str, tuple[Rate, ...]]:
    try:
        return msgspec.json.decode(rates_file().read_bytes(), type=dict[str, tuple[Rate, ...]])
    except (OSError, msgspec.MsgspecError):
        return {}
