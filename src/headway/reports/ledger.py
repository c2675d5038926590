"""The plan of a run as `headway train` shows it before it starts, and why it does not start where it does not fit."""

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headway.facts.machine import Limit, Machine, Pool
from headway.plan.ledger import Ledger, Line, Phase
from headway.plan.prices import in_words
from headway.plan.remedies import Remedy
from headway.plan.room import without_model
from headway.plan.verdict import PoolVerdict
from headway.reports.widgets import NARROW, VERDICT_STYLES, Bar, Layouts, Unit, aligned, share_of, since
from headway.units import format_bytes

ITEMS = 8
"""Items of a pool with a row of their own; the smaller ones share a row."""

NAME_WIDTH = 16
"""Cells that an item's name keeps, at least; longer names are cut."""

REFUSED = "headway does not start the run"
"""The consequence of the RunSpec's own limit, which goes without saying in a refusal."""

FITS = (", which fits", ", which is tight")
"""How a line of advice ends that lets the run start."""


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
        share = "" if lowest is None else share_of(peak.bytes, lowest.bytes)
        rows.append((str(phase), unit.text(peak.bytes), unit.text(peak.upper), share))
    lines = aligned(rows, bold=str(worst))
    lines.append(Text(f"\nlargest items ({unit.name})"))
    for item, sizes in items(line for line in ledger.lines if line.pool == pool)[:3]:
        phase = max(sizes, key=lambda each: sizes[each])
        lines.append(Text(f"{unit.text(sizes[phase])}  {item} ({phase})"))
    limits = () if known is None else sorted(known.limits, key=lambda limit: limit.bytes)
    lines += [Text("\nlimits, the lowest first")] if limits else []
    lines += [Text(f"{format_bytes(limit.bytes)}  {limit.name} ({limit.consequence})") for limit in limits]
    return [*lines, Text()]


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
    rows = items(line for line in ledger.lines if line.pool == pool)
    for item, sizes in rows[:ITEMS]:
        name = Text(item, no_wrap=True, overflow="ellipsis")
        table.add_row(name, *(unit.text(sizes.get(phase, 0)) for phase in phases))
    if rest := rows[ITEMS:]:
        sums = (sum(sizes.get(phase, 0) for _, sizes in rest) for phase in phases)
        table.add_row(f"{len(rest)} smaller", *(unit.text(size) for size in sums))
    return table


def items(lines: Iterable[Line]) -> list[tuple[str, dict[Phase, int]]]:
    """Expected bytes of each item by phase, the largest item first; the role is named where two share an item."""
    sizes: dict[tuple[str, str], dict[Phase, int]] = {}
    for line in lines:
        row = sizes.setdefault((line.item, line.role), {})
        row[line.phase] = row.get(line.phase, 0) + line.bytes
    alone = [item for item, _ in sizes]
    named = [(item if alone.count(item) == 1 else f"{item} ({role})", row) for (item, role), row in sizes.items()]
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
        share = "" if limit is None else f"{share_of(peak.bytes, limit)} to {share_of(peak.upper, limit)}"
        bar = Bar(peak.bytes, peak.upper, limit, scale, _pressure_style(peak.bytes, peak.upper, limit))
        note = f"◀ worst, {since(peak.step)}" if worst else ""
        table.add_row(phase, bar, share, note, style="bold" if worst else "")
    return table


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
        f": {peak.phase}, {since(peak.step)}, is expected to hold {format_bytes(peak.bytes)}; "
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
            f"worst phase: {peak.phase}, {since(peak.step)}; its largest lines:",
            *(f"  {format_bytes(line.bytes):>11}  {line.item}  = {line.formula}" for line in largest),
        ]
    if impossible := [line for verdict in verdicts if (line := no_model_fits(ledger, verdict))]:
        return "\n".join([*lines, *impossible, "or start it all the same with --force"])
    lines += ["set instead:", *(f"  {change}" for change in advice)] if advice else []
    if not any(change.endswith(FITS) for change in advice):
        none = "none of these makes it fit" if advice else "no setting makes it fit"
        lines.append(f"{none}; take a smaller model")
    return "\n".join([*lines, "or start it all the same with --force"])


def no_model_fits(ledger: Ledger, verdict: PoolVerdict) -> str:
    """What to say of a limit that is below what a run holds whatever its model is; empty where it is not."""
    limit, pool = verdict.limit, verdict.pool
    if limit is None or (alone := without_model(ledger, pool)) <= limit.bytes:
        return ""
    least, surely = format_bytes(ledger.peak(pool).bytes), format_bytes(ledger.upper(pool))
    needed = f"set it to at least {least}" if limit.name == "memory.limit" else f"this run needs at least {least}"
    return (
        f"no model fits: {limit.name} ({format_bytes(limit.bytes)}) is below what the processes hold without one, "
        f"{format_bytes(alone)}; {needed}, {surely} to be sure"
    )


def remedy_line(remedy: Remedy) -> str:
    """A remedy with what it does to the pool that fits worst, and what it costs."""
    end = {"fits": FITS[0], "tight": FITS[1]}.get(remedy.kind, "")
    sizes = f"{format_bytes(remedy.before_bytes)} -> {format_bytes(remedy.after_bytes)}"
    costs = f"; cost: {in_words(remedy.loses)}" if remedy.loses else ""
    return f"set {remedy.text}: {sizes} (phase {remedy.phase}{costs}){end}"


def _consequence(limit: Limit) -> str:
    """What happens at a limit, unless it is the refusal itself."""
    return "" if limit.consequence == REFUSED else f" ({limit.consequence})"
