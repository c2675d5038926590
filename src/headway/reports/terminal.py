"""The end of a run for a terminal: predicted against measured, how it ended, where everything is."""

from collections.abc import Mapping, Set
from typing import Any, Literal

from msgspec import Struct
from rich.box import SIMPLE
from rich.console import Group
from rich.table import Table
from rich.text import Text

from headway.errors import DiskFullError, RewardsFailedError
from headway.guard.recorder import PhasePeak
from headway.plan.ledger import Ledger, Phase, Quantity
from headway.reports.scores import scores
from headway.reports.widgets import NARROW, Layouts, Unit, aligned, duration
from headway.units import format_bytes

FILES = {
    "final": "the trained model or adapter",
    "metrics.jsonl": "one record a step",
    "rollouts.jsonl": "sample answers",
    "recording.jsonl": "measured memory",
    "summary.json": "how it ended",
    "checkpoints": "to go on from",
}
"""What a reader looks for first in the output directory."""

FILES_WITHOUT_REWARDS = {
    "reward.log": "what could not be scored, with tracebacks",
    "summary.json": "how it ended",
    "recording.jsonl": "measured memory",
}
"""The same of a run that stopped because its answers could not be scored."""


class _Row(Struct, frozen=True):
    """Predicted and measured bytes of a phase; `measured` is None for a phase that did not come."""

    name: str
    predicted: int
    upper: int
    measured: int | None


def comparison_table(ledger: Ledger, summary: Mapping[str, Any]) -> Group:
    """Predicted against measured for a run's first pool, from the run's summary (the contents of summary.json)."""
    pool, phases = ledger.pools()[0], summary["phases"]
    measured = {phase: phases.get(phase, {}).get("measured_bytes") for phase in ledger.phases(pool)}
    return _comparison(ledger, pool, measured, summary["peak_measured_bytes"] or None)


def pool_comparison(ledger: Ledger, pool: str, peaks: Mapping[Phase, PhasePeak]) -> Group:
    """Predicted against measured for any pool: the process tree's memory, or the device quantity that was planned."""
    quantities = {line.quantity for line in ledger.lines if line.pool == pool}
    measured = {phase: _measured(peak, quantities) for phase, peak in peaks.items()}
    known = [size for size in measured.values() if size is not None]
    return _comparison(ledger, pool, measured, max(known, default=None))


def _measured(peak: PhasePeak, quantities: Set[Quantity]) -> int | None:
    """Like with like: a pool whose lines reach up to device_used is compared with that, and so on down."""
    if "host" in quantities:
        return peak.tree_peak
    return next(
        (peak.device.get(name) for name in ("device_used", "reserved", "allocated") if name in quantities), None
    )


def _comparison(ledger: Ledger, pool: str, measured: Mapping[Phase, int | None], overall: int | None) -> Group:
    rows = [
        _Row(phase, ledger.peak_of(pool, phase).bytes, ledger.peak_of(pool, phase).upper, measured.get(phase))
        for phase in ledger.phases(pool)
    ]
    whole = _Row("whole run", ledger.peak(pool).bytes, ledger.upper(pool), overall)
    unit = Unit.for_size(max(whole.upper, overall or 0))
    title = Text(f"Predicted against measured, {pool}\n", style="bold")
    header = (unit.name, "predicted", "measured", "error", "upper bound", "")
    lines = [(Text(row.name), *_cells(row, unit)) for row in (*rows, whole)]
    table = Table(box=SIMPLE, show_edge=False, pad_edge=False, show_footer=True, padding=(0, 2, 0, 0))
    for index, (name, footer) in enumerate(zip(header, lines[-1], strict=True)):
        justify: Literal["left", "right"] = "right" if name and index else "left"
        table.add_column(name, footer=footer, justify=justify, no_wrap=True)
    for line in lines[:-1]:
        table.add_row(*line)
    widths = [max(len(name), *(len(line[index]) for line in lines)) for index, name in enumerate(header)]
    texts = [[cell.plain for cell in line] for line in lines]
    columns = aligned([header[:4], *(line[:4] for line in texts)], bold=whole.name)
    above = [Text(f"{line[0]}: over the upper bound, {line[4]}") for line in texts if line[5].startswith("over")]
    return Group(title, Layouts(table, Group(*columns, *above), max(NARROW, sum(widths) + 3 * (len(widths) - 1))))


def _cells(row: _Row, unit: Unit) -> tuple[Text, ...]:
    """Predicted, measured, error, upper bound, remark."""
    predicted, upper = Text(unit.text(row.predicted)), Text(unit.text(row.upper))
    if row.measured is None:
        return predicted, Text("-"), Text("-"), upper, Text("not reached", style="dim")
    over = row.measured > row.upper
    return (
        predicted,
        Text(unit.text(row.measured), style="bold"),
        Text(_error(row.predicted, row.measured)),
        upper,
        Text("over the upper bound", style="bold red") if over else Text("within", style="green"),
    )


def _error(predicted: int, measured: int) -> str:
    """The prediction's error as a share of what was measured."""
    error = (predicted - measured) / max(1, measured)
    return f"{error:+.1%}" if error < 100 else ">9999%"


def final_summary(summary: Mapping[str, Any]) -> Group:
    """How a run ended: evaluation before and after, steps, time, memory, and where everything is."""
    finished = summary["exit_reason"] == "finished"
    ended = "finished" if finished else _stopped(summary["exit_reason"])
    predicted, measured = summary["peak_predicted_bytes"], summary["peak_measured_bytes"]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("run", f"{summary['steps']} steps in {duration(summary['seconds'])}, {ended}")
    table.add_row("held out", _before_after(summary["eval_before"], summary["eval_after"]))
    table.add_row("memory", f"peak {format_bytes(measured)} measured, {format_bytes(predicted)} predicted")
    if failures := summary.get("reward_failures"):
        table.add_row("reward failures", _failures(failures, summary.get("first_reward_failure")))
    if dropped := summary.get("dropped_samples"):
        table.add_row("dropped samples", Text(f"{dropped:,} for which there was no memory", style="yellow"))
    if dropped := summary.get("dropped_long_prompts"):
        table.add_row("dropped prompts", f"{dropped:,} longer than data.max_prompt")
    table.add_row("output", f"{summary['output']}/")
    files = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    files.add_column(no_wrap=True)
    files.add_column(overflow="fold")
    unscored = summary["exit_reason"] == RewardsFailedError.exit_reason
    for name, about in (FILES_WITHOUT_REWARDS if unscored else FILES).items():
        if finished or name != "final":
            files.add_row(name, Text(about, style="dim"))
    table.add_row("", files)
    if finished:
        table.add_row("next", f"headway report {summary['output']}; headway export {summary['output']} MY-MODEL")
    return Group(Text(), table)


def _stopped(reason: str) -> str:
    """Why a run is not finished, and how it goes on."""
    return {
        RewardsFailedError.exit_reason: "stopped: most answers could not be scored",
        DiskFullError.exit_reason: "stopped: the disk is full; the same command resumes once there is room",
    }.get(reason, f"stopped by {reason}; the same command resumes")


def _failures(counts: Mapping[str, int], first: str | None) -> Text:
    """What kept answers from being scored, the most frequent first, and the first of it."""
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in sorted(counts.items(), key=lambda pair: -pair[1]))
    about = "see reward.log" if first is None else f"first: {first}; see reward.log"
    return Text(f"{kinds} ({about})", style="yellow")


def _before_after(before: Mapping[str, float] | None, after: Mapping[str, float] | None) -> Text:
    """Each score of the evaluations, side by side where there are two."""
    if before is None and after is None:
        return Text("no evaluation", style="dim")
    text = Text()
    for name in scores(before or {}) | scores(after or {}):
        found = {when: each[name] for when, each in (("before", before), ("after", after)) if each and name in each}
        parts = [f"{value:.3f} {when}" for when, value in found.items()]
        text.append(f"{'; ' if text else ''}{name} {', '.join(parts)}")
        if len(found) == 2:
            gain = found["after"] - found["before"]
            text.append(f", {gain:+.3f}", style="bold green" if gain > 0 else "bold red" if gain < 0 else "bold")
    return text
