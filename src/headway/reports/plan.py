"""A plan for a terminal: a bar a phase against each pool's limits, the verdicts, what to change, what nobody said."""

from collections.abc import Iterator, Mapping

from msgspec import Struct
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from headway.facts.machine import Machine
from headway.facts.workload import Workload
from headway.plan.ledger import Ledger, Line, Phase
from headway.plan.planned import Planned
from headway.plan.remedies import Remedy
from headway.plan.verdict import Outcome, PoolVerdict, is_host
from headway.reports.brief import brief, costs, kind_text, longest, may_end_before, why_not
from headway.reports.ledger import items, no_model_fits
from headway.reports.time import time_line
from headway.reports.widgets import VERDICT_STYLES, Layouts, Unit, hanging, share_of, since
from headway.units import GIB, format_bytes

PARTS = 6
"""Items with a letter of their own in the bars; what is smaller shares one."""
LETTERS = "ABCDEF"
REST = "+"
COLOURS = ("blue", "magenta", "cyan", "green", "yellow", "bright_blue")
REST_COLOUR = "bright_black"
MARKS = "│┃"
"""Marks of the lowest limit and of those above it."""
NEAR = 1.25
"""A limit above the largest bound is drawn where it is at most this much further than all else."""
NOTABLE = GIB // 2
"""A change of the highest phase, where another one decides, is told from this size on."""
FLAGS = 12
"""Flags of a launch that were not read, which a terminal names."""
REMEDIES = 6
"""Remedies that a terminal shows; --json has all."""
IDLE = 4
"""Changes without effect that a terminal shows."""


class Part(Struct, frozen=True):
    """One piece of a bar: the letter that it starts with, its colour, and its size in bytes."""

    letter: str
    colour: str
    size: int


class PartsBar(Struct, frozen=True):
    """A bar of parts, shaded up to `upper`, with marks at the limits; its full width stands for `scale` bytes.

    A part that has a cell starts with its letter, so that the bar reads without colour too.

    >>> parts = (Part("A", "blue", 40), Part("B", "cyan", 20))
    >>> PartsBar(parts, upper=80, marks=((90, "│"),), scale=100).text(10).plain
    'A███B█▒▒·│'
    """

    parts: tuple[Part, ...]
    upper: int
    marks: tuple[tuple[int, str], ...]
    scale: int

    def text(self, width: int) -> Text:
        """The bar in `width` cells."""
        bar, done, held = Text(no_wrap=True), 0, 0
        for part in self.parts:
            held += part.size
            end = self._cell(held, width)
            if end > done:
                bar.append(part.letter, style=f"black on {part.colour}")
                bar.append("█" * (end - done - 1), style=part.colour)
                done = end
        upper = max(done, self._cell(self.upper, width))
        bar.append("▒" * (upper - done), style="dim")
        bar.append("·" * (width - upper), style="dim")
        for size, mark in self.marks:
            at = min(width - 1, self._cell(size, width))
            bar = Text.assemble(bar[:at], (mark, "bold red"), bar[at + 1 :])
        return bar

    def _cell(self, size: int, width: int) -> int:
        return min(width, round(size / self.scale * width)) if self.scale else 0

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.text(options.max_width)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(8, options.max_width)


def plan_report(planned: Planned, trainer: str, *, lines: bool = False, by_name: bool = False) -> Group:
    """The plan in short; with `lines` all of it: bars and limits of every pool, all changes, what was assumed, and
    every line of the ledger with its formula and source. `trainer` is in words; `by_name`: a model and a
    trainer were named."""
    parts: list[RenderableType] = [*_heading(planned.workload, planned.machine, trainer)]
    if not lines:
        return Group(*parts, *brief(planned, by_name=by_name))
    parts += [Text(), _overall(planned.outcome)]
    for verdict in planned.outcome.pools:
        parts += [Text(), *_pool(planned.ledger, planned.machine, verdict)]
    parts += [Text(), longest(planned)]
    parts += [line] if (line := time_line(planned)) is not None else []
    if planned.longest_expected and not planned.longest_sample:
        parts.append(Text("No length surely fits: a bound is over its limit whatever the samples are."))
    parts += _remedies(planned)
    parts += _unknown(planned)
    parts += _not_read(planned)
    parts += _all_lines(planned.ledger)
    return Group(*parts)


# -- what is planned -------------------------------------------------------------------------------------


def _heading(workload: Workload, machine: Machine, trainer: str) -> Iterator[Text]:
    model, rollout, layout = workload.model, workload.rollout, workload.layout
    size = f" ({model.parameters() / 1e9:,.2f} billion parameters)"
    yield Text.assemble((model.name, "bold"), size, _adapted(workload), "\n", trainer, " on ", (machine.name, "bold"))
    rows, cap = workload.trainer.rows, workload.trainer.cap
    micro = f"{rows:,} sample{'s' if rows > 1 else ''}" if rows else f"{cap:,} tokens"
    scored = [f"{size:,} {unit}" for size, unit in (
        (workload.trainer.score_rows, "samples"), (workload.trainer.score_cap, "tokens")
    ) if size]  # fmt: skip
    micro += f" (scored: {scored[0]})" if scored else ""
    answers = f"{rollout.prompts:,} x {rollout.samples:,} samples a step"
    prompt = f"prompts up to {rollout.max_prompt:,} and answers up to " if rollout.max_prompt else "up to "
    devices = f", {layout.ranks} devices" if layout.ranks > 1 else ""
    yield Text(f"{answers}; {prompt}{rollout.max_answer:,} tokens; micro-batches of {micro}{devices}", style="dim")


def _adapted(workload: Workload) -> str:
    """What is trained where it is not every parameter: the adapters' rank, and how the base is packed."""
    lora, quant = workload.trainer.lora, workload.trainer.quant
    if lora is None:
        return ""
    return f", LoRA of rank {lora.rank}" + (f" on a base in {quant.kind}" if quant is not None else "")


def _overall(outcome: Outcome) -> Text:
    """The verdict in words."""
    every = "every known limit" if any(not pool.margins for pool in outcome.pools) else "every limit"
    said = {
        "fits": f"even the upper bounds are inside {every}.",
        "tight": f"what is expected is inside {every}, an upper bound is not.",
        "does not fit": "what is expected is over a limit.",
        "cannot tell": why_not(outcome),
    }[outcome.kind]
    if outcome.refusals:
        return Text.assemble(kind_text(outcome.kind), ": ", "\n".join(outcome.refusals))
    return Text.assemble(kind_text(outcome.kind), ": ", said, _host_unknown(outcome))


def _host_unknown(outcome: Outcome) -> str:
    """What a host needs of which nobody said how much memory it has; empty where that is known or nothing fits."""
    needs = [pool.upper for pool in outcome.pools if is_host(pool.pool) and not pool.margins]
    if not needs or outcome.kind not in ("fits", "tight"):
        return ""
    return f" A node's host needs up to {format_bytes(max(needs))}, and nobody said how much it has."


# -- pools -----------------------------------------------------------------------------------------------


def _pool(ledger: Ledger, machine: Machine, verdict: PoolVerdict) -> Iterator[RenderableType]:
    """Title, bars with their legend, limits with what is left, the worst phase with its largest lines."""
    known = {pool.name: pool for pool in machine.pools}.get(verdict.pool)
    about = "not on this machine" if known is None else f"{known.kind} memory"
    total = f", {format_bytes(known.total_bytes)}" if known is not None and known.total_bytes else ""
    yield Text.assemble((verdict.pool, "bold"), (f" ({about}{total}): ", "dim"), kind_text(verdict.kind))
    yield Layouts(_bars(ledger, verdict, wide=True), _bars(ledger, verdict, wide=False))
    yield _legend(ledger, verdict.pool)
    yield _limits(verdict)
    yield _worst(ledger, verdict)
    yield hanging((format_bytes(line.bytes), Text(f"{line.item} ({line.role})")) for line in verdict.largest)


def _worst(ledger: Ledger, verdict: PoolVerdict) -> Text:
    """The phase that decides, who holds the most of it, and where it is not the highest one, why it decides."""
    peak, highest = verdict.peak, ledger.peak(verdict.pool)
    first = ""
    if verdict.kind == "tight":
        first = f", and its bound of {format_bytes(peak.upper)} is over the limit"
    elif peak.bytes != highest.bytes:
        first = ", the first that is expected to pass the limit, so the run ends there" + may_end_before(
            ledger, verdict
        )
    return Text.assemble(
        "worst phase ", (str(peak.phase), "bold"), f", {since(peak.step)}, {verdict.role} rank {verdict.rank}: "
        f"{format_bytes(peak.bytes)} expected{first}; no phase is over {format_bytes(verdict.upper)}",
    )  # fmt: skip


def _parts(ledger: Ledger, pool: str) -> list[tuple[str, str, str, Mapping[Phase, int]]]:
    """(letter, colour, name, bytes by phase) of the pool's largest items, and of all others together."""
    rows = items(line for line in ledger.lines if line.pool == pool)
    count = PARTS if len(rows) > PARTS + 1 else len(rows)
    found: list[tuple[str, str, str, Mapping[Phase, int]]] = [
        (letter, colour, name, sizes)
        for letter, colour, (name, sizes) in zip(LETTERS + REST, (*COLOURS, REST_COLOUR), rows[:count], strict=False)
    ]
    if rest := rows[count:]:
        sums = {phase: sum(sizes.get(phase, 0) for _, sizes in rest) for phase in ledger.phases(pool)}
        found.append((REST, REST_COLOUR, f"{len(rest)} smaller", sums))
    return found


def _marks(verdict: PoolVerdict) -> tuple[tuple[int, str], ...]:
    """The limits that are drawn: the lowest, and those that are not far above all else."""
    sizes = [margin.limit.bytes for margin in verdict.margins]
    if not sizes:
        return ()
    base = max(verdict.upper, sizes[0])
    return tuple((size, MARKS[min(1, at)]) for at, size in enumerate(sizes) if size <= NEAR * base)


def _bars(ledger: Ledger, verdict: PoolVerdict, *, wide: bool) -> Table:
    """A bar a phase, and where it is wide what the phase holds; the worst phase is bold."""
    parts, marks = _parts(ledger, verdict.pool), _marks(verdict)
    unit = Unit.for_size(verdict.upper)
    scale = max([verdict.upper, *(size + size // 50 for size, _ in marks)])
    limit = verdict.limit
    table = Table(box=None, pad_edge=False, expand=True, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column(no_wrap=True)
    table.add_column(f"0 to {format_bytes(scale)} (▒ bound)", ratio=1, no_wrap=True)
    table.add_column(unit.name, no_wrap=True, justify="right")
    if wide:
        table.add_column("bound", no_wrap=True, justify="right")
        table.add_column("" if limit is None else f"of {limit.name}", no_wrap=True, justify="right")
    for phase in ledger.phases(verdict.pool):
        peak = ledger.peak_of(verdict.pool, phase)
        drawn = tuple(Part(letter, colour, sizes.get(phase, 0)) for letter, colour, _, sizes in parts)
        row: list[RenderableType] = [str(phase), PartsBar(drawn, peak.upper, marks, scale), unit.text(peak.bytes)]
        if wide:
            row += [unit.text(peak.upper), "" if limit is None else share_of(peak.bytes, limit.bytes)]
        table.add_row(*row, style="bold" if phase == verdict.peak.phase else "")
    return table


def _legend(ledger: Ledger, pool: str) -> Text:
    text = Text()
    for letter, colour, name, _ in _parts(ledger, pool):
        text.append("  " if text else "").append(letter, style=f"black on {colour}").append(f" {name}")
    return text


def _limits(verdict: PoolVerdict) -> RenderableType:
    """A line a limit: its mark, its size, what happens there, and what is left below it."""
    if not verdict.margins:
        return Text("no limit is known; --set machine.host=512GiB gives a host's", style="dim")
    rows = []
    for at, margin in enumerate(verdict.margins):
        limit = margin.limit
        left = f"expected {_room(margin.expected)}, bound {_room(margin.upper)}"
        about = Text.assemble(
            f"{limit.name} ", (format_bytes(limit.bytes), "bold"), f" ({limit.consequence}): {left}"
        )
        rows.append((Text(MARKS[min(1, at)], "bold red"), about))
    return hanging(rows, indent=0)


def _room(left: int) -> str:
    return f"leaves {format_bytes(left)}" if left >= 0 else f"is {format_bytes(-left)} over"


# -- what to change, what is not known -------------------------------------------------------------------


def _remedies(planned: Planned) -> Iterator[RenderableType]:
    """What is enough for the whole run, then what helps one pool alone, pool by pool."""
    advice = planned.advice
    if not advice.plans:
        return
    if planned.outcome.unplanned:
        yield Text(f"\nFor what is planned, without: {'; '.join(planned.outcome.unplanned)}", style="dim")
    if impossible := [line for each in planned.outcome.pools if (line := no_model_fits(planned.ledger, each))]:
        yield Text("\n" + "\n".join([line[0].upper() + line[1:] + "." for line in impossible]), style="bold")
        return
    whole, others = advice.whole()[:REMEDIES], advice.by_pool()
    if whole:
        yield Text("\nWhat to change, the least costly first", style="bold")
        yield hanging((f"{number}.", _remedy(remedy)) for number, remedy in enumerate(whole, 1))
    elif not others:
        yield Text("\nNothing that this trainer accepts lowers the peak.", style="bold")
    elif planned.outcome.kind != "cannot tell":
        yield Text("\nNothing that this trainer accepts is known to make the whole run fit.", style="bold")
    enough = "" if planned.outcome.kind == "cannot tell" else ", and is not enough for the whole run"
    place, most = len(whole), max(2, REMEDIES - len(whole))
    for pool, found in others.items():
        yield Text(f"{'' if place or enough else chr(10)}What helps {pool}{enough}", style="bold")
        yield hanging((f"{place + number}.", _remedy(remedy)) for number, remedy in enumerate(found[:most], 1))
        place += len(found[:most])
    if advice.without_effect:
        yield Text(f"No help alone for {advice.without_effect[0].pool}", style="bold")
        yield hanging(("-", _without_effect(remedy)) for remedy in advice.without_effect[:IDLE])


def _remedy(remedy: Remedy) -> Text:
    """The change and what each pool that is short holds then; more pools than one are named."""
    text, named = Text(f"{remedy.text}: "), len(remedy.effects) > 1
    for number, effect in enumerate(remedy.effects):
        text.append("; " if number else "").append(f"{effect.pool} " if named else "")
        text.append(f"{format_bytes(effect.before_bytes)} -> {format_bytes(effect.after_bytes)}", style="bold")
        text.append(f" ({effect.phase}; bound {format_bytes(effect.after_upper)}) ")
        kind = effect.kind if named else remedy.kind
        text.append(kind, style=VERDICT_STYLES[kind])
    return text.append(f"; {costs(remedy)}", "dim")


def _without_effect(remedy: Remedy) -> Text:
    """What the phase that decides holds with the change, and what becomes of the highest one where that moves."""
    before, after = remedy.worst_before, remedy.worst_after
    text = f"{remedy.text}: {after.phase} stays at {format_bytes(after.bytes)}"
    if change := after.bytes - before.bytes:
        text += f" ({format_bytes(change)})"
    if remedy.before_bytes != before.bytes and abs(remedy.before_bytes - remedy.after_bytes) >= NOTABLE:
        text += f"; the highest phase {format_bytes(remedy.before_bytes)} -> {format_bytes(remedy.after_bytes)}"
    return Text(text)


def _unknown(planned: Planned) -> Iterator[RenderableType]:
    """What was assumed, by why it had to be; a `◀` where it decides."""
    if not planned.workload.unknown:
        return
    groups: dict[str, list[str]] = {}
    for text in planned.workload.unknown:
        value, bracket, why = text.partition(" (")
        mark = " ◀ decides" if text in planned.outcome.deciding else ""
        groups.setdefault(why.removesuffix(")") if bracket else "", []).append(value + mark)
    yield Text("\nAssumed", style="bold")
    for why, values in groups.items():
        yield hanging([("", Text.assemble(", ".join(values), (f" ({why})" if why else "", "dim")))])


def _not_read(planned: Planned) -> Iterator[RenderableType]:
    """Flags of the launch that the plan passes over, the first of many."""
    names = planned.workload.not_read
    if names:
        more = f", and {len(names) - FLAGS} more" if len(names) > FLAGS else ""
        yield Text("\nNot read", style="bold")
        why = (" (flags of the launch that no line of this plan hangs on; --json has all)", "dim")
        yield hanging([("", Text.assemble(", ".join(names[:FLAGS]), more, why))])


def _all_lines(ledger: Ledger) -> Iterator[RenderableType]:
    """Every line, by pool and phase: its size, its bound, what it is, its formula and where that is from."""
    for pool in ledger.pools():
        for phase in ledger.phases(pool):
            peak = ledger.peak_of(pool, phase)
            held = f"{format_bytes(peak.bytes)} expected, at most {format_bytes(peak.upper)}"
            yield Text.assemble((f"\n{pool}, {phase}", "bold"), f", {since(peak.step)}: {held}")
            rows = sorted(ledger.select(pool, phase), key=lambda line: -line.bytes)
            yield hanging((format_bytes(line.bytes), _line(line)) for line in rows)


def _line(line: Line) -> Text:
    text = Text(f"{line.item} ({line.role} {line.rank}, {line.quantity})")
    if line.upper != line.bytes:
        text.append(f", at most {format_bytes(line.upper)}")
    return text.append(f"\n= {line.formula}").append(f" [{line.source}]" if line.source else "", "dim")
