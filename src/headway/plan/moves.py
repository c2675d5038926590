"""The changes that a remedy is made of: which key, which values, what they do to a run, what they cost its user."""

from collections.abc import Callable, Iterator
from enum import IntEnum

from msgspec import Struct
from msgspec.structs import replace

from headway.facts.machine import Machine
from headway.facts.shapes import table
from headway.facts.workload import Lora, Quant, Recompute, Workload
from headway.foreign.spelling import Scalar, SpellKey, accepts, counts
from headway.plan import half
from headway.plan.smaller import smaller_models
from headway.plan.systems import system
from headway.units import MIB


class Cost(IntEnum):
    """What a change costs the user, the least first.

    FREE: the same numbers at about the same speed. SLOWER: the same numbers, and a run that takes clearly longer.
    HARDWARE: devices that the machine has and the run does not use. EXPERIMENT: what is learned, or how exactly,
    changes. MODEL: another one, so another result. LOSSY: the same model hardly learns.

    >>> Cost.FREE < Cost.SLOWER < Cost.HARDWARE < Cost.EXPERIMENT < Cost.MODEL < Cost.LOSSY
    True
    >>> Cost.LOSSY.word
    'experiment'
    """

    FREE = 0
    SLOWER = 1
    HARDWARE = 2
    EXPERIMENT = 3
    MODEL = 4
    LOSSY = 5

    @property
    def word(self) -> str:
        """The cost in JSON, where a lossy change is one of the experiment."""
        return (Cost.EXPERIMENT if self is Cost.LOSSY else self).name.lower()


class Move(Struct, frozen=True):
    """One kind of change. `values` are those worth trying on a run, the mildest first; none where it has no place.

    `raises`: it is there for an engine that has no room for a sample, and holds more of the device. `starved`: only
    such an engine has a use for it. `also` are keys that it sets beside its own where they are not so already.
    """

    key: SpellKey
    cost: Cost
    values: Callable[[Workload], tuple[Scalar, ...]]
    apply: Callable[[Workload, Scalar], Workload]
    raises: bool = False
    starved: bool = False
    also: tuple[SpellKey, ...] = ()


LORA_RANK = 16
"""Rank of the adapters that a remedy proposes."""
LEAST_ANSWER = 16
LEAST_CHUNK = 32
LEAST_FRACTION, MOST_FRACTION = 0.05, 0.9
LEAST_SEQS = 8
MEGATRON = frozenset({"slime", "miles-megatron", "verl-megatron", "megatron"})
VERL = frozenset({"verl-fsdp", "verl-megatron"})
HALF_BASE = frozenset({"trl", "trl-script", "trl-sft", "trl-sft-script"})
"""Systems that keep adapters in fp32 on a base in half precision (PEFT's `autocast_adapter_dtype`)."""
PRECISION_AWARE = frozenset({"slime", "miles-megatron", "megatron"})
"""Systems whose offload of the optimizer's step is spelled together with the precision-aware optimizer."""
STEPS = 3
"""How often a number is halved."""
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
    unit = workload.trainer.updates * max(1, layout.data_ranks) * max(1, workload.trainer.rows)
    return rollout.prompts * rollout.samples % unit


def _rows(workload: Workload) -> tuple[Scalar, ...]:
    tries = _halves(workload.trainer.rows, 1)
    return tuple(each for each in tries if _divides(workload, _field("trainer", "rows")(workload, each)))


def _score_cap(workload: Workload) -> tuple[Scalar, ...]:
    """As a cap of training's."""
    cap, longest = workload.trainer.score_cap, workload.rollout.longest
    return tuple(dict.fromkeys((max(longest, cap // 2), longest))) if cap > longest else ()


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
    """All ranks share one set of parameters, where some or all of them have a whole set."""
    layout = workload.layout
    if workload.trainer.system in MEGATRON:
        return ()
    whole = layout.ranks // (layout.tensor * layout.pipeline)
    return (whole,) if layout.shards < whole else ()


def _set_shards(workload: Workload, value: Scalar) -> Workload:
    layout = workload.layout
    return replace(workload, layout=replace(layout, shards=int(value), replicas=1, zero="none"))


def _gathers(workload: Workload) -> tuple[Scalar, ...]:
    """A checkpoint in shards, where the first rank gathers the whole state of ranks that divide it."""
    how = system(workload.trainer.system).gathers if workload.gathers == "usual" else workload.gathers
    return ("nothing",) if workload.save and workload.layout.shards > 1 and how != "nothing" else ()


def _sleeps(workload: Workload) -> tuple[Scalar, ...]:
    engine = workload.engine
    return ("weights+kv",) if engine is not None and engine.colocated and engine.releases != "weights+kv" else ()


def _small_cache(workload: Workload) -> tuple[Scalar, ...]:
    engine = workload.engine
    return ("fp8",) if engine is not None and engine.kv_dtype != "fp8" else ()


def _context(workload: Workload) -> tuple[Scalar, ...]:
    """Ranks that divide the tokens of each sample, in place of ranks that take other samples."""
    layout, trainer = workload.layout, workload.trainer
    other = layout.ranks // (layout.tensor * layout.context)
    ranks = workload.layout.data_ranks if trainer.system in MEGATRON else other
    tries = (layout.context << step for step in range(1, STEPS + 1))
    return tuple(each for each in tries if not ranks % (each // layout.context) and not workload.model.heads % each)


def _set_context(workload: Workload, value: Scalar) -> Workload:
    """A cap is one of each rank's tokens in all systems that take the change, so that a micro-batch of several ranks
    holds more. verl's is lowered with it, to what one rank has of the longest sample."""
    layout, trainer = workload.layout, workload.trainer
    times = int(value) // layout.context
    replicas = max(1, layout.replicas // times) if trainer.system in MEGATRON else layout.replicas
    changed = replace(workload, layout=replace(layout, context=int(value), replicas=replicas))
    if trainer.system in VERL:
        return changed if trainer.rows else _trainer(changed, cap=max(workload.rollout.longest, trainer.cap))
    return _trainer(changed, cap=trainer.cap * times)


def _tensor(workload: Workload) -> tuple[Scalar, ...]:
    """Ranks that divide the model instead of taking other samples; they stay within a node and divide all heads."""
    layout, model, ranks = workload.layout, workload.model, workload.layout.data_ranks
    tries = (layout.tensor << step for step in range(1, STEPS + 1))
    return tuple(
        each for each in tries
        if not ranks % (each // layout.tensor) and not layout.devices % each
        and not model.heads % each and not model.kv_heads % each
    )  # fmt: skip


def _set_tensor(workload: Workload, value: Scalar) -> Workload:
    layout = workload.layout
    replicas = max(1, layout.replicas * layout.tensor // int(value))
    return replace(workload, layout=replace(layout, tensor=int(value), replicas=replicas))


def _optimizer_away(workload: Workload) -> tuple[Scalar, ...]:
    return (1.0,) if workload.trainer.optimizer.offload < 1 and workload.device == "cuda" else ()


def _optimizer_back(workload: Workload) -> tuple[Scalar, ...]:
    return (0.0,) if workload.trainer.optimizer.offload and not workload.trainer.offload_parameters else ()


def _set_optimizer_away(workload: Workload, value: Scalar) -> Workload:
    """The optimizer steps in host memory; Megatron's needs its precision-aware form for that."""
    optimizer = workload.trainer.optimizer
    aware = optimizer.precision_aware or workload.trainer.system in PRECISION_AWARE
    return _trainer(workload, optimizer=replace(optimizer, offload=float(value), precision_aware=aware))


def _parameters_away(workload: Workload) -> tuple[Scalar, ...]:
    """FSDP's parameters, and with them the optimizer, in host memory."""
    layout, trainer = workload.layout, workload.trainer
    shared = layout.shards > 1 and trainer.lora is None and workload.device == "cuda"
    return (True,) if shared and not trainer.offload_parameters else ()


def _set_parameters_away(workload: Workload, value: Scalar) -> Workload:
    """FSDP makes the optimizer's state where the parameters are; verl then moves nothing between its phases."""
    trainer = workload.trainer
    moved = "none" if trainer.system in VERL else trainer.offload
    optimizer = replace(trainer.optimizer, offload=1.0)
    return _trainer(workload, offload_parameters=bool(value), optimizer=optimizer, offload=moved)


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


def _precision(*, lossy: bool) -> Callable[[Workload], tuple[Scalar, ...]]:
    """Half-precision parameters: with fp32 masters or a frozen base, or those that AdamW updates itself (`lossy`)."""

    def values(workload: Workload) -> tuple[Scalar, ...]:
        trainer = workload.trainer
        keeps = trainer.system == "headway" or trainer.lora is not None
        return ("bf16",) if trainer.param_dtype == "fp32" and keeps != lossy else ()

    return values


def _set_lora(workload: Workload, value: Scalar) -> Workload:
    """Adapters on a frozen base; the base itself is the reference then.

    A frozen fp32 base becomes one in half precision where the trainer takes that: nothing of it is updated.
    """
    trainer = workload.trainer
    reference = "adapter-off" if trainer.reference == "copy" else trainer.reference
    changed = _trainer(workload, lora=Lora(int(value), "all-linear"), reference=reference)
    half = trainer.param_dtype == "fp32" and trainer.system in HALF_BASE
    return _trainer(changed, param_dtype="bf16", grad_dtype=None) if half else changed


def _set_quant(workload: Workload, value: Scalar) -> Workload:
    adapted = workload if workload.trainer.lora else _set_lora(workload, LORA_RANK)
    return _trainer(adapted, quant=Quant(str(value), double=True), param_dtype="bf16")  # type: ignore[arg-type]


def _paged(workload: Workload) -> tuple[Scalar, ...]:
    """Moments in 8 bits that the driver moves to host memory where the device is full."""
    optimizer, trainer = workload.trainer.optimizer, workload.trainer
    fits = optimizer.kind == "adamw" and optimizer.state_dtype == "fp32" and not optimizer.paged
    return (True,) if fits and trainer.lora is None and workload.device == "cuda" else ()


def _set_paged(workload: Workload, value: Scalar) -> Workload:
    optimizer = replace(workload.trainer.optimizer, state_dtype="int8", paged=bool(value))
    return _trainer(workload, optimizer=optimizer)


def _states(workload: Workload) -> tuple[Scalar, ...]:
    optimizer = workload.trainer.optimizer
    if optimizer.kind != "adamw" or workload.trainer.lora is not None:
        return ()
    order = ("fp32", "bf16", "int8")
    if optimizer.state_dtype not in order:
        return ()
    return order[order.index(optimizer.state_dtype) + 1 :]


def _models(workload: Workload) -> tuple[Scalar, ...]:
    return smaller_models(workload.model)


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


def _on_machine(workload: Workload, machine: Machine, key: SpellKey, value: Scalar) -> bool:
    """Whether the machine has so many devices, or nodes, beside those of engines and models of their own."""
    if key not in ("layout.devices", "layout.nodes"):
        return True
    layout, engine = workload.layout, workload.engine
    apart = sum(workload.groups) + (0 if engine is None or engine.colocated else engine.devices)
    nodes, devices = (layout.nodes, int(value)) if key == "layout.devices" else (int(value), layout.devices)
    of_node = machine.device_count // max(1, machine.nodes)
    return nodes <= machine.nodes and devices <= of_node and nodes * devices + apart <= machine.device_count


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
    Move("trainer.optimizer.offload", Cost.FREE, _optimizer_back, _optimizer("offload")),
    Move("trainer.logprob_chunk", Cost.FREE, _chunk, _field("trainer", "logprob_chunk")),
    Move("trainer.cap", Cost.FREE, _cap, _field("trainer", "cap")),
    Move("trainer.rows", Cost.FREE, _rows, _field("trainer", "rows")),
    Move("trainer.score_cap", Cost.FREE, _score_cap, _field("trainer", "score_cap")),
    Move(
        "trainer.score_rows", Cost.FREE, lambda run: _halves(run.trainer.score_rows, 1),
        _field("trainer", "score_rows"),
    ),
    Move("engine.memory_fraction", Cost.FREE, _fraction, _set_fraction),
    Move("critic.trainer.cap", Cost.FREE, _critic_cap, _of_critic("cap")),
    Move(
        "critic.trainer.rows", Cost.FREE,
        lambda run: _halves(run.critic.trainer.rows, 1) if run.critic else (), _of_critic("rows"),
    ),
    Move("layout.shards", Cost.FREE, _shards, _set_shards),
    Move("gathers", Cost.FREE, _gathers, lambda run, value: replace(run, gathers=value)),
    Move("engine.tensor_parallel", Cost.FREE, _engine_ranks, _field("engine", "tensor_parallel")),
    Move("engine.memory_fraction", Cost.FREE, _more_fraction, _set_fraction, raises=True),
    Move("trainer.offload", Cost.FREE, _away, _field("trainer", "offload")),
    Move("critic.trainer.offload", Cost.FREE, _critic_offload, _of_critic("offload")),
    Move("engine.releases", Cost.FREE, _sleeps, _field("engine", "releases")),
    Move("trainer.checkpointing", Cost.FREE, _recompute, _set_recompute),
    # the same numbers, clearly later
    Move("layout.tensor", Cost.SLOWER, _tensor, _set_tensor),
    Move("layout.context", Cost.SLOWER, _context, _set_context, also=("trainer.cap",)),
    Move("rollout.kv_budget", Cost.SLOWER, _budget, _field("rollout", "kv_budget")),
    Move("engine.max_seqs", Cost.SLOWER, _seqs, _field("engine", "max_seqs")),
    Move(
        "engine.graphs", Cost.SLOWER, lambda run: (False,) if run.engine is not None and run.engine.graphs else (),
        _field("engine", "graphs"),
    ),
    Move("trainer.optimizer.offload", Cost.SLOWER, _optimizer_away, _set_optimizer_away),
    Move("trainer.offload_parameters", Cost.SLOWER, _parameters_away, _set_parameters_away),
    Move("layout.devices", Cost.HARDWARE, _devices, _set_devices),
    Move("layout.nodes", Cost.HARDWARE, _nodes, _set_nodes),
    # another experiment: fewer or shorter samples, no KL, another precision or optimizer, fewer trained parameters
    Move("rollout.prompts", Cost.EXPERIMENT, _batches("prompts", 1), _field("rollout", "prompts")),
    Move("rollout.samples", Cost.EXPERIMENT, _batches("samples", 2), _field("rollout", "samples")),
    Move(
        "rollout.max_answer", Cost.EXPERIMENT, lambda run: _halves(run.rollout.max_answer, LEAST_ANSWER),
        _field("rollout", "max_answer"),
    ),
    Move("trainer.reference", Cost.EXPERIMENT, _reference(idle=False), _field("trainer", "reference")),
    Move("engine.kv_dtype", Cost.EXPERIMENT, _small_cache, _field("engine", "kv_dtype"), starved=True),
    Move("trainer.optimizer.state_dtype", Cost.EXPERIMENT, _states, _optimizer("state_dtype")),
    Move(
        "trainer.optimizer.in_backward", Cost.EXPERIMENT,
        lambda run: () if run.trainer.optimizer.in_backward or run.trainer.lora else (True,),
        _optimizer("in_backward"),
    ),
    Move("trainer.optimizer.paged", Cost.EXPERIMENT, _paged, _set_paged),
    Move("trainer.param_dtype", Cost.EXPERIMENT, _precision(lossy=False), _set_precision),
    Move(
        "trainer.lora", Cost.EXPERIMENT, lambda run: () if run.trainer.lora else (LORA_RANK,), _set_lora,
        also=("trainer.param_dtype",),
    ),
    Move(
        "trainer.quant", Cost.EXPERIMENT, lambda run: () if run.trainer.quant else ("nf4",), _set_quant
    ),
    Move("model", Cost.MODEL, _models, _set_model),
    Move("trainer.param_dtype", Cost.LOSSY, _precision(lossy=True), _set_precision),
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

    More hardware is more devices of the node, up to a full one, and more nodes where a node has but one memory, as
    far as the machine has them.
    """
    full = machine.device_count // max(1, machine.nodes)
    by_node = machine.unified or workload.layout.devices >= min(NODE_DEVICES, full)
    left_out = "layout.devices" if by_node else "layout.nodes"
    beside = counts(workload)
    for move in MOVES:
        values = tuple(
            value for value in move.values(workload)
            if accepts(workload.trainer.system, move.key, value, beside)
            and _on_machine(workload, machine, move.key, value) and half.proposes(workload, machine, move.key, value)
        )  # fmt: skip
        if values and move.key != left_out:
            yield move, values
