"""The tables of a page as HTML: every chart's numbers, and what is no chart."""

from collections.abc import Iterable, Sequence
from urllib.parse import quote

from headway.reports.page.escape import escaped
from headway.reports.page.records import Comparison, Curve, FileRow, History, PoolChart, Stack
from headway.reports.page.thin import thin
from headway.reports.widgets import Unit, duration
from headway.units import GIB, format_bytes

ROWS = 100
"""Rows of the table under a chart; `headway report --json` has all points."""
Cell = tuple[str, str]
"""HTML of a cell, and its class."""


def num(text: str) -> Cell:
    """A number's cell."""
    return text, "n"


def words(text: object, most: int = 400) -> Cell:
    """A cell of text that anybody may have written."""
    return escaped(text, most), ""


def table(head: Sequence[Cell], rows: Iterable[Sequence[Cell]], kind: str = "") -> str:
    """A table that scrolls by itself where it is wider than the page."""
    named = f"<thead>{_row('th', head)}</thead>" if any(cell for cell, _ in head) else ""
    return (
        f'<div class="scroll"><table class="{kind}">{named}'
        f"<tbody>{''.join(_row('td', row) for row in rows)}</tbody></table></div>"
    )


def _row(tag: str, cells: Sequence[Cell]) -> str:
    scope = ' scope="col"' if tag == "th" else ""
    inner = (
        f'<{tag}{scope} class="{kind}">{html}</{tag}>' if kind else f"<{tag}{scope}>{html}</{tag}>"
        for html, kind in cells
    )
    return f"<tr>{''.join(inner)}</tr>"


def details(summary: str, body: str, *, opened: bool = False) -> str:
    """A part that opens on a click."""
    return f"<details{' open' if opened else ''}><summary>{escaped(summary)}</summary>{body}</details>"


def size(count: float | None) -> str:
    """Bytes as text; a dash for none."""
    return "–" if count is None else format_bytes(int(count))


class Sizes:
    """Bytes of one table, all in the unit that suits its largest, so that their digits stand below each other."""

    def __init__(self, sizes: Iterable[float | None]) -> None:
        largest = int(max((each for each in sizes if each is not None), default=0))
        self._unit = Unit("GiB", GIB, 2) if GIB <= largest < 16 * GIB else Unit.for_size(largest)
        self.name = self._unit.name

    def __call__(self, count: float | None) -> Cell:
        """A size's cell, a dash for none."""
        return num("–" if count is None else self._unit.text(int(count)))


def clock(seconds: float) -> str:
    """A time of the page's axis.

    >>> clock(5.25), clock(3725.0)
    ('0:05.2', '1:02:05')
    """
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(int(minutes), 60)
    return f"{hours}:{minutes:02d}:{int(rest):02d}" if hours else f"{minutes}:{rest:04.1f}"


def pool_numbers(pool: PoolChart, history: History) -> str:
    """The curves of a pool at the times of its phases, and its limits."""
    curves = pool.curves
    times = sorted({t for curve in curves for t, _ in curve.points})
    chosen = _spread(times, curves)
    sizes = Sizes(curve.top for curve in curves)
    head = [
        num("time"),
        ("phase", ""),
        num("step"),
        *(num(f"{escaped(curve.name)}, {sizes.name}") for curve in curves),
    ]
    rows = []
    for t in chosen:
        band = next((band for band in history.bands if band.start <= t < band.end), None)
        phase, step = ("", "") if band is None else (band.phase, "" if band.step is None else str(band.step))
        rows.append([num(clock(t)), words(phase, 40), num(step), *(sizes(_value(curve, t)) for curve in curves)])
    shown = f"{len(chosen)} of {len(times)} times" if len(chosen) < len(times) else f"{len(times)} times"
    limits = ""
    if pool.ceilings:
        limits = table(
            [("limit", ""), num("at"), ("counted by", ""), ("what happens there", "")],
            [
                [words(each.name), num(size(each.bytes)), words(each.curve), words(each.consequence)]
                for each in pool.ceilings
            ],
        )
    return details(f"Numbers ({shown})", limits + table(head, rows))


def _spread(times: list[float], curves: Sequence[Curve]) -> list[float]:
    """Of many times some, with those at which a curve was highest."""
    if len(times) <= ROWS:
        return times
    step = len(times) / (ROWS - len(curves))
    chosen = {times[int(at * step)] for at in range(ROWS - len(curves)) if int(at * step) < len(times)}
    chosen |= {max(curve.points, key=lambda point: point[1])[0] for curve in curves if curve.points}
    return sorted(chosen)


def _value(curve: Curve, t: float) -> float | None:
    """A curve at a time: of steps what held then, of a line the point at that time alone."""
    found = None
    for at, value in curve.points:
        if at == t or (curve.shape == "steps" and at < t):
            found = value
        if at > t:
            break
    return found


def comparison_table(compared: Comparison) -> str:
    """Predicted, measured, error and bound, phase by phase."""
    sizes = Sizes([compared.upper, compared.measured])
    head = [(sizes.name, ""), num("predicted"), num("measured"), num("error"), num("upper bound"), ("", "")]
    rows = [_compared(sizes, row.phase, row.predicted, row.measured, row.upper) for row in compared.rows]
    rows.append(_compared(sizes, "whole run", compared.predicted, compared.measured, compared.upper))
    return table(head, rows, "totals")


def _compared(sizes: Sizes, name: str, predicted: int, measured: int | None, upper: int) -> list[Cell]:
    cells = [words(name), sizes(predicted), sizes(measured)]
    if measured is None:
        return [*cells, num("–"), sizes(upper), ('<span class="mute">not measured</span>', "")]
    error = (predicted - measured) / max(1, measured)
    over = (
        '<span class="tag bad">over the bound</span>' if measured > upper else '<span class="tag good">within</span>'
    )
    return [*cells, num(f"{error:+.1%}" if error < 100 else "&gt;9999%"), sizes(upper), (over, "")]


def item_table(compared: Comparison) -> str:
    """What the ledger's bars and the measured bars are made of."""
    sizes = Sizes([compared.upper, compared.measured])
    head = [(sizes.name, ""), *(num(escaped(row.phase)) for row in compared.rows)]
    rows: list[list[Cell]] = []
    for title, parts in (
        ("", [row.items for row in compared.rows]),
        ("measured: ", [row.held for row in compared.rows]),
    ):
        for name in dict.fromkeys(each.name for part in parts for each in part):
            found = (next((each.bytes for each in part if each.name == name), 0) for part in parts)
            rows.append([words(f"{title}{name}"), *(sizes(each) for each in found)])
    return details("Numbers of the bars", table(head, rows))


def stack_numbers(stack: Stack) -> str:
    """The series of a stack at some of its times."""
    sizes = Sizes(sum(part) for part in stack.parts)
    picked = thin(list(zip(stack.times, stack.parts, strict=True)), _highest, ROWS)
    head = [num("time"), *(num(escaped(name, 80)) for name in stack.names), num(f"together, {sizes.name}")]
    rows = [[num(clock(t)), *map(sizes, part), sizes(sum(part))] for t, part in picked]
    most = [
        [words(name, 80), sizes(max(part[at] for part in stack.parts)), sizes(stack.parts[-1][at])]
        for at, name in enumerate(stack.names)
    ]
    peaks = table([("process", ""), num(f"most, {sizes.name}"), num("last")], most)
    shown = f"{len(rows)} of {len(stack.times)} times" if len(rows) < len(stack.times) else f"{len(rows)} times"
    return peaks + details(f"Numbers ({shown})", table(head, rows))


def _highest(rows: Sequence[tuple[float, tuple[int, ...]]]) -> list[tuple[float, tuple[int, ...]]]:
    return [max(rows, key=lambda row: sum(row[1]))]


def curve_numbers(curves: Sequence[Curve], axis: str, *, steps: bool) -> str:
    """The points of some curves, by step or time."""
    values = [dict(curve.points) for curve in curves]
    at = sorted({x for each in values for x in each})
    chosen = at if len(at) <= ROWS else sorted({at[int(i * len(at) / ROWS)] for i in range(ROWS)} | {at[-1]})
    rows = [[num(f"{x:,.0f}" if steps else clock(x)), *(num(_plain(each.get(x))) for each in values)] for x in chosen]
    shown = f"{len(chosen)} of {len(at)}" if len(chosen) < len(at) else str(len(at))
    return details(
        f"Numbers ({shown} {axis}s)", table([num(axis), *(num(escaped(curve.name)) for curve in curves)], rows)
    )


def _plain(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def phase_table(history: History) -> str:
    """How often each phase came, how long it took in all, and what it held at most."""
    whole = sum(history.phase_seconds.values()) or 1.0
    held = {name: history.held.get(name, {}).get("tree") for name in history.phase_seconds}
    sizes = Sizes(held.values())
    rows = [
        [
            words(name, 40),
            num(f"{history.passes[name]:,}"),
            num(duration(seconds)),
            num(f"{seconds / whole:.0%}"),
            sizes(held[name]),
        ]
        for name, seconds in sorted(history.phase_seconds.items(), key=lambda pair: -pair[1])
    ]
    return table([("phase", ""), num("times"), num("time"), num("share"), num(f"held at most, {sizes.name}")], rows)


def action_table(history: History) -> str:
    """What the guard did."""
    head = [
        num("time"),
        num("step"),
        ("action", ""),
        ("pool", ""),
        num("value"),
        num("threshold"),
        num("for"),
        ("reason", ""),
    ]
    rows = [
        [
            num(clock(each.t)), num("" if each.step is None else str(each.step)),
            words(f"{each.name} (dry run)" if each.dry else each.name), words(each.pool, 80), num(size(each.value)),
            num(size(each.threshold)), num(duration(each.seconds)), (escaped(each.reason, 500), "wide"),
        ]
        for each in history.actions
    ]  # fmt: skip
    return table(head, rows)


def file_table(files: Sequence[FileRow], *, links: bool) -> str:
    """The files of the run; `links` where the page stands beside them."""
    rows = []
    for each in files:
        name = escaped(each.name, 200)
        linked = f'<a href="./{escaped(quote(each.name))}">{name}</a>' if links else name
        rows.append([(f"<code>{linked}</code>", ""), num(size(each.bytes)), words(each.about)])
    return table([("file", ""), num("size"), ("holds", "")], rows)
