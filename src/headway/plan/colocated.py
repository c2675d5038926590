"""A trainer that shares its devices with an engine in processes of its own, taking turns: Miles and its kind.

While the engine generates, the trainer's state waits in host memory; while the trainer works, the engine has given
back its weights and KV cache and keeps what it cannot give back. Where host and device are one memory, nothing that
waits in the host is saved.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from headway.facts.machine import Machine
from headway.facts.workload import DTYPE_BYTES, Engine, Workload
from headway.plan import actors, host, pinned, training
from headway.plan.engines import EngineMemory, engine_memory
from headway.plan.item import Entry, Item, Phases
from headway.plan.ledger import Phase, Quantity

TOKEN_BYTES = 240
"""Host bytes of one generated token: three Python lists (ids, loss mask, log-probs: a pointer and an object each),
their copy in Ray's object store and in the trainer."""
WRITE_BYTES = 256 << 20
"""What a synchronous checkpoint stages in host memory at a time."""


@dataclass(frozen=True)
class Parts:
    """What every phase is put together from, as entries: the engine awake and asleep, and what is always there."""

    workload: Workload
    engine: EngineMemory
    always: tuple[Entry, ...]
    unified: bool

    @property
    def ranks(self) -> int:
        """Trainer processes of a node."""
        return self.workload.layout.devices


def phases(workload: Workload, machine: Machine) -> Phases:
    """The entries of every phase of a synchronous, colocated run.

    `step` of a phase is the first at which its peak is reached: before the first optimizer step there are no
    moments, so rollout, score and train grow once more in step 2, and the step itself has them at once.
    """
    assert workload.engine is not None
    parts = _parts(workload, workload.engine, machine)
    later = min(2, workload.steps)
    grown = workload.steps > 1
    found: Phases = {
        Phase.LOAD: (0, list(_load(parts))),
        Phase.ROLLOUT: (later, list(_generate(parts, stepped=grown))),
        Phase.TRAIN: (later, list(_train(parts, stepped=grown))),
        Phase.STEP: (1, list(_step(parts))),
        Phase.SLEEP: (1, list(_sleep(parts))),
        Phase.SYNC: (1, list(_sync(parts, workload.engine))),
    }
    if workload.trainer.scores or workload.trainer.reference != "none" or workload.trainer.updates > 1:
        found[Phase.SCORE] = (later, list(_score(parts, stepped=grown)))
    if workload.save:
        found[Phase.SAVE] = (workload.steps, list(_save(parts)))
    if workload.rollout.eval_problems:
        found[Phase.EVAL] = (workload.steps, list(_generate(parts, stepped=True)))
    return found


def _parts(workload: Workload, engine: Engine, machine: Machine) -> Parts:
    processes = tuple(actors.processes(workload, engine))
    device = next(pool for pool in machine.pools if pool.kind in ("device", "unified"))
    # the engine starts before the trainer, so it measures what the system and its own processes leave
    taken = device.floor_bytes
    if machine.unified:
        taken += sum(each.item.bytes * each.count for each in processes if each.role != "trainer")
    memory = engine_memory(
        workload.model, engine, device_bytes=device.total_bytes, free_bytes=device.total_bytes - taken,
        longest=workload.rollout.longest,
    )  # fmt: skip
    always = [*processes, *_reference(workload), *_data(workload)]
    always.append(_on_device("device_used", "trainer", host.cuda_context().alone()))
    return Parts(workload, memory, tuple(always), machine.unified)


# -- what a phase holds -------------------------------------------------------------------------------------


def _load(parts: Parts) -> Iterator[Entry]:
    """The whole model comes to the host first: on every rank where embeddings are tied, else on the first."""
    yield from parts.always
    yield from _asleep_engine(parts)
    yield from _state(parts, stepped=False)
    workload = parts.workload
    size = DTYPE_BYTES[workload.trainer.param_dtype]
    count = workload.model.parameters()
    item = Item.exact("model being loaded", count * size, f"{count:,} parameters x {size} B", "before it is sharded")
    yield _in_host("trainer", item, parts.ranks if workload.model.tied else 1)


def _generate(parts: Parts, *, stepped: bool) -> Iterator[Entry]:
    yield from parts.always
    engine = parts.engine
    yield _on_device("device_used", "engine", engine.weights)
    others = (item for item in engine.awake if item is not engine.weights)
    yield from (_on_device("device_used", "engine", item.alone()) for item in others)
    yield from _waiting(parts, stepped=stepped)


def _score(parts: Parts, *, stepped: bool) -> Iterator[Entry]:
    yield from parts.always
    yield from _asleep_engine(parts)
    yield from _state(parts, stepped=stepped)
    yield from _passing(training.score(parts.workload, training.micro_batch(parts.workload)))
    if parts.workload.trainer.reference == "host" and not parts.unified:
        # on one memory the parameters only change places; their bytes are in the lines above
        moved = _parameters(parts, stepped=stepped)
        yield from (_in_host("trainer", item, parts.ranks) for item in moved)


def _train(parts: Parts, *, stepped: bool) -> Iterator[Entry]:
    yield from parts.always
    yield from _left_over(parts)
    yield from _asleep_engine(parts)
    yield from _state(parts, stepped=stepped)
    yield from _passing(training.train(parts.workload, training.micro_batch(parts.workload)))


def _step(parts: Parts) -> Iterator[Entry]:
    yield from parts.always
    yield from _left_over(parts)
    yield from _asleep_engine(parts)
    yield from _state(parts, stepped=True)
    yield from _passing(training.step(parts.workload))


def _sleep(parts: Parts) -> Iterator[Entry]:
    """The state goes to the host tensor by tensor: on the device until its turn, then in the host."""
    yield from parts.always
    yield from _asleep_engine(parts)
    yield from _waiting(parts, stepped=True)
    largest = parts.workload.model.embedding_parameters() * DTYPE_BYTES[parts.workload.trainer.param_dtype]
    text = "the largest tensor is in both places for a moment"
    yield _on_device("allocated", "trainer", Item.exact("tensor being moved", largest, text, "embedding"))


def _sync(parts: Parts, engine: Engine) -> Iterator[Entry]:
    """Weights go from the trainer's host copy through buckets; a tensor larger than a bucket goes alone.

    A bucket is counted in the trainer's dtype, then cast and flattened into one tensor: at most twice its size.
    """
    yield from parts.always
    yield _on_device("device_used", "engine", parts.engine.weights)
    yield _on_device("device_used", "engine", parts.engine.residue.alone())
    yield from _waiting(parts, stepped=True)
    size = DTYPE_BYTES[parts.workload.trainer.param_dtype]
    alone = parts.workload.model.embedding_parameters() * (size + 2 * DTYPE_BYTES[engine.dtype])
    held = max(2 * engine.bucket, alone)
    text = f"max(2 x {engine.bucket:,}, {parts.workload.model.embedding_parameters():,} x {size} + 2 + 2 B)"
    yield _on_device("allocated", "trainer", Item.exact("weight buckets", held, text, "gathered, cast, flattened"))


def _save(parts: Parts) -> Iterator[Entry]:
    yield from parts.always
    yield from _asleep_engine(parts)
    yield from _state(parts, stepped=True)
    yield from _stale_gradients(parts)
    item = Item("checkpoint staging", WRITE_BYTES, 4 * WRITE_BYTES, "tensors in flight", "written shard by shard")
    yield _in_host("trainer", item, parts.ranks)


# -- pieces -------------------------------------------------------------------------------------------------


def _state(parts: Parts, *, stepped: bool) -> Iterator[Entry]:
    """What the trainer holds of the model on its device, and what it keeps of it in the host for good."""
    yield from _tensors(training.states(parts.workload, stepped=stepped))
    yield from (_in_host("trainer", item, parts.ranks) for item in training.host_states(parts.workload))


def _stale_gradients(parts: Parts) -> Iterator[Entry]:
    """Gradients of the last step where they are freed only before the next backward pass."""
    if parts.workload.trainer.gradients_stay:
        yield _on_device("allocated", "trainer", _stale(parts.workload))


def _stale(workload: Workload) -> Item:
    size = training.gradient_bytes(workload)
    return Item.exact(
        "stale gradients", size, "one for each trained parameter", "freed only before the next backward"
    )


def _left_over(parts: Parts) -> Iterator[Entry]:
    """Pageable copies of the state that a process has not given back although the state is on the device again.

    Inferred, not measured: in the one public list of such a process's memory its resident size is 23 GiB above the
    process and the reference, for 4.0 billion parameters. One fp32 copy of the parameters, which loading and every
    move to the host make, explains 15 of them; the bound is two.
    """
    workload = parts.workload
    if workload.trainer.offload == "host":
        size = training.states(workload, stepped=False)[0].bytes
        item = Item(
            "copies not given back", size, 2 * size, "one copy of the parameters", "inferred from one reading"
        )
        yield _in_host("trainer", item.alone(), parts.ranks)


def _waiting(parts: Parts, *, stepped: bool) -> Iterator[Entry]:
    """The trainer's state while the engine has the device: in the host, or still on the device."""
    if parts.workload.trainer.offload == "none":
        yield from _state(parts, stepped=stepped)
        if stepped:
            yield from _stale_gradients(parts)
        return
    items = list(training.states(parts.workload, stepped=stepped))
    if stepped and parts.workload.trainer.gradients_stay:
        items.append(_stale(parts.workload))
    for item in items:
        yield _in_host("trainer", item._replace(source=f"{item.source}; waits in host memory"), parts.ranks)
    yield from (_in_host("trainer", item, parts.ranks) for item in training.host_states(parts.workload))


def _parameters(parts: Parts, *, stepped: bool) -> list[Item]:
    """Parameters and gradients, which make room for the reference and leave the moments where they are."""
    found = [item for item in training.states(parts.workload, stepped=False) if item.item == "weights"]
    if stepped and parts.workload.trainer.gradients_stay:
        found.append(_stale(parts.workload))
    return found


def _asleep_engine(parts: Parts) -> Iterator[Entry]:
    """What the engine keeps when it has given back what it can."""
    yield _on_device("device_used", "engine", parts.engine.residue.alone())
    if parts.engine.host_asleep.upper:
        yield _in_host("engine", parts.engine.host_asleep, parts.ranks)


def _reference(workload: Workload) -> Iterator[Entry]:
    """A reference in host memory: one pinned copy in half precision of every rank's shard."""
    if workload.trainer.reference == "host":
        yield _in_host("reference", pinned.copy("reference weights", workload), workload.layout.devices)


def _data(workload: Workload) -> Iterator[Entry]:
    rollout = workload.rollout
    tokens = rollout.prompts * rollout.samples * rollout.longest
    size = tokens * TOKEN_BYTES
    item = Item("rollout data", size, 2 * size, f"{tokens:,} tokens x {TOKEN_BYTES} B", "Python lists, object store")
    yield _in_host("driver", item)


def _tensors(items: list[Item]) -> Iterator[Entry]:
    """Tensors of the trainer on its device."""
    yield from (_on_device("allocated", "trainer", item) for item in items if item.upper)


def _passing(items: list[Item]) -> Iterator[Entry]:
    """Tensors that come and go, and what the allocator holds beyond them."""
    yield from _tensors(items)
    yield _on_device("reserved", "trainer", training.reserved(items))


def _on_device(quantity: Quantity, role: str, item: Item) -> Entry:
    return Entry("device", quantity, role, item)


def _in_host(role: str, item: Item, count: int = 1) -> Entry:
    return Entry("host", "host", role, item, count=count)
