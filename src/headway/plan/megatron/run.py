"""The sizes that every part of a Megatron plan needs: process groups, elements, the padded vocabulary."""

from math import ceil

from msgspec import Struct
from msgspec.structs import replace

from headway.errors import InputError
from headway.facts.shapes import ModelShape
from headway.facts.workload import DTYPE_BYTES, Layout, Megatron, Recompute, Trainer, Workload
from headway.plan.megatron.stages import Stage, stages

FP32 = 4
SOURCE = "plan/megatron"


class Run(Struct, frozen=True):
    """One trainer, its groups worked out. `tensor`, `context`, `expert`, `expert_tensor`: ranks of each group;
    `data`: ranks that take different samples; `expert_data`: ranks that hold the same experts."""

    shape: ModelShape
    trainer: Trainer
    layout: Layout
    tensor: int
    context: int
    expert: int
    expert_tensor: int
    data: int
    expert_data: int

    @classmethod
    def of(cls, workload: Workload) -> "Run":
        """InputError where the ranks do not divide into the groups."""
        layout, shape = workload.layout, workload.model
        tensor, context = layout.tensor, layout.context
        expert = layout.expert_parallel if shape.experts else 1
        expert_tensor = layout.expert_tensor or tensor
        stage = tensor * context * layout.pipeline
        if layout.ranks % stage:
            raise InputError(
                f"layout.tensor={tensor} x context={context} x pipeline={layout.pipeline} = {stage} does not divide "
                f"the trainer's {layout.ranks} ranks; set layout.devices to a multiple of {stage}"
            )
        wide = expert * expert_tensor * layout.pipeline
        if shape.experts and (layout.ranks % wide or shape.experts % expert):
            raise InputError(
                f"layout.expert_parallel={expert} x expert_tensor={expert_tensor} x pipeline={layout.pipeline} does "
                f"not divide {layout.ranks} ranks, or {expert} does not divide {shape.experts} experts; set "
                "layout.expert_parallel to a divisor of both"
            )
        expert_data = layout.ranks // wide if shape.experts else 1
        return cls(
            shape,
            workload.trainer,
            layout,
            tensor,
            context,
            expert,
            expert_tensor,
            layout.ranks // stage,
            expert_data,
        )

    @property
    def megatron(self) -> Megatron:
        """How Megatron runs the model."""
        return self.trainer.megatron

    @property
    def rl(self) -> bool:
        """Whether the loss is made from log-probs of answers, as slime, Miles and verl do, not Megatron's own."""
        return self.trainer.system != "megatron"

    @property
    def size(self) -> int:
        """Bytes of an element that computes."""
        return DTYPE_BYTES[self.trainer.compute_dtype or self.trainer.param_dtype]

    @property
    def stream(self) -> int:
        """Ranks that divide the residual stream's tokens: with sequence parallelism those of the tensor group."""
        return self.tensor if self.layout.sequence_parallel else 1

    @property
    def gathers(self) -> bool:
        """Whether projections gather tokens that sequence parallelism divides."""
        return self.stream > 1

    @property
    def vocab(self) -> int:
        """Entries of the vocabulary of one rank: all of them, padded so that the tensor ranks divide them."""
        multiple = self.megatron.vocab_multiple * self.tensor
        return ceil(self.shape.vocab / multiple) * self.megatron.vocab_multiple

    @property
    def recompute(self) -> Recompute:
        """What is computed again; `checkpointing` alone means every layer."""
        recompute = self.trainer.recompute
        if recompute.granularity == "none" and self.trainer.checkpointing:
            return Recompute("full")
        return recompute

    @property
    def te(self) -> bool:
        """Whether layers are Transformer Engine's."""
        return self.megatron.implementation == "te"

    def te_since(self, major: int, minor: int) -> bool:
        """Whether Transformer Engine is of this version or newer."""
        return self.te and _at_least(self.megatron.te_version, major, minor)

    def core_since(self, major: int, minor: int) -> bool:
        """Whether Megatron Core is of this version or newer."""
        return _at_least(self.megatron.core_version, major, minor)

    def drops(self, module: str) -> bool:
        """Whether selective recomputation drops a module's activations."""
        return self.recompute.granularity == "selective" and module in self.recompute.modules

    def divides(self, what: str) -> bool:
        """Whether Megatron's own FSDP divides "grads" or "params"."""
        return what in self.megatron.fsdp

    def stages(self) -> tuple[Stage, ...]:
        """The pipeline's stages; with a value of one output a token none has an output layer."""
        found = stages(self.shape, self.layout, self.megatron)
        if self.trainer.loss == "value":
            return tuple(replace(stage, head=False) for stage in found)
        return found

    def first_rank(self, stage: Stage) -> int:
        """The number of a stage's first rank: stages are the outermost group."""
        return stage.index * self.tensor * self.context * self.data


def _at_least(version: str, major: int, minor: int) -> bool:
    """Whether a version is at least this; an empty one is recent."""
    parts = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    return not parts or parts >= (major, minor)
