"""Recorded memory over time, replayed through the guard: what it would have said and done, and when.

    python benchmarks/guard_traces.py DIR [--policy protect] [--json]

DIR (or a file) holds CSV files with the columns t,step,phase,pool,used,limit: seconds, a number, a name, the pool's
name, bytes, bytes. Step, phase and limit may be empty; rows of several pools may stand in one file; `used` is without
page cache. Two more columns are read where they are there: `planned` (bytes, the plan's upper bound) and `gauge` (who
counts: cgroup, node, Ray, device, shm or disk). Rows of the same t are one frame. Nothing is done about the actions,
so a pool whose alarm goes on passes through all of them.

Exit code 0: replayed. 2: a file cannot be read.
"""

import argparse
import csv
import json
import math
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from headway.errors import InputError
from headway.guard.forecast import Forecast
from headway.guard.frame import Action, Frame, Gauge
from headway.guard.policies import POLICIES, Guard

COLUMNS = ("t", "step", "phase", "pool", "used", "limit")
GAUGES = {"device": "device", "shm": "shm", "disk": "disk"}
"""Who counts a pool whose last part begins so; the control group counts all others."""
CHANGED = 0.05
"""A forecast is told again when the step or the time that it names has moved by this part of what is left."""


def read(path: Path) -> tuple[list[Frame], dict[str, int]]:
    """The frames of a file in the order of time, and the plan by pool. InputError names the line."""
    planned: dict[str, int] = {}
    rows: list[tuple[float, int | None, str | None, Gauge]] = []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise InputError(f"{path}: has no column {', '.join(missing)}; needs {','.join(COLUMNS)}")
            for row in reader:
                try:
                    rows.append(_row(row, planned))
                except (ValueError, TypeError, OverflowError) as error:
                    raise InputError(f"{path} line {reader.line_num}: {error}") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: {error}") from None
    rows.sort(key=lambda row: row[0])
    return list(_frames(rows)), planned


def _row(row: dict[str, str], planned: dict[str, int]) -> tuple[float, int | None, str | None, Gauge]:
    if None in (row[name] for name in COLUMNS):
        raise ValueError(f"has fewer than {len(COLUMNS)} columns")
    pool = row["pool"].strip()
    t, used = float(row["t"]), _bytes(row["used"])
    if used is None or not math.isfinite(t):
        raise ValueError("t and used must be numbers")
    bound = _bytes(row.get("planned") or "")
    if bound is not None:
        planned[pool] = max(bound, planned.get(pool, 0))
    kind = pool.rpartition(".")[2].partition("[")[0]
    name: Any = row.get("gauge") or GAUGES.get(kind, "cgroup")
    step = _bytes(row["step"])
    return t, step, row["phase"].strip() or None, Gauge(pool, name, used, _bytes(row["limit"]))


def _bytes(text: str) -> int | None:
    number = float(text) if text.strip() else math.nan
    if math.isinf(number):
        raise ValueError(f"{text!r} is no number of bytes")
    return None if math.isnan(number) else round(number)


def _frames(rows: list[tuple[float, int | None, str | None, Gauge]]) -> Iterator[Frame]:
    for t, group in groupby(rows, key=lambda row: row[0]):
        moment = list(group)
        steps = [step for _, step, _, _ in moment if step is not None]
        phases = [phase for _, _, phase, _ in moment if phase is not None]
        yield Frame(
            t, tuple(gauge for _, _, _, gauge in moment), phase=phases[-1] if phases else None,
            step=max(steps) if steps else None,
        )  # fmt: skip


def replay(
    frames: list[Frame], policy: str = "protect", planned: dict[str, int] | None = None
) -> tuple[list[Action], list[Forecast]]:
    """All actions, and the confident forecasts whenever they are new or have moved."""
    guard = Guard(policy, planned=planned)
    actions: list[Action] = []
    told: list[Forecast] = []
    last: dict[tuple[str, str], Forecast] = {}
    for frame in frames:
        actions += guard.see(frame)
        for found in guard.forecasts:
            key = (found.pool, found.gauge)
            if found.at == frame.t and found.told and found.expected and _moved(last.get(key), found):
                told.append(found)
                last[key] = found
    return actions, told


def _moved(before: Forecast | None, after: Forecast) -> bool:
    if before is None or before.expected is None or after.expected is None:
        return True
    return abs(after.expected.t - before.expected.t) > CHANGED * max(after.expected.t - after.at, 100.0)


def as_json(path: Path, actions: list[Action], forecasts: list[Forecast]) -> dict[str, Any]:
    return {
        "file": path.name,
        "alarms": [
            {
                "t": action.t, "step": action.step, "pool": action.pool, "gauge": action.gauge, "action": action.name,
                "detector": action.detector, "value": action.value, "threshold": action.threshold,
                "seconds": action.seconds, "reason": action.reason,
            }
            for action in actions
        ],
        "forecasts": [
            {
                "t": found.at, "step": found.at_step, "pool": found.pool, "gauge": found.gauge, "phase": found.phase,
                "per_step": found.per_step, "per_minute": found.per_minute, "level": found.level,
                "limit": found.limit, "confident": found.confident,
                "reaches": {
                    name: None if reach is None else {"t": reach.t, "step": reach.step}
                    for name, reach in (("low", found.low), ("expected", found.expected), ("high", found.high))
                },
                "sentence": found.sentence,
            }
            for found in forecasts
        ],
    }  # fmt: skip


def table(files: list[dict[str, Any]]) -> Table:
    """A line for each file: its first alarm, and its first and last forecast."""
    made = Table("file", "alarms", "first alarm", "why", "forecast, first and last")
    for file in files:
        alarms, forecasts = file["alarms"], file["forecasts"]
        first = alarms[0] if alarms else None
        at = (
            ""
            if first is None
            else f"t {first['t']:.0f}" + ("" if first["step"] is None else f", step {first['step']}")
        )
        lines = dict.fromkeys(
            f"t {found['t']:.0f}: {found['sentence']}" for found in (forecasts[:1] + forecasts[-1:])
        )
        why = "" if first is None else f"{first['detector']}: {first['reason']}"
        made.add_row(file["file"], str(len(alarms)), at, why, "\n".join(lines))
    return made


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="a folder of CSV files, or one file")
    parser.add_argument("--policy", default="protect", choices=sorted(POLICIES))
    parser.add_argument("--json", action="store_true", help="all alarms and forecasts as JSON")
    options = parser.parse_args(argv)
    paths = sorted(options.path.rglob("*.csv")) if options.path.is_dir() else [options.path]
    files = []
    try:
        if not paths:
            raise InputError(f"{options.path}: holds no .csv file")
        for path in paths:
            frames, planned = read(path)
            files.append(as_json(path, *replay(frames, options.policy, planned)))
    except InputError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    summary = {
        "files": len(files),
        "with_alarms": [file["file"] for file in files if file["alarms"]],
        "without_alarms": [file["file"] for file in files if not file["alarms"]],
        "policy": options.policy,
    }
    if options.json:
        print(json.dumps({"files": files, "summary": summary}, indent=1))
    else:
        Console().print(table(files))
        print(f"{len(files)} files, {len(summary['with_alarms'])} with alarms, policy {options.policy}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
