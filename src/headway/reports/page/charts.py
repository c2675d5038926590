"""What the page hands to its plotting library: the same numbers as in its tables, as plain arrays."""

from collections.abc import Sequence
from typing import Any

from headway.reports.page.escape import clean
from headway.reports.page.records import ActionRow, Comparison, Curve, History, MetricChart, Page, PoolChart, Stack

NAME = 80
"""Characters of a series' name."""
Chart = dict[str, Any]


def chart_data(page: Page) -> dict[str, Any]:
    """All charts of a page, by the identifier of their place on it."""
    history = page.history
    charts = {f"pool-{at}": _pool(pool, history.actions) for at, pool in enumerate(history.pools)}
    charts |= {f"plan-{at}": _bars(compared) for at, compared in enumerate(page.comparisons)}
    if history.processes.times:
        charts["processes"] = _stack(history.processes)
    if any(each.top for each in history.pressure):
        curves = [_curve(each) for each in history.pressure]
        charts["pressure"] = {"kind": "time", "unit": "%", "curves": curves}
    charts |= {f"metric-{at}": _metric(metric) for at, metric in enumerate(page.metrics)}
    return {"charts": charts, "axis": _axis(history, broke=page.ending.tone == "bad")}


def _axis(history: History, *, broke: bool) -> dict[str, Any]:
    """The time axis that charts share: its end, the phases on it, and where a process began anew."""
    bands = [[clean(band.phase, NAME), band.step, band.start, band.end] for band in history.bands]
    starts = [start.t for start in history.starts[1:]]
    return {"end": history.seconds, "bands": bands, "starts": starts, "broke": broke}


def _curve(curve: Curve) -> Chart:
    x, y = [point[0] for point in curve.points], [point[1] for point in curve.points]
    return {"name": clean(curve.name, NAME), "x": x, "y": y, "shape": curve.shape, "planned": curve.planned}


def _pool(pool: PoolChart, actions: Sequence[ActionRow]) -> Chart:
    limits = [{"name": clean(each.name, NAME), "bytes": each.bytes} for each in pool.ceilings]
    forecasts = [
        {"x": [each.start[0], each.end[0]], "y": [each.start[1], each.end[1]], "text": clean(each.text, 300)}
        for each in pool.forecasts
        if each.end[0] > each.start[0]
    ]
    marks = [
        {"t": each.t, "bytes": each.value, "name": each.name, "text": clean(each.reason, 160)}
        for each in actions
        if each.pool == pool.pool
    ]
    return {
        "kind": "memory",
        "curves": [_curve(each) for each in pool.curves],
        "limits": limits,
        "forecasts": forecasts,
        "marks": marks,
    }


def _bars(compared: Comparison) -> Chart:
    rows = compared.rows
    names = list(dict.fromkeys(part.name for row in rows for part in row.items))
    held = list(dict.fromkeys(part.name for row in rows for part in row.held))
    items = [dict.fromkeys(names, 0) | {part.name: part.bytes for part in row.items} for row in rows]
    parts = [dict.fromkeys(held, 0) | {part.name: part.bytes for part in row.held} for row in rows]
    return {
        "kind": "bars",
        "phases": [row.phase for row in rows],
        "predicted": [row.predicted for row in rows],
        "upper": [row.upper for row in rows],
        "measured": [row.measured for row in rows],
        "items": [{"name": clean(name, NAME), "bytes": [item[name] for item in items]} for name in names],
        "held": [{"name": clean(name, NAME), "bytes": [part[name] for part in parts]} for name in held],
    }


def _stack(stack: Stack) -> Chart:
    columns = [[part[at] for part in stack.parts] for at in range(len(stack.names))]
    return {
        "kind": "stack",
        "shape": stack.shape,
        "x": list(stack.times),
        "series": [
            {"name": clean(name, NAME), "bytes": column} for name, column in zip(stack.names, columns, strict=True)
        ],
    }


def _metric(metric: MetricChart) -> Chart:
    return {"kind": "metric", "unit": metric.unit, "curves": [_curve(each) for each in metric.curves]}
