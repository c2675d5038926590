"""One rank of the trainer, whichever trainer it is: what it holds between passes, in them, and copied elsewhere."""

from collections import Counter
from functools import cached_property
from math import ceil
from typing import Protocol

from msgspec import Struct

from headway.facts.workload import DTYPE_BYTES, Workload
from headway.plan import finetune, offload, pinned, saving, training
from headway.plan.activations import FP32
from headway.plan.item import Item
from headway.plan.megatron import passes, runtime, states, widths
from headway.plan.megatron.phases import SYSTEMS
from headway.plan.megatron.run import Run
from headway.plan.megatron.stages import Stage
from headway.plan.rank import Rank
from headway.plan.systems import uses_zero
from headway.units import GIB, MIB

CHANNELS, CHANNEL_BYTES, DIRECT_PEERS = 32, 12 * MIB, 7
"""An all-to-all has a buffer of 10 + 2 MiB for each channel and each peer: 8 ranks of one node took 3.3 GB for it on
an H100 (NCCL issue 1685), which 32 channels to 7 peers explain to a tenth."""
PAUSED, PAUSED_UPPER = 3 * GIB, 4 * GIB
"""What a paused Megatron trainer with experts keeps of its device beside the context when it has destroyed its
process groups: 3 to 5 GB were left in all (15 to 18 GB before), reported for slime."""
PAUSED_DENSE = 256 * MIB
"""The same without experts. Not measured; the bound is that of experts."""


class Side(Protocol):
    """What the timeline asks of a rank of the trainer. Items are of one rank, sizes in bytes."""

    @property
    def workload(self) -> Workload:
        """The run."""

    @property
    def rank(self) -> int:
        """Its number."""

    @property
    def parallel(self) -> int:
        """Ranks that take different samples, or parts of them."""

    @property
    def groups(self) -> tuple[Item, ...]:
        """Device memory of its process groups."""

    @property
    def paused(self) -> Item:
        """What stays on the device while all tensors are away and process groups destroyed."""

    @property
    def runtime(self) -> list[Item]:
        """Tensors that stay allocated between passes and are no state."""

    @property
    def stale(self) -> Item | None:
        """Gradients that outlive their step, beside the states."""

    @property
    def whole(self) -> int:
        """Bytes of its parameters in half precision."""

    @property
    def largest(self) -> int:
        """Elements of the largest tensor, not divided."""

    def states(self, *, stepped: bool) -> list[Item]:
        """What it holds between passes; `stepped`: the optimizer has its moments."""

    def offloaded(self) -> list[Item]:
        """What its optimizer keeps in host memory for good."""

    def hosted(self) -> list[Item]:
        """Activations in pinned host memory, whose buffers stay from the first training pass on."""

    def train(self) -> list[Item]:
        """The highest moment of forward and backward, beside the states."""

    def score(self) -> list[Item]:
        """The highest moment of a pass for log-probs."""

    def step(self) -> list[Item]:
        """What the optimizer's step adds to the states."""

    def reserved(self, items: list[Item]) -> Item:
        """What its allocator holds beyond such tensors."""

    def copy(self, name: str) -> Item:
        """A half-precision copy of its parameters in pinned memory."""

    def staging(self) -> Item:
        """What of a checkpoint is in host memory while it is written."""

    def gathered(self) -> list[Item]:
        """What the first rank has of all others' parts meanwhile."""

    def loading(self) -> Item:
        """What it holds in host memory beside its own tensors while weights are loaded."""


def is_megatron(workload: Workload) -> bool:
    """Whether the trainer is Megatron's."""
    return workload.trainer.system in SYSTEMS


class Plain(Struct, frozen=True, dict=True):
    """A rank of FSDP, of DeepSpeed, or of a single device; all of them hold as much, and the first one loads."""

    workload: Workload

    @property
    def rank(self) -> int:
        """The first stands for all."""
        return 0

    @cached_property
    def _rank(self) -> Rank:
        return Rank.of(self.workload)

    @property
    def parallel(self) -> int:
        """All but those that share a layer's tensors."""
        layout = self.workload.layout
        return max(1, layout.ranks // (layout.tensor * layout.pipeline))

    @property
    def groups(self) -> tuple[Item, ...]:
        """One communicator, where there is more than one rank."""
        return (finetune.COMMUNICATORS,) if self.workload.layout.ranks > 1 else ()

    @property
    def paused(self) -> Item:
        """Nothing but the context."""
        return Item.exact("left after pausing", 0, "none", "")

    @property
    def runtime(self) -> list[Item]:
        """None."""
        return []

    @cached_property
    def stale(self) -> Item | None:
        """Gradients of the last step where they are freed only before the next backward pass."""
        if not self.workload.trainer.gradients_stay:
            return None
        text = "freed only before the next backward"
        return Item.exact("stale gradients", self._rank.gradients, "one for each trained parameter", text)

    @property
    def whole(self) -> int:
        """The shard in half precision."""
        return ceil(self.workload.model.parameters() / self.workload.layout.shards) * pinned.HALF

    @property
    def largest(self) -> int:
        """The embedding, gathered."""
        return self.workload.model.embedding_parameters()

    @cached_property
    def _states(self) -> dict[bool, list[Item]]:
        return {
            stepped: training.states(self.workload, stepped=stepped, rank=self._rank) for stepped in (False, True)
        }

    def states(self, *, stepped: bool) -> list[Item]:
        """Weights, adapters, moments and master."""
        return self._states[stepped]

    def offloaded(self) -> list[Item]:
        """The optimizer's part, and the parameters under FSDP's offload policy."""
        return offload.host_states(self.workload, self._rank)

    def hosted(self) -> list[Item]:
        """None."""
        return []

    def train(self) -> list[Item]:
        """As plan/training.py counts it."""
        return training.with_bounds(
            self.workload, lambda run: training.train(run, training.micro_batch(run), self._rank)
        )

    def score(self) -> list[Item]:
        """As plan/training.py counts it."""
        return training.with_bounds(self.workload, lambda run: training.score(run, training.scoring_batch(run)))

    def step(self) -> list[Item]:
        """Gradients and temporaries."""
        return training.step(self.workload, self._rank)

    def reserved(self, items: list[Item]) -> Item:
        """As plan/training.py counts it."""
        return training.reserved(items)

    def copy(self, name: str) -> Item:
        """Its shard, tensor by tensor."""
        return pinned.copy(name, self.workload)

    def staging(self) -> Item:
        """Tensors in flight, or the whole shard."""
        held = sum(item.bytes for item in self.states(stepped=True))
        return saving.staging(self.workload, self._rank, held)

    def gathered(self) -> list[Item]:
        """As plan/saving.py counts it."""
        return saving.gathered(self.workload, self._rank)

    def loading(self) -> Item:
        """The whole model comes to the host first; under ZeRO 3 a file of it at a time. Of one rank alone as
        plan/saving.py counts it."""
        workload = self.workload
        if workload.layout.shards == 1 and not uses_zero(workload.trainer):
            found = saving.loading(workload, self._rank)
            return Item.exact("model being loaded", 0, "the mapped files", "") if found is None else found[0]
        count = workload.model.parameters()
        if uses_zero(workload.trainer) and workload.layout.shards > 1:
            size = min(saving.FILE_BYTES, count * pinned.HALF)
            return Item.exact("file being loaded", size, "one file of the checkpoint", "each rank takes its shard")
        size = DTYPE_BYTES[workload.trainer.param_dtype]
        return Item.exact(
            "model being loaded", count * size, f"{count:,} parameters x {size} B", "before it is sharded"
        )


class Megatron(Struct, frozen=True, dict=True):
    """The first rank of a pipeline stage of Megatron's."""

    workload: Workload
    run: Run
    stage: Stage

    @cached_property
    def rank(self) -> int:
        """Its number."""
        return self.run.first_rank(self.stage)

    @cached_property
    def _counts(self) -> states.Counts:
        return states.counts(self.run, self.stage)

    @property
    def parallel(self) -> int:
        """Data and context parallel ranks."""
        return self.run.data * self.run.context

    @cached_property
    def groups(self) -> tuple[Item, ...]:
        """Communicators, and what all-to-all among the expert ranks needs for each channel and peer."""
        if self.run.layout.ranks == 1:
            return ()
        found = [runtime.communicators(self.run)]
        peers = self.run.expert - 1
        if peers and self.run.megatron.dispatcher == "alltoall":
            size = CHANNELS * min(peers, DIRECT_PEERS) * CHANNEL_BYTES
            text = f"{CHANNELS} channels x {min(peers, DIRECT_PEERS)} peers x 12 MiB"
            found.append(Item("all-to-all buffers", size, CHANNELS * peers * CHANNEL_BYTES, text, "NCCL issue 1685"))
        return tuple(found)

    @property
    def paused(self) -> Item:
        """Reported for slime."""
        size = PAUSED if self.run.shape.experts else PAUSED_DENSE
        return Item("left after pausing", size, PAUSED_UPPER, "constant", "3 to 5 GB with the context, reported")

    @cached_property
    def runtime(self) -> list[Item]:
        """Dummy gradients and workspaces."""
        return runtime.items(self.run, self.stage)

    @property
    def stale(self) -> Item | None:
        """The gradient buffer is a state."""
        return None

    @property
    def whole(self) -> int:
        """Its parameters in half precision."""
        return self._counts.all * pinned.HALF

    @cached_property
    def largest(self) -> int:
        """The embedding, of all tensor ranks, or a layer's fused projection."""
        shape = self.run.shape
        tables = self.run.vocab * self.run.tensor * shape.hidden if self.stage.embedding or self.stage.head else 0
        return max(tables, shape.hidden * max(shape.ffn * 2, shape.query_width + 2 * shape.kv_width))

    @cached_property
    def _states(self) -> dict[bool, list[Item]]:
        return {stepped: states.items(self.run, self.stage, stepped=stepped) for stepped in (False, True)}

    def states(self, *, stepped: bool) -> list[Item]:
        """Weights, gradient buffer, the optimizer's part."""
        return self._states[stepped]

    @cached_property
    def _offloaded(self) -> list[Item]:
        """fp32 parameters and gradients are pinned and so rounded up, moments are pageable; the bound has all of it
        rounded up, with the half-precision copy that the fp32 one is made from.

        Source: Megatron Core's `HybridDeviceOptimizer`. Eight ranks of a 30B model with 128 experts held 102 GiB each
        in one public report (slime issue 1851), copies of two models included.
        """
        share, optimizer = self.run.trainer.optimizer.offload, self.run.trainer.optimizer
        if not share:
            return []
        own, ratio = states.owned(self.run, self._counts), self._rounded / max(1, self.whole)
        moments = states.STATES[optimizer.kind] * FP32
        size = round(own * share * (2 * FP32 * ratio + moments))
        upper = round(own * share * ratio * (2 * FP32 + pinned.HALF + moments))
        text = f"{own:,} parameters x {share:g} x (2 x 4 B rounded up + {moments} B)"
        return [Item("offloaded optimizer", size, upper, text, "parameters and gradients pinned")]

    def offloaded(self) -> list[Item]:
        """The optimizer's part."""
        return self._offloaded

    def hosted(self) -> list[Item]:
        """As plan/megatron counts it."""
        return passes.host_items(self.workload, self.stage)

    def train(self) -> list[Item]:
        """As plan/megatron counts it."""
        return training.with_bounds(self.workload, lambda run: passes.train(run, self.stage))

    def score(self) -> list[Item]:
        """As plan/megatron counts it."""
        return training.with_bounds(self.workload, lambda run: passes.score(run, self.stage))

    def step(self) -> list[Item]:
        """As plan/megatron counts it."""
        return passes.step(self.workload, self.stage)

    def reserved(self, items: list[Item]) -> Item:
        """As plan/megatron counts it."""
        return passes.reserved(self.run, self.stage, items)

    @cached_property
    def _rounded(self) -> int:
        """Bytes of the parameters in half precision, each tensor rounded up to a power of two."""
        sizes = tensors(self.run, self.stage)
        known = sum(elements * number for elements, number in sizes.items())
        rest = max(0, self._counts.all - known) * pinned.HALF
        return rest + sum(pinned.power_of_two(each * pinned.HALF) * number for each, number in sizes.items())

    def copy(self, name: str) -> Item:
        """Its parameters, tensor by tensor."""
        text = f"{self.whole:,} B in tensors rounded up to powers of two"
        return Item.exact(name, self._rounded, text, "pinned, one copy a rank")

    @cached_property
    def _staging(self) -> Item:
        """The whole shard goes to pinned host memory before a writer starts, also where the run waits for it.

        Parameters are written by one of the ranks that hold them. Source: Megatron Core's
        `FileSystemWriterAsync.preload_tensors`; `AsyncSaveShardedStrategy.save` runs the same request and waits.
        """
        found = {item.item: item.bytes for item in self.states(stepped=True)}
        optimizer = found.get("optimizer state", 0) + sum(item.bytes for item in self.offloaded())
        plain = ceil(self.whole / (self.run.data * self.run.context)) + optimizer
        size = round(plain * self._rounded / max(1, self.whole))
        return Item("checkpoint staging", size, max(size, 2 * plain), f"{plain:,} B, rounded up", "pinned")

    def staging(self) -> Item:
        """The whole shard."""
        return self._staging

    def gathered(self) -> list[Item]:
        """Every rank writes its own."""
        return []

    def loading(self) -> Item:
        """Tensors are read one by one into the rank's parameters; the bound is all of its shard."""
        size = self.largest // self.run.tensor * pinned.HALF
        return Item("shard being read", size, max(size, self.whole), "the largest tensor", "torch_dist checkpoint")


def tensors(run: Run, stage: Stage) -> Counter[int]:
    """How many parameter tensors of one rank have how many elements, without those of norms.

    Transformer Engine's grouped experts have two tensors for each local expert.
    """
    shape = run.shape
    found: Counter[int] = Counter()
    for block, number in stage.groups:
        for one in widths.fused_attention(run.shape, block, run.tensor):
            found[one.size] += number
        if width := widths.plain_width(shape, block):
            for one in widths.mlp(shape, width, run.tensor):
                found[one.size] += number
        if block.experts:
            for one in widths.mlp(shape, shape.expert_ffn, run.expert_tensor):
                found[one.size] += number * (shape.experts // run.expert)
            found[shape.hidden * shape.experts] += number
    tables = int(stage.embedding) + int(stage.head and (not shape.tied or not stage.first))
    if tables:
        found[run.vocab * shape.hidden] += tables
    return found


def all_sides(workload: Workload) -> tuple[Side, ...]:
    """One rank of each pipeline stage; one for all where there are none.

    InputError where the ranks do not divide into the groups.
    """
    if not is_megatron(workload):
        return (Plain(workload),)
    run = Run.of(workload)
    return tuple(Megatron(workload, run, stage) for stage in run.stages())
