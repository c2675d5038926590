"""The changes that a remedy is made of: which key, which values, what they do to a run, what they cost its user."""

import re
from collections.abc import Callable, Iterator
from enum import IntEnum
from functools import cache

from msgspec import Struct
from msgspec.structs import replace

from headway.facts.machine import Machine
from headway.facts.shapes import ModelShape, table
from headway.facts.workload import Lora, Quant, Recompute, Workload
from headway.foreign.spelling import Scalar, SpellKey, accepts
from headway.units import MIB


class Cost(IntEnum):
    """What a change costs the user, the least first.

    FREE: the same numbers at about the same speed. SLOWER: the same numbers, and a run that takes clearly longer.
    EXPERIMENT: what is learned, or how exactly, changes. HARDWARE: more of it. MODEL: another one, so another result.

    >>> Cost.FREE < Cost.SLOWER < Cost.EXPERIMENT < Cost.HARDWARE < Cost.MODEL
    True
    """

    FREE = 0
    SLOWER = 1
    EXPERIMENT = 2
    HARDWARE = 3
    MODEL = 4


class Move(Struct, frozen=True):
    """One kind of change. `values` are those worth trying on a run, the mildest first; none where it has no place.

    `raises`: it is there for an engine that has no room for a sample, and holds more of the device.
    """

    key: SpellKey
    cost: Cost
    values: Callable[[Workload], tuple[Scalar, ...]]
    apply: Callable[[Workload, Scalar], Workload]
    raises: bool = False


LORA_RANK = 16
"""Rank of the adapters that a remedy proposes."""
LEAST_ANSWER = 16
LEAST_CHUNK = 32
LEAST_FRACTION, MOST_FRACTION = 0.05, 0.9
LEAST_SEQS = 8
PRECISION_AWARE = frozenset({"slime", "miles-megatron", "megatron"})
"""Systems whose offload of the optimizer's step is spelled together with the precision-aware optimizer."""
STEPS = 3
"""How often a number is halved."""
SIZES = 4
"""Smaller models that are tried."""
NODE_DEVICES = 8
"""Devices of a full node; beyond it more nodes are proposed."""


def _halves(number: int, least: int, multiple: int = 1) -> tuple[int, ...]:
    """Half, a quarter and so on, down to `least`, each a multiple of `multiple`.

    >>> _halves(100, 16), _halves(12, 1, 4)
    ((50, 25), (4,))
    """
    found = (number >> step for step in range(1, STEPS + 1))
    return tuple(dict.fromkeys(each // multiple * multiple for each in found if each // multiple * multiple >= least))


def _trainer(workload: Workload, **fields: object) -> Workload:
    return replace(workload, trainer=replace(workload.trainer, **fields))


def _field(section: str, name: str) -> Callable[[Workload, Scalar], Workload]:
    """Sets one field of a section to the value."""

    def put(workload: Workload, value: Scalar) -> Workload:
        return replace(workload, **{section: replace(getattr(workload, section), **{name: value})})

    return put


def _optimizer(name: str) -> Callable[[Workload, Scalar], Workload]:
    """Sets one field of the trainer's optimizer to the value."""

    def put(workload: Workload, value: Scalar) -> Workload:
        optimizer = replace(workload.trainer.optimizer, **{name: value})
        return _trainer(workload, optimizer=optimizer)

    return put


def _cap(workload: Workload) -> tuple[Scalar, ...]:
    """Below the longest sample a cap changes nothing: such a sample is trained alone."""
    cap, longest = workload.trainer.cap, workload.rollout.longest
    if workload.trainer.rows or cap <= longest:
        return ()
    return tuple(dict.fromkeys((max(longest, cap // 2), longest)))


def _chunk(workload: Workload) -> tuple[Scalar, ...]:
    trainer = workload.trainer
    if trainer.loss != "hidden-chunks" or trainer.logprob_chunk <= LEAST_CHUNK:
        return ()
    return (max(LEAST_CHUNK, trainer.logprob_chunk // 4),)


def _fraction(workload: Workload) -> tuple[Scalar, ...]:
    """A quarter, a half and three quarters less, which leaves fewer samples that generate at once."""
    if workload.engine is None:
        return ()
    now = workload.engine.memory_fraction
    found = dict.fromkeys(round(now * share, 2) for share in (0.75, 0.5, 0.25))
    return tuple(each for each in found if LEAST_FRACTION <= each < now)


def _more_fraction(workload: Workload) -> tuple[Scalar, ...]:
    if workload.engine is None:
        return ()
    now = workload.engine.memory_fraction
    return tuple(
        each for each in (round(now + step, 2) for step in (0.05, 0.1, 0.2, 0.3, 0.4)) if each <= MOST_FRACTION
    )


def _set_fraction(workload: Workload, value: Scalar) -> Workload:
    assert workload.engine is not None
    return replace(workload, engine=replace(workload.engine, memory_fraction=float(value)))


def _budget(workload: Workload) -> tuple[Scalar, ...]:
    return () if workload.engine is not None else _halves(workload.rollout.kv_budget, MIB, MIB)


def _batches(name: str, least: int) -> Callable[[Workload], tuple[Scalar, ...]]:
    """Fewer prompts of a step, or samples of a prompt, as far as the answers of an optimizer step still divide."""

    def values(workload: Workload) -> tuple[Scalar, ...]:
        floor = max(least, workload.trainer.updates) if name == "prompts" else least
        multiple = workload.trainer.updates if name == "prompts" else 1
        tries = _halves(getattr(workload.rollout, name), floor, multiple)
        return tuple(each for each in tries if _divides(workload, _field("rollout", name)(workload, each)))

    return values


def _divides(before: Workload, after: Workload) -> bool:
    """Whether the answers of an optimizer step divide into whole micro-batches of each rank, where they did before.

    verl, TRL and Megatron refuse to start otherwise.
    """
    return _left(before) != 0 or _left(after) == 0


def _left(workload: Workload) -> int:
    layout, rollout = workload.layout, workload.rollout
    ranks = max(1, layout.ranks // (layout.tensor * layout.pipeline * layout.context))
    unit = workload.trainer.updates * ranks * max(1, workload.trainer.rows)
    return rollout.prompts * rollout.samples % unit


def _rows(workload: Workload) -> tuple[Scalar, ...]:
    tries = _halves(workload.trainer.rows, 1)
    return tuple(each for each in tries if _divides(workload, _field("trainer", "rows")(workload, each)))


def _reference(*, idle: bool) -> Callable[[Workload], tuple[Scalar, ...]]:
    """A reference at coefficient 0, which other trainers hold as well, or one whose KL is part of the experiment."""

    def values(workload: Workload) -> tuple[Scalar, ...]:
        trainer = workload.trainer
        held = trainer.reference in ("copy", "host")
        return ("none",) if held and (trainer.reference_weight == 0) == idle else ()

    return values


def _away(workload: Workload) -> tuple[Scalar, ...]:
    """More of the trainer's state in host memory while an engine has its devices."""
    if workload.engine is None or not workload.engine.colocated:
        return ()
    order = ("none", "parameters", "optimizer", "parameters+optimizer")
    now = workload.trainer.offload
    return tuple(each for each in order[1:] if now in order and _PARTS[now] < _PARTS[each])


def _back(workload: Workload) -> tuple[Scalar, ...]:
    """Less of it there, for a host that is short where the devices are not."""
    now = workload.trainer.offload
    found = [each for each in ("optimizer", "parameters", "none") if now in _PARTS and _PARTS[each] < _PARTS[now]]
    return tuple(found) if workload.engine is not None else ()


_PARTS = {
    "none": frozenset(), "parameters": frozenset("p"), "optimizer": frozenset("o"),
    "parameters+optimizer": frozenset("po"),
}  # fmt: skip
"""What goes to host memory by `Trainer.offload`, where a run may choose it."""


def _recompute(workload: Workload) -> tuple[Scalar, ...]:
    trainer = workload.trainer
    whole = trainer.checkpointing or trainer.recompute.granularity == "full"
    return () if whole else (True,)


def _set_recompute(workload: Workload, value: Scalar) -> Workload:
    """Every block keeps its input alone; Megatron's own settings of it give way."""
    return _trainer(workload, checkpointing=bool(value), recompute=Recompute())


def _engine_ranks(workload: Workload) -> tuple[Scalar, ...]:
    """More devices for each engine: they divide its devices, a node's, and the model's heads."""
    engine, layout = workload.engine, workload.layout
    if engine is None:
        return ()
    devices = layout.ranks if engine.colocated else engine.devices
    tries = (engine.tensor_parallel << step for step in range(1, STEPS + 1))
    return tuple(
        each for each in tries
        if each <= max(NODE_DEVICES, layout.devices) and not devices % (each * engine.pipeline_parallel)
        and not workload.model.heads % each
    )  # fmt: skip


def _seqs(workload: Workload) -> tuple[Scalar, ...]:
    return () if workload.engine is None else _halves(workload.engine.max_seqs, LEAST_SEQS)


def _shards(workload: Workload) -> tuple[Scalar, ...]:
    """All replicas share one set of parameters."""
    layout = workload.layout
    return (
        (layout.shards * layout.replicas,) if layout.replicas > 1 and workload.trainer.system == "verl-fsdp" else ()
    )


def _set_shards(workload: Workload, value: Scalar) -> Workload:
    layout = workload.layout
    return replace(workload, layout=replace(layout, shards=int(value), replicas=1))


def _tensor(workload: Workload) -> tuple[Scalar, ...]:
    """Replicas that divide the model instead; tensor parallel ranks stay within a node and divide all heads."""
    layout, model = workload.layout, workload.model
    tries = (layout.tensor << step for step in range(1, STEPS + 1))
    return tuple(
        each for each in tries
        if not layout.replicas % (each // layout.tensor) and not layout.devices % each
        and not model.heads % each and not model.kv_heads % each
    )  # fmt: skip


def _set_tensor(workload: Workload, value: Scalar) -> Workload:
    layout = workload.layout
    replicas = layout.replicas * layout.tensor // int(value)
    return replace(workload, layout=replace(layout, tensor=int(value), replicas=replicas))


def _optimizer_away(workload: Workload) -> tuple[Scalar, ...]:
    return (1.0,) if workload.trainer.optimizer.offload < 1 and workload.device == "cuda" else ()


def _set_optimizer_away(workload: Workload, value: Scalar) -> Workload:
    """The optimizer steps in host memory; Megatron's needs its precision-aware form for that."""
    optimizer = workload.trainer.optimizer
    aware = optimizer.precision_aware or workload.trainer.system in PRECISION_AWARE
    return _trainer(workload, optimizer=replace(optimizer, offload=float(value), precision_aware=aware))


def _set_precision(workload: Workload, value: Scalar) -> Workload:
    """Half-precision parameters. headway's optimizer keeps fp32; torch's own have the precision of the parameters."""
    changed = _trainer(workload, param_dtype=value, grad_dtype=None)
    if workload.trainer.system == "headway":
        return changed
    optimizer = workload.trainer.optimizer
    wide = optimizer.state_dtype == "fp32"
    return _trainer(
        changed, optimizer=replace(optimizer, state_dtype="bf16" if wide else optimizer.state_dtype, master=False)
    )


def _set_lora(workload: Workload, value: Scalar) -> Workload:
    """Adapters on a frozen base; the base itself is the reference then."""
    reference = "adapter-off" if workload.trainer.reference == "copy" else workload.trainer.reference
    return _trainer(workload, lora=Lora(int(value), "all-linear"), reference=reference)


def _set_quant(workload: Workload, value: Scalar) -> Workload:
    adapted = workload if workload.trainer.lora else _set_lora(workload, LORA_RANK)
    return _trainer(adapted, quant=Quant(str(value), double=True), param_dtype="bf16")  # type: ignore[arg-type]


def _states(workload: Workload) -> tuple[Scalar, ...]:
    optimizer = workload.trainer.optimizer
    if optimizer.kind != "adamw" or workload.trainer.lora is not None:
        return ()
    order = ("fp32", "bf16", "int8")
    if optimizer.state_dtype not in order:
        return ()
    return order[order.index(optimizer.state_dtype) + 1 :]


_SIZE = re.compile(r"[-_]?\d+(?:\.\d+)?[bm](?![a-z0-9.])", re.IGNORECASE)


def series(shape: ModelShape) -> str:
    """What a model's name says before its size, without separators: models of one series replace each other.

    >>> series(table()["qwen3-30b-a3b"]), series(table()["qwen2.5-1.5b"])
    ('qwen3', 'qwen2.5')
    """
    return re.sub(r"[-_]", "", _SIZE.split(shape.name.rpartition("/")[2], maxsplit=1)[0]).lower()


def is_rehearsal(shape: ModelShape) -> bool:
    """Whether a shape of the table is headway's own, for tests and rehearsals, and no published model."""
    return shape.name.startswith(("tiny-", "small-"))


def _letters(shape: ModelShape) -> str:
    return re.split(r"[^a-z]", shape.name.rpartition("/")[2].lower(), maxsplit=1)[0]


def _models(workload: Workload) -> tuple[Scalar, ...]:
    return smaller_models(workload.model)


@cache
def smaller_models(model: ModelShape) -> tuple[str, ...]:
    """Smaller models of the same family, the largest first: of its series, or of its maker and with its vocabulary.

    llama3.1-8B has no smaller one in its series, but llama3.2-3B reads the same tokens.

    >>> smaller_models(table()["qwen3-4b"])
    ('qwen3-1.7B', 'qwen3-0.6B')
    """
    found: dict[int, ModelShape] = {}
    for shape in table().values():
        if shape.family != model.family or is_rehearsal(shape):
            continue
        near = series(shape) == series(model)
        count = shape.parameters()
        if count < model.parameters() and (near or _akin(shape, model)) and (near or count not in found):
            found[count] = found[count] if count in found and series(found[count]) == series(model) else shape
    return tuple(found[count].name for count in sorted(found, reverse=True))[:SIZES]


def _akin(one: ModelShape, other: ModelShape) -> bool:
    return _letters(one) == _letters(other) and one.vocab == other.vocab


def _set_model(workload: Workload, value: Scalar) -> Workload:
    shape = table()[str(value).lower()]
    files = workload.weights_file_bytes * shape.parameters() // workload.model.parameters()
    return replace(workload, model=shape, weights_file_bytes=files)


def _critic_offload(workload: Workload) -> tuple[Scalar, ...]:
    critic, both = workload.critic, "parameters+optimizer"
    return () if critic is None or critic.group or critic.trainer.offload == both else (both,)


def _critic_cap(workload: Workload) -> tuple[Scalar, ...]:
    """The longest sample, where a micro-batch of the critic may hold more; several ranks divide a sample's tokens."""
    critic, longest = workload.critic, workload.rollout.longest
    return () if critic is None or critic.trainer.cap <= longest else (longest,)


def _of_critic(name: str) -> Callable[[Workload, Scalar], Workload]:
    def put(workload: Workload, value: Scalar) -> Workload:
        critic = workload.critic
        if critic is None:
            return workload
        return replace(workload, critic=replace(critic, trainer=replace(critic.trainer, **{name: value})))

    return put


def _devices(workload: Workload) -> tuple[Scalar, ...]:
    return tuple(count for count in (2, 4, NODE_DEVICES) if count > workload.layout.devices)


def _nodes(workload: Workload) -> tuple[Scalar, ...]:
    return tuple(workload.layout.nodes << step for step in range(1, STEPS + 1))


def _set_devices(workload: Workload, value: Scalar) -> Workload:
    layout = workload.layout
    shards = layout.shards * int(value) // layout.devices
    return workload.placed(replace(layout, devices=int(value), shards=shards))


def _set_nodes(workload: Workload, value: Scalar) -> Workload:
    layout = workload.layout
    shards = layout.shards * int(value) // layout.nodes
    return workload.placed(replace(layout, nodes=int(value), shards=shards))


MOVES: tuple[Move, ...] = (
    # the same numbers at about the same speed
    Move("trainer.reference", Cost.FREE, _reference(idle=True), _field("trainer", "reference")),
    Move(
        "trainer.loss", Cost.FREE, lambda run: ("fused",) if run.trainer.loss.startswith("logits") else (),
        _field("trainer", "loss"),
    ),
    Move(
        "trainer.attention", Cost.FREE, lambda run: ("sdpa",) if run.trainer.attention == "eager" else (),
        _field("trainer", "attention"),
    ),
    Move("trainer.offload", Cost.FREE, _back, _field("trainer", "offload")),
    Move("trainer.logprob_chunk", Cost.FREE, _chunk, _field("trainer", "logprob_chunk")),
    Move("trainer.cap", Cost.FREE, _cap, _field("trainer", "cap")),
    Move("trainer.rows", Cost.FREE, _rows, _field("trainer", "rows")),
    Move("engine.memory_fraction", Cost.FREE, _fraction, _set_fraction),
    Move("critic.trainer.cap", Cost.FREE, _critic_cap, _of_critic("cap")),
    Move(
        "critic.trainer.rows", Cost.FREE,
        lambda run: _halves(run.critic.trainer.rows, 1) if run.critic else (), _of_critic("rows"),
    ),
    Move("layout.shards", Cost.FREE, _shards, _set_shards),
    Move("engine.tensor_parallel", Cost.FREE, _engine_ranks, _field("engine", "tensor_parallel")),
    Move("engine.memory_fraction", Cost.FREE, _more_fraction, _set_fraction, raises=True),
    Move("trainer.offload", Cost.FREE, _away, _field("trainer", "offload")),
    Move("critic.trainer.offload", Cost.FREE, _critic_offload, _of_critic("offload")),
    Move("trainer.checkpointing", Cost.FREE, _recompute, _set_recompute),
    # the same numbers, clearly later
    Move("layout.tensor", Cost.SLOWER, _tensor, _set_tensor),
    Move("rollout.kv_budget", Cost.SLOWER, _budget, _field("rollout", "kv_budget")),
    Move("engine.max_seqs", Cost.SLOWER, _seqs, _field("engine", "max_seqs")),
    Move(
        "engine.graphs", Cost.SLOWER, lambda run: (False,) if run.engine is not None and run.engine.graphs else (),
        _field("engine", "graphs"),
    ),
    Move("trainer.optimizer.offload", Cost.SLOWER, _optimizer_away, _set_optimizer_away),
    # another experiment: fewer or shorter samples, no KL, another precision or optimizer, fewer trained parameters
    Move("rollout.prompts", Cost.EXPERIMENT, _batches("prompts", 1), _field("rollout", "prompts")),
    Move("rollout.samples", Cost.EXPERIMENT, _batches("samples", 2), _field("rollout", "samples")),
    Move(
        "rollout.max_answer", Cost.EXPERIMENT, lambda run: _halves(run.rollout.max_answer, LEAST_ANSWER),
        _field("rollout", "max_answer"),
    ),
    Move("trainer.reference", Cost.EXPERIMENT, _reference(idle=False), _field("trainer", "reference")),
    Move("trainer.optimizer.state_dtype", Cost.EXPERIMENT, _states, _optimizer("state_dtype")),
    Move(
        "trainer.optimizer.in_backward", Cost.EXPERIMENT,
        lambda run: () if run.trainer.optimizer.in_backward or run.trainer.lora else (True,),
        _optimizer("in_backward"),
    ),
    Move(
        "trainer.param_dtype", Cost.EXPERIMENT, lambda run: ("bf16",) if run.trainer.param_dtype == "fp32" else (),
        _set_precision,
    ),
    Move(
        "trainer.lora", Cost.EXPERIMENT, lambda run: () if run.trainer.lora else (LORA_RANK,), _set_lora
    ),
    Move(
        "trainer.quant", Cost.EXPERIMENT, lambda run: () if run.trainer.quant else ("nf4",), _set_quant
    ),
    Move("layout.devices", Cost.HARDWARE, _devices, _set_devices),
    Move("layout.nodes", Cost.HARDWARE, _nodes, _set_nodes),
    Move("model", Cost.MODEL, _models, _set_model),
)  # fmt: skip
"""Every change, by what it costs and then in the order in which equals are proposed: the one scale of what is lost.

docs/plan.md tells it in words."""


def value_of(workload: Workload, key: SpellKey) -> Scalar | None:
    """The value at a key; None where the run has none.

    >>> from headway.foreign.presets import workload
    >>> value_of(workload(table()["qwen3-4b"], "miles-fsdp"), "engine.memory_fraction")
    0.4
    """
    if key == "model":
        return workload.model.name
    if key == "trainer.lora":
        return workload.trainer.lora.rank if workload.trainer.lora else None
    if key == "trainer.quant":
        return workload.trainer.quant.kind if workload.trainer.quant else None
    found: object = workload
    for name in key.split("."):
        found = None if found is None else getattr(found, name)
    return found if isinstance(found, int | float | str) else None


def accepted(workload: Workload, machine: Machine) -> Iterator[tuple[Move, tuple[Scalar, ...]]]:
    """The moves that the run's trainer accepts, with their values for it.

    More hardware is more devices of the node, up to a full one, and more nodes where a node has but one memory.
    """
    by_node = machine.unified or workload.layout.devices >= NODE_DEVICES
    left_out = "layout.devices" if by_node else "layout.nodes"
    for move in MOVES:
        values = tuple(value for value in move.values(workload) if accepts(workload.trainer.system, move.key, value))
        if values and move.key != left_out:
            yield move, values
