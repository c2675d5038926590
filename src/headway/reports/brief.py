"""A plan in thirty seconds: the verdict, one number against one limit, at most three changes with what they cost."""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from headway.facts.workload import unknown_key
from headway.plan.ledger import Ledger
from headway.plan.moves import Cost
from headway.plan.planned import LONGEST, Planned
from headway.plan.prices import in_words
from headway.plan.remedies import Remedy, as_settings
from headway.plan.verdict import Kind, Outcome, PoolVerdict, is_host
from headway.reports.ledger import no_model_fits
from headway.reports.time import time_line
from headway.reports.widgets import VERDICT_STYLES, hanging
from headway.units import format_bytes

SUGGESTIONS = 3
"""Changes that are shown; `--lines` shows more, `--json` all."""
LARGEST = 3
"""Items of the worst phase that are named."""
NAMED = 4
"""Assumed values that are named beside their count."""
REMARK = 4
"""Weight of what was assumed in words, which is counted and not named beside values."""
POOLS = 4
"""Pools beside the tightest that have a line each."""
ORDER: tuple[Kind, ...] = ("does not fit", "tight", "fits", "cannot tell")
SHORT = 48
"""Characters of an assumption that is named beside the count."""


def brief(planned: Planned, *, by_name: bool = False) -> Iterator[RenderableType]:
    """The verdict and its number, the other pools in a line each, what to change, what was assumed. A run `by_name`
    has its changes as `--set` takes them."""
    outcome = planned.outcome
    ordered = _ordered(outcome.pools)
    first, others = (ordered[0] if ordered else None), ordered[1:]
    yield Text()
    yield headline(outcome, first, _doubt(planned))
    if first is not None:
        yield from _about(planned, first)
    for pool in others[:POOLS]:
        yield _in_a_line(pool)
    if len(others) > POOLS:
        yield Text(f"{len(others) - POOLS} more pools: --lines", style="dim")
    if outcome.kind in ("fits", "tight") or planned.longest_sample:
        yield longest(planned)
    if (line := time_line(planned)) is not None:
        yield line
    yield from _suggestions(planned, by_name=by_name)
    yield from _unsaid(planned)


def _ordered(pools: Sequence[PoolVerdict]) -> list[PoolVerdict]:
    """The tightest first: by verdict, then by its share of the lowest limit; hosts after devices without one."""
    return sorted(pools, key=lambda pool: (ORDER.index(pool.kind), -_fullness(pool), is_host(pool.pool)))


def _fullness(pool: PoolVerdict) -> float:
    return pool.upper / max(1, pool.limit.bytes) if pool.limit is not None else 0.0


def kind_text(kind: Kind) -> tuple[str, str]:
    """The verdict with its style."""
    return kind.capitalize(), VERDICT_STYLES[kind]


def headline(outcome: Outcome, pool: PoolVerdict | None, doubt: str = "") -> Text:
    """The verdict with the one number and the one limit that make it, or why there is none; `doubt` is what it hangs
    on."""
    text = Text.assemble(kind_text(outcome.kind), doubt, ": ")
    if outcome.refusals:
        text.append("\n".join(outcome.refusals)).append("\nIt " if pool is not None else "")
    elif outcome.kind == "cannot tell":
        if pool is not None and not (outcome.deciding or outcome.unplanned):
            return text.append_text(_unlimited(pool))
        text.append(why_not(outcome)).append(" The plan " if pool is not None else "")
    return text.append_text(needs(pool)) if pool is not None else text


def _doubt(planned: Planned) -> str:
    """The condition of a verdict that hangs on the host's memory: it needs more than all devices of its node have,
    and nobody said how much there is."""
    if planned.outcome.kind not in ("fits", "tight"):
        return ""
    of_node: dict[str, int] = {}
    for known in planned.machine.pools:
        if known.kind == "device":
            node = known.name.partition(".")[0]
            of_node[node] = of_node.get(node, 0) + known.total_bytes
    hosts = [pool for pool in planned.outcome.pools if is_host(pool.pool) and pool.limit is None]
    doubtful = any(pool.peak.bytes > of_node.get(pool.pool.partition(".")[0], pool.peak.bytes) for pool in hosts)
    return ", if the host has room" if doubtful else ""


def needs(pool: PoolVerdict) -> Text:
    """What a pool holds, in one number, or in two where only a bound is over the limit, and the limit."""
    limit = pool.limit
    if limit is None:
        return Text(f"needs up to {format_bytes(pool.upper)} ({pool.pool}).")
    at_most, expected = (format_bytes(pool.upper), "bold"), (format_bytes(_expected(pool)), "bold")
    text = Text("needs ")
    if pool.kind == "fits":
        text.append("at most ").append(*at_most)
    else:
        text.append(*expected)
    if pool.kind == "tight":
        text.append(" or up to ").append(*at_most)
    text.append("; the limit is ").append(format_bytes(limit.bytes), "bold")
    return text.append(f" ({limit.name}, {pool.pool}).")


def why_not(outcome: Outcome) -> str:
    """What a plan lacks that cannot tell."""
    if outcome.deciding:
        names = ", ".join(unknown_key(text) for text in outcome.deciding)
        return f"nobody said {names}, and half or twice of what is assumed would make the difference; --set it."
    if outcome.unplanned:
        return f"what is planned is not over a limit, but this holds memory too: {'; '.join(outcome.unplanned)}."
    return "no limit is known of what decides."


def _expected(pool: PoolVerdict) -> int:
    """What the highest phase is expected to hold."""
    return pool.margins[0].limit.bytes - pool.margins[0].expected if pool.margins else pool.peak.bytes


def _about(planned: Planned, pool: PoolVerdict) -> Iterator[RenderableType]:
    """Where it is the most, where the run ends, and what that is made of."""
    peak, highest = pool.peak, planned.ledger.peak(pool.pool)
    step = f"in step {peak.step}" if peak.step else "at the start"
    if pool.kind == "does not fit" and pool.limit is not None:
        later = "" if peak.phase == highest.phase else f"; {highest.phase} would hold the most"
        before = may_end_before(planned.ledger, pool)
        yield Text(f"It would end {step}, in phase {peak.phase}{before}: {pool.limit.consequence}{later}.")
    else:
        yield Text(f"The most is held {step}, in phase {peak.phase}.")
    items = [f"{format_bytes(line.bytes)} {line.item}" for line in pool.largest if line.bytes][:LARGEST]
    yield Text(f"Largest there: {', '.join(items)}.", style="dim")


def may_end_before(ledger: Ledger, pool: PoolVerdict) -> str:
    """The first phase that only by its bound is over the limit, where the run may end before the one that decides."""
    limit = pool.limit.bytes if pool.limit is not None else 0
    first = next((peak for peak in ledger.peaks(pool.pool) if peak.upper > limit), pool.peak)
    return "" if first.phase == pool.peak.phase else f", or before in phase {first.phase}"


def _in_a_line(pool: PoolVerdict) -> Text:
    """A pool that does not decide."""
    if pool.limit is None:
        return _unlimited(pool)
    kind = "" if pool.kind == "fits" else f"{pool.kind}, {format_bytes(_expected(pool))} expected, "
    limit = f"the limit is {format_bytes(pool.limit.bytes)} ({pool.limit.name})"
    return Text(f"{pool.pool}: {kind or 'fits, '}at most {format_bytes(pool.upper)}; {limit}.")


def longest(planned: Planned) -> Text:
    """The longest sample that may be trained, beside the run's own; with as many as long where micro-batches count
    samples."""
    most, own = planned.longest_sample or planned.longest_expected, planned.workload.rollout.longest
    trainer = planned.workload.trainer
    rows = max(trainer.rows, trainer.score_rows)
    alone = f"with {rows} of them in a micro-batch" if rows > 1 else "alone"
    if not most:
        return Text("Longest sample: none fits; a limit is passed whatever the samples are.")
    surely = "surely fits" if planned.longest_sample else "is expected to fit"
    at_end = most == planned.workload.model.context
    more = " or more" if most >= LONGEST else ", the model's context" if at_end else ""
    return Text(f"Longest sample that {surely} {alone}: {most:,} tokens{more}; this run's longest has {own:,}.")


def _unlimited(pool: PoolVerdict) -> Text:
    """A pool of which nobody said how much memory it has."""
    key = " (--set machine.host=512GiB)" if is_host(pool.pool) else ""
    return Text(f"{pool.pool}: needs up to {format_bytes(pool.upper)}; nobody said how much it has{key}.")


# -- what to change --------------------------------------------------------------------------------------


def _suggestions(planned: Planned, *, by_name: bool) -> Iterator[RenderableType]:
    advice, outcome = planned.advice, planned.outcome
    if not advice.plans:
        return
    if impossible := [line for each in outcome.pools if (line := no_model_fits(planned.ledger, each))]:
        yield Text("\n" + "\n".join([line[0].upper() + line[1:] + "." for line in impossible]), style="bold")
        return
    whole = advice.whole()
    partly = [each for of_pool in advice.by_pool().values() for each in of_pool]
    found = whole or tuple([each for each in partly if each.cost < Cost.MODEL] or partly)
    if not found:
        yield Text(f"\nNothing that this trainer accepts makes it fit on {planned.machine.name}.", style="bold")
    else:
        title = {
            True: "What to change, and what it costs",
            False: "No change alone is enough here; what helps, and what it costs",
        }[bool(whole)]
        yield Text(f"\n{title}", style="bold")
        texts = [_as_options(planned, each) if by_name else each.text for each in found[:SUGGESTIONS]]
        shown = zip(texts, found, strict=False)
        yield hanging((f"{number}.", _suggestion(each, text)) for number, (text, each) in enumerate(shown, 1))
        if len(found) > SUGGESTIONS:
            yield Text(f"{len(found) - SUGGESTIONS} more: --lines", style="dim")
    cheap = any(each.kind == "fits" and each.cost < Cost.MODEL for each in whole)
    if (more := _other_trainer(planned)) and not cheap:
        yield Text(more)


def _as_options(planned: Planned, remedy: Remedy) -> str:
    """A change as it can be pasted behind the command, and in another system's own words."""
    options = [f"--set {each}" for each in as_settings(planned.workload, remedy.workload)]
    if (model := next((change.value for change in remedy.changes if change.key == "model"), None)) is not None:
        return " ".join([f"the model {model}", *options])
    own = "" if planned.workload.trainer.system == "headway" else f"\nthat is {remedy.text}"
    return " ".join(options) + own


def _suggestion(remedy: Remedy, change: str) -> Text:
    """The change; what it leads to, and what it costs."""
    text = Text.assemble(f"{change}\n", (remedy.kind, VERDICT_STYLES[remedy.kind]))
    text.append(" with the lengths as assumed" if remedy.deciding else "")
    for number, effect in enumerate(remedy.effects):
        text.append(" and " if number else ", ")
        sizes = format_bytes(effect.after_upper)
        if effect.kind != "fits":
            sizes = f"{format_bytes(effect.after_bytes)} to {sizes}"
        text.append(f"{sizes}{f' of {effect.pool}' if len(remedy.effects) > 1 else ''}")
    for pool, size in remedy.grown:
        text.append(f"; {pool} then needs up to {format_bytes(size)}")
    return text.append(f"; {costs(remedy)}")


def costs(remedy: Remedy) -> str:
    """What a change costs, in a few words."""
    return f"cost: {in_words(remedy.loses) or remedy.cost.word}"


def _other_trainer(planned: Planned) -> str:
    """What to try where headway's own trainer leaves devices of the machine unused."""
    devices = planned.machine.device_count
    if planned.workload.trainer.system != "headway" or devices < 2:
        return ""
    lora = planned.workload.trainer.lora
    key = "" if lora is None else f", with --set trainer.lora.rank={lora.rank}"
    return (
        f"headway trains on one of the {devices} devices here. Others divide the model over all of them: --trainer "
        f"verl (RL) or fsdp2 (fine-tuning){key}."
    )


# -- what nobody said ------------------------------------------------------------------------------------


def _unsaid(planned: Planned) -> Iterator[RenderableType]:
    """How much was assumed and not read, with what decides by name."""
    unknown, deciding = planned.workload.unknown, planned.outcome.deciding
    if unknown:
        rest = [text for text in unknown if text not in deciding]
        ordered = [*deciding, *sorted(rest, key=_weight)]
        values = sum(_weight(text) < REMARK for text in rest)
        count = len(deciding) + min(values or 1 - bool(deciding), max(0, NAMED - len(deciding)))
        names = "; ".join(_named(text, decides=text in deciding) for text in ordered[:count])
        end = f"; {len(unknown) - count} more" if len(unknown) > count else ""
        yield Text.assemble(("\nAssumed", "bold"), f": {names}{end}. --lines gives each with its reason.")
    if planned.workload.not_read:
        count = len(planned.workload.not_read)
        yield Text(
            f"Not read: {count} flag{'s' * (count > 1)} that no line of this plan hangs on; --lines names them."
        )


def _weight(text: str) -> int:
    """What matters the most to a reader first: a misread command, how a large model is divided, then lengths, then
    other values, then remarks."""
    key = unknown_key(text)
    if "was read as the command's own" in text:
        return 0
    if "scripts for models of this size" in text:
        return 1
    if key.endswith(("max_prompt", "max_answer", "tokens", "length", "len")):
        return 2
    if text.startswith("what host memory gains"):
        return REMARK + 1
    return 3 if " = " in text.partition(" (")[0] else REMARK


def _named(text: str, *, decides: bool) -> str:
    short = text.partition(" (")[0].partition("; ")[0]
    if decides:
        return f"{short} (decides)"
    return short if len(short) <= SHORT else f"{short[: SHORT - 3].rpartition(' ')[0]} ..."
