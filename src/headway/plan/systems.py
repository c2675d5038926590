"""How other systems run a model, where that decides memory and no setting of the run tells it: one row a system."""

from typing import Literal

from msgspec import Struct

from headway.facts.workload import DTYPE_BYTES, Float8, Gathers, Lora, Trainer
from headway.units import MIB


class LossCost(Struct, frozen=True):
    """Bytes per logit while the loss is computed (`forward`), at the most of its backward pass, and what stays alive
    of the logits while the blocks' backward pass runs (`held`). `rows_chunk`: bytes per logit of one chunk on top.
    `responses`: bytes for each logit of a token with a loss, beside those for all.

    >>> LossCost(12, 12).held
    0
    """

    forward: float
    backward: float
    held: float = 0
    rows_chunk: int = 0
    responses: int = 0

    def half(self) -> "LossCost":
        """The same where nothing is cast to fp32."""
        return LossCost(self.forward / 2, self.backward / 2, self.held / 2, self.rows_chunk // 2, self.responses)

    def plus(self, temporary: int) -> "LossCost":
        """With a temporary of so many bytes per logit in both passes."""
        return LossCost(
            self.forward + temporary, self.backward + temporary, self.held, self.rows_chunk, self.responses
        )


class System(Struct, frozen=True):
    """One system's habits.

    `norm`: "upcast" computes RMSNorm in fp32 in Python and keeps the fp32 copy of its input; "fused" is one kernel
    that keeps its input. `fused_qkv`: one projection makes queries, keys and values, and a view of them stays.
    `repeat_kv`: keys and values are copied for every query head before attention. `lora` names the form of the
    adapter. `autocast`: parameters stay as they are, and each product runs on cast copies of weight and input.

    `packed_copy`: bytes per element of an input's copy that a packed projection keeps (litgpt: 7 runs of 2023 kept it
    in half precision, 11 of 2024 in fp32; the middle). `packed_head`: the head is packed too.

    `root_stays`: embedding and head are gathered for the whole step. `gathered_stays`: a sharded model is gathered
    whole when it is loaded and stays so, and gradients are divided only after a step's last micro-batch (no_sync;
    seen in ten runs of six models). `checkpoints_away`: what checkpointing keeps of a block goes
    to host memory. `gathers` and `loads`: what goes through host memory for a checkpoint and for loading
    (plan/saving.py). `held_back`: bytes that its allocator holds beyond tensors from loading and from its own
    streams. `loss` and `loss_fused`: the cost of full logits, run eagerly and compiled. `chunks`: that is
    of logits that are made and taken to the loss chunk by chunk, so that head gradients are summed.
    `pools_gradients`: sharded gradients are in a pool of their own, or may be (plan/training.py).

    >>> system("litgpt").fused_qkv
    True
    """

    norm: Literal["upcast", "fused"] = "upcast"
    fused_qkv: bool = False
    repeat_kv: bool = False
    lora: Literal["peft", "litgpt"] = "peft"
    autocast: bool = False
    packed_copy: int = 2
    gathers: Gathers = "in turn"
    loads: Literal["whole", "mapped", "permuted"] = "whole"
    packed_head: bool = False
    root_stays: bool = True
    gathered_stays: bool = False
    checkpoints_away: bool = False
    held_back: int = 0
    loss: LossCost = LossCost(10, 12)
    loss_fused: LossCost = LossCost(4, 4)
    chunks: bool = False
    pools_gradients: Literal["", "maybe", "always"] = ""


SYSTEMS: dict[str, System] = {
    # logits in bf16 (2), in fp32 twice (8) or once; log-softmax (4), its gradient (4), that of the logits (4).
    # held_back: fitted on 39 runs of four models, whose counter is the device's
    "hf": System(autocast=True, held_back=1536 * MIB, loss=LossCost(12, 12)),
    "trl": System(autocast=True, loss=LossCost(12, 12)),
    # nothing is cast to fp32; held_back: fitted on 16 runs of four models, two scripts
    "deepspeed": System(held_back=5120 * MIB, loss=LossCost(6, 6), loss_fused=LossCost(4, 4)),
    "peft": System(),
    # checkpoints in pinned host memory; the loss's kernel writes the gradient over the logits
    "unsloth": System(checkpoints_away=True, loads="mapped", loss=LossCost(2, 2), loss_fused=LossCost(2, 2)),
    # the same with checkpoints that stay on the device (`use_gradient_checkpointing=True`)
    "unsloth-kept": System(loads="mapped", loss=LossCost(2, 2), loss_fused=LossCost(2, 2)),
    # held_back: fitted on 11 runs of four models; the loop holds the model's output, fp32 logits, during backward
    "fsdp1": System(held_back=1024 * MIB, loss=LossCost(12, 16, held=4)),
    # the model casts its logits to fp32; the loop drops them before the backward pass
    "fsdp2": System(
        norm="fused", gathers="nothing", loads="mapped", root_stays=False, loss=LossCost(10, 12),
        loss_fused=LossCost(10, 12), pools_gradients="always",
    ),
    # the loss is compiled too: bf16 logits and their gradient
    "torchtitan": System(
        norm="fused", gathers="nothing", loads="mapped", root_stays=False, loss=LossCost(10, 12),
        loss_fused=LossCost(4, 4), pools_gradients="maybe",
    ),
    # logits in eight chunks in half precision (2), their log-softmax in fp32 (4), of one chunk two gradients (8/8);
    # compiled, a chunk's loss keeps its logits alone, and its gradient is in half precision (2/8). Each chunk has a
    # gradient of the head, which is added to the sum of those before it
    "torchtune": System(
        gathers="together", loads="permuted", root_stays=False, loss=LossCost(6, 7), loss_fused=LossCost(2, 2.25),
        chunks=True, pools_gradients="maybe",
    ),
    # Fabric casts the list of logits to fp32 (4), which the loop holds; log-softmax by chunk of 128 tokens (4)
    "litgpt": System(
        fused_qkv=True, repeat_kv=True, lora="litgpt", packed_copy=3, packed_head=True, gathered_stays=True,
        gathers="weights", loads="mapped",
        loss=LossCost(8, 8, held=4, rows_chunk=8),
    ),
    # logits in half precision (2) and, where entropy is asked for, their softmax and a product (4); the loss's kernel
    # writes the gradient over the logits (verl: `logprobs_from_logits`, `entropy_from_logits`)
    "verl-fsdp": System(norm="upcast", gathers="nothing", loss=LossCost(6, 4), loss_fused=LossCost(6, 4)),
    # logits in half precision (2), in fp32 (4), the gradients of both (`Actor.forward`); ZeRO's habits as deepspeed
    "openrlhf": System(gathers="weights", held_back=5120 * MIB, loss=LossCost(6, 12), loss_fused=LossCost(6, 12)),
    # bf16 logits (2), the gradient of the logits (2); of response tokens a softmax in fp32 (4)
    "miles-fsdp": System(gathers="nothing", root_stays=False, loss=LossCost(2, 4, responses=4)),
}  # fmt: skip
"""System -> how it runs a model. Sources: the systems' own code, as the comments tell."""
SYSTEMS |= {f"{name}-script": SYSTEMS[name] for name in ("trl", "hf", "peft")}
"""Started by a script's own calls, in whose words remedies are then written."""


DEEPSPEED = frozenset({"deepspeed", "openrlhf"})
"""Systems whose optimizer and shards are DeepSpeed's."""


def uses_zero(trainer: Trainer) -> bool:
    """Whether DeepSpeed holds the optimizer: in its systems, or where a Hugging Face trainer has fp32 masters beside
    half-precision parameters, which nothing else makes there."""
    half = DTYPE_BYTES[trainer.param_dtype] < DTYPE_BYTES["fp32"]
    return trainer.system in DEEPSPEED or (system(trainer.system).autocast and trainer.optimizer.master and half)


def system(name: str) -> System:
    """The row of a system; one without a row runs as a plain transformers trainer does."""
    return SYSTEMS.get(name, SYSTEMS["trl"])


RECAST = frozenset({"tensorwise", "rowwise"})
"""Recipes of torchao whose gradient of a weight takes its input in float8 too: "rowwise_with_gw_hp" takes it as it
is. Of mxfp8 public pairs say no more than that it keeps what half precision keeps (3 % and 0.3 % apart)."""


class Style(Struct, frozen=True):
    """What decides the tape of a block: the trainer's precision and the system's habits, nothing else.

    `size` is the bytes of an element of a product, `stream` of the residual stream; `kind` how a base is packed, and
    `tensor` the ranks that divide widths. `float8`: projections in float8, and `casts_again` whether the compiler has
    their inputs cast again in the backward pass instead of keeping them.
    """

    size: int
    stream: int
    lora: Lora | None
    packed: bool
    attention: str
    fused: bool
    tensor: int
    habits: System
    kind: str
    softcapped: bool = False
    float8: Float8 | None = None
    casts_again: bool = False

    @property
    def full(self) -> bool:
        """Whether all parameters are trained."""
        return self.lora is None

    @classmethod
    def of(cls, trainer: Trainer, tensor: int = 1, *, softcapped: bool = False) -> "Style":
        """The trainer's."""
        size, habits = DTYPE_BYTES[trainer.compute_dtype or trainer.param_dtype], system(trainer.system)
        float8 = trainer.float8 if trainer.lora is None else None
        partitioned = trainer.kernels == "fused" and not trainer.checkpointing and not trainer.selective
        return cls(
            size=size, stream=max(size, DTYPE_BYTES[trainer.param_dtype]) if habits.autocast else size,
            lora=trainer.lora, packed=trainer.quant is not None, attention=trainer.attention,
            fused=trainer.kernels == "fused", tensor=tensor, habits=habits,
            kind=trainer.quant.kind if trainer.quant else "", softcapped=softcapped, float8=float8,
            casts_again=float8 is not None and float8.recipe in RECAST and partitioned,
        )  # fmt: skip
