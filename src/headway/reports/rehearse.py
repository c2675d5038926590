"""What `headway rehearse` shows: phases, predicted against measured, the verdict, the room that is left."""

from typing import Any

from rich.box import SIMPLE
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headway.facts.calibration import ProcessBase
from headway.guard.rehearsed import PhaseRow, Rehearsed
from headway.plan.room import LONGEST
from headway.reports.ledger import no_model_fits
from headway.reports.widgets import NARROW, VERDICT_STYLES, Layouts, Unit, aligned, duration
from headway.units import format_bytes


def report(found: Rehearsed) -> Group:
    """The table of phases, how it ended, and what there is room for."""
    parts: list[RenderableType] = []
    for pool in found.planned.ledger.pools():
        rows = [row for row in found.rows if row.pool == pool]
        parts += [Text(f"Rehearsal of the worst step, {pool}\n", style="bold"), _table(rows)]
    lines = [_verdict(found), *_more(found)]
    return Group(*parts, Text(), *lines)


def _table(rows: list[PhaseRow]) -> Layouts:
    """A row a phase: predicted, upper bound, measured, margin, verdict."""
    sizes = [size for row in rows for size in (row.upper, row.measured or 0)]
    unit = Unit.for_size(max(sizes))
    header = (unit.name, "predicted", "upper bound", "measured", "margin", "verdict")
    table = Table(box=SIMPLE, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0))
    lines = [_cells(row, unit) for row in rows]
    for index, name in enumerate(header):
        table.add_column(name, justify="left" if index in (0, len(header) - 1) else "right", no_wrap=True)
    for row, line in zip(rows, lines, strict=True):
        table.add_row(*line[:-1], Text(line[-1], style=VERDICT_STYLES.get(row.kind, "dim")))
    narrow = aligned([(*header[:1], *header[3:5]), *((line[0], *line[3:5]) for line in lines)], bold="")
    widths = [max(len(name), *(len(line[index]) for line in lines)) for index, name in enumerate(header)]
    return Layouts(table, Group(*narrow), max(NARROW, sum(widths) + 3 * (len(widths) - 1)))


def _cells(row: PhaseRow, unit: Unit) -> tuple[str, ...]:
    measured = "-" if row.measured is None else unit.text(row.measured)
    margin = "-" if row.margin is None else ("-" if row.margin < 0 else "") + unit.text(abs(row.margin))
    return str(row.phase), unit.text(row.predicted), unit.text(row.upper), measured, margin, row.kind


def _verdict(found: Rehearsed) -> Text:
    ended, worst = found.ended, found.worst
    limit = "no known limit" if found.limit is None else f"{found.limit.name} ({format_bytes(found.limit.bytes)})"
    took = duration(ended.seconds)
    if found.fits:
        highest = "" if worst is None or worst.measured is None else (
            f"{worst.phase} held {format_bytes(worst.measured)}; "
        )  # fmt: skip
        return Text.assemble(("Fits", VERDICT_STYLES["fits"]), f": {highest}lowest limit: {limit}. Took {took}.")
    text = Text.assemble(("Does not fit", VERDICT_STYLES["does not fit"]), f": {_why(found)}. Took {took}.")
    if worst is not None:
        text.append(
            f"\n{worst.phase} is planned to need {format_bytes(worst.predicted)}, at most "
            f"{format_bytes(worst.upper)}; lowest limit: {limit}."
        )
    return text


def _why(found: Rehearsed) -> str:
    """What ended it, or what was seen."""
    ended, worst = found.ended, found.worst
    at = f"step {ended.step}, phase {ended.phase}"
    if ended.reached is not None:
        return (
            f"ended by headway at {at}: the run held {format_bytes(ended.reached.used)}, and "
            f"{ended.reached.limit.name} allows {format_bytes(ended.reached.limit.bytes)} "
            f"({ended.reached.limit.consequence})"
        )
    if ended.status:
        return f"{at}: {ended.error or 'killed by SIGKILL: the kernel, or somebody else'}"
    if found.failures:
        return f"{found.failures} allocations failed and were tried again in smaller parts"
    assert worst is not None
    assert worst.measured is not None
    return f"{worst.phase} held {format_bytes(worst.measured)}"


def _more(found: Rehearsed) -> list[Text]:
    lines = []
    if found.room is not None and found.limit is not None and found.fits:
        lines.append(f"Room left: {format_bytes(max(0, found.room))} below {found.limit.name}.")
    if found.larger is not None:
        lines.append(
            f"Next size up, {found.larger.what}: would need {format_bytes(found.larger.expected)}, at most "
            f"{format_bytes(found.larger.upper)}."
        )
    now = found.planned.workload.rollout.max_answer
    lines.append(
        f"Longest answer by plan: {_tokens(found.longest)} tokens surely fit, {_tokens(found.longest_expected)} are "
        f"expected to; the run permits {now:,}."
    )
    lines += [f"{line[0].upper()}{line[1:]}." for line in _impossible(found)]
    if found.ended.dropped:
        lines.append(
            f"{found.ended.dropped:,} samples are longer than may be trained here and would be dropped: they teach "
            "nothing."
        )
    lines += [f"Note: {note}." for note in found.ended.notes]
    return [Text(line) for line in lines]


def _tokens(count: int) -> str:
    """A length; that up to which it is searched may not be the longest.

    >>> _tokens(4096), _tokens(1 << 20)
    ('4,096', '1,048,576 or more')
    """
    return f"{count:,}" + (" or more" if count >= LONGEST else "")


def _impossible(found: Rehearsed) -> list[str]:
    pools = found.planned.outcome.pools
    return [line for each in pools if not found.fits and (line := no_model_fits(found.planned.ledger, each))]


def calibrated(base: ProcessBase) -> str:
    """What was measured of a machine, for one line.

    >>> from headway.facts.calibration import Overhead
    >>> calibrated(ProcessBase("cpu", 380 << 20, 400 << 20, "", Overhead(2 << 20, 3 << 20, 0.004))).split("; ")[1]
    'its allocator 2.0 MiB beyond live tensors, and up to 3.0 MiB or 0.4% of them more'
    """
    text = (
        f"the process holds {format_bytes(base.loaded)} when the model is loaded and {format_bytes(base.running)} "
        "once it has computed"
    )
    if base.context is not None:
        text += f", its CUDA context {format_bytes(base.context)}"
    found = base.overhead
    if found is None:
        return f"{text}; its allocator was not measured, which takes two steps"
    share = "" if found.share is None else f" or {found.share:.1%} of them"
    return (
        f"{text}; its allocator {format_bytes(found.holes)} beyond live tensors, and up to "
        f"{format_bytes(found.spread)}{share} more"
    )


def document(found: Rehearsed) -> dict[str, Any]:
    """The JSON of `headway rehearse --json`; docs/rehearse.md has its keys."""
    ended = found.ended
    return {
        "fits": found.fits,
        "phases": [
            {
                "pool": row.pool, "phase": str(row.phase), "predicted_bytes": row.predicted, "upper_bytes": row.upper,
                "measured_bytes": row.measured, "limit_bytes": row.limit, "margin_bytes": row.margin,
                "verdict": row.kind,
            }
            for row in found.rows
        ],
        "ended": {
            "status": ended.status, "phase": ended.phase, "step": ended.step, "used_bytes": ended.used,
            "reached": None if ended.reached is None else ended.reached.limit.name, "said": ended.error,
        },
        "limit": None if found.limit is None else {"name": found.limit.name, "bytes": found.limit.bytes},
        "room_bytes": found.room,
        "larger_model": None if found.larger is None else {
            "model": found.larger.what, "expected_bytes": found.larger.expected, "upper_bytes": found.larger.upper,
        },
        "longest_answer": found.longest,
        "longest_answer_expected": found.longest_expected,
        "failed_allocations": found.failures,
        "dropped_samples": ended.dropped,
        "notes": list(ended.notes),
        "seconds": ended.seconds,
    }  # fmt: skip
