"""The table of `headway size` for a terminal: models by recipes, the largest that fit, the rule of thumb apart."""

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headway.plan.size import GRAIN, LONGEST, RULE_BYTES, RULE_SHARE, Row, Rule
from headway.plan.sizing import Sizing
from headway.plan.verdict import Kind
from headway.reports.widgets import Layouts, aligned, hanging
from headway.units import GIB, format_bytes

STYLES: dict[Kind, str] = {"fits": "green", "tight": "yellow", "does not fit": "red", "cannot tell": ""}
MARKS: dict[Kind, str] = {"fits": " ", "tight": "~", "does not fit": "x", "cannot tell": "?"}
LARGEST = "◀"
CELL = 18
"""Cells of a column of the wide table."""
NAME = 22
RULE = 10
BELOW, ABOVE = 4, 2
"""Rows of a recipe that a narrow terminal shows: the largest that fit, and the first that do not."""
LEGEND = (
    "A cell: GiB expected with the standard batch, tokens of the longest answer that surely fits, samples that then "
    f"generate at once. ~ tight, x does not fit, ? no limit known, {LARGEST} the largest that surely fits."
)


def said(found: Sizing) -> list[RenderableType]:
    """What to know of the machine, a sentence a line, and an empty one behind them."""
    lines = [Text(f"{text[0].upper()}{text[1:]}.") for text in found.said]
    return [*lines, Text()] if lines else []


def size_report(found: Sizing) -> Group:
    """The whole table."""
    machine, batch = found.machine, found.batch
    parts: list[RenderableType] = [
        Text.assemble("What trains on ", (machine.name, "bold"), f" ({format_bytes(found.memory)})"),
        Text(
            f"Standard batch: {batch.prompts} prompts of up to {batch.max_prompt:,} tokens x {batch.samples} answers "
            f"of up to {batch.max_answer:,}. {LEGEND}\n",
            style="dim",
        ),
    ]
    parts += said(found)
    parts += _section("headway train", found.own, found)
    by_trainer: dict[str, list[Row]] = {}
    for row in found.others:
        by_trainer.setdefault(row.recipe.trainer_system, []).append(row)
    if by_trainer:
        names = ", ".join(by_trainer)
        parts += [Text(), *_section(f"Other trainers ({names}), which headway only plans", found.others, found)]
    parts += [Text(), *_largest(found), Text(), *_rule(found)]
    return Group(*parts)


def _section(title: str, rows: Sequence[Row], found: Sizing) -> Iterator[RenderableType]:
    recipes = list(dict.fromkeys(row.recipe.name for row in rows))
    yield Text(title, style="bold")
    lists, width = Group(*_lists(rows, recipes, found)), NAME + CELL * len(recipes)
    plain = Layouts(_matrix(rows, recipes, found, rule=False), lists, width)
    own = rows is found.own
    yield Layouts(_matrix(rows, recipes, found, rule=True), plain, width + RULE) if own else plain


def _matrix(rows: Sequence[Row], recipes: Sequence[str], found: Sizing, *, rule: bool) -> Table:
    """Models by recipes. A model that has no row under a recipe is larger than one that does not fit at all."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("", no_wrap=True, overflow="ellipsis", min_width=NAME - 1)
    for recipe in recipes:
        table.add_column(f"{recipe:>{CELL - 3}}", no_wrap=True, min_width=CELL - 1)
    if rule:
        table.add_column("rule, GB", no_wrap=True, justify="right", style="dim")
    cells = {(row.model, row.recipe.name): row for row in rows}
    for model in sorted({row.model for row in rows}, key=lambda model: found.rules[model].parameters):
        drawn = [_cell(cells.get((model, recipe)), found) for recipe in recipes]
        thumb = [f"{_gb(found.rules[model].bytes)}{' ' if found.rules[model].fits else 'x'}"] if rule else []
        table.add_row(model, *drawn, *thumb)
    return table


def _cell(row: Row | None, found: Sizing) -> Text:
    if row is None:
        return Text(f"{MARKS['does not fit']:>6}", "dim")
    numbers = f"{_gib(row.expected):>5}{MARKS[row.kind]} {tokens(row.longest_answer):>5} {_count(row.in_flight):>3}"
    best = found.best.get(row.recipe.name) is row
    return Text.assemble((numbers, STYLES[row.kind] + (" bold" if best else "")), LARGEST if best else "")


def _lists(rows: Sequence[Row], recipes: Sequence[str], found: Sizing) -> Iterator[RenderableType]:
    """A list a recipe, of the models near the size where it ends."""
    for recipe in recipes:
        own = [row for row in rows if row.recipe.name == recipe]
        fit = [row for row in own if row.surely]
        over = [row for row in own if not row.surely]
        lines = [(recipe, "GiB", "answer", "at once")]
        for row in [*fit[-BELOW:], *over[:ABOVE]]:
            best = LARGEST if found.best.get(recipe) is row else MARKS[row.kind]
            lines.append(
                (f"{row.model} {best}", _gib(row.expected), tokens(row.longest_answer), _count(row.in_flight))
            )
        yield from aligned(lines, bold=recipe)
        if len(fit) > BELOW:
            yield Text(f"and {len(fit) - BELOW} smaller", style="dim")
        yield Text()


def _largest(found: Sizing) -> Iterator[RenderableType]:
    """The largest model of each recipe in words."""
    yield Text("The largest that surely fits", style="bold")
    lines = []
    for recipe, row in found.best.items():
        if row is None:
            lines.append((recipe, Text("none of these")))
            continue
        answer = f"answers up to {row.longest_answer:,} tokens{' and more' if row.longest_answer >= LONGEST else ''}"
        held = f"{format_bytes(row.expected)} expected, {format_bytes(row.upper)} at the bound"
        lines.append((recipe, Text.assemble((row.model, "bold"), f": {held}; {answer}")))
    yield hanging(lines, justify="left")


def _rule(found: Sizing) -> Iterator[RenderableType]:
    """The rule of thumb in decimal GB, never in a column with GiB, and the ledger's number for what it allows."""
    rule = Rule(0, found.memory)
    yield Text("The rule of thumb, in decimal GB (1 GB = 10^9 bytes; GiB above are 2^30)", style="bold")
    share = f"{RULE_SHARE:.0%} of {_gb(found.memory)} GB of memory is {_gb(rule.guess)} GB"
    text = f"{RULE_BYTES} bytes a parameter: {share}, for {rule.guess / RULE_BYTES / 1e9:.2f} billion parameters"
    if found.guess is None:
        yield Text(f"{text}; no model of the table is so small.")
        return
    yield Text(f"{text}: {found.guess}, {_gb(found.rules[found.guess].bytes)} GB.")
    row = next((row for row in found.own if row.model == found.guess), None)
    if row is not None:
        held = f"{format_bytes(row.expected)} expected, {format_bytes(row.upper)} at the bound: {row.kind}"
        yield Text(f"The ledger of {row.model}, {row.recipe.name}, in GiB: {held}.")


def tokens(count: int) -> str:
    """Tokens in five cells.

    >>> tokens(448), tokens(5568), tokens(32768), tokens(0)
    ('448', '5.4k', '32k+', '-')
    """
    if count < GRAIN:
        return "-"
    if count < 1024:
        return str(count)
    text = f"{count / 1024:.1f}".removesuffix(".0") + "k"
    return f"{text}+" if count >= LONGEST else text


def _count(number: int | None) -> str:
    return "" if number is None else str(number)


def _gib(size: int) -> str:
    return f"{size / GIB:.1f}"


def _gb(size: int) -> str:
    return f"{size / 1e9:,.1f}"
