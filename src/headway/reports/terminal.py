"""The plan, the comparison and the end of a run for a terminal: records in, renderables out, no computation."""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Literal

from rich.box import SIMPLE
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from headway.facts.machine import Limit, Machine, Pool
from headway.guard.recorder import PhasePeak
from headway.plan.ledger import Ledger, Line, Phase, Quantity
from headway.plan.remedies import Remedy
from headway.plan.verdict import PoolVerdict
from headway.units import GIB, MIB, format_bytes

ITEMS = 8
"""Items of a pool with a row of their own; the smaller ones share a row."""

NARROW = 70
"""Columns under which tables become lines, so that no number is cut."""

NAME_WIDTH = 16
"""Cells that an item's name keeps, at least; longer names are cut."""

VERDICT_STYLES = {"fits": "bold green", "tight": "bold yellow", "does not fit": "bold red", "cannot tell": "bold"}

REFUSED = "headway does not start the run"
"""The consequence of the RunSpec's own limit, which goes without saying in a refusal."""

FITS = (", which fits", ", which is tight")
"""How a line of advice ends that lets the run start."""

FILES = {
    "final": "the trained model or adapter",
    "metrics.jsonl": "one record a step",
    "rollouts.jsonl": "sample answers",
    "recording.jsonl": "measured memory",
    "summary.json": "how it ended",
    "checkpoints": "to go on from",
}
"""What a reader looks for first in the output directory."""


@dataclass(frozen=True)
class Bar:
    """A bar that fills the width it gets: solid to `solid`, shaded to `shaded`, a mark at `mark`.

    The full width stands for `scale`, in the same unit.
    """

    solid: int
    shaded: int
    mark: int | None
    scale: int
    style: str = "green"
    mark_style: str = "bold red"

    def text(self, width: int) -> Text:
        """The bar in `width` cells."""
        solid, shaded = (min(width, self._cells(size, width)) for size in (self.solid, self.shaded))
        bar = Text(no_wrap=True).append("█" * solid, style=self.style)
        bar.append("▒" * (shaded - solid), style=self.style)
        bar.append("·" * (width - max(solid, shaded)), style="dim")
        if self.mark is not None and self.mark < self.scale:
            at = min(width - 1, self._cells(self.mark, width))
            bar = Text.assemble(bar[:at], ("│", self.mark_style), bar[at + 1 :])
        return bar

    def _cells(self, size: int, width: int) -> int:
        """Cells that a size covers; what is there at all covers one."""
        return max(1, round(size / self.scale * width)) if size > 0 and self.scale > 0 else 0

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.text(options.max_width)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(8, options.max_width)


@dataclass(frozen=True)
class Layouts:
    """One content for two widths: `wide` where it gets `least` cells, otherwise `narrow`."""

    wide: RenderableType
    narrow: RenderableType
    least: int = NARROW

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.wide if options.max_width >= self.least else self.narrow


@dataclass(frozen=True)
class Unit:
    """One unit for all numbers of a table.

    >>> Unit.for_size(3 << 30).text(1610612736), Unit.for_size(64 << 30).text(1610612736)
    ('1,536', '1.50')
    """

    name: str
    size: int
    digits: int

    @classmethod
    def for_size(cls, largest: int) -> "Unit":
        """Whole MiB up to 16 GiB, and two digits of GiB up to 16 TiB, of TiB up to 16 PiB and so on above."""
        if largest < 16 * GIB:
            return cls("MiB", MIB, 0)
        size, names = GIB, iter(("GiB", "TiB", "PiB", "EiB", "ZiB"))
        name = next(names)
        for larger in names:
            if largest < 16 * 1024 * size:
                break
            name, size = larger, size * 1024
        return cls(name, size, 2)

    def text(self, count: int) -> str:
        """A size without the unit's name; a dot for nothing."""
        if count == 0:
            return "·"
        text = f"{count / self.size:,.{self.digits}f}"
        return {"0": "<1", "0.00": "<0.01"}.get(text, text)


def ledger_table(ledger: Ledger, machine: Machine, verdicts: Sequence[PoolVerdict] = ()) -> Group:
    """The plan, pool by pool: the largest items by phase, a bar a phase against the lowest limit, the verdict."""
    known = {pool.name: pool for pool in machine.pools}
    by_pool = {verdict.pool: verdict for verdict in verdicts}
    parts: list[RenderableType] = []
    for name in ledger.pools():
        pool = known.get(name)
        wide: list[RenderableType] = [_item_table(ledger, name), Text(), _phase_bars(ledger, name, pool)]
        wide += [Text(), _limit_table(pool)] if pool is not None and pool.limits else []
        narrow = Group(*_pool_lines(ledger, name, pool))
        parts += [_pool_title(name, pool), Layouts(Group(*wide), narrow, _item_table_width(ledger, name))]
        parts += [verdict_line(by_pool[name])] if name in by_pool else []
        parts.append(Text())
    return Group(*parts)


def _pool_title(name: str, pool: Pool | None) -> Text:
    if pool is None:
        return Text(f"Plan for {name}, which is not on this machine\n", style="bold")
    memory = "memory" if pool.kind == "host" else f"{pool.kind} memory"
    title = Text(f"Plan for this machine's {memory} ({name})", style="bold")
    return title.append(f", {format_bytes(pool.total_bytes)} in all\n", style="not bold dim")


def _item_table_width(ledger: Ledger, pool: str) -> int:
    """Cells that the item table needs for its numbers and a readable part of the names."""
    unit, numbers = Unit.for_size(ledger.upper(pool)), 0
    for phase in ledger.phases(pool):
        numbers += 2 + max(len(phase), len(unit.text(ledger.peak_of(pool, phase).upper)))
    return max(NARROW, NAME_WIDTH + numbers)


def _pool_lines(ledger: Ledger, pool: str, known: Pool | None) -> list[Text]:
    """The plan of a pool for a narrow terminal: a line a phase, the three largest items, the limits."""
    unit, worst = Unit.for_size(ledger.upper(pool)), ledger.peak(pool).phase
    lowest = known.lowest if known is not None and known.limits else None
    rows = [(unit.name, "expected", "upper", "" if lowest is None else "share")]
    for phase in ledger.phases(pool):
        peak = ledger.peak_of(pool, phase)
        share = "" if lowest is None else _share(peak.bytes, lowest.bytes)
        rows.append((str(phase), unit.text(peak.bytes), unit.text(peak.upper), share))
    lines = _columns(rows, bold=str(worst))
    lines.append(Text(f"\nlargest items ({unit.name})"))
    for item, sizes in _items(line for line in ledger.lines if line.pool == pool)[:3]:
        phase = max(sizes, key=lambda each: sizes[each])
        lines.append(Text(f"{unit.text(sizes[phase])}  {item} ({phase})"))
    limits = () if known is None else sorted(known.limits, key=lambda limit: limit.bytes)
    lines += [Text("\nlimits, the lowest first")] if limits else []
    lines += [Text(f"{format_bytes(limit.bytes)}  {limit.name} ({limit.consequence})") for limit in limits]
    return [*lines, Text()]


def _columns(rows: Sequence[Sequence[str]], bold: str) -> list[Text]:
    """Aligned lines of text, names left and numbers right; unlike a table they fold where the width ends."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for name, *numbers in rows:
        cells = [name.ljust(widths[0]), *(text.rjust(size) for text, size in zip(numbers, widths[1:], strict=True))]
        lines.append(Text(" ".join(cells).rstrip(), style="bold" if name == bold else ""))
    return lines


def _share(size: int, limit: int) -> str:
    """A size as a share of a limit."""
    share = size / max(1, limit)
    return f"{share:.0%}" if share < 100 else ">9999%"


def _item_table(ledger: Ledger, pool: str) -> Table:
    """Items by phases in one unit, the worst phase bold."""
    phases, worst = ledger.phases(pool), ledger.peak(pool).phase
    unit = Unit.for_size(ledger.upper(pool))
    table = Table(box=SIMPLE, show_edge=False, pad_edge=False, show_footer=True, padding=(0, 0, 0, 1))
    # Of the columns only this one may wrap, so it alone gives way; its cells are cut instead.
    table.add_column(unit.name, footer="expected\nupper bound")
    for phase in phases:
        peak = ledger.peak_of(pool, phase)
        footer = f"{unit.text(peak.bytes)}\n{unit.text(peak.upper)}"
        mark = "bold" if phase == worst else ""
        table.add_column(phase, footer=footer, justify="right", no_wrap=True, style=mark, header_style=mark or "none")
    rows = _items(line for line in ledger.lines if line.pool == pool)
    for item, sizes in rows[:ITEMS]:
        name = Text(item, no_wrap=True, overflow="ellipsis")
        table.add_row(name, *(unit.text(sizes.get(phase, 0)) for phase in phases))
    if rest := rows[ITEMS:]:
        sums = (sum(sizes.get(phase, 0) for _, sizes in rest) for phase in phases)
        table.add_row(f"{len(rest)} smaller", *(unit.text(size) for size in sums))
    return table


def _items(lines: Iterable[Line]) -> list[tuple[str, dict[Phase, int]]]:
    """Expected bytes of each item by phase, the largest item first; the role is named where two share an item."""
    sizes: dict[tuple[str, str], dict[Phase, int]] = {}
    for line in lines:
        row = sizes.setdefault((line.item, line.role), {})
        row[line.phase] = row.get(line.phase, 0) + line.bytes
    items = [item for item, _ in sizes]
    named = [(item if items.count(item) == 1 else f"{item} ({role})", row) for (item, role), row in sizes.items()]
    return sorted(named, key=lambda each: -max(each[1].values()))


def _phase_bars(ledger: Ledger, pool: str, known: Pool | None) -> Table:
    """One bar a phase; its full width is the lowest limit, or the largest upper bound where that is more."""
    lowest = known.lowest if known is not None and known.limits else None
    limit = None if lowest is None else lowest.bytes
    scale = max(ledger.upper(pool), limit or 0)
    table = Table(box=None, pad_edge=False, expand=True, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column(no_wrap=True)
    table.add_column("expected █, upper bound ▒", ratio=1, no_wrap=True)
    table.add_column("" if lowest is None else f"of {format_bytes(lowest.bytes)}", no_wrap=True, justify="right")
    table.add_column("" if lowest is None else lowest.name, no_wrap=True)
    for phase in ledger.phases(pool):
        peak, worst = ledger.peak_of(pool, phase), phase == ledger.peak(pool).phase
        share = "" if limit is None else f"{_share(peak.bytes, limit)} to {_share(peak.upper, limit)}"
        bar = Bar(peak.bytes, peak.upper, limit, scale, _pressure_style(peak.bytes, peak.upper, limit))
        note = f"◀ worst, {_since(peak.step)}" if worst else ""
        table.add_row(phase, bar, share, note, style="bold" if worst else "")
    return table


def _since(step: int) -> str:
    return f"from step {step}" if step else "at the start"


def _pressure_style(size: int, upper: int, limit: int | None) -> str:
    """Green inside the limit, yellow where only the upper bound is over it, red where the size is."""
    if limit is None or upper <= limit:
        return "green"
    return "yellow" if size <= limit else "red"


def _limit_table(pool: Pool) -> Table:
    """The limits of a pool, the lowest first and bold."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for wraps in (False, False, False, True):
        table.add_column(no_wrap=not wraps, overflow="fold")
    for limit in sorted(pool.limits, key=lambda limit: limit.bytes):
        style = "bold" if limit == pool.lowest else "dim"
        first = "limit" if limit == pool.lowest else ""
        table.add_row(first, limit.name, format_bytes(limit.bytes), limit.consequence, style=style)
    return table


def verdict_line(verdict: PoolVerdict) -> Text:
    """The verdict of a pool in a sentence."""
    peak, limit = verdict.peak, verdict.limit
    allowed = "no limit is known" if limit is None else f"{limit.name} allows {format_bytes(limit.bytes)}"
    return Text.assemble(
        (verdict.kind.capitalize(), VERDICT_STYLES[verdict.kind]),
        f": {peak.phase}, {_since(peak.step)}, is expected to hold {format_bytes(peak.bytes)}; "
        f"no phase holds more than {format_bytes(verdict.upper)}; {allowed}.",
    )


def refusal(ledger: Ledger, verdicts: Sequence[PoolVerdict], advice: Sequence[str]) -> str:
    """Why a run does not start: the pool, the limit and what happens there, the worst phase with its three
    largest lines, and what to set instead, where something makes it fit."""
    lines = []
    for verdict in verdicts:
        if verdict.kind != "does not fit" or verdict.limit is None:
            continue
        peak, limit = verdict.peak, verdict.limit
        largest = sorted(ledger.select(verdict.pool, peak.phase), key=lambda line: -line.bytes)[:3]
        lines += [
            f"the plan does not fit in {verdict.pool}: {format_bytes(peak.bytes)} expected, "
            f"{format_bytes(limit.bytes)} allowed by {limit.name}{_consequence(limit)}",
            f"worst phase: {peak.phase}, {_since(peak.step)}; its largest lines:",
            *(f"  {format_bytes(line.bytes):>11}  {line.item}  = {line.formula}" for line in largest),
        ]
    lines += ["set instead:", *(f"  {change}" for change in advice)] if advice else []
    if not any(change.endswith(FITS) for change in advice):
        none = "none of these makes it fit" if advice else "no setting makes it fit"
        lines.append(f"{none}; take a smaller model")
    return "\n".join([*lines, "or start it all the same with --force"])


def remedy_line(remedy: Remedy) -> str:
    """A remedy with what it does to the pool that fits worst."""
    end = {"fits": FITS[0], "tight": FITS[1]}.get(remedy.kind, "")
    sizes = f"{format_bytes(remedy.before_bytes)} -> {format_bytes(remedy.after_bytes)}"
    return f"set {remedy.text}: {sizes} (phase {remedy.phase}){end}"


def _consequence(limit: Limit) -> str:
    """What happens at a limit, unless it is the refusal itself."""
    return "" if limit.consequence == REFUSED else f" ({limit.consequence})"


@dataclass(frozen=True)
class _Row:
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
    columns = _columns([header[:4], *(line[:4] for line in texts)], bold=whole.name)
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
    ended = "finished" if finished else f"stopped by {summary['exit_reason']}; the same command resumes"
    predicted, measured = summary["peak_predicted_bytes"], summary["peak_measured_bytes"]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("run", f"{summary['steps']} steps in {duration(summary['seconds'])}, {ended}")
    table.add_row("held out", _before_after(summary["eval_before"], summary["eval_after"]))
    table.add_row("memory", f"peak {format_bytes(measured)} measured, {format_bytes(predicted)} predicted")
    if failures := summary.get("reward_failures"):
        table.add_row("reward failures", _failures(failures, summary.get("first_reward_failure")))
    if dropped := summary.get("dropped_long_prompts"):
        table.add_row("dropped prompts", f"{dropped:,} longer than data.max_prompt")
    table.add_row("output", f"{summary['output']}/")
    files = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    files.add_column(no_wrap=True)
    files.add_column(overflow="fold")
    for name, about in FILES.items():
        if finished or name != "final":
            files.add_row(name, Text(about, style="dim"))
    table.add_row("", files)
    return Group(Text(), table)


def _failures(counts: Mapping[str, int], first: str | None) -> Text:
    """What kept answers from being scored, the most frequent first, and the first of it."""
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in sorted(counts.items(), key=lambda pair: -pair[1]))
    about = "see reward.log" if first is None else f"first: {first}; see reward.log"
    return Text(f"{kinds} ({about})", style="yellow")


def _before_after(before: Mapping[str, float] | None, after: Mapping[str, float] | None) -> Text:
    """Each score of the evaluations, side by side where there are two.

    An evaluation's reward is the answer's own score, without any credit for format, so it is called correct here.
    """
    if before is None and after is None:
        return Text("no evaluation", style="dim")
    text = Text()
    for score in (name for name in (after or before or {}) if name == "reward" or name.startswith("pass@")):
        parts = [f"{each[score]:.3f} {when}" for when, each in (("before", before), ("after", after)) if each]
        name = "correct" if score == "reward" else score
        text.append(f"{'; ' if text else ''}{name} {', '.join(parts)}")
        if before is not None and after is not None:
            gain = after[score] - before[score]
            text.append(f", {gain:+.3f}", style="bold green" if gain > 0 else "bold red" if gain < 0 else "bold")
    return text


def duration(seconds: float) -> str:
    """A time that a person reads.

    >>> duration(8.25), duration(312), duration(7384)
    ('8.2 s', '5 min 12 s', '2 h 3 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
