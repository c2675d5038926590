"""`headway size` on one screen: the largest model of each recipe, and each model's longest answers."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headway.facts.shapes import TRAINED, table
from headway.plan.size import LONGEST, Row, popularity
from headway.plan.sizing import Sizing
from headway.reports.size import MARKS, STYLES, said, tokens
from headway.reports.widgets import aligned
from headway.units import format_bytes

ROWS = 20
"""Models that are shown; of those of about one size the less sought ones are left out first."""
NEAR = 1.15
"""Models whose parameters differ by less than this factor are of about one size."""
CELL = 7
NOT_OURS = "·"


def brief(found: Sizing) -> Group:
    """The answer, then the table."""
    machine, batch = found.machine, found.batch
    parts: list[RenderableType] = [
        Text.assemble("What trains on ", (machine.name, "bold"), f" ({format_bytes(found.memory)})"),
        Text(
            f"Batch: {batch.prompts} prompts of up to {batch.max_prompt:,} tokens x {batch.samples} answers of up to "
            f"{batch.max_answer:,}. Longest answer: the most tokens with which a run still surely fits.\n",
            style="dim",
        ),
    ]
    parts += said(found)
    parts += _largest(found)
    shown, left_out = _models(found)
    parts += [Text("\nLongest answer in tokens, the largest model first", style="bold"), _table(found, shown)]
    foreign = any(table()[name.lower()].family not in TRAINED for name in shown)
    ours = f"  {NOT_OURS} not trained by headway" if foreign else ""
    parts.append(Text(f"{MARKS['does not fit']} does not fit  {MARKS['tight']} tight{ours}"))
    more = f"{left_out} models more, and memory" if left_out else "Memory"
    parts.append(Text(f"{more} and the rule of thumb: --lines; one run in full: headway plan MODEL", style="dim"))
    return Group(*parts)


def _largest(found: Sizing) -> Iterator[RenderableType]:
    """A line a recipe: the largest model that surely fits, what it needs, its longest answer."""
    own = {row.recipe.name for row in found.own}
    rows = [("The largest here that surely fits", "model", "at most", "longest answer")]
    for recipe, row in found.best.items():
        who = f"headway, {recipe}" if recipe in own else recipe
        if row is None:
            rows.append((who, "none", "", ""))
            continue
        more = "+" if row.longest_answer >= LONGEST else ""
        rows.append((who, row.model, format_bytes(row.upper, digits=1), f"{row.longest_answer:,}{more}"))
    yield from aligned(rows, bold=rows[0][0])


def _models(found: Sizing) -> tuple[list[str], int]:
    """The models of the table, the largest first, from the first that does not fit anywhere on, and how many that fit
    are left out."""
    rows: dict[str, list[Row]] = {}
    for row in (*found.own, *found.others):
        rows.setdefault(row.model, []).append(row)
    ordered = sorted(rows, key=lambda name: -found.rules[name].parameters)
    fits = [name for name in ordered if any(row.longest_answer or row.kind != "does not fit" for row in rows[name])]
    if not fits:
        return ordered[-1:], 0
    best = {row.model for row in found.best.values() if row is not None}
    wanted = sorted(fits, key=lambda name: (name not in best, _place(name), -found.rules[name].parameters))
    kept: list[str] = []
    for name in wanted:
        size = found.rules[name].parameters
        alone = all(not size / NEAR < found.rules[each].parameters < size * NEAR for each in kept)
        if name in best or alone or len(fits) <= ROWS:
            kept.append(name)
    kept += [name for name in wanted if name not in kept][: max(0, ROWS - len(kept))]
    first = ordered.index(fits[0])
    above = ordered[first - 1 : first]
    shown = [name for name in ordered if name in kept or name in above]
    return shown, len(fits) - len(kept)


def _place(name: str) -> int:
    place = popularity(name)
    return len(table()) if place is None else place


def _table(found: Sizing, shown: list[str]) -> Table:
    """Models by recipes; a cell is the longest answer."""
    recipes = list(dict.fromkeys(row.recipe.name for row in (*found.own, *found.others)))
    own = {row.recipe.name for row in found.own}
    cells = {(row.model, row.recipe.name): row for row in (*found.own, *found.others)}
    made = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    made.add_column("", no_wrap=True, overflow="ellipsis")
    for recipe in recipes:
        made.add_column(_heading(recipe), justify="right", no_wrap=True, min_width=CELL - 1)
    for model in shown:
        drawn = []
        for recipe in recipes:
            ours = recipe not in own or table()[model.lower()].family in TRAINED
            drawn.append(_cell(cells.get((model, recipe)), found) if ours else Text(NOT_OURS, "dim"))
        made.add_row(model, *drawn)
    return made


def _heading(recipe: str) -> str:
    """A recipe on two short lines.

    >>> _heading("LoRA r16, fp32"), _heading("full")
    ('LoRA\\nfp32', '\\nfull')
    """
    first, comma, second = recipe.replace(" r16", "").partition(", ")
    return f"{first}\n{second.split()[0]}" if comma else f"\n{first}"


def _cell(row: Row | None, found: Sizing) -> Text:
    if row is None or (row.kind == "does not fit" and not row.longest_answer):
        return Text(MARKS["does not fit"], "dim")
    if not row.longest_answer:
        return Text(MARKS[row.kind], STYLES[row.kind])
    best = found.best.get(row.recipe.name) is row
    return Text(tokens(row.longest_answer), STYLES[row.kind] + (" bold" if best else ""))
