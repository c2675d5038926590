"""What to set instead: changes that the run's own trainer accepts, each planned again, the least costly first."""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from headway.facts.machine import Machine
from headway.facts.workload import Workload, unknown_key
from headway.plan.advice import Advice, Change, Effect, Remedy, as_settings
from headway.plan.moves import Cost
from headway.plan.plan import plan
from headway.plan.search import KINDS, MOST_PLANS, Search
from headway.plan.verdict import deciding, tops

__all__ = [
    "MOST_PLANS", "Advice", "Change", "Effect", "Remedy", "Saving", "as_settings", "remedies", "savings",
]  # fmt: skip

TOLD = 5
"""Changes of which it is asked whether a length that nobody said decides: each takes a few plans."""
LARGE = 1 / 3
"""The share of a pool's bound that another model has to save where other changes make the run fit."""


def remedies(workload: Workload, machine: Machine) -> Advice:
    """Search changes, singly and, as long as no cheaper one makes the run fit alone, together.

    For every pool that does not surely fit, and for none that does. No remedy raises a pool that is short, or makes
    the verdict of another pool worse. Nothing is searched where the run has no accepted change.
    """
    search = Search(workload, machine)
    if not search.targets:
        return Advice((), (), 0)
    singles = [each for move, values in search.moves for each in search.single(move, values)]
    cheapest = min((each.cost for each in singles if each.kind == "fits"), default=None)
    found = [*singles, *search.together(cheapest)]
    if len(search.targets) > 1:
        for target in search.targets:
            pool = search.first.groups[target].pool
            done = [
                each.cost for each in found for effect in each.effects if (effect.pool, effect.kind) == (pool, "fits")
            ]
            found += search.together(min(done, default=None), (target,))
    helpful = [each for each in found if search.helps(each)]
    more = {move.key for move, _ in search.moves if move.raises}
    idle = [
        each for each in singles
        if not search.helps(each) and each.cost <= Cost.EXPERIMENT and each.changes[0].key not in more
    ]  # fmt: skip
    order = {search.first.groups[each].pool: index for index, each in enumerate(search.targets)}
    unique = {each.text: each for each in sorted(_worth(helpful), key=lambda each: _rank(each, order))}
    best = [
        replace(each, deciding=_deciding(each, machine)) if place < TOLD and each.fits else each
        for place, each in enumerate(unique.values())
    ]
    return Advice(tuple(best), tuple({each.text: each for each in idle}.values()), search.plans)


def _deciding(remedy: Remedy, machine: Machine) -> tuple[str, ...]:
    """The lengths that nobody said and still decide; one that the remedy sets is said then."""
    said = {change.key for change in remedy.changes}
    unknown = tuple(text for text in remedy.workload.unknown if unknown_key(text) not in said)
    return deciding(replace(remedy.workload, unknown=unknown), machine)


def _worth(found: Sequence[Remedy]) -> list[Remedy]:
    """Without more devices where something cheap fits surely, without another model where anything else does and the
    model saves little, and without what hardly learns where any setting fits surely."""
    fits = [each.cost for each in found if each.kind == "fits"]
    cheapest = min(fits, default=Cost.MODEL)
    if cheapest <= Cost.SLOWER:
        return [each for each in found if each.cost <= Cost.EXPERIMENT and each.cost is not Cost.HARDWARE]
    if cheapest <= Cost.EXPERIMENT:
        found = [each for each in found if each.cost is not Cost.LOSSY]
    return [each for each in found if each.cost is not Cost.MODEL or _is_large(each, alone=cheapest is Cost.MODEL)]


def _is_large(remedy: Remedy, *, alone: bool) -> bool:
    saved = remedy.before_upper - remedy.after_upper
    return (alone and remedy.fits) or saved >= LARGE * remedy.before_upper


def _rank(remedy: Remedy, order: dict[str, int]) -> tuple[int, ...]:
    """By what it is for, then settings before another model before what hardly learns, then by verdict and cost."""
    group = -1 if remedy.fits else order[remedy.pool]
    beyond = max(0, remedy.cost - Cost.EXPERIMENT)
    kind = remedy.effects[0].kind if group >= 0 else remedy.kind
    places = sorted((change.place for change in remedy.changes), reverse=True)
    rank = KINDS.index(kind) if kind in KINDS else 0
    return group, beyond, rank, remedy.cost, len(remedy.changes), *places


class Saving(Struct, frozen=True):
    """A change that costs nothing, and what it does to the highest phase of one pool, in bytes."""

    change: Change
    pool: str
    before_bytes: int
    before_upper: int
    after_bytes: int
    after_upper: int


def savings(workload: Workload, machine: Machine) -> tuple[Saving, ...]:
    """What the run could leave out and be the same run: a reference model whose coefficient is 0.

    One saving for each pool that it lowers. Asked of a run that fits, for which no remedies are searched.
    """
    search, found = Search(workload, machine), []
    before = tops(search.first.ledger)
    for move, values in search.moves:
        if (move.key, move.cost) != ("trainer.reference", Cost.FREE):
            continue
        without = move.apply(workload, values[0])
        change, after = search.change(move, without), tops(plan(without, machine))
        found += [
            Saving(change, pool, *held, *after[pool]) for pool, held in before.items() if after[pool][0] < held[0]
        ]
    return tuple(found)
