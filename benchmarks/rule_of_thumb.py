"""The planner and the rule of thumb of 16 bytes a parameter, on the same public measurements.

    python benchmarks/rule_of_thumb.py [FILE...]

Takes rows that train all parameters and measured a device's memory; benchmarks/planner_accuracy.py has the form of a
FILE. Without one: the measurements that the tests use. The rule counts weights and gradients in half precision, fp32
weights and two moments, shared by all devices of the run, and says nothing of activations. Error is
|predicted / measured - 1|.
"""

import argparse
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from headway.plan.size import RULE_BYTES
from planner_accuracy import percentile, read, score
from prediction import NotCovered, Row, section
from row_shapes import row_shape

MEASURED = Path(__file__).parents[1] / "tests/data/measured"


def applies(row: Row) -> bool:
    """Whether the rule is made for a row: all parameters train, and a whole step was measured on a device."""
    measured = section(row, "measured")
    return (
        section(row, "trainer").get("mode") in ("full", "pretrain")
        and measured.get("quantity") in ("allocated", "reserved", "device_used")
        and measured.get("phase") not in ("init", "load", "loss")
    )


def rule(row: Row) -> int:
    """What the rule says of one device, in bytes."""
    return RULE_BYTES * row_shape(section(row, "model")).parameters() // int(section(row, "layout").get("gpus") or 1)


def errors(files: Sequence[Path]) -> Iterator[tuple[float, float]]:
    """(the planner's error, the rule's error) of each row that both predict."""
    for name, row in (each for path in files for each in read(path)):
        if isinstance(row, str) or not applies(row):
            continue
        own = score(name, row)[0]
        try:
            size = rule(row)
        except NotCovered:
            continue
        if own.error is not None and own.measured:
            yield abs(own.error), abs(size / own.measured - 1)


def main() -> None:
    """Read, predict both, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="rows, one JSON object a line")
    pairs = list(errors(parser.parse_args().files or sorted(MEASURED.glob("*.jsonl"))))
    table = Table(f"{len(pairs)} measured runs", "median error", "90 % within", "off by more than 20 %")
    for name, values in zip(("headway plan", "16 bytes a parameter"), zip(*pairs, strict=True), strict=True):
        far = sum(value > 0.2 for value in values) / len(values)
        table.add_row(
            name, f"{statistics.median(values):.1%}", f"{percentile(sorted(values), 0.9):.1%}", f"{far:.0%}"
        )
    Console().print(table)


if __name__ == "__main__":
    main()
