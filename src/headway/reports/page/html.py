"""Writes a page as one HTML file that needs nothing else: no network, no other file."""

import base64
import hashlib
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.resources import files

import headway
from headway.reports.page.charts import chart_data
from headway.reports.page.escape import escaped, script_json
from headway.reports.page.records import Doctor, History, Page, PoolChart, Sample, Tile
from headway.reports.page.tables import (
    Cell,
    action_table,
    clock,
    comparison_table,
    curve_numbers,
    details,
    file_table,
    item_table,
    num,
    phase_table,
    pool_numbers,
    size,
    stack_numbers,
    table,
    words,
)

QUIET, FULL = 0.01, 0.95
"""Up to which share of its limit shm was used, or a disk grew, that gets no chart; a full one always does."""
EVIDENCE, OTHERS = 8, 6
"""Lines of evidence, and of each other list of a diagnosis."""
_PLACE = re.compile(r"<!--\[([a-z]+)\]-->|/\*\[([a-z]+)\]\*/")


def page_html(page: Page, *, links: bool = False) -> str:
    """The whole page. `links`: it will stand in the folder of the run, so its files can be linked."""
    package = files("headway.reports")
    template = (package / "page" / "template.html").read_text(encoding="utf-8")
    library = (package / "assets" / "plotly-basic.min.js").read_text(encoding="utf-8").strip()
    own = _between(template, "<script>", "</script>", after="<!--[data]-->")
    parts = {
        "title": escaped(page.title, 120),
        "policy": _policy(library, own),
        "head": _head(page),
        "body": "".join(_sections(page, links=links)),
        "data": f'<script type="application/json" id="data">{script_json(chart_data(page))}</script>',
        "library": library,
    }
    return _PLACE.sub(lambda found: parts[found[1] or found[2]], template)


def _between(text: str, start: str, end: str, after: str) -> str:
    begin = text.index(start, text.index(after)) + len(start)
    return text[begin : text.index(end, begin)]


def _policy(*scripts: str) -> str:
    """Nothing is loaded, nothing is sent, and no script runs but these two."""
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{each}'" for each in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def moment(unix: float) -> str:
    """A time of the clock.

    >>> moment(0.0), moment(1e30)
    ('1970-01-01 00:00:00 UTC', 'unknown')
    """
    try:
        return f"{datetime.fromtimestamp(unix, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return "unknown"


def _head(page: Page) -> str:
    ending, history = page.ending, page.history
    facts = [f"headway {page.kind}"]
    if history.starts:
        facts.append(f"began {moment(history.starts[0].unix)}")
    if history.machine:
        facts.append(f"on {history.machine}")
    tiles = "".join(map(_tile, page.tiles))
    return (
        f'<p class="facts">{escaped(" · ".join(facts), 300)}</p>'
        f'<h1>{escaped(page.title, 120)} <span class="tag {ending.tone}">{escaped(ending.word)}</span></h1>'
        f'<p class="sentence">{escaped(ending.sentence, 1500)}</p><div class="tiles">{tiles}</div>'
    )


def _tile(tile: Tile) -> str:
    value = (
        f'<span class="value">{escaped(tile.value, 40)}</span><span class="about">{escaped(tile.about, 120)}</span>'
    )
    return f'<div class="tile {tile.tone}"><span class="label">{escaped(tile.label, 80)}</span>{value}</div>'


def _sections(page: Page, *, links: bool) -> Iterator[str]:
    history = page.history
    if page.doctor is not None:
        yield _section("doctor", "What ended it", _doctor(page.doctor))
    yield from _memory(page)
    yield from _plan(page)
    if history.processes.times:
        shown = "the most in each phase" if history.processes.shape == "steps" else "resident memory"
        figure = _figure("processes", "", stack_numbers(history.processes))
        yield _section("process", "Processes", figure, f"The largest processes over time, {shown}.")
    if any(each.top for each in history.pressure):
        figure = _figure("pressure", "", curve_numbers(history.pressure, "time", steps=False))
        yield _section(
            "psi", "Memory pressure", figure, "Share of the last 10 s in which tasks waited for memory (PSI)."
        )
    if history.actions:
        yield _section("guard", "What the guard did", action_table(history))
    if page.metrics:
        figures = "".join(
            _figure(f"metric-{at}", metric.title, curve_numbers(metric.curves, "step", steps=True), metric.unit)
            for at, metric in enumerate(page.metrics)
        )
        yield _section("learning", "Learning and speed", f'<div class="grid">{figures}</div>')
    if history.phase_seconds:
        yield _section("phases", "Where the time went", phase_table(history))
    if page.samples:
        yield _section("samples", "Sample answers", _samples(page.samples), "The first that were kept, and the last.")
    yield from _command(history)
    if page.missing:
        lines = "".join(f"<li>{escaped(line, 400)}</li>" for line in page.missing)
        yield _section("missing", "What this page lacks", f"<ul>{lines}</ul>")
    yield _section("files", "Files", file_table(page.files, links=links))
    yield (
        f'<footer class="mute">Made by headway {escaped(headway.__version__)}, {moment(page.made)}. '
        "Sizes: 1 GiB = 2<sup>30</sup> bytes. Charts: plotly.js (MIT licence). Drag in a chart to zoom, double-click "
        "to go back, click a name to hide its series.</footer>"
    )


def _section(name: str, title: str, body: str, about: str = "") -> str:
    lead = f'<p class="lead">{escaped(about, 400)}</p>' if about else ""
    return f'<section id="{name}"><h2>{escaped(title)}</h2>{lead}{body}</section>'


def _figure(name: str, title: str, numbers: str, unit: str = "") -> str:
    head = f"<h3>{escaped(title)}</h3>" if title else ""
    head += f'<span class="unit">{escaped(unit)}</span>' if unit else ""
    return (
        f'<figure class="card" data-chart="{name}"><figcaption>{head}<div class="legend"></div></figcaption>'
        f'<div class="plot"></div>{numbers}</figure>'
    )


def _memory(page: Page) -> Iterator[str]:
    history = page.history
    if not history.pools:
        return
    figures = []
    for at, pool in enumerate(history.pools):
        if (quiet := _quiet(pool)) is not None:
            figures.append(f'<p class="lead">{escaped(quiet, 200)}</p>')
            continue
        last = {each.curve: f"Forecast at {clock(each.start[0])}: {each.text}" for each in pool.forecasts}
        told = "".join(f'<p class="foreseen">{escaped(text, 400)}</p>' for text in last.values())
        figures.append(_figure(f"pool-{at}", pool.title, told + pool_numbers(pool, history), pool.pool))
    about = "Coloured bands are the phases of the run, dashed lines its limits."
    if len(history.starts) > 1:
        about += " Time in which no process ran is left out; a dotted line stands where the run began again."
    yield _section("memory", "Memory over time", "".join(figures), about)


def _quiet(pool: PoolChart) -> str | None:
    """What is said in place of a chart of a pool that is no memory and of which next to nothing was used."""
    values = [value for curve in pool.curves for _, value in curve.points]
    smallest = min((limit.bytes for limit in pool.ceilings), default=0)
    disk = pool.pool.startswith("disk")
    if not (disk or pool.pool.endswith(".shm")) or not smallest or not values:
        return None
    moved = max(values) - min(values) if disk else max(values)
    if moved > smallest * QUIET or max(values) > smallest * FULL:
        return None
    return f"{pool.title}: at most {size(max(values))} of {size(smallest)}."


def _plan(page: Page) -> Iterator[str]:
    if not page.comparisons:
        return
    parts = []
    for at, compared in enumerate(page.comparisons):
        title = compared.pool if len(page.comparisons) > 1 else ""
        parts.append(_figure(f"plan-{at}", title, comparison_table(compared) + item_table(compared)))
    about = "Of each phase the ledger's items on the left, what was measured on the right; a line is the upper bound."
    yield _section("plan", "Predicted against measured", "".join(parts), about)


def _samples(samples: tuple[Sample, ...]) -> str:
    names = ("ended by", "prompt", "right answer", "answer")
    head = [num("step"), ("phase", ""), num("reward"), *((name, "") for name in names)]
    rows = [
        [
            num(str(each.step)), words(each.phase),
            words(each.failure or "–") if each.reward is None else num(f"{each.reward:.3f}"),
            words(each.finish), _pre(each.prompt), _pre(each.label), _pre(each.text),
        ]
        for each in samples
    ]  # fmt: skip
    return table(head, rows, "samples")


def _pre(text: str) -> Cell:
    """A cell that keeps the lines of a text."""
    return f"<pre>{escaped(text.strip(chr(10)), 1400)}</pre>" if text else "–", ""


def _command(history: History) -> Iterator[str]:
    body = f"<pre>{escaped(history.command, 2000)}</pre>" if history.command else ""
    if history.facts:
        body += table([("", ""), ("", "")], [[words(name, 120), words(value, 400)] for name, value in history.facts])
    if history.log:
        text = "\n".join(line[:400] for line in history.log)
        body += details(f"The last {len(history.log)} lines of its output", f"<pre>{escaped(text, 20_000)}</pre>")
    if body:
        yield _section("command", "The command" if history.command else "Also recorded", body)


def _doctor(doctor: Doctor) -> str:
    if doctor.answer is None:
        return f'<p class="mute">No diagnosis: {escaped(doctor.why_not, 400)}</p>'
    answer = doctor.answer
    body = f'<p class="answer">{escaped(answer["sentence"], 1500)}</p>'
    graded = [(answer["mechanism"], answer["mechanism_grade"]), (answer["cause"], answer["cause_grade"])]
    chips = (
        f"<span>{label}: <code>{escaped(name, 80)}</code> <em>{escaped(grade, 20)}</em></span>"
        for label, (name, grade) in zip(("mechanism", "cause"), graded, strict=True)
    )
    body += f'<p class="graded">{" ".join(chips)}</p>'
    lines = [
        f"{str(each['file']).rpartition('/')[2]}:{each['line']}  {str(each['text']).strip()}"
        for each in answer["evidence"][:EVIDENCE]
    ]
    if lines:
        body += f"<h3>What shows it</h3><pre>{escaped(chr(10).join(line[:300] for line in lines))}</pre>"
    body += _list("What to change", [_advice(each) for each in answer["remedies"]])
    body += _list("Ruled out", [f"{each['name']}: {each['because']}" for each in answer["ruled_out"]])
    body += _list("Also possible", [f"{each['name']}: {each['because']}" for each in answer["candidates"]])
    settle = [f"{each['command']} ({each['where']}): {each['line']}" for each in answer["would_settle"]]
    return f'<div class="card">{body}{_list("What would settle it", settle)}</div>'


def _advice(found: dict[str, object]) -> str:
    """A remedy of a rule, or of the plan."""
    text = str(found.get("text", ""))
    effect = f": {found['effect']}" if found.get("effect") else ""
    risk = f" (risk: {found['risk']})" if found.get("risk") else ""
    if {"before_bytes", "after_bytes"} <= found.keys():
        before, after = (found[name] for name in ("before_bytes", "after_bytes"))
        if isinstance(before, int) and isinstance(after, int):
            effect = f": {size(before)} -> {size(after)}"
    return f"{text}{effect}{risk}"


def _list(title: str, lines: list[str]) -> str:
    if not lines:
        return ""
    inner = "".join(f"<li>{escaped(line, 600)}</li>" for line in lines[:OTHERS])
    return f"<h3>{title}</h3><ul>{inner}</ul>"
