"""The ledger of a plan.json beside what was measured, phase by phase."""

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from headway.plan.ledger import DEVICE_QUANTITIES, Ledger, Line, Phase
from headway.reports.ledger import items
from headway.reports.page.records import Comparison, Part, PhaseRow

ITEMS = 7
"""Items of a pool with a colour of their own; the smaller ones share one."""
Held = Mapping[str, Mapping[str, int]]


def ledger_of(plan: Mapping[str, Any] | None) -> Ledger | None:
    """The ledger in the contents of a plan.json; None where there is none, or none that can be read."""
    if plan is None:
        return None
    try:
        lines = msgspec.convert(plan.get("lines"), tuple[Line, ...])
        first = {Phase(name): 0 for name in {line.phase for line in lines}}
        for pool in plan["pools"]:
            for name, phase in pool["phases"].items():
                first[Phase(name)] = int(phase["step"])
    except (msgspec.ValidationError, KeyError, TypeError, ValueError, AttributeError):
        return None
    return Ledger(lines, first) if lines else None


def plan_in(text: str) -> dict[str, Any] | None:
    """A plan that a black box holds as JSON text."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def comparisons(ledger: Ledger, held: Held) -> tuple[Comparison, ...]:
    """A comparison for each pool that has lines. Like is compared with like, as `headway train` does at its end."""
    return tuple(_comparison(ledger, pool, held) for pool in ledger.pools())


def _comparison(ledger: Ledger, pool: str, held: Held) -> Comparison:
    quantities = {line.quantity for line in ledger.lines if line.pool == pool}
    counted = _counted(pool, {str(quantity) for quantity in quantities}, held)
    all_items = items(line for line in ledger.lines if line.pool == pool)
    top = [name for name, _ in all_items[:ITEMS]]
    rows = []
    for phase in ledger.phases(pool):
        peak, sizes = ledger.peak_of(pool, phase), held.get(str(phase), {})
        named = {name: row.get(phase, 0) for name, row in all_items}
        rest = sum(size for name, size in named.items() if name not in top)
        parts = [Part(name, named[name]) for name in top]
        parts += [Part(f"{len(all_items) - len(top)} smaller", rest)] if len(all_items) > len(top) else []
        measured = sizes.get(counted) if counted else None
        rows.append(PhaseRow(str(phase), peak.bytes, peak.upper, measured, tuple(parts), _held(counted, sizes)))
    known = [row.measured for row in rows if row.measured is not None]
    known += [size] if (size := held.get("", {}).get(counted)) is not None else []
    return Comparison(
        pool, counted, tuple(rows), ledger.peak(pool).bytes, ledger.upper(pool), max(known, default=None)
    )


def _counted(pool: str, quantities: set[str], held: Held) -> str:
    """By what a pool was measured; empty where it was not."""
    names = {name for sizes in held.values() for name in sizes}
    if pool in names:
        return pool
    if "host" in quantities:
        return "tree" if "tree" in names else ""
    return next((name for name in reversed(DEVICE_QUANTITIES) if name in quantities and name in names), "")


def _held(counted: str, sizes: Mapping[str, int]) -> tuple[Part, ...]:
    """What a measured bar is made of."""
    whole = sizes.get(counted)
    if whole is None:
        return ()
    if counted == "tree" and "rss" in sizes:
        # the two need not have come at once, nor in the pass that held the most together
        own = min(whole, sizes["rss"])
        return (Part("the run's process", own), *([Part("its children", whole - own)] if whole > own else []))
    if counted in DEVICE_QUANTITIES:
        found, below = [], 0
        for name in DEVICE_QUANTITIES[: list(DEVICE_QUANTITIES).index(counted) + 1]:
            size = max(below, sizes.get(name, below))
            found.append(Part(name.replace("_", " "), size - below))
            below = size
        return tuple(part for part in found if part.bytes)
    return (Part("in use", whole),)
