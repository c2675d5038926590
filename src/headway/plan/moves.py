"""The changes that a remedy is made of: which key, which values, what they do to a run, what they cost its user."""

import re
from collections.abc import Callable, Iterator
from enum import IntEnum
from functools import cache

from msgspec import Struct
from msgspec.structs import replace

from headway.facts.machine import Machine
from headway.facts.shapes import ModelShape, table
from headway.facts.workload import Lora, Quant, Workload
from headway.foreign.spelling import Scalar, SpellKey, accepts
from headway.units import MIB


class Cost(IntEnum):
    """What a change costs the user, the least first.

    FREE: the same run, at most recomputing what was kept. SLOWER: the same numbers with fewer samples at once.
    EXPERIMENT: what is learned, or how exactly, changes. MODEL: another model. HARDWARE: more of it.

    >>> Cost.FREE < Cost.EXPERIMENT < Cost.HARDWARE
    True
    """

    FREE = 0
    SLOWER = 1
    EXPERIMENT = 2
    MODEL = 3
    HARDWARE = 4


class Move(Struct, frozen=True):
    """One kind of change. `values` are those worth trying on a run, the mildest first; none where it has no place."""

    key: SpellKey
    cost: Cost
    values: Callable[[Workload], tuple[Scalar, ...]]
    apply: Callable[[Workload, Scalar], Workload]


LORA_RANK = 16
"""Rank of the adapters that a remedy proposes."""
LEAST_ANSWER = 16
LEAST_CHUNK = 32
LEAST_FRACTION = 0.05
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
    if workload.engine is None or workload.engine.memory_fraction / 2 < LEAST_FRACTION:
        return ()
    return (round(workload.engine.memory_fraction / 2, 2),)


def _set_fraction(workload: Workload, value: Scalar) -> Workload:
    assert workload.engine is not None
    return replace(workload, engine=replace(workload.engine, memory_fraction=float(value)))


def _budget(workload: Workload) -> tuple[Scalar, ...]:
    return () if workload.engine is not None else _halves(workload.rollout.kv_budget, MIB, MIB)


def _reference(*, own: bool) -> Callable[[Workload], tuple[Scalar, ...]]:
    """headway holds a reference only where its coefficient is above 0; other trainers at 0 as well."""

    def values(workload: Workload) -> tuple[Scalar, ...]:
        trainer = workload.trainer
        return ("none",) if trainer.reference in ("copy", "host") and (trainer.system == "headway") == own else ()

    return values


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
    Move("trainer.cap", Cost.FREE, _cap, _field("trainer", "cap")),
    Move("trainer.logprob_chunk", Cost.FREE, _chunk, _field("trainer", "logprob_chunk")),
    Move(
        "trainer.loss", Cost.FREE, lambda run: ("fused",) if run.trainer.loss.startswith("logits") else (),
        _field("trainer", "loss"),
    ),
    Move(
        "trainer.attention", Cost.FREE, lambda run: ("sdpa",) if run.trainer.attention == "eager" else (),
        _field("trainer", "attention"),
    ),
    Move(
        "trainer.checkpointing", Cost.FREE, lambda run: () if run.trainer.checkpointing else (True,),
        _field("trainer", "checkpointing"),
    ),
    Move(
        "trainer.reference", Cost.FREE, _reference(own=False), _field("trainer", "reference")
    ),
    Move("engine.memory_fraction", Cost.FREE, _fraction, _set_fraction),
    Move("critic.trainer.offload", Cost.FREE, _critic_offload, _of_critic("offload")),
    Move("critic.trainer.cap", Cost.FREE, _critic_cap, _of_critic("cap")),
    Move(
        "critic.trainer.rows", Cost.SLOWER,
        lambda run: _halves(run.critic.trainer.rows, 1) if run.critic else (), _of_critic("rows"),
    ),
    Move(
        "trainer.rows", Cost.SLOWER, lambda run: _halves(run.trainer.rows, 1),
        _field("trainer", "rows"),
    ),
    Move("rollout.kv_budget", Cost.SLOWER, _budget, _field("rollout", "kv_budget")),
    Move(
        "rollout.prompts", Cost.EXPERIMENT,
        lambda run: _halves(run.rollout.prompts, run.trainer.updates, run.trainer.updates),
        _field("rollout", "prompts"),
    ),
    Move(
        "rollout.samples", Cost.EXPERIMENT, lambda run: _halves(run.rollout.samples, 2),
        _field("rollout", "samples"),
    ),
    Move(
        "rollout.max_answer", Cost.EXPERIMENT, lambda run: _halves(run.rollout.max_answer, LEAST_ANSWER),
        _field("rollout", "max_answer"),
    ),
    Move(
        "trainer.reference", Cost.EXPERIMENT, _reference(own=True),
        _field("trainer", "reference"),
    ),
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
    Move("model", Cost.MODEL, _models, _set_model),
    Move("layout.devices", Cost.HARDWARE, _devices, _set_devices),
    Move("layout.nodes", Cost.HARDWARE, _nodes, _set_nodes),
)  # fmt: skip
"""Every change, by what it costs and then in the order in which equals are proposed."""


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
