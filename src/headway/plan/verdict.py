"""Whether a plan fits a machine, pool by pool, and the longest sample that still does."""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from headway.facts.machine import Limit, Machine
from headway.facts.workload import Workload, unknown_key
from headway.plan.flight import refusals
from headway.plan.ledger import Ledger, Line, Peak
from headway.plan.plan import plan

Kind = Literal["fits", "tight", "does not fit", "cannot tell"]
"""Even the upper bound is inside every limit; only the expected peak is; not even that; no limit is known, or what
holds memory is in no line."""

EXIT_CODES: dict[Kind, int] = {"fits": 0, "tight": 0, "does not fit": 3, "cannot tell": 4}
"""A tight plan exits like one that fits: what is expected is inside the limit, and a run may start with a warning."""

LARGEST = 5
"""Lines of the worst phase that a verdict names."""


class Margin(NamedTuple):
    """What one limit leaves above the expected peak and above the upper bound, in bytes; negative where it is over.

    >>> Margin(Limit("memory", 100, "the kernel kills a process", ""), expected=30, upper=-5).kind
    'tight'
    """

    limit: Limit
    expected: int
    upper: int

    @property
    def kind(self) -> Kind:
        """The verdict of this limit alone."""
        if self.upper >= 0:
            return "fits"
        return "tight" if self.expected >= 0 else "does not fit"


class PoolVerdict(Struct, frozen=True):
    """One pool's plan against each of its limits.

    `peak` is the phase that decides: where the run is expected to pass the lowest limit, the first phase that may,
    because it ends there and reaches no later one; where only a bound is over it, the one with the highest bound;
    otherwise the one that holds the most. `upper` is the most that
    any phase may hold. `margins` has every limit of the pool, the lowest first; none where no limit is known. `role`
    and `rank` hold the most of the worst phase, `largest` are its largest lines.

    >>> from headway.plan.ledger import Phase
    >>> lines = (Line("node[0].host", Phase.TRAIN, "trainer", 0, "weights", 60, 70, "host", "", ""),)
    >>> limit = Limit("memory", 64, "the kernel kills a process", "")
    >>> found = of_pool(Ledger(lines, {Phase.TRAIN: 2}), "node[0].host", (limit,))
    >>> found.kind, found.margin, found.peak.step, found.role
    ('tight', -6, 2, 'trainer')
    """

    pool: str
    kind: Kind
    peak: Peak
    upper: int
    margins: tuple[Margin, ...]
    role: str
    rank: int
    largest: tuple[Line, ...]

    @property
    def limit(self) -> Limit | None:
        """The limit that is reached first; None where none is known."""
        return self.margins[0].limit if self.margins else None

    @property
    def margin(self) -> int:
        """What the lowest limit leaves above the upper bound in bytes, negative where it does not; 0 without one."""
        return self.margins[0].upper if self.margins else 0

    @property
    def room(self) -> float:
        """How far the expected peak is below the lowest limit, as a share of it; infinite without one."""
        return self.margins[0].expected / max(1, self.margins[0].limit.bytes) if self.margins else float("inf")


class Outcome(Struct, frozen=True):
    """The verdict of a whole plan: of its pools, and what nobody said but would change it (`deciding`).

    `refusals` say why the run does not work whatever its pools say, in words; `unplanned` what holds memory and is in
    no line, so that pools that fit tell nothing.

    >>> Outcome("tight", (), ()).exit_code, Outcome("cannot tell", (), ()).exit_code
    (0, 4)
    """

    kind: Kind
    pools: tuple[PoolVerdict, ...]
    deciding: tuple[str, ...]
    refusals: tuple[str, ...] = ()
    unplanned: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """What a command that plans exits with."""
        return EXIT_CODES[self.kind]


def verdict(ledger: Ledger, machine: Machine) -> tuple[PoolVerdict, ...]:
    """A verdict for each pool of the ledger, against all limits that the machine knows of it.

    Where CPU and GPU share one memory, its limits hold for the host's pool and for the device's, each on its own,
    of a ledger that was planned without the machine: one that was planned on it has the one pool.
    """
    return tuple(of_pool(ledger, name, limits_of(machine, name)) for name in ledger.pools())


def of_pool(ledger: Ledger, name: str, limits: Sequence[Limit]) -> PoolVerdict:
    """The verdict of one pool against the given limits, in any order."""
    most, upper = ledger.peak(name).bytes, ledger.upper(name)
    margins = tuple(
        Margin(limit, limit.bytes - most, limit.bytes - upper)
        for limit in sorted(limits, key=lambda limit: limit.bytes)
    )
    peak = ledger.worst(name, margins[0].limit.bytes if margins else None)
    lines = sorted(ledger.select(name, peak.phase), key=lambda line: -line.bytes)
    held: dict[tuple[str, int], int] = {}
    for line in lines:
        held[line.role, line.rank] = held.get((line.role, line.rank), 0) + line.bytes
    role, rank = max(held, key=lambda each: held[each])
    kind: Kind = margins[0].kind if margins else "cannot tell"
    return PoolVerdict(name, kind, peak, upper, margins, role, rank, tuple(lines[:LARGEST]))


def overall(
    pools: Sequence[PoolVerdict], deciding: Sequence[str] = (), refusals: Sequence[str] = (),
    unplanned: Sequence[str] = (),
) -> Outcome:  # fmt: skip
    """The verdict of the whole plan.

    "does not fit" if one pool does not, or an engine refuses (`flight.refusals`). "cannot tell" if something that
    nobody said decides, if something holds memory that is in no line, or if a device, or the host of a plan without
    devices, has no known limit. A host without one beside devices that have theirs is listed, and holds nothing back:
    device memory is what a run is placed by, and how much DRAM a node has is often not said. Else "tight" if one
    pool is.
    """
    decides = [each for each in pools if not is_host(each.pool)] or pools
    kinds = {each.kind for each in pools}
    if deciding and not refusals:
        kind: Kind = "cannot tell"
    elif refusals or "does not fit" in kinds:
        kind = "does not fit"
    elif unplanned or not decides or any(each.kind == "cannot tell" for each in decides):
        kind = "cannot tell"
    else:
        kind = "tight" if "tight" in kinds else "fits"
    return Outcome(kind, tuple(pools), tuple(deciding), tuple(refusals), tuple(unplanned))


def judge(workload: Workload, machine: Machine, ledger: Ledger | None = None) -> Outcome:
    """The verdict of a run on a machine, with what nobody said and would change it; `ledger` where it is planned."""
    ledger = plan(workload, machine) if ledger is None else ledger
    pools = verdict(ledger, machine)
    return overall(pools, deciding(workload, machine), refusals(workload, ledger), workload.in_no_line)


def is_host(pool: str) -> bool:
    """Whether a pool is the host memory of a node with memory of its own for devices.

    >>> is_host("node[0].host"), is_host("node[0].unified")
    (True, False)
    """
    return pool.rpartition(".")[2] == "host"


def limits_of(machine: Machine, pool: str) -> tuple[Limit, ...]:
    """What the machine knows of a pool's limits; those of unified memory for any pool of a node that has it.

    Nodes and devices beyond those of the machine are taken to be like its first.
    """
    by_name = {known.name: known for known in machine.pools}
    node, _, kind = pool.partition(".")
    like = f"node[0].{kind.partition('[')[0]}" + ("[0]" if "[" in kind else "")
    found = by_name.get(pool) or by_name.get(f"{node}.unified") or by_name.get(like) or by_name.get("node[0].unified")
    return () if found is None else found.limits


UNSAID = 2
"""A length that nobody gave may be half or twice the value that was assumed."""

_LENGTHS = {"rollout.max_prompt": "max_prompt", "rollout.max_answer": "max_answer", "max_total_len": "max_answer"}
"""What an unknown length is called -> the field of the rollout; a launch without samples has the sequences' alone."""


def deciding(workload: Workload, machine: Machine) -> tuple[str, ...]:
    """The unknown lengths of a run whose half or double would make the difference between fitting and not.

    `Workload.unknown` names a key first. Only lengths are tried: other unknowns are choices that a preset makes,
    which the reader of the plan can see and set.
    """
    found = [
        text for text in workload.unknown
        if unknown_key(text) in _LENGTHS and not text.endswith("default)")
    ]  # fmt: skip
    return tuple(text for text in found if len(set(_outcomes(workload, machine, text))) > 1)


def _outcomes(workload: Workload, machine: Machine, unknown: str) -> Iterator[bool]:
    """Whether the run fits with the unknown length as assumed, halved, doubled."""
    name = _LENGTHS[unknown_key(unknown)]
    assumed: int = getattr(workload.rollout, name)
    for size in (assumed, max(1, assumed // UNSAID), assumed * UNSAID):
        changed = with_lengths(workload, **{name: size})
        yield all(each.kind != "does not fit" for each in verdict(plan(changed, machine), machine))


def with_lengths(workload: Workload, **lengths: int) -> Workload:
    """The same run with other `max_prompt` or `max_answer`; a cap that held one longest sample holds it still."""
    rollout = replace(workload.rollout, **lengths)
    trainer = workload.trainer
    if trainer.cap == workload.rollout.longest:
        trainer = replace(trainer, cap=rollout.longest)
    return replace(workload, rollout=rollout, trainer=trainer)


def tops(ledger: Ledger) -> dict[str, tuple[int, int]]:
    """(expected, upper) of each pool, each at its highest phase."""
    found = {}
    for pool in ledger.pools():
        peaks = [ledger.peak_of(pool, phase) for phase in ledger.phases(pool)]
        found[pool] = (max(peak.bytes for peak in peaks), max(peak.upper for peak in peaks))
    return found


def excess(workload: Workload, machine: Machine, *, surely: bool = True) -> int | None:
    """How far the upper bound, or what is expected, is over the lowest limit, in bytes, in the pool where it is
    furthest; None without limits. At most 0 where the run surely fits, or is expected to."""
    over = []
    for pool, sizes in tops(plan(workload, machine)).items():
        if limits := limits_of(machine, pool):
            over.append(sizes[surely] - min(limit.bytes for limit in limits))
    return max(over, default=None)


def fits_surely(workload: Workload, machine: Machine) -> bool:
    """Whether every pool keeps even its upper bound inside its lowest known limit."""
    over = excess(workload, machine)
    return over is None or over <= 0


def longest_sample(workload: Workload, machine: Machine, most: int = 0, *, surely: bool = True) -> int:
    """The longest sample in tokens whose micro-batch keeps the upper bound, or what is expected, inside all limits.

    A micro-batch that is bounded by a cap holds max(longest sample, cap) tokens, so the sample is tried alone: a cap
    below it does not help. One of `trainer.rows` samples holds as many of the longest. At most `most` tokens (0: the
    longest sample that the run can make), and 0 where not even one token fits.
    """
    rollout = workload.rollout

    def over(tokens: int) -> int | None:
        # answers first: they are what carries a loss; beyond the run's own lengths the answer grows
        prompt = min(rollout.max_prompt, max(1, tokens - rollout.max_answer))
        lengths = {"max_prompt": prompt, "max_answer": max(1, tokens - prompt)}
        changed = replace(workload, rollout=replace(rollout, **lengths))
        trainer = replace(workload.trainer, cap=1, score_cap=min(1, workload.trainer.score_cap))
        return excess(replace(changed, trainer=trainer), machine, surely=surely)

    return furthest(over, 0, most or rollout.longest)


def furthest(over: Callable[[int], int | None], low: int, high: int, at_low: int | None = None) -> int:
    """The largest size up to `high` at which `over`, which never falls, is at most 0 or None; `low` if none above is.

    `over` is close to piecewise linear for a ledger, so the next size tried is where the line through the two
    nearest known sizes crosses 0, and the middle where that step has not halved what is left. `at_low` is what
    `over` is at `low`, where that is known and at most 0.

    >>> tried = []
    >>> furthest(lambda size: tried.append(size) or 3 * size - 3000, 0, 1 << 20), len(tried)
    (1000, 5)
    """
    if high <= low:
        return low
    below = at_low
    if below is None:
        below = over(low + 1)
        if below is not None and below > 0:
            return low
        low += 1
    above = over(high)
    if above is None or below is None or above <= 0:
        return high
    halved = True
    while high - low > 1:
        size = low + (high - low) * -below // (above - below) if halved else (low + high) // 2
        size, width = min(high - 1, max(low + 1, size)), high - low
        value = over(size)
        if value is not None and value > 0:
            high, above = size, value
        else:
            low, below = size, value or 0
        halved = not halved or high - low <= width // 2
    return low
