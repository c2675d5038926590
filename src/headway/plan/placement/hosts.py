"""What a node's host memory holds in each phase: every rank's copies, the processes, the data in flight."""

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from headway.errors import InputError
from headway.facts.workload import Engine, Workload
from headway.plan import actors, host
from headway.plan.engines import EngineMemory
from headway.plan.item import Entry, Item, Place
from headway.plan.ledger import Phase
from headway.plan.placement.buckets import snapshot
from headway.plan.placement.others import Beside
from headway.plan.placement.pauses import paused
from headway.plan.placement.places import Node
from headway.plan.placement.sides import Side, is_megatron
from headway.plan.systems import uses_zero

DRIVER_TOKEN_BYTES, RANK_TOKEN_BYTES, STORED_TOKEN_BYTES = 160, 80, 80
"""Host bytes of one generated token: where it is generated three Python lists (ids, loss mask, log-probs: a pointer
and an object each) with their copy in Ray's object store; the copy of each rank that trains on it; one in the store
alone."""
COPIES = ("actor", "old_actor", "teacher", "rollout_actor")
"""Names that `trainer.copies` takes."""
SWAPPED_OUT = frozenset({"miles-fsdp"})
"""Trainers that move their own parameters to host memory while a reference from there is on the device."""
PAGEABLE = frozenset({"miles-fsdp"})
"""Trainers whose state goes to pageable host memory that is allocated anew each time."""
GENERATING = (Phase.ROLLOUT, Phase.EVAL)
BATCHES = {"sync": (1, 1), "one-step-off": (2, 2), "async": (2, 3)}
"""Steps whose samples are in host memory at once: the one that trains, the one that is generated, and in a buffer up
to one more (Miles: `--async-data-buffer-capacity-factor` 2)."""


class Host(Struct, frozen=True):
    """One node of a run. `sides` are the ranks that stand for those on it, with their numbers; `engine` is there
    where one of the engines is."""

    workload: Workload
    settings: Engine
    node: Node
    sides: tuple[tuple[Side, int], ...]
    engine: EngineMemory
    unified: bool
    has_shm: bool
    beside: tuple[tuple[Beside, Side, int], ...] = ()
    """Other models with ranks here, and how many."""

    def always(self) -> list[Entry]:
        """What no phase changes: processes, copies in pinned memory, samples, data."""
        found = list(actors.processes(self.workload, self.node))
        for side, ranks in self.sides:
            found += [_of(self.node, "reference" if name == "reference" else "trainer", item, side.rank, ranks)
                      for name, item in _copies(side)]  # fmt: skip
            if (sent := snapshot(side, self.settings)) is not None:
                found.append(_of(self.node, "trainer", sent, side.rank, ranks))
            found += [_of(self.node, "trainer", item, side.rank, ranks) for item in side.offloaded()]
        for each, side, ranks in self.beside:
            found += [_of(self.node, each.role, item, side.rank, ranks) for item in each.always_in_host(side)]
        return [*found, *self._data()]

    def during(self, phase: Phase, *, stepped: bool, worker: str = "trainer") -> Iterator[Entry]:
        """What a phase adds, while the model of `worker` works on the trainer's devices."""
        generates = phase in GENERATING or self.workload.mode != "sync"
        asleep = self.settings.colocated and phase not in (*GENERATING, Phase.SYNC)
        if asleep and self.engine.host_asleep.upper and self.node.engine_devices:
            yield _of(self.node, "engine", self.engine.host_asleep, 0, self.node.engine_devices)
        if generates and self.node.head:
            yield from (Entry("host", "host", "reward", item) for item in _tools(self.workload))
        if phase is Phase.EVAL and self.node.head:
            rollout = self.workload.rollout
            tokens = rollout.eval_problems * rollout.eval_samples * rollout.longest
            size, text = tokens * DRIVER_TOKEN_BYTES, f"{tokens:,} tokens x {DRIVER_TOKEN_BYTES} B"
            yield _of(
                self.node, "driver", Item("evaluation data", size, 2 * size, text, "Python lists, object store")
            )
        for side, ranks in self.sides:
            for item in self._of_side(side, phase, stepped=stepped, rests=worker != "trainer"):
                yield _of(self.node, "trainer", item, side.rank, ranks)
            if phase is Phase.SAVE and self.node.head:
                yield from (_of(self.node, "trainer", item, side.rank) for item in side.gathered())
            if phase is Phase.LOAD and (ranks := self._loading(ranks)) and (loading := side.loading()).upper:
                yield _of(self.node, "trainer", loading, side.rank, ranks)
        for each, side, ranks in self.beside:
            for item, count in self._of_beside(each, side, ranks, phase, stepped=stepped, rests=worker != each.role):
                yield _of(self.node, each.role, item, side.rank, count)

    def _of_beside(
        self, each: Beside, side: Side, ranks: int, phase: Phase, *, stepped: bool, rests: bool
    ) -> Iterator[tuple[Item, int]]:
        """Another model's state while it rests, its checkpoint, and what loading it takes.

        A process that it shares with the trainer loads and saves one model after the other.
        """
        if rests:
            for item in each.rest(side, stepped=stepped).host:
                yield replace(item, source=f"{item.source}; waits in host memory"), ranks
        own = self.sides[0][0] if self.sides and not each.other.process else None
        staged, loaded = (None, None) if own is None else (own.staging(), own.loading())
        if each.other.trained and phase is Phase.SAVE:
            yield from ((item, ranks) for item in _beyond(side.staging(), staged))
        if phase is Phase.LOAD and (count := self._loading(ranks) if self.sides else ranks):
            yield from ((item, count) for item in _beyond(side.loading(), loaded))

    def _of_side(self, side: Side, phase: Phase, *, stepped: bool, rests: bool) -> Iterator[Item]:
        trainer, colocated = self.workload.trainer, self.settings.colocated
        if rests or (colocated and phase in (*GENERATING, Phase.SLEEP, Phase.SYNC)):
            for item in paused(side, trainer.offload, stepped=stepped, syncing=phase is Phase.SYNC).host:
                yield replace(item, source=f"{item.source}; waits in host memory")
        if (
            phase is Phase.SCORE
            and trainer.reference == "host"
            and trainer.system in SWAPPED_OUT
            and not self.unified
        ):
            # on one memory the parameters only change places; their bytes are in other lines
            yield from (item for item in side.states(stepped=False) if item.item == "weights")
            if stepped and side.stale is not None:
                yield side.stale
        if stepped or phase in (Phase.TRAIN, Phase.STEP):
            yield from side.hosted()
        if phase in (Phase.TRAIN, Phase.STEP) and trainer.offload == "host" and trainer.system in PAGEABLE:
            yield _left_over(side)
        if phase is Phase.SAVE or (phase is not Phase.LOAD and self.workload.save and self._staging_stays):
            yield from self._checkpoint(side, phase)

    @property
    def _staging_stays(self) -> bool:
        """Whether a checkpoint's copy outlives the phase that made it: it is written while the run goes on, or stays
        in torch's cache of pinned memory, which slime empties only where it pauses the trainer."""
        if self.workload.checkpoint == "async":
            return True
        return is_megatron(self.workload) and self.workload.trainer.offload != "dropped"

    def _checkpoint(self, side: Side, phase: Phase) -> Iterator[Item]:
        item = side.staging()
        if phase is Phase.SAVE or self.workload.checkpoint == "async":
            yield item
        else:
            text = f"{item.formula}; cached by torch"
            yield Item("staging not given back", 0, item.upper, text, "torch keeps freed pinned memory")

    def _loading(self, ranks: int) -> int:
        """Processes of the node that load: all of Megatron's and of ZeRO's, and all that have the whole model; of
        FSDP the first, and all where tied embeddings rule out parameters without storage."""
        workload = self.workload
        shared = self.sides and not is_megatron(workload) and workload.layout.shards > 1
        if shared and not uses_zero(workload.trainer) and not workload.model.tied and workload.loads == "first":
            return 1 if self.node.head else 0
        return ranks

    def _data(self) -> Iterator[Entry]:
        """Samples of the steps in flight: where they are generated, and on the ranks that train on them."""
        rollout, workload = self.workload.rollout, self.workload
        tokens = rollout.prompts * rollout.samples * rollout.longest
        batches, most = BATCHES[workload.mode]
        each = DRIVER_TOKEN_BYTES if self.node.head else STORED_TOKEN_BYTES
        parallel = self.sides[0][0].parallel if self.sides else 1
        of_rank = self.node.ranks * RANK_TOKEN_BYTES // parallel
        size = tokens * (each * batches + of_rank)
        if not size or not (self.node.head or self.node.ranks):
            return
        steps = f"{batches} x " if batches > 1 else ""
        text = f"{steps}{tokens:,} tokens x {each + of_rank:,} B"
        upper = 2 * tokens * (each * most + of_rank)
        where = "Python lists, object store" if workload.ray else "Python lists"
        yield _of(self.node, "driver", Item("rollout data", size, upper, text, where))
        if self.has_shm and workload.ray:
            stored = tokens * STORED_TOKEN_BYTES
            text = f"{steps}{tokens:,} tokens x {STORED_TOKEN_BYTES} B"
            item = Item("rollout data", stored * batches, 2 * stored * most, text, "Ray's object store")
            yield _of(self.node, "driver", item, place="shm")


def _beyond(item: Item, before: Item | None) -> Iterator[Item]:
    """What an item takes beyond one that came before it in the same process."""
    size, upper = (
        (item.bytes, item.upper) if before is None else (item.bytes - before.bytes, item.upper - before.upper)
    )
    if upper > 0:
        yield replace(item, bytes=max(0, size), upper=max(0, size, upper))


def _of(node: Node, role: str, item: Item, rank: int = 0, count: int = 1, place: Place = "host") -> Entry:
    return Entry(place, "host", role, item, rank, count, node.index)


def _copies(side: Side) -> Iterator[tuple[str, Item]]:
    """Copies that stay in pinned memory, each of all parameters of the rank."""
    trainer = side.workload.trainer
    if trainer.reference == "host":
        yield "reference", side.copy("reference weights")
    for name in trainer.copies:
        if name not in COPIES:
            raise InputError(f"trainer.copies = {name}: there are {', '.join(COPIES)}")
        yield name, side.copy(f"{name.replace('_', ' ')} weights")


def _tools(workload: Workload) -> Iterator[Item]:
    """Processes that score answers or run tools: how much they take, only their limit tells."""
    if workload.reward_kind == "function" and workload.reward_limit_bytes:
        reward = host.reward(workload)
        if reward is not None:
            yield reward
    if workload.tools_limit_bytes:
        yield Item("tools", 0, workload.tools_limit_bytes, "their limit", "tools and environments of all samples")


def _left_over(side: Side) -> Item:
    """Pageable copies of the state that a process has not given back although the state is on the device again.

    Inferred, not measured: in the one public list of such a process's memory its resident size is 23 GiB above the
    process and the reference, for 4.0 billion parameters. One fp32 copy of the parameters, which loading and every
    move to the host make, explains 15 of them; the bound is two.
    """
    size = sum(item.bytes for item in side.states(stepped=False) if item.item == "weights")
    text = "one copy of the parameters"
    return Item("copies not given back", size, 2 * size, text, "inferred from one reading").alone()
