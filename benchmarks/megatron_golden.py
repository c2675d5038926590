"""Megatron-LM's own functional tests against the planner: bytes at the end of a step, and the peak, of the last rank.

    python benchmarks/megatron_golden.py FILE [--json] [--rows]

FILE is a CSV with a test's launch arguments, `alloc` (mem-allocated-bytes at the end of a step) and `max`
(mem-max-allocated-bytes). A row is right where the end of the step is within max(200 MiB, 5 %) and the peak within
max(250 MiB, 10 %). Rows of models with vision, of stages given by letters, of distillation, or without a world size
are not covered, with the reason. How a row is read: `golden_rows.py`.

--json prints {"rows", "covered", "coverage", "end_within", "peak_within", "end_median", "peak_median", "reasons"}.
"""

import argparse
import csv
import json
import statistics
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from golden_rows import workload
from headway.errors import InputError
from headway.plan.megatron.run import Run
from headway.units import MIB
from prediction import NotCovered
from rows_megatron import at_end, peak

END, PEAK = (200 * MIB, 0.05), (250 * MIB, 0.10)


@dataclass(frozen=True)
class Scored:
    """One row: measured and predicted bytes at the end of a step and at the peak; a reason where it is not covered.

    >>> Scored("a", "h100", 100, 100, 90, 100, "").end_within
    True
    """

    case: str
    env: str
    end: int
    peak: int
    end_predicted: int
    peak_predicted: int
    reason: str

    @property
    def end_within(self) -> bool:
        """Whether the end of a step is as close as it has to be."""
        return _within(self.end, self.end_predicted, *END)

    @property
    def peak_within(self) -> bool:
        """Whether the peak is."""
        return _within(self.peak, self.peak_predicted, *PEAK)


def _within(measured: int, predicted: int, size: int, share: float) -> bool:
    return abs(predicted - measured) <= max(size, share * measured)


def score_all(rows: Sequence[Mapping[str, str]]) -> list[Scored]:
    """All rows of a file. A test that has a value named `lts`, or a second run in that environment, was recorded
    again after its container changed."""
    renewed = {row["case"] for row in rows if row["env"] in ("lts", "lts_dgx_a100_2nd")}
    return [score(row, renewed=row["case"] in renewed) for row in rows]


def score(row: Mapping[str, str], *, renewed: bool = True) -> Scored:
    """One row of the file; `renewed` as in `golden_rows.workload`."""
    names = row["case"], row["env"]
    measured = round(float(row["alloc"] or 0)), round(float(row["max"] or 0))
    try:
        if not all(measured):
            raise NotCovered("no measurement")
        work = workload(row, renewed=renewed)
        last = Run.of(work).stages()[-1:]
        return Scored(*names, *measured, at_end(work, last).bytes, peak(work, last).bytes, "")
    except (NotCovered, InputError) as reason:
        return Scored(*names, *measured, 0, 0, str(reason))


def result(rows: Sequence[Scored]) -> dict[str, object]:
    """What --json prints."""
    covered = [row for row in rows if not row.reason]
    return {
        "rows": len(rows), "covered": len(covered), "coverage": len(covered) / len(rows) if rows else None,
        "end_within": _share([row.end_within for row in covered]),
        "peak_within": _share([row.peak_within for row in covered]),
        "end_median": _median([abs(row.end_predicted / row.end - 1) for row in covered]),
        "peak_median": _median([abs(row.peak_predicted / row.peak - 1) for row in covered]),
        "reasons": dict(Counter(row.reason for row in rows if row.reason)),
    }  # fmt: skip


def _share(found: Sequence[bool]) -> float | None:
    return sum(found) / len(found) if found else None


def _median(found: Sequence[float]) -> float | None:
    return statistics.median(found) if found else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Read, predict, print. Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("file", type=Path, metavar="FILE", help="the tests' values and arguments")
    parser.add_argument("--json", action="store_true", help="print figures as JSON")
    parser.add_argument("--rows", action="store_true", help="print every covered row")
    chosen = parser.parse_args(arguments)
    try:
        rows = score_all(list(csv.DictReader(chosen.file.read_text().splitlines())))
    except OSError as problem:
        print(f"{chosen.file}: cannot be read ({problem.strerror})", file=sys.stderr)
        return 2
    if chosen.rows:
        for row in rows:
            if not row.reason:
                show(row)
    figures = result(rows)
    print(json.dumps(figures, indent=1) if chosen.json else _words(figures))
    return 0


def show(row: Scored) -> None:
    """One row on one line, in MiB."""
    values = [value / MIB for value in (row.end, row.end_predicted, row.peak, row.peak_predicted)]
    marks = f"{'' if row.end_within else 'END '}{'' if row.peak_within else 'PEAK'}"
    print(
        f"{row.case[:90]:90} {row.env[:22]:22} end {values[0]:8.0f} {values[1] - values[0]:+7.0f}"
        f"  peak {values[2]:8.0f} {values[3] - values[2]:+7.0f} {marks}"
    )


def _words(figures: Mapping[str, object]) -> str:
    lines = [
        f"{key}: {value:.3f}" if isinstance(value, float) else f"{key}: {value}" for key, value in figures.items()
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
