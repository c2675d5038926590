"""What layers keep, against published closed formulas and against what recomputation must do."""

from typing import Any

import pytest
from msgspec.structs import replace

from headway.facts.blocks import Block
from headway.facts.shapes import ModelShape
from headway.facts.workload import Lora, Recompute
from headway.plan.activations import Batch
from headway.plan.megatron import moe
from headway.plan.megatron.activations import layer
from headway.plan.megatron.parts import Layer
from headway.plan.megatron.run import Run
from headway.plan.megatron.widths import distinct

from .runs import GPT, LATENT, LLAMA, MOE, run

DENSE, SPARSE, LOW = Block("full", experts=False), Block("full", experts=True), Block("mla", experts=True)
BATCH = Batch(2, 1024)
TOKENS = BATCH.tokens


def one(shape: ModelShape, block: Block = DENSE, batch: Batch = BATCH, **changes: Any) -> Layer:
    """One layer of a run."""
    return layer(Run.of(run(shape, **changes)), batch, block)


def test_a_classic_layer_with_dropout_is_34_bytes_and_five_of_attention() -> None:
    """Korthikanti et al., table 2: sbh (34 + 5 as / h), selective recomputation drops the second term."""
    dropout = {"hidden_dropout": True, "attention_dropout": True}
    plain = 34 * TOKENS * GPT.hidden
    scores = 5 * GPT.heads * BATCH.pairs
    assert one(GPT, attention="eager", **dropout).kept == plain + scores
    selective = Recompute("selective", ("core_attn",))
    again = one(GPT, attention="eager", recompute=selective, **dropout)
    assert (again.kept, again.again) == (plain, scores)


def test_tensor_parallel_with_and_without_sequence_parallelism() -> None:
    """The same paper: 34 / t with sequence parallelism, 10 + 24 / t without."""
    changes = {"attention": "eager", "hidden_dropout": True, "recompute": Recompute("selective", ("core_attn",))}
    ranks = {"devices": 4, "tensor": 4}
    assert one(GPT, **changes, **ranks).kept == 34 * TOKENS * GPT.hidden / 4
    assert one(GPT, **changes, **ranks, sequence_parallel=False).kept == (10 + 24 / 4) * TOKENS * GPT.hidden


@pytest.mark.parametrize("tensor", [1, 2, 4])
def test_a_gated_layer_with_grouped_queries(tensor: int) -> None:
    h, q, kv, f = LLAMA.hidden, LLAMA.query_width, LLAMA.kv_width, LLAMA.ffn
    width = 8 * h + 2 * q + 2 * (q + 2 * kv) + 4 * LLAMA.heads + 6 * f
    assert one(LLAMA, devices=tensor, tensor=tensor).kept == TOKENS * width / tensor


def test_flash_attention_keeps_its_output_in_two_orders_of_several_samples() -> None:
    more = one(LLAMA, attention="flash").kept - one(LLAMA).kept
    assert more == 2 * TOKENS * LLAMA.query_width
    alone = Batch(1, TOKENS)
    assert one(LLAMA, batch=alone, attention="flash") == one(LLAMA, batch=alone)


def test_a_head_s_norm_keeps_what_it_norms() -> None:
    more = one(replace(LLAMA, qk_norm=True)).kept - one(LLAMA).kept
    assert more == 2 * TOKENS * (LLAMA.query_width + LLAMA.kv_width)


def test_context_parallelism_by_all_to_all_keeps_the_output_twice() -> None:
    changes = {"devices": 4, "context": 4}
    ring = one(LLAMA, **changes).kept
    assert one(LLAMA, **changes, context_exchange="a2a").kept - ring == 2 * TOKENS * LLAMA.query_width
    assert one(LLAMA, **changes, context_exchange="a2a", te_version="2.7").kept == ring


def test_full_recomputation_keeps_the_input_and_brings_back_the_rest() -> None:
    plain, full = one(LLAMA), one(LLAMA, recompute=Recompute("full"))
    assert full.kept == full.source == 2 * TOKENS * LLAMA.hidden
    assert full.kept + full.again == plain.kept
    assert one(LLAMA, checkpointing=True) == full


@pytest.mark.parametrize(
    ("module", "shape", "block", "dropped"),
    [
        ("core_attn", LLAMA, DENSE, 4 * LLAMA.heads),
        ("mlp", LLAMA, DENSE, 2 * LLAMA.hidden + 6 * LLAMA.ffn),
        ("moe_act", MOE, SPARSE, 4 * 2 * MOE.expert_ffn),
        ("shared_experts", MOE, SPARSE, 6 * MOE.shared_ffn),
        ("mla_up_proj", LATENT, LOW, 2 * LATENT.heads * (2 * (64 + 32) + 64)),
        ("layernorm", LATENT, LOW, 4 * LATENT.hidden),
        ("layernorm", LLAMA, DENSE, 0),
    ],
)
def test_selective_recomputation_drops_its_module(module: str, shape: ModelShape, block: Block, dropped: int) -> None:
    kept = one(shape, block).kept - one(shape, block, recompute=Recompute("selective", (module,))).kept
    assert kept == TOKENS * dropped


def test_recomputing_experts_keeps_their_input_only() -> None:
    again = one(MOE, SPARSE, recompute=Recompute("selective", ("moe",)))
    h, q, kv = MOE.hidden, MOE.query_width, MOE.kv_width
    assert again.kept == TOKENS * (8 * h + 2 * q + 2 * (q + 2 * kv) + 4 * MOE.heads)


def test_experts_keep_copies_by_topk_and_shared_ones() -> None:
    h, q, kv, f, e, k = MOE.hidden, MOE.query_width, MOE.kv_width, MOE.expert_ffn, MOE.experts, MOE.experts_per_token
    width = 8 * h + 2 * q + 2 * (q + 2 * kv) + 4 * MOE.heads
    width += k * (2 * h + 6 * f + 4) + 6 * MOE.shared_ffn + 13 * e
    assert one(MOE, SPARSE).kept == TOKENS * width
    older = one(MOE, SPARSE, core_version="0.12").kept
    assert older - TOKENS * width == TOKENS * k * 2 * h


def test_token_copies_follow_capacity_imbalance_and_expert_tensor_ranks() -> None:
    def rows(**changes: Any) -> int:
        return moe.rows(Run.of(run(MOE, **changes)), BATCH)

    assert rows() == 4 * TOKENS
    assert rows(capacity=1.25) == 5 * TOKENS
    assert rows(imbalance=1.5) == 6 * TOKENS
    # sequence parallelism divides tokens by two; two expert tensor ranks see those of both
    assert rows(devices=8, tensor=2, expert_parallel=4, expert_tensor=1) == 2 * TOKENS
    assert rows(devices=8, tensor=2, expert_parallel=4) == 4 * TOKENS


def test_dispatching_holds_four_sets_of_copies_or_the_gathered_tokens() -> None:
    copies, stream = 4 * TOKENS * 2 * MOE.hidden, TOKENS * 2 * MOE.hidden
    ranks = {"devices": 8, "expert_parallel": 8}
    assert moe.experts(Run.of(run(MOE, **ranks)), BATCH).forward == 4 * copies + 2 * stream
    gathered = moe.experts(Run.of(run(MOE, **ranks, dispatcher="allgather")), BATCH).forward
    assert gathered == 8 * stream + copies + 2 * 8 * stream + 2 * stream


def test_adapters_keep_the_gathered_input_unless_it_is_gathered_again() -> None:
    changes: dict[str, Any] = {"lora": Lora(16, "all-linear"), "devices": 2, "tensor": 2}
    kept, regathered = one(LLAMA, **changes).kept, one(LLAMA, **changes, regather_lora=True).kept
    assert kept - regathered == 2 * 2 * TOKENS * LLAMA.hidden
    assert regathered == one(LLAMA, devices=2, tensor=2).kept


def test_a_gate_without_a_fused_kernel_keeps_its_result_and_the_other_half() -> None:
    more = one(LLAMA, fused_activation=False).kept - one(LLAMA).kept
    assert more == TOKENS * 2 * 2 * LLAMA.ffn
    # an expert's product is kept as well before its probability weighs it
    experts = one(MOE, SPARSE, fused_activation=False).kept - one(MOE, SPARSE).kept
    assert experts == TOKENS * (2 * 2 * MOE.shared_ffn + 4 * 3 * 2 * MOE.expert_ffn)
    assert one(GPT, fused_activation=False) == one(GPT)


def test_distinct_weights_of_a_rank() -> None:
    plain, grouped = distinct(MOE, (DENSE, SPARSE), 2, 2)
    h, q, kv = MOE.hidden, MOE.query_width, MOE.kv_width
    assert plain == {
        (h, (q + 2 * kv) // 2), (q // 2, h), (h, MOE.ffn), (MOE.ffn // 2, h), (h, MOE.shared_ffn),
        (MOE.shared_ffn // 2, h),
    }  # fmt: skip
    assert grouped == {(h, MOE.expert_ffn), (MOE.expert_ffn // 2, h)}
