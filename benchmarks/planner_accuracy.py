"""The planner against public measurements: each row's own quantity, predicted from what the row says ran.

    python benchmarks/planner_accuracy.py FILE...
    python benchmarks/planner_accuracy.py FILE... --json
    python benchmarks/planner_accuracy.py FILE... --kinds "hf allocated" "lora allocated"

A FILE has one row in JSON a line. Rows are grouped by kind: "MODE QUANTITY" for a trainer ("qlora allocated"),
"SYSTEM QUANTITY" for an engine ("vllm kv_bytes"), "loss MODE QUANTITY" for a loss without a model around it. Other
figures of an engine's row (its `also`) that follow from it are kinds of their own, "vllm also kv_tokens", outside of
the total.

Error is |predicted / measured - 1|. A row that is not predicted counts in coverage only, with its reason. A row that
did not fit and has no bytes is right where the upper bound is above the device; it has no error. `upper_holds` is the
share of covered rows whose bound is not below the measurement, `upper_ratio` the median of bound / measured.

--json prints {"total": {"rows", "coverage", "median_error", "p90_error", "worst_error", "upper_holds",
"upper_ratio"}, "kinds": {KIND: the same}, "rows": [{"id", "kind", "measured", "predicted", "upper", "error", "holds",
"reason"}]}; a figure that no row has is null, and an error in "rows" has a sign. Exit code 2: a file cannot be read,
or no row is of the kinds asked for.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import rows_megatron
import rows_serving
import rows_training
from headway.errors import InputError
from prediction import NotCovered, Prediction, Row, figure_name, section

UNUSABLE = (InputError, LookupError, ArithmeticError, TypeError, ValueError, AttributeError, AssertionError)
"""What a row with wrong values can raise on its way through the planner."""

SHARES = ("coverage", "median_error", "p90_error", "worst_error", "upper_holds")


@dataclass(frozen=True)
class Scored:
    """One figure of one row. `predicted` None: not covered, and `reason` says why.

    >>> Scored("a", "hf allocated", 100, 90, 110, None).error
    -0.1
    """

    id: str
    kind: str
    measured: int | None
    predicted: int | None
    upper: int | None
    reason: str | None
    limit: int | None = None
    also: bool = False

    @property
    def covered(self) -> bool:
        """Whether it was predicted."""
        return self.predicted is not None

    @property
    def error(self) -> float | None:
        """predicted / measured - 1, rounded to a hundredth of a percent; None without a measurement."""
        if self.predicted is None or not self.measured:
            return None
        return round(self.predicted / self.measured - 1, 4)

    @property
    def ratio(self) -> float | None:
        """upper / measured."""
        return self.upper / self.measured if self.upper is not None and self.measured else None

    @property
    def holds(self) -> bool | None:
        """Whether the bound is not below the measurement, or above the device where the run did not fit."""
        if self.upper is None:
            return None
        return self.upper >= self.measured if self.measured else self.upper > (self.limit or 0)


def read(path: Path) -> Iterator[tuple[str, Row | str]]:
    """Each line's name and its row, or in words what is wrong with it."""
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        if not line.strip():
            continue
        name = f"{path.name}:{number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as problem:
            yield name, f"not JSON: {str(problem)[:80]}"
            continue
        if not isinstance(row, dict):
            yield name, "not a table of keys"
            continue
        yield str(row.get("id", name)), row


def score(name: str, row: Row | str) -> list[Scored]:
    """The row's own figure first, then those of its `also` that are predicted."""
    if isinstance(row, str):
        return [Scored(name, "unreadable", None, None, None, row)]
    kind = "unknown"
    try:
        kind = kind_of(row)
        measured, limit = _measurement(row)
        found = predict(row)
        own = Scored(name, kind, measured, found.bytes, found.upper, None, limit)
        return [own, *_also(name, row, found)]
    except NotCovered as reason:
        return [Scored(name, kind, None, None, None, str(reason))]
    except UNUSABLE as problem:
        return [Scored(name, kind, None, None, None, f"{type(problem).__name__}: {str(problem)[:120]}")]


def predict(row: Row) -> Prediction:
    """The prediction by whoever plans such rows; NotCovered where nobody does."""
    if row.get("engine") or rows_serving.is_loss(row):
        return rows_serving.predict(row)
    if not row.get("trainer"):
        raise NotCovered("neither trainer nor engine")
    if section(row, "trainer").get("system") == "megatron":
        return rows_megatron.predict(row)
    return rows_training.predict(row)


def kind_of(row: Row) -> str:
    """What a row is grouped under."""
    quantity = section(row, "measured").get("quantity")
    if not isinstance(quantity, str):
        raise NotCovered("measured.quantity is missing")
    if rows_serving.is_loss(row):
        return f"loss {section(row, 'trainer').get('mode', 'pretrain')} {quantity}"
    trainer, engine = section(row, "trainer"), section(row, "engine")
    what = trainer.get("mode") or trainer.get("system") if trainer else engine.get("system")
    return f"{what or 'unknown'} {quantity}"


def _measurement(row: Row) -> tuple[int | None, int | None]:
    """Measured bytes, or None with the device's bytes where all that is known is that it did not fit."""
    measured = section(row, "measured")
    size = measured.get("bytes")
    if isinstance(size, int) and not isinstance(size, bool) and size > 0:
        return size, None
    if size is not None:
        raise NotCovered(f"measured.bytes = {size!r} is no positive whole number")
    if measured.get("fits") is not False:
        raise NotCovered("measured.bytes is missing, and nothing says that it did not fit")
    device = section(row, "machine").get("device_bytes")
    if not isinstance(device, int) or device <= 0:
        raise NotCovered("did not fit, but machine.device_bytes is missing")
    return None, device


def _also(name: str, row: Row, found: Prediction) -> Iterator[Scored]:
    what = section(row, "engine").get("system") or section(row, "trainer").get("mode")
    known = dict(found.also)
    for entry in row.get("also") or ():
        name_of = figure_name(entry) if isinstance(entry, Mapping) else ""
        size = entry.get("bytes") if name_of else None
        if name_of in known and isinstance(size, int) and size > 0:
            figure = known[name_of]
            yield Scored(name, f"{what} also {name_of}", size, figure.bytes, figure.upper, None, also=True)


def summary(rows: Sequence[Scored]) -> dict[str, Any]:
    """The figures of one group."""
    covered = [row for row in rows if row.covered]
    errors = sorted(abs(row.error) for row in covered if row.error is not None)
    ratios = [row.ratio for row in covered if row.ratio is not None]
    return {
        "rows": len(rows),
        "coverage": len(covered) / len(rows) if rows else None,
        "median_error": statistics.median(errors) if errors else None,
        "p90_error": percentile(errors, 0.9) if errors else None,
        "upper_holds": sum(bool(row.holds) for row in covered) / len(covered) if covered else None,
        "upper_ratio": statistics.median(ratios) if ratios else None,
        "worst_error": errors[-1] if errors else None,
    }


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which a share of sorted values lies, interpolated between neighbours.

    >>> percentile([0.0, 1.0, 2.0, 3.0, 4.0], 0.9)
    3.6
    """
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def result(rows: Sequence[Scored]) -> dict[str, Any]:
    """What --json prints."""
    own = [row for row in rows if not row.also]
    kinds = {kind: [row for row in rows if row.kind == kind] for kind in sorted({row.kind for row in rows})}
    return {
        "total": summary(own),
        "kinds": {kind: summary(members) for kind, members in kinds.items()},
        "rows": [_plain(row) for row in rows],
    }


def _plain(row: Scored) -> dict[str, Any]:
    known = asdict(row)
    return {
        **{key: known[key] for key in ("id", "kind", "measured", "predicted", "upper")},
        "error": row.error, "holds": row.holds, "reason": row.reason,
    }  # fmt: skip


def show(rows: Sequence[Scored], figures: Mapping[str, Any], console: Console) -> None:
    """The tables for a reader: rows, kinds, total."""
    table = Table("row", "kind", "measured GiB", "predicted", "error", "upper", "")
    for row in rows:
        if row.also:
            continue
        unit = 1 if row.kind.endswith("tokens") else 2**30
        cells = [f"{value / unit:,.2f}" if value else "" for value in (row.measured, row.predicted, row.upper)]
        error = f"{row.error:+.1%}" if row.error is not None else ""
        bad = "" if row.holds is not False else "above the bound" if row.measured else "bound is below the device"
        table.add_row(row.id, row.kind, cells[0], cells[1], error, cells[2], row.reason or bad)
    console.print(table)
    kinds = Table("kind", "rows", "coverage", "median error", "90 %", "worst", "upper holds", "upper / measured")
    for kind, values in (*figures["kinds"].items(), ("total", figures["total"])):
        shares = [_percent(values[key]) for key in SHARES]
        ratio = "" if values["upper_ratio"] is None else f"{values['upper_ratio']:.2f}"
        kinds.add_row(kind, str(values["rows"]), *shares, ratio)
    console.print(kinds)


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Read, predict, print. Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="rows, one JSON object a line")
    parser.add_argument("--json", action="store_true", help="print figures and rows as JSON")
    parser.add_argument("--kinds", nargs="+", metavar="KIND", help='only these kinds, such as "lora allocated"')
    chosen = parser.parse_args(arguments)
    rows: list[Scored] = []
    for path in chosen.files:
        try:
            lines = list(read(path))
        except OSError as problem:
            print(f"{path}: cannot be read ({problem.strerror})", file=sys.stderr)
            return 2
        rows += [scored for name, row in lines for scored in score(name, row)]
    if chosen.kinds:
        known = sorted({row.kind for row in rows})
        rows = [row for row in rows if row.kind in chosen.kinds]
        if not rows:
            print(f"no row is of the kinds {', '.join(chosen.kinds)}; there are {', '.join(known)}", file=sys.stderr)
            return 2
    figures = result(rows)
    if chosen.json:
        print(json.dumps(figures, indent=1))
    else:
        show(rows, figures, Console(width=None if sys.stdout.isatty() else 150))
    return 0


if __name__ == "__main__":
    sys.exit(main())
