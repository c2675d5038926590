"""Which models train here: models x recipes on one machine, the longest answers that fit, and the rule of thumb.

Every recipe is one trainer with one standard batch, `presets`' own: 8 prompts of up to 512 tokens x 8 answers of
1,024. headway's recipes take their micro-batch's cap from the longest sample and a KV budget from the machine.
"""

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache

from msgspec import Struct
from msgspec.structs import replace

from headway.errors import InputError
from headway.facts.machine import Limit, Machine
from headway.facts.shapes import TRAINED, ModelShape, table
from headway.facts.workload import Lora, Workload
from headway.foreign.presets import PRESETS
from headway.plan.flight import in_flight, refusals
from headway.plan.ledger import Ledger
from headway.plan.plan import plan
from headway.plan.smaller import is_rehearsal
from headway.plan.verdict import Kind, furthest, limits_of, overall, tops, verdict, with_lengths
from headway.units import GIB, MIB

RULE_BYTES = 16
"""Bytes a parameter of the rule of thumb: weights and gradients in half precision, fp32 master and two moments."""
RULE_SHARE = 0.5
"""Share of the memory that the rule takes as its first guess."""
KV_SHARE = 16
"""headway's recipes give the KV cache one sixteenth of the memory: in flight is what generates in one batch."""
GRAIN = 64
"""Answers are tried in steps of this many tokens."""
LONGEST = 32_768
"""Longest answer that is tried."""
BEYOND = 1.25
"""Models of so many times the parameters of one that does not fit at all are left out: they hold more."""
VOCABULARY = 1024
"""Vocabularies are told apart in steps of this many tokens: some models add a few of their own."""


class Recipe(Struct, frozen=True):
    """A way to train: its name, the trainer that runs it, and the run that it makes of a model.

    >>> OWN[0].name, OWN[0].build(table()["qwen3-0.6b"]).trainer.system
    ('full', 'headway')
    """

    name: str
    trainer_system: str
    build: Callable[[ModelShape], Workload]


def _own(**fields: object) -> Callable[[ModelShape], Workload]:
    def build(shape: ModelShape) -> Workload:
        run = PRESETS["headway"].build(shape)
        return replace(run, trainer=replace(run.trainer, **fields))

    return build


_ADAPTERS = Lora(16, "all-linear")

OWN: tuple[Recipe, ...] = (
    Recipe("full", "headway", _own()),
    Recipe("full, fp32", "headway", _own(param_dtype="fp32")),
    Recipe("LoRA r16", "headway", _own(lora=_ADAPTERS)),
    Recipe("LoRA r16, fp32", "headway", _own(lora=_ADAPTERS, param_dtype="fp32")),
)
"""What `headway train` runs, with fp32 AdamW states, recomputed activations and no reference model. Parameters are
bf16 but where a name says fp32."""

OTHERS: tuple[Recipe, ...] = (
    Recipe("full, Miles FSDP", "miles-fsdp", PRESETS["miles-fsdp"].build),
    Recipe("full, TRL", "trl", PRESETS["trl"].build),
    Recipe("QLoRA r16, PEFT", "peft", PRESETS["qlora"].build),
)
"""What other trainers run, under their names: add a row for one more."""


class Row(Struct, frozen=True):
    """One model under one recipe: what its standard batch is expected to hold and at most holds of `pool`, in bytes.

    `pool` is the one that fits worst, `limit` its lowest limit, None where none is known, which is "cannot tell".
    `longest_answer` is in tokens, of the longest answer at which the run still surely fits, 0 where none does, and
    `in_flight` how many samples then generate at once, None where that is not planned.
    """

    model: str
    parameters: int
    recipe: Recipe
    kind: Kind
    pool: str
    expected: int
    upper: int
    limit: Limit | None
    longest_answer: int
    in_flight: int | None

    @property
    def surely(self) -> bool:
        """Whether even the upper bound of the standard batch is inside every known limit."""
        return self.kind == "fits"


class Rule(Struct, frozen=True):
    """The rule of thumb beside the ledger: 16 bytes a parameter, and half of the memory as first guess. In bytes.

    >>> rule = Rule(table()["qwen3-4b"].parameters(), 130_661_023_744)
    >>> in_both_units(rule.bytes), in_both_units(rule.guess), rule.fits
    ('64.4 GB (59.9 GiB)', '65.3 GB (60.8 GiB)', True)
    """

    parameters: int
    memory: int

    @property
    def bytes(self) -> int:
        """16 bytes for each parameter."""
        return RULE_BYTES * self.parameters

    @property
    def guess(self) -> int:
        """Half of the memory."""
        return int(self.memory * RULE_SHARE)

    @property
    def fits(self) -> bool:
        """What the rule says."""
        return self.bytes <= self.guess


def in_both_units(count: int) -> str:
    """A size in decimal GB and in GiB, which differ by 7 %: 1 GB = 10^9 bytes, 1 GiB = 2^30.

    >>> in_both_units(64_000_000_000), in_both_units(1 << 30)
    ('64.0 GB (59.6 GiB)', '1.1 GB (1.0 GiB)')
    """
    return f"{count / 10**9:,.1f} GB ({count / GIB:,.1f} GiB)"


POPULAR = (
    r"qwen3-[\d.]+b(-a\d+b)?", r"llama3\.\d-\d+b-instruct", r"gemma3-\d+[bm]", r"qwen2\.5-[\d.]+b",
    r"mistral-(7b-v0\.3|nemo-12b|small-24b)", r"ministral-8b", r"phi-4(-mini)?", r"smollm[23]-[\d.]+[bm]",
    r"gpt-oss-\d+b",
)  # fmt: skip
"""Models that people train today, by their whole name in the table: the series that readers look for most first."""


@cache
def popular() -> tuple[ModelShape, ...]:
    """The published models of current series, the smallest first; of equal widths in one series the last.

    >>> names = [shape.name for shape in popular()]
    >>> "llama3.3-70B-Instruct" in names, "llama3.1-70B-Instruct" in names, "yi-34B" in names
    (True, False, False)
    """
    found: dict[tuple[object, ...], ModelShape] = {}
    for shape in table().values():
        if (place := popularity(shape.name)) is not None:
            found[(*_widths(shape), place)] = shape
    return tuple(sorted(found.values(), key=lambda shape: (shape.parameters(), shape.name)))


def popularity(name: str) -> int | None:
    """The place of a model's series in `POPULAR`; None for one of no current series."""
    return next((at for at, series in enumerate(POPULAR) if re.fullmatch(series, name.lower())), None)


@cache
def trainable() -> tuple[ModelShape, ...]:
    """The published models of the table that headway trains, the smallest first, each size once.

    Models that differ in no width stand for each other, whatever they were trained on; `alike` has their names. The
    one with the plainest name is shown.

    >>> [shape.name for shape in trainable()][:2]
    ['smollm2-135M', 'smollm2-360M']
    """
    shapes = [min(group, key=_parts) for group in _groups().values()]
    return tuple(sorted(shapes, key=lambda shape: (shape.parameters(), shape.name)))


def alike(shape: ModelShape) -> tuple[str, ...]:
    """The other models of the table that headway trains and that are as large in every width, in the table's order.

    >>> "qwen2.5-7B" in alike(table()["qwen2-7b"])
    True
    """
    return tuple(other.name for other in _groups().get(_widths(shape), ()) if other.name != shape.name)


@cache
def _groups() -> dict[tuple[object, ...], list[ModelShape]]:
    groups: dict[tuple[object, ...], list[ModelShape]] = {}
    for shape in table().values():
        if shape.family in TRAINED and not is_rehearsal(shape):
            groups.setdefault(_widths(shape), []).append(shape)
    return groups


def _widths(shape: ModelShape) -> tuple[object, ...]:
    """All that memory depends on but for a few added tokens of the vocabulary."""
    return (replace(shape, name="", context=0, vocab=-(-shape.vocab // VOCABULARY)),)


def _parts(shape: ModelShape) -> int:
    return shape.name.count("-")


def memory(machine: Machine) -> int:
    """Bytes of the memory that the trainer's tensors are in: of one device, the unified pool, or else the host.

    InputError where nobody said how large that is.
    """
    order = ("device", "unified", "host")
    pools = sorted((pool for pool in machine.pools if pool.kind in order), key=lambda pool: order.index(pool.kind))
    if not pools or not pools[0].total_bytes:
        raise InputError(f"machine {machine.name}: nobody said how much memory it has; name one with --machine")
    return pools[0].total_bytes


def size(machine: Machine, models: Iterable[ModelShape], recipes: Sequence[Recipe] = OWN) -> tuple[Row, ...]:
    """The table of a machine: recipe by recipe, from the smallest model on.

    A model under a recipe is left out where one of four fifths of its parameters and no larger a vocabulary does not
    fit that recipe even with the shortest answers, and where the planner refuses it.
    """
    ordered = sorted(models, key=lambda shape: shape.parameters())
    rows: list[Row] = []
    for recipe in recipes:
        over: list[tuple[float, int]] = []
        for shape in ordered:
            if any(shape.parameters() > most and shape.vocab >= vocab for most, vocab in over):
                continue
            row = _row(recipe, shape, machine)
            if row is None:
                continue
            rows.append(row)
            if row.kind == "does not fit" and not row.longest_answer and _room(recipe.build(shape)) >= GRAIN:
                over.append((BEYOND * shape.parameters(), shape.vocab))
    return tuple(rows)


def largest(rows: Iterable[Row]) -> dict[str, Row | None]:
    """The largest model that surely fits with the standard batch, for each recipe by name; None where none does."""
    found: dict[str, Row | None] = {}
    for row in rows:
        best = found.setdefault(row.recipe.name, None)
        if row.surely and (best is None or row.parameters > best.parameters):
            found[row.recipe.name] = row
    return found


def standard(recipe: Recipe, shape: ModelShape, machine: Machine) -> Workload:
    """The recipe's run of a model on a machine: on its devices where it has some, with a KV budget of its size."""
    run = recipe.build(shape)
    run = replace(run, device="cuda" if machine.device_count else "cpu", threads=machine.cores or run.threads)
    if run.engine is None and run.trainer.system == "headway":
        budget = max(MIB, memory(machine) // KV_SHARE // MIB * MIB)
        run = replace(run, rollout=replace(run.rollout, kv_budget=budget))
    return run


def _row(recipe: Recipe, shape: ModelShape, machine: Machine) -> Row | None:
    run = standard(recipe, shape, machine)
    here = machine if run.ray else machine.without_ray()
    try:
        ledger = plan(run, here)
    except InputError:
        return None
    pools = verdict(ledger, here)
    worst = min(pools, key=lambda each: each.room)
    held = tops(ledger)[worst.pool]
    longest, fitting = _longest_answer(run, here, ledger)
    beyond = run.rollout.max_answer > _room(run)
    kind: Kind = "does not fit" if beyond else overall(pools, refusals=refusals(run, ledger)).kind
    at_once = in_flight(with_lengths(run, max_answer=longest), fitting) if fitting else 0
    return Row(
        shape.name, shape.parameters(), recipe, kind, worst.pool, held[0], held[1], worst.limit, longest, at_once
    )


def _room(run: Workload) -> int:
    """Tokens that the model's context leaves for an answer."""
    return max(0, run.model.context - run.rollout.max_prompt) if run.model.context else sys.maxsize


def _longest_answer(run: Workload, machine: Machine, planned: Ledger) -> tuple[int, Ledger | None]:
    """The longest answer that keeps every upper bound inside its lowest limit and the sample inside the model's
    context, and the ledger with it.

    `planned` is the ledger of the run as it is. The planner refuses some runs, and some engines have no room for such
    an answer: those do not fit either.
    """
    own = run.rollout.max_answer // GRAIN
    most = min(LONGEST, _room(run)) // GRAIN
    if most < 1:
        return 0, None
    ledgers: dict[int, Ledger] = {}

    def over(steps: int) -> int:
        longer = with_lengths(run, max_answer=steps * GRAIN)
        try:
            ledger = ledgers[steps] = planned if longer == run else plan(longer, machine)
        except InputError:
            return 1
        if refusals(longer, ledger):
            return 1
        sizes = [
            upper - min(limit.bytes for limit in limits)
            for pool, (_, upper) in tops(ledger).items()
            if (limits := limits_of(machine, pool))
        ]
        return max(sizes, default=0)

    now = over(own)
    if now > 0 or most <= own:
        steps = furthest(over, 0, min(own - 1 if now > 0 else own, most))
    else:
        steps = furthest(over, own, most, now)
    return steps * GRAIN, ledgers.get(steps)
