"""What to set instead: changes that the run's own trainer accepts, each planned again, the cheapest first."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations

from msgspec import Struct

from headway.errors import InputError
from headway.facts.machine import Machine
from headway.facts.workload import Workload
from headway.foreign import settings
from headway.foreign.spelling import Scalar, SpellKey, runspec, spell
from headway.plan.flight import refusals
from headway.plan.ledger import Ledger, Peak, Phase
from headway.plan.moves import Cost, Move, accepted, value_of
from headway.plan.plan import plan
from headway.plan.verdict import Kind, limits_of, tops, verdict

MOST_PLANS = 400
"""Plans of one search, which is about a quarter of a second."""
MOST_COMBINATIONS = 4
NEGLIGIBLE = 0.01
"""A change that moves a peak by less than this share of it, and no verdict, is said to be without effect."""

_RANKS: dict[Kind, int] = {"fits": 0, "cannot tell": 0, "tight": 1, "does not fit": 2}


class Change(Struct, frozen=True):
    """One key with its new value: as the input's own system writes it, and as keys of headway's RunSpec.

    `runspec` is empty where the change is not a key's to make. `before` is None where the run had no value.

    >>> Change("trainer.cap", 4096, 512, "train.cap = 512", Cost.FREE, {"train.cap": 512}).value
    512
    """

    key: SpellKey
    before: Scalar | None
    value: Scalar
    text: str
    cost: Cost
    runspec: Mapping[str, Scalar]


class Remedy(Struct, frozen=True):
    """Changes made together, and what they do to the pool that fits worst, in bytes.

    `after_*` are of the run as changed, `workload`, whose worst phase in that pool is `phase`. `kind` is the verdict
    of all its pools that have a known limit. `worst_before` is the phase that decides before the change, in which
    the run would end where it does not fit, and `worst_after` what the same phase holds with it.
    """

    changes: tuple[Change, ...]
    pool: str
    before_bytes: int
    before_upper: int
    after_bytes: int
    after_upper: int
    phase: Phase
    kind: Kind
    workload: Workload
    worst_before: Peak
    worst_after: Peak

    @property
    def text(self) -> str:
        """The changes in the input's own words."""
        return " and ".join(change.text for change in self.changes)

    @property
    def fits(self) -> bool:
        """Whether the run may start: what is expected is inside every known limit."""
        return self.kind in ("fits", "tight")

    @property
    def cost(self) -> Cost:
        """The dearest of the changes."""
        return max(change.cost for change in self.changes)

    @property
    def runspec(self) -> dict[str, Scalar]:
        """All changes as keys of a RunSpec; ValueError where one of them is not a key's to make."""
        if missing := [change.text for change in self.changes if not change.runspec]:
            raise ValueError(f"no RunSpec key makes {missing[0]}")
        return {key: value for change in self.changes for key, value in change.runspec.items()}


class Advice(Struct, frozen=True):
    """`remedies` lower the pool that fits worst, the best first; the changes of `without_effect` do not.

    Ranked by verdict, then by cost, then by how many changes it takes; those that do not make it fit by their peak.
    `plans` is how many plans the search made.
    """

    remedies: tuple[Remedy, ...]
    without_effect: tuple[Remedy, ...]
    plans: int


def remedies(workload: Workload, machine: Machine) -> Advice:
    """Search changes, singly and, as long as no cheaper one makes the run fit alone, together.

    No remedy overfills another pool: none makes the verdict of a pool with a known limit worse. Nothing is searched
    where the run has no accepted change.
    """
    search = _Search(workload, machine)
    singles = [found for move, values in accepted(workload, machine) if (found := search.single(move, values))]
    cheapest = min((each.cost for each in singles if each.kind == "fits"), default=None)
    together = list(search.together(below=cheapest))
    helpful = [each for each in (*singles, *together) if search.helps(each)]
    idle = [each for each in singles if not search.helps(each)]
    return Advice(tuple(sorted(helpful, key=_rank)), tuple(idle), search.plans)


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
    search = _Search(workload, machine)
    found = []
    for move, values in search.moves:
        if (move.key, move.cost) != ("trainer.reference", Cost.FREE):
            continue
        without = move.apply(workload, values[0])
        change, after = search.change(move, without), tops(plan(without, machine))
        found += [
            Saving(change, pool, *before, *after[pool])
            for pool, before in search.first.tops.items()
            if after[pool][0] < before[0]
        ]
    return tuple(found)


def _rank(remedy: Remedy) -> tuple[int, int, int, int]:
    kind = _RANKS[remedy.kind]
    if kind == _RANKS["does not fit"]:
        return kind, remedy.after_bytes, 0, 0
    return kind, remedy.cost, len(remedy.changes), sum(change.cost for change in remedy.changes)


class _Tried(Struct, frozen=True):
    """A run with some values changed, and what its pools hold at most: (expected, upper)."""

    workload: Workload
    made: tuple[tuple[Move, Scalar], ...]
    ledger: Ledger
    tops: dict[str, tuple[int, int]]
    over: int
    """Bytes by which upper bounds are over the lowest limits, all pools together."""
    starved: bool
    """Whether an engine has no room for one sample."""
    ranks: dict[str, int]

    @property
    def rank(self) -> int:
        return _RANKS["does not fit"] if self.starved else max(self.ranks.values(), default=0)


class _Search:
    """Plans changed runs, at most `MOST_PLANS` of them."""

    def __init__(self, workload: Workload, machine: Machine) -> None:
        self.machine, self.plans = machine, 0
        self.limits: dict[str, int | None] = {}
        self.first = self._measure(workload, (), plan(workload, machine))
        worst = min(verdict(self.first.ledger, machine), key=lambda each: each.room)
        self.pool, self.worst = worst.pool, worst.peak
        self.moves = list(accepted(workload, machine))

    def single(self, move: Move, values: Sequence[Scalar]) -> Remedy | None:
        """The mildest value with the best verdict; where no value helps the verdict, the last one."""
        best: _Tried | None = None
        for value in values:
            tried = self._try([(move, value)])
            if tried is not None and not self._harms(tried) and (best is None or tried.rank <= best.rank):
                if best is None or tried.rank < best.rank or self._lower(tried, best):
                    best = tried
                if best.rank == 0:
                    break
        return None if best is None or self._raises(best) else self._remedy(best)

    def together(self, below: Cost | None) -> Iterator[Remedy]:
        """Combinations in which every change is needed, of the lowest cost at which there are some that fit.

        Cheap changes alone come first, then each dearer change with all cheap ones, then two or all of them, and a
        smaller model and more hardware last. Only what costs less than `below` is tried. Where nothing fits, what is
        tight, and else all that helps together, to show how far it goes.
        """
        seen: set[str] = set()
        tight: list[Remedy] = []
        for level in self._levels(below):
            found: list[Remedy] = []
            for moves in level:
                built = self._build(moves)
                if len(built.made) < 2 or built.rank >= self.first.rank or len(found) >= MOST_COMBINATIONS:
                    continue
                remedy = self._remedy(self._pruned(built))
                if remedy.text not in seen and len(remedy.changes) > 1:
                    seen.add(remedy.text)
                    (found if remedy.kind == "fits" else tight).append(remedy)
            if found:
                yield from found
                return
        yield from sorted(tight, key=_rank)[:MOST_COMBINATIONS]
        everything = self._build([move for move, _ in self.moves if move.cost <= Cost.EXPERIMENT])
        if below is None and not tight and len(everything.made) > 1:
            yield self._remedy(everything)

    def _levels(self, below: Cost | None) -> Iterator[Iterable[Sequence[Move]]]:
        """Sets of moves to build from, by rising cost."""

        def at(cost: Cost) -> list[Move]:
            return [move for move, _ in self.moves if move.cost == cost and (below is None or cost < below)]

        if below == Cost.FREE or self.first.rank == 0:
            return
        free, cheap, dear = at(Cost.FREE), at(Cost.FREE) + at(Cost.SLOWER), at(Cost.EXPERIMENT)
        yield (free,)
        yield (cheap,)
        # before the dearer change, as some of those help only then, and after it, as a cap follows the lengths
        yield ([*cheap, move, *cheap] for move in dear)
        yield ([*cheap, *pair, *cheap] for pair in combinations(dear, 2))
        yield ([*cheap, *dear, *cheap],)
        yield ([*cheap, *dear, move, *cheap] for move in at(Cost.MODEL) + at(Cost.HARDWARE))

    def helps(self, remedy: Remedy) -> bool:
        """Whether a remedy makes the verdict better, or lowers the pool, and in it the phase that decides, by more
        than next to nothing: to lower a phase that the run does not reach helps nobody."""
        saved = max(remedy.before_bytes - remedy.after_bytes, remedy.before_upper - remedy.after_upper)
        before, after = remedy.worst_before, remedy.worst_after
        decisive = max(before.bytes - after.bytes, before.upper - after.upper)
        better = _RANKS[remedy.kind] < self.first.rank
        return saved > 0 and (better or min(saved, decisive) > NEGLIGIBLE * before.upper)

    def _build(self, moves: Sequence[Move]) -> _Tried:
        """As many of the moves as it takes, in order, each at its strongest and only where it helps."""
        state = self.first
        for move in moves:
            if state.rank == 0 and state.made:
                break
            values = [value for value in move.values(state.workload) if self._allowed(move, value)]
            if not values:
                continue
            others = [each for each in state.made if each[0] is not move]
            tried = self._try([*others, (move, values[-1])])
            if tried is not None and move.key == "rollout.max_answer":
                tried = self._with_cap(tried)
            if tried is not None and not self._harms(tried) and self._lower(tried, state):
                state = tried
        return state

    def _with_cap(self, tried: _Tried) -> _Tried:
        """The same with a cap that follows shorter samples, or else more of them fill a micro-batch."""
        for move, values in accepted(tried.workload, self.machine):
            if move.key == "trainer.cap":
                others = [each for each in tried.made if each[0] is not move]
                return self._try([*others, (move, values[-1])]) or tried
        return tried

    def _pruned(self, state: _Tried) -> _Tried:
        """The same verdict with fewer changes, the dearest left out first, and with milder values."""
        for index in sorted(range(len(state.made)), key=lambda index: -state.made[index][0].cost):
            left = [each for each in state.made if each is not state.made[index]]
            if len(left) > 1 and (fewer := self._try(left)) and fewer.rank <= state.rank and not self._harms(fewer):
                return self._pruned(fewer)
        for index, (move, value) in enumerate(state.made):
            for milder in move.values(self.first.workload):
                if milder == value:
                    break
                changed = [*state.made[:index], (move, milder), *state.made[index + 1 :]]
                tried = self._try(changed) if self._allowed(move, milder) else None
                if tried is not None and tried.rank <= state.rank and not self._harms(tried):
                    state = tried
                    break
        return state

    def _allowed(self, move: Move, value: Scalar) -> bool:
        return spell(self.first.workload.trainer.system, move.key, value) is not None

    def _try(self, made: Sequence[tuple[Move, Scalar]]) -> _Tried | None:
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

    def _measure(self, workload: Workload, made: tuple[tuple[Move, Scalar], ...], ledger: Ledger) -> _Tried:
        self.plans += 1
        held, over, ranks = tops(ledger), 0, {}
        for pool, (expected, upper) in held.items():
            limit = self._lowest(pool)
            if limit is not None:
                over += max(0, upper - limit)
                ranks[pool] = 0 if upper <= limit else 1 if expected <= limit else 2
        return _Tried(workload, made, ledger, held, over, bool(refusals(workload, ledger)), ranks)

    def _lowest(self, pool: str) -> int | None:
        if pool not in self.limits:
            self.limits[pool] = min((limit.bytes for limit in limits_of(self.machine, pool)), default=None)
        return self.limits[pool]

    def _harms(self, tried: _Tried) -> bool:
        """Whether a pool that was inside its limit is worse off, or the engine has no room left for a sample."""
        return (tried.starved and not self.first.starved) or any(
            rank > self.first.ranks.get(pool, 0) for pool, rank in tried.ranks.items()
        )

    def _lower(self, tried: _Tried, than: _Tried) -> bool:
        if tried.over != than.over:
            return tried.over < than.over
        return tried.tops[self._pool_in(tried)] < than.tops[self._pool_in(than)]

    def _pool_in(self, tried: _Tried) -> str:
        """The pool that fits worst, in a changed run: where an engine's devices come after the trainer's, more of
        those move it, and the fullest pool of its kind stands for it."""
        if self.pool in tried.tops:
            return self.pool
        kind = self.pool.rpartition(".")[2].partition("[")[0]
        same = [pool for pool in tried.tops if pool.rpartition(".")[2].partition("[")[0] == kind]
        return max(same or tried.tops, key=lambda pool: tried.tops[pool][1])

    def _raises(self, tried: _Tried) -> bool:
        """Whether the pool that fits worst holds more than before, by what is expected or by its bound."""
        after, before = tried.tops[self._pool_in(tried)], self.first.tops[self.pool]
        return after[0] > before[0] or after[1] > before[1]

    def _remedy(self, tried: _Tried) -> Remedy:
        ledger, phase = tried.ledger, self.worst.phase
        pool = self._pool_in(tried)
        expected, upper = tried.tops[pool]
        before = self.first.tops[self.pool]
        kinds: tuple[Kind, ...] = ("fits", "tight", "does not fit")
        kind = kinds[tried.rank] if tried.ranks else "cannot tell"
        changes = tuple(self.change(move, tried.workload) for move, _ in tried.made)
        gone = Peak(pool, phase, self.worst.step, 0, 0)
        after = ledger.peak_of(pool, phase) if phase in ledger.phases(pool) else gone
        return Remedy(
            tuple(sorted(changes, key=lambda change: change.cost)), self.pool, before[0], before[1], expected, upper,
            ledger.worst(pool, self._lowest(pool)).phase, kind, tried.workload, self.worst, after,
        )  # fmt: skip

    def change(self, move: Move, after: Workload) -> Change:
        """What a move came to in the run as changed, in the words of the run's own system."""
        before = value_of(self.first.workload, move.key)
        value = value_of(after, move.key)
        assert value is not None
        answers = after.rollout.prompts * after.rollout.samples
        text = spell(after.trainer.system, move.key, value, before, answers)
        assert text is not None
        own = runspec(move.key, value) if after.trainer.system == "headway" else {}
        return Change(move.key, before, value, text, move.cost, own)


def as_settings(before: Workload, after: Workload) -> tuple[str, ...]:
    """The keys in which two runs differ, as `--set` takes them; the model is none of them.

    >>> from msgspec.structs import replace
    >>> from headway.facts.shapes import table
    >>> from headway.foreign.presets import workload
    >>> run = workload(table()["qwen3-4b"], "miles-fsdp")
    >>> as_settings(run, replace(run, rollout=replace(run.rollout, max_answer=256)))
    ('rollout.max_answer=256',)
    """
    found = ((path, _at(before, path), _at(after, path)) for path in settings.table())
    return tuple(f"{path}={_written(new)}" for path, old, new in found if old != new and path != "weights_file_bytes")


def _at(workload: Workload, path: str) -> object:
    found: object = workload
    for name in path.split("."):
        found = None if found is None else getattr(found, name)
    return found


def _written(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None else str(value)
