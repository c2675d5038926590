"""Parameters, gradient buffer and optimizer of one rank of a stage.

Bytes per parameter that one rank holds (bf16): 2 the parameter, 4 its place in the gradient buffer, 4 + 4 + 4 the
fp32 master and Adam's moments, which the distributed optimizer divides over the ranks that hold the same parameters:
data x context parallel ones, for experts those of the expert data group. Source: Megatron Core's
`distributed-optimizer` README.
"""

from functools import lru_cache
from math import ceil

from msgspec import Struct

from headway.facts.blocks import Block
from headway.facts.shapes import ModelShape
from headway.facts.workload import DTYPE_BYTES
from headway.plan.item import Item
from headway.plan.megatron import float8
from headway.plan.megatron.run import FP32, SOURCE, Run
from headway.plan.megatron.stages import Stage
from headway.plan.megatron.widths import attention, attention_of, kv_heads, mlp, plain_width

STATE_BYTES = {"fp32": 4.0, "bf16": 2.0, "int8": 1.0, "int4": 0.5}
"""Bytes of one moment of one parameter."""
STATES = {"adamw": 2, "adafactor": 0, "sgd": 1, "muon": 1, "lion": 1, "rmsprop": 1, "adagrad": 1}
"""Moments per parameter."""


class Counts(Struct, frozen=True):
    """Parameters of one rank: dense ones and experts' that are trained, and frozen ones. `tables`: how many of the
    dense ones are in the embedding and the head, which Muon leaves to Adam.

    >>> Counts(dense=10, experts=4).trained
    14
    """

    dense: int = 0
    experts: int = 0
    frozen: int = 0
    tables: int = 0

    @property
    def trained(self) -> int:
        """All that are trained."""
        return self.dense + self.experts

    @property
    def all(self) -> int:
        """All."""
        return self.trained + self.frozen

    def times(self, number: int) -> "Counts":
        """So many of them."""
        return Counts(self.dense * number, self.experts * number, self.frozen * number, self.tables * number)

    def plus(self, other: "Counts") -> "Counts":
        """Both."""
        return Counts(
            self.dense + other.dense, self.experts + other.experts, self.frozen + other.frozen,
            self.tables + other.tables,
        )  # fmt: skip


@lru_cache(maxsize=1024)
def block_counts(shape: ModelShape, block: Block, tensor: int, expert: int, expert_tensor: int) -> Counts:
    """Parameters of one block on one of `tensor` ranks, whose experts `expert` x `expert_tensor` ranks share. Norms
    and the router are on every tensor rank in whole."""
    linears = attention_of(shape, block, tensor)
    whole = shape.attention_parameters(block) - sum(one.size for one in attention(shape, block))
    if shape.qkv_bias and not shape.mla and block.attention in ("full", "sliding", "encoder", "cross"):
        whole -= shape.query_width + 2 * shape.kv_width
        whole += ceil(shape.query_width / tensor) + 2 * kv_heads(shape, tensor) * shape.head_dim
    dense = sum(one.size for one in linears) + whole + shape.block_norms(block) * shape.norm_parameters()
    if not block.mlp:
        return Counts(dense)
    dense += sum(one.size for one in mlp(shape, plain_width(shape, block), tensor))
    if shape.mlp_bias and not block.experts:
        wide = shape.ffn * (2 if shape.gated else 1)
        dense += ceil(wide / tensor) + shape.hidden
    if not block.experts:
        return Counts(dense)
    dense += shape.hidden * shape.experts + (shape.experts if shape.router_bias else 0)
    dense += shape.hidden if shape.shared_gate else 0
    return Counts(dense, shape.experts // expert * ceil(shape.expert_parameters() / expert_tensor))


def counts(run: Run, stage: Stage) -> Counts:
    """Parameters of one rank of a stage; with adapters the base is frozen and they are trained."""
    groups = run.tensor, run.expert, run.expert_tensor
    base = _counts(run.shape, stage, run.vocab, *groups)
    lora = run.trainer.lora
    if lora is None:
        return base
    # tensor ranks divide both matrices of an adapter: one by its inputs or outputs, the other by its rank
    trained = sum(
        number * lora.rank * (ceil(inputs / run.tensor) + ceil(outputs / run.tensor))
        for block, number in stage.groups
        for inputs, outputs in run.shape.lora_linears(lora.targets, block)
    )
    return Counts(dense=trained, frozen=base.all)


@lru_cache(maxsize=4096)
def _counts(shape: ModelShape, stage: Stage, vocab: int, tensor: int, expert: int, expert_tensor: int) -> Counts:
    """The embedding is on the first stage. Where it is the head as well, the last stage has a copy; layers for
    multi-token prediction look tokens up with one. Each of those layers has a block, two norms of what comes in, a
    norm of what goes out, and a projection from twice the width."""
    table = vocab * shape.hidden
    found = Counts()
    for block, number in stage.groups:
        found = found.plus(block_counts(shape, block, tensor, expert, expert_tensor).times(number))
    tables = int(stage.embedding)
    if stage.head and (not shape.tied or not stage.first):
        tables += 1
    if stage.mtp and not stage.first and not shape.tied:
        tables += 1
    rest = tables * table + (shape.learned_positions * shape.hidden if stage.embedding else 0)
    if stage.head:
        rest += shape.norm_parameters() * (2 if shape.encoder_layers else 1) + shape.masked_head_parameters()
        rest += vocab if shape.head_bias else 0
    found = found.plus(Counts(rest, tables=tables * table))
    if stage.mtp:
        widest = max((block for block, _ in shape.blocks()), key=shape.block_parameters)
        more = Counts(3 * shape.norm_parameters() + ceil(2 * shape.hidden**2 / tensor))
        found = found.plus(block_counts(shape, widest, tensor, expert, expert_tensor).plus(more).times(stage.mtp))
    return found


def param_size(run: Run) -> int:
    """Bytes of a parameter."""
    return DTYPE_BYTES[run.trainer.param_dtype]


def gradient_size(run: Run) -> int:
    """Bytes of a parameter's place in the gradient buffer: fp32 unless the run says otherwise."""
    return DTYPE_BYTES[run.trainer.grad_dtype] if run.trainer.grad_dtype else FP32


def state_size(run: Run) -> float:
    """Bytes of master and moments for one parameter of the optimizer's part."""
    optimizer = run.trainer.optimizer
    moments = STATES[optimizer.kind] * STATE_BYTES[optimizer.state_dtype]
    # an optimizer that takes fp32 only has half-precision gradients cast, and keeps them until the next step
    cast = FP32 if gradient_size(run) < FP32 and not optimizer.precision_aware else 0
    return moments + master_size(run) + cast


def master_size(run: Run) -> int:
    """Bytes of a parameter's fp32 master. The precision-aware optimizer stores only the 16 bits that a bf16
    parameter does not have (`store_param_remainders`)."""
    trainer = run.trainer
    optimizer = trainer.optimizer
    if not optimizer.master or param_size(run) == FP32:
        return 0
    if optimizer.precision_aware and trainer.param_dtype == "bf16" and optimizer.master_dtype == "fp32":
        return 2
    return DTYPE_BYTES[optimizer.master_dtype]


def step_bytes(run: Run, found: Counts) -> int:
    """What the optimizer's step holds beside its state: Transformer Engine's fused Adam makes fp32 copies of all
    half-precision moments of a group of parameters; dense ones and experts are stepped one after the other."""
    optimizer = run.trainer.optimizer
    if optimizer.state_dtype == "fp32" or not optimizer.precision_aware:
        return 0
    dense, experts = owned_parts(run, found)
    return round(max(dense, experts) * STATES[optimizer.kind] * FP32 * (1 - optimizer.offload))


def owned(run: Run, found: Counts) -> int:
    """Parameters whose optimizer state one rank has."""
    return sum(owned_parts(run, found))


def owned_parts(run: Run, found: Counts) -> tuple[int, int]:
    """The same of dense parameters and of experts."""
    if not run.trainer.optimizer.distributed and not run.megatron.fsdp:
        return found.dense, found.experts
    copies = run.megatron.optimizer_instances
    dense = max(1, run.data * run.context // copies)
    return ceil(found.dense / dense), ceil(found.experts / max(1, run.expert_data // copies))


def items(run: Run, stage: Stage, *, stepped: bool) -> list[Item]:
    """What the device holds between passes; before the first step there are no moments, only the fp32 master."""
    found, optimizer = counts(run, stage), run.trainer.optimizer
    size, own = param_size(run), owned(run, found)
    where = f"rank {run.first_rank(stage)}, stage {stage.index} of {stage.count}"
    here = 1 - optimizer.offload
    per = state_size(run) if stepped else master_size(run)
    here_weights = found.frozen + own if run.divides("params") else found.all
    here_gradients = own if run.divides("grads") else found.trained
    # what FSDP divides is not counted in float8
    less = 0 if run.divides("params") else float8.stored(run, stage)
    weights, stored = here_weights * size + less, ", projections in float8" if less else ""
    size_all = own * per + (_muon_tables(run, found) if stepped else 0)
    return [
        item for item in (
            Item.exact("weights", weights, f"{here_weights:,} parameters x {size} B{stored}, {where}", SOURCE),
            Item.exact(
                "gradient buffer", here_gradients * gradient_size(run),
                f"{here_gradients:,} parameters x {gradient_size(run)} B", SOURCE,
            ),
            Item.exact("optimizer state", round(size_all * here), f"{own:,} parameters x {per:g} B", SOURCE),
        ) if item.upper
    ]  # fmt: skip


def _muon_tables(run: Run, found: Counts) -> float:
    """The second moment that Adam keeps of embedding and head where Muon has the rest."""
    optimizer = run.trainer.optimizer
    if optimizer.kind != "muon":
        return 0.0
    ranks = run.data * run.context // run.megatron.optimizer_instances if optimizer.distributed else 1
    return found.tables / max(1, ranks) * STATE_BYTES[optimizer.state_dtype]


def host_items(run: Run, stage: Stage) -> list[Item]:
    """What an offloaded optimizer keeps in pinned host memory: its share of the state, and of gradients in fp32."""
    share = run.trainer.optimizer.offload
    if not share:
        return []
    own = owned(run, counts(run, stage))
    size = round(own * share * (state_size(run) + FP32))
    return [Item.exact("offloaded optimizer", size, f"{own:,} parameters x {share:g} x state and gradient", "pinned")]
