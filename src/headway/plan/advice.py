"""What a search for changes found: changes, their cost, what they do to each pool that does not surely fit."""

from collections.abc import Mapping

from msgspec import Struct

from headway.facts.workload import Workload
from headway.foreign import settings
from headway.foreign.spelling import Scalar, SpellKey
from headway.plan.ledger import Peak, Phase
from headway.plan.moves import Cost
from headway.plan.prices import together
from headway.plan.verdict import Kind


class Change(Struct, frozen=True):
    """One key with its new value: as the input's own system writes it, and as keys of headway's RunSpec.

    `runspec` is empty where the change is not a key's to make. `before` is None where the run had no value. `place`
    is that of its move in the table of moves, by which equals of one cost are ordered. `loses` says what the change
    costs, as `speed: ...`, `learning: ...` or `data: ...`.

    >>> Change("trainer.cap", 4096, 512, "train.cap = 512", Cost.FREE, {"train.cap": 512}).value
    512
    """

    key: SpellKey
    before: Scalar | None
    value: Scalar
    text: str
    cost: Cost
    runspec: Mapping[str, Scalar]
    place: int = 0
    loses: str = ""


class Effect(Struct, frozen=True):
    """What changes do to one pool that did not surely fit, in bytes, and the verdict of that pool with them.

    `phase` is the worst of the run as changed.
    """

    pool: str
    before_bytes: int
    before_upper: int
    after_bytes: int
    after_upper: int
    phase: Phase
    kind: Kind


class Remedy(Struct, frozen=True):
    """Changes made together, and what they do to each pool that does not surely fit: `effects`.

    The first of `effects` is of the pool that they are proposed for. `kind` is the verdict of all pools that have a
    known limit, of the run as changed, `workload`. `worst_before` is the phase that decides in that first pool before
    the change, in which the run would end where it does not fit, and `worst_after` what the same phase holds with it.
    `grown` are pools without a known limit whose bound rises by more than a tenth, with the bound that they get.
    `deciding` are lengths that nobody said and whose half or double would change that verdict.
    """

    changes: tuple[Change, ...]
    effects: tuple[Effect, ...]
    kind: Kind
    workload: Workload
    worst_before: Peak
    worst_after: Peak
    grown: tuple[tuple[str, int], ...] = ()
    deciding: tuple[str, ...] = ()

    @property
    def verdict(self) -> Kind:
        """What a plan of the run as changed says."""
        return "cannot tell" if self.deciding else self.kind

    @property
    def pool(self) -> str:
        """The pool that it is proposed for."""
        return self.effects[0].pool

    @property
    def before_bytes(self) -> int:
        """What that pool was expected to hold."""
        return self.effects[0].before_bytes

    @property
    def before_upper(self) -> int:
        """The bound of that."""
        return self.effects[0].before_upper

    @property
    def after_bytes(self) -> int:
        """What that pool is expected to hold with the changes."""
        return self.effects[0].after_bytes

    @property
    def after_upper(self) -> int:
        """The bound of that."""
        return self.effects[0].after_upper

    @property
    def phase(self) -> Phase:
        """The worst phase of that pool with the changes."""
        return self.effects[0].phase

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
    def loses(self) -> str:
        """What the changes cost in learning, speed or data, in words."""
        return together(change.loses for change in self.changes)

    @property
    def runspec(self) -> dict[str, Scalar]:
        """All changes as keys of a RunSpec; ValueError where one of them is not a key's to make."""
        if missing := [change.text for change in self.changes if not change.runspec]:
            raise ValueError(f"no RunSpec key makes {missing[0]}")
        return {key: value for change in self.changes for key, value in change.runspec.items()}


class Advice(Struct, frozen=True):
    """`remedies` help pools that do not surely fit, the best first; the changes of `without_effect` help none.

    First come those for the whole run, then those that help one pool alone, pool by pool, the tightest first. Each
    group has changes of settings before more hardware before another model; of these what fits before what is tight
    before what only helps; and of these the least costly first. `plans` is how many plans the search made.
    """

    remedies: tuple[Remedy, ...]
    without_effect: tuple[Remedy, ...]
    plans: int

    def whole(self) -> tuple[Remedy, ...]:
        """Those that are enough for the whole run, surely or tightly."""
        return tuple(each for each in self.remedies if each.fits)

    def by_pool(self) -> dict[str, tuple[Remedy, ...]]:
        """The others, by the pool that each is proposed for."""
        others = [each for each in self.remedies if not each.fits]
        return {pool: tuple(each for each in others if each.pool == pool) for pool in [each.pool for each in others]}


def as_settings(before: Workload, after: Workload) -> tuple[str, ...]:
    """The keys in which two runs differ, as `--set` takes them in this order, without those that an earlier one sets
    too; the model is none of them.

    >>> from msgspec.structs import replace
    >>> from headway.facts.shapes import table
    >>> from headway.foreign.presets import workload
    >>> run = workload(table()["qwen3-4b"], "miles-fsdp")
    >>> as_settings(run, replace(run, rollout=replace(run.rollout, max_answer=256)))
    ('rollout.max_answer=256',)
    """
    found: list[str] = []
    for path in settings.table():
        new = _at(after, path)
        if path != "weights_file_bytes" and _at(before, path) != new:
            found.append(f"{path}={_written(new)}")
            before = settings.apply(before, found[-1:]) if _is_key(path, new) else before
    return tuple(found)


def _is_key(path: str, value: object) -> bool:
    """Whether a value can be set at a path: a section that is gone has none."""
    return value is not None or "." not in path.removeprefix("trainer.")


def _at(workload: Workload, path: str) -> object:
    found: object = workload
    for name in path.split("."):
        found = None if found is None else getattr(found, name)
    return found


def _written(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "(" + ",".join(map(str, value)) + ")"
    return "none" if value is None else str(value)
