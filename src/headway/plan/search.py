"""The search for changes: runs with some values changed, each planned, measured by the pools that do not fit."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import combinations

from msgspec import Struct

from headway.errors import InputError
from headway.facts.machine import Machine
from headway.facts.workload import Workload
from headway.foreign.spelling import Scalar, SpellKey, accepts, counts, runspec, spell
from headway.plan import half
from headway.plan.advice import Change, Effect, Remedy
from headway.plan.flight import refusals
from headway.plan.ledger import Ledger, Peak
from headway.plan.moves import MOVES, VERL, Cost, Move, accepted, value_of
from headway.plan.plan import plan
from headway.plan.prices import price
from headway.plan.verdict import Kind, is_host, limits_of, tops

MOST_PLANS = 400
"""Plans of one search, which is about a quarter of a second."""
MOST_COMBINATIONS = 4
GROWN = 1.1
"""How much higher the bound of a pool without a known limit has to be to be told of."""
NEGLIGIBLE = 0.01
"""A change that moves a peak by less than this share of it, and no verdict, is said to be without effect."""

Group = tuple[str, str]
"""Pools that stand for each other: their kind, and whose they are. Where an engine's devices come after the
trainer's, more of those move it to another name."""

BESIDE = frozenset({"system", "driver", "reward"})
"""Roles that decide nothing about whose a pool is."""

KINDS: tuple[Kind, ...] = ("fits", "tight", "does not fit")
PLACES = {id(move): place for place, move in enumerate(MOVES)}


class Held(Struct, frozen=True):
    """What the fullest pool of a group holds in its highest phases, expected and at most, in bytes.

    `rank` is its verdict as a number, 0 where it fits surely, None without a known limit; `over` is by how much its
    bound is over the lowest limit.
    """

    pool: str
    expected: int
    upper: int
    rank: int | None
    over: int


class Tried(Struct, frozen=True):
    """A run with some values changed, and what its pools hold. `starved`: an engine has no room for one sample."""

    workload: Workload
    made: tuple[tuple[Move, Scalar], ...]
    ledger: Ledger
    groups: dict[Group, Held]
    starved: bool

    def rank(self, scope: Sequence[Group] | None = None) -> int:
        """The worst verdict of some groups, or of the whole run."""
        if scope is None and self.starved:
            return 2
        held = self.groups.values() if scope is None else (self.groups[each] for each in scope if each in self.groups)
        return max((each.rank or 0 for each in held), default=0)


Scope = tuple[Group, ...] | None
"""The groups whose verdict is to be better; None for the whole run."""


class Search:
    """Plans changed runs, at most `MOST_PLANS` of them.

    `targets` are the groups that do not surely fit, the tightest by its bound first. Where only an engine has no room
    for a sample, its device is the one target. Where no limit is known, the fullest device is.
    """

    def __init__(self, workload: Workload, machine: Machine) -> None:
        self.machine, self.plans = machine, 0
        self.limits: dict[str, int | None] = {}
        self.beside = counts(workload)
        self.first = self._measure(workload, (), plan(workload, machine))
        self.targets = self._targets()
        self.is_tight = any(self.first.groups[each].rank for each in self.targets)
        self.worst = {each: self._decides(self.first, each) for each in self.targets}
        self.moves = [
            (move, values) for move, values in accepted(workload, machine) if self._has_place(move)
        ]  # fmt: skip

    def _targets(self) -> tuple[Group, ...]:
        groups = self.first.groups
        tight = [each for each, held in groups.items() if held.rank]
        if tight:
            return tuple(sorted(tight, key=lambda each: -self._fullness(groups[each])))
        if self.first.starved:
            return tuple(each for each, held in groups.items() if not is_host(held.pool))[-1:]
        unknown = [each for each, held in groups.items() if held.rank is None]
        devices = [each for each in unknown if not is_host(groups[each].pool)]
        if not devices and len(unknown) < len(groups):
            return ()
        return tuple(sorted(devices or unknown, key=lambda each: -groups[each].upper))[:1]

    def _fullness(self, held: Held) -> float:
        return held.upper / max(1, self._lowest(held.pool) or 1)

    def _has_place(self, move: Move) -> bool:
        """An engine that lacks room for a sample gets no less of it, and one that has it no more."""
        if move.starved and not self.first.starved:
            return False
        return move.raises == self.first.starved if move.key == "engine.memory_fraction" else True

    # -- one change ----------------------------------------------------------------------------------------

    def single(self, move: Move, values: Sequence[Scalar]) -> list[Remedy]:
        """The mildest value with the best verdict for the whole run, and for each pool that is short.

        Where no value helps a verdict, the one that lowers the pool the most. Empty where every value harms.
        """
        tried: list[Tried] = []
        for value in values:
            state = self._try([(move, value)])
            if state is not None and not self._harms(state):
                tried.append(state)
                if state.rank() == 0 and self.is_tight:
                    break
        if not tried:
            return []
        best = [self._mildest(tried, None)]
        for target in self.targets if best[0].rank() and len(self.targets) > 1 else ():
            state = self._mildest(tried, (target,))
            if state.rank((target,)) < best[0].rank((target,)):
                best.append(state)
        return [self._remedy(state) for state in best]

    def _mildest(self, tried: Sequence[Tried], scope: Scope) -> Tried:
        best = tried[0]
        for state in tried[1:]:
            ranks = state.rank(scope), best.rank(scope)
            if ranks[0] < ranks[1] or (ranks[0] == ranks[1] != 0 and self._lower(state, best, scope)):
                best = state
        return best

    # -- together ------------------------------------------------------------------------------------------

    def together(self, below: Cost | None, scope: Scope = None) -> Iterator[Remedy]:
        """Combinations in which every change is needed, of the lowest cost at which there are some that fit.

        Cheap changes alone come first, then more of the machine's devices, then each dearer change with all cheap
        ones, then two or all of them, then all with more devices, a smaller model, and last what hardly learns.
        Only what costs less than `below` is tried. Where nothing fits, what
        is tight, and else all that helps together, to show how far it goes.
        """
        seen: set[str] = set()
        tight: list[Remedy] = []
        for level in self._levels(below, scope):
            found: list[Remedy] = []
            for moves in level:
                built = self._build(moves, scope)
                if len(built.made) < 2 or built.rank(scope) >= self.first.rank(scope):
                    continue
                if len(found) >= MOST_COMBINATIONS:
                    break
                made = self._pruned(built, scope)
                remedy = self._remedy(made)
                if remedy.text not in seen and len(remedy.changes) > 1:
                    seen.add(remedy.text)
                    (tight if made.rank(scope) else found).append(remedy)
            if found:
                yield from found
                return
        yield from tight[:MOST_COMBINATIONS]
        everything = self._build([move for move, _ in self.moves if move.cost <= Cost.EXPERIMENT], scope)
        if below is None and not tight and len(everything.made) > 1:
            yield self._remedy(everything)

    def _levels(self, below: Cost | None, scope: Scope) -> Iterator[Iterable[Sequence[Move]]]:
        """Sets of moves to build from, by rising cost."""

        def at(cost: Cost) -> list[Move]:
            return [move for move, _ in self.moves if move.cost == cost and (below is None or cost < below)]

        if below == Cost.FREE or not (self.is_tight or self.first.starved):
            return
        free, slower, dear = at(Cost.FREE), at(Cost.SLOWER), at(Cost.EXPERIMENT)
        cheap = free + slower
        yield (free,)
        yield ([*free, move, *free] for move in slower)
        yield (cheap,)
        yield ([*cheap, move, *cheap] for move in at(Cost.HARDWARE))
        # before the dearer change, as some of those help only then, and after it, as a cap follows the lengths
        yield ([*cheap, move, *cheap] for move in dear)
        if len(dear) > 1 and self._build([*cheap, *dear, *cheap], scope).rank(scope) == 0:
            yield ([*cheap, *pair, *cheap] for pair in combinations(dear, 2))
        yield ([*cheap, *dear, *cheap],)
        yield ([*cheap, *dear, move, *cheap] for move in at(Cost.HARDWARE))
        yield ([*cheap, *dear, move, *cheap] for move in at(Cost.MODEL))
        yield ([*cheap, move, *dear, *cheap] for move in at(Cost.LOSSY))

    def _build(self, moves: Sequence[Move], scope: Scope) -> Tried:
        """As many of the moves as it takes, in order, each at its strongest and only where it helps; what
        raises a pool at its mildest."""
        state = self.first
        for move in moves:
            if state.rank(scope) == 0 and state.made:
                break
            values = [value for value in move.values(state.workload) if self._allowed(move, value)]
            if not values:
                continue
            others = [each for each in state.made if each[0].key != move.key]
            for value in values if move.raises else dict.fromkeys((values[-1], values[0])):
                tried = self._try([*others, (move, value)])
                if tried is not None and move.key == "rollout.max_answer":
                    tried = self._with_cap(tried)
                if tried is not None and not self._harms(tried) and self._lower(tried, state, scope):
                    state = tried
                    break
        return state

    def _with_cap(self, tried: Tried) -> Tried:
        """The same with a cap that follows shorter samples, or else more of them fill a micro-batch."""
        for move, values in accepted(tried.workload, self.machine):
            if move.key == "trainer.cap":
                others = [each for each in tried.made if each[0].key != move.key]
                return self._try([*others, (move, values[-1])]) or tried
        return tried

    def _pruned(self, state: Tried, scope: Scope) -> Tried:
        """The same verdict with fewer changes, the dearest left out first, and with milder values."""
        order = sorted(range(len(state.made)), key=lambda index: -PLACES[id(state.made[index][0])])
        for index in order:
            left = [each for each in state.made if each is not state.made[index]]
            if len(left) > 1 and self._as_good(fewer := self._try(left), state, scope):
                assert fewer is not None
                return self._pruned(fewer, scope)
        for index, (move, value) in enumerate(state.made):
            for milder in move.values(self.first.workload):
                if milder == value:
                    break
                changed = [*state.made[:index], (move, milder), *state.made[index + 1 :]]
                tried = self._try(changed) if self._allowed(move, milder) else None
                if self._as_good(tried, state, scope):
                    assert tried is not None
                    state = tried
                    break
        return state

    def _as_good(self, tried: Tried | None, state: Tried, scope: Scope) -> bool:
        return tried is not None and tried.rank(scope) <= state.rank(scope) and not self._harms(tried)

    def _allowed(self, move: Move, value: Scalar) -> bool:
        return accepts(self.first.workload.trainer.system, move.key, value, self.beside)

    # -- what a change does --------------------------------------------------------------------------------

    def helps(self, remedy: Remedy) -> bool:
        """Whether a remedy makes a verdict better, or lowers the pool that it is for, and in it the phase that
        decides, by more than next to nothing: to lower a phase that the run does not reach helps nobody."""
        effect = remedy.effects[0]
        if KINDS.index(remedy.kind) < self.first.rank() if remedy.kind in KINDS else False:
            return True
        saved = max(effect.before_bytes - effect.after_bytes, effect.before_upper - effect.after_upper)
        before, after = remedy.worst_before, remedy.worst_after
        decisive = max(before.bytes - after.bytes, before.upper - after.upper)
        better = effect.kind in KINDS and KINDS.index(effect.kind) < (self._first_of(effect.pool).rank or 0)
        return saved > 0 and (better or min(saved, decisive) > NEGLIGIBLE * before.upper)

    def _first_of(self, pool: str) -> Held:
        return next(held for held in self.first.groups.values() if held.pool == pool)

    def _try(self, made: Sequence[tuple[Move, Scalar]]) -> Tried | None:
        """The run with these changes; None where the planner refuses it or the search has made its plans."""
        if self.plans >= MOST_PLANS:
            return None
        workload = self.first.workload
        for move, value in made:
            workload = move.apply(workload, value)
        try:
            return self._measure(workload, tuple(made), plan(workload, self.machine))
        except InputError:
            return None

    def _measure(self, workload: Workload, made: tuple[tuple[Move, Scalar], ...], ledger: Ledger) -> Tried:
        self.plans += 1
        groups: dict[Group, Held] = {}
        for pool, (expected, upper) in tops(ledger).items():
            limit, rank, over = self._lowest(pool), None, 0
            if limit is not None:
                over = max(0, upper - limit)
                rank = 0 if upper <= limit else 1 if expected <= limit else 2
            held, group = Held(pool, expected, upper, rank, over), group_of(ledger, pool)
            seen = groups.get(group)
            if seen is None or (held.rank or 0, held.upper) > (seen.rank or 0, seen.upper):
                groups[group] = held
        return Tried(workload, made, ledger, groups, bool(refusals(workload, ledger)))

    def _lowest(self, pool: str) -> int | None:
        if pool not in self.limits:
            self.limits[pool] = min((limit.bytes for limit in limits_of(self.machine, pool)), default=None)
        return self.limits[pool]

    def _harms(self, tried: Tried) -> bool:
        """Whether a pool is worse off: its verdict, or what a pool that is short holds; or an engine newly lacks room
        for a sample."""
        if tried.starved and not self.first.starved:
            return True
        before = self.first.groups
        if any(
            (held.rank or 0) > (before[each].rank or 0 if each in before else 0)
            for each, held in tried.groups.items()
        ):
            return True
        if not self.is_tight and self.first.starved:
            return False
        return any(self._raised(tried, each) for each in self.targets)

    def _raised(self, tried: Tried, target: Group) -> bool:
        before, after = self.first.groups[target], tried.groups.get(target)
        return after is not None and (after.expected > before.expected or after.upper > before.upper)

    def _lower(self, tried: Tried, than: Tried, scope: Scope) -> bool:
        return self._weight(tried, scope) < self._weight(than, scope)

    def _weight(self, tried: Tried, scope: Scope) -> tuple[bool, int, int, int]:
        groups = self.targets if scope is None else scope
        held = [tried.groups[each] for each in groups if each in tried.groups]
        over = sum(each.over for each in held)
        starved = tried.starved if scope is None else False
        return starved, over, sum(each.expected for each in held), sum(each.upper for each in held)

    # -- what is said of it --------------------------------------------------------------------------------

    def _remedy(self, tried: Tried) -> Remedy:
        """Proposed for the tightest pool that it brings the furthest: to a better verdict, else lower."""
        gains = [self._gain(tried, each) for each in self.targets]
        chosen = self.targets[max(range(len(gains)), key=lambda index: (gains[index], -index))]
        targets = [chosen, *(each for each in self.targets if each != chosen)]
        effects = tuple(self._effect(tried, each) for each in targets)
        known = any(held.rank is not None for held in tried.groups.values())
        kind = KINDS[tried.rank()] if known else "cannot tell"
        keys = {move.key for move, _ in tried.made}
        changes = tuple(self.change(move, tried.workload, keys) for move, _ in tried.made)
        before = self.worst[chosen]
        pool = tried.groups[chosen].pool if chosen in tried.groups else before.pool
        gone = Peak(pool, before.phase, before.step, 0, 0)
        after = tried.ledger.peak_of(pool, before.phase) if before.phase in tried.ledger.phases(pool) else gone
        ordered = sorted(changes, key=lambda change: (change.cost, change.place))
        return Remedy(tuple(ordered), effects, kind, tried.workload, before, after, self._grown(tried))

    def _grown(self, tried: Tried) -> tuple[tuple[str, int], ...]:
        """Pools of which nobody said how much they have, and that need clearly more of it."""
        first = self.first.groups
        return tuple(
            (held.pool, held.upper)
            for group, held in tried.groups.items()
            if held.rank is None and group in first and held.upper > GROWN * first[group].upper
        )

    def _gain(self, tried: Tried, target: Group) -> tuple[int, float]:
        before, after = self.first.groups[target], tried.groups.get(target)
        if after is None:
            return (before.rank or 0), 1.0
        share = (before.upper - after.upper) / max(1, before.upper)
        return (before.rank or 0) - (after.rank or 0), share

    def _effect(self, tried: Tried, target: Group) -> Effect:
        before, after = self.first.groups[target], tried.groups.get(target)
        if after is None:
            worst = self.worst[target]
            return Effect(before.pool, before.expected, before.upper, 0, 0, worst.phase, "fits")
        kind: Kind = "cannot tell" if after.rank is None else KINDS[after.rank]
        phase = self._decides(tried, target).phase
        return Effect(before.pool, before.expected, before.upper, after.expected, after.upper, phase, kind)

    def _decides(self, tried: Tried, group: Group) -> Peak:
        held = tried.groups[group]
        return tried.ledger.worst(held.pool, self._lowest(held.pool))

    def change(self, move: Move, after: Workload, made: Collection[SpellKey] = ()) -> Change:
        """What a move came to in the run as changed, in the words of the run's own system; `made` are the keys of all
        moves."""
        before = value_of(self.first.workload, move.key)
        value = value_of(after, move.key)
        assert value is not None
        text = spell(after.trainer.system, move.key, value, before, counts(after))
        assert text is not None
        for key in move.also:
            was, now = value_of(self.first.workload, key), value_of(after, key)
            if move.key == "layout.context" and after.trainer.system not in VERL:
                continue
            if now and key not in made and (now != was or move.key == "layout.context"):
                text += f" {spell(after.trainer.system, key, now, was, counts(after))}"
        own = runspec(move.key, value) if after.trainer.system == "headway" else {}
        text = half.in_words(text, self.machine)
        loses = price(move.key, move.cost, value, after)
        return Change(move.key, before, value, text, move.cost, own, PLACES[id(move)], loses)


def group_of(ledger: Ledger, pool: str) -> Group:
    """Which pools a pool stands for.

    >>> from headway.plan.ledger import Line, Phase
    >>> line = Line("node[1].device[0]", Phase.TRAIN, "engine", 0, "weights", 1, 1, "device_used", "", "")
    >>> group_of(Ledger((line,), {Phase.TRAIN: 1}), "node[1].device[0]")
    ('device', 'engine')
    """
    kind = pool.rpartition(".")[2].partition("[")[0]
    roles = {line.role for phase in ledger.phases(pool)[:1] for line in ledger.select(pool, phase)} - BESIDE
    return kind, "trainer" if "trainer" in roles else "+".join(sorted(roles))
