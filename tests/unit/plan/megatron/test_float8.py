"""Transformer Engine's float8: copies of weights and what layers keep, against Megatron's own tests."""

import csv
from pathlib import Path

import pytest
from msgspec.structs import replace

from golden_rows import workload
from headway.facts.blocks import Block
from headway.facts.workload import Float8, Lora, Workload
from headway.plan.activations import Batch
from headway.plan.ledger import Phase
from headway.plan.megatron import float8
from headway.plan.megatron.activations import layer
from headway.plan.megatron.phases import tensors
from headway.plan.megatron.run import Run

from .runs import GPT, LATENT, LLAMA, run

TOKENS = 2048
BATCH = Batch(1, TOKENS)
DENSE, EXPERTS = Block("full", experts=False), Block("full", experts=True)
GOLDEN = {
    (row["case"], row["env"]): row
    for row in csv.DictReader(
        (Path(__file__).parents[3] / "data" / "measured" / "megatron_golden.csv").read_text().splitlines()
    )
}
OVERLAP = "gpt3_weekly_mcore_tp4_cp2_current_scaling_native_fp8_tp_sp_cp_tp_overlap"
EXPERT = "gpt3_mcore_te_tp2_pp2_ep4_etp1"


def named(planned: Workload, phase: Phase = Phase.TRAIN) -> dict[str, int]:
    """Bytes of the last stage's items."""
    return {item.item: item.bytes for item in tensors(planned, Run.of(planned).stages()[-1], phase)}


def kept(planned: Workload, block: Block = DENSE) -> int:
    return layer(Run.of(planned), BATCH, block).kept


def test_copies_of_weights_are_what_the_same_model_has_more_in_float8() -> None:
    """Megatron's test of experts with latent attention and a layer for a second token, with and without."""
    with_copies = GOLDEN[f"{EXPERT}_mtp_resume_torch_dist_fp8", "dev_dgx_h100"]
    without = GOLDEN[f"{EXPERT}_memory_speed", "dev_dgx_h100"]
    more = float(with_copies["alloc"]) - float(without["alloc"])
    assert named(workload(with_copies))["float8 weights"] == pytest.approx(more, rel=0.02)
    assert "float8 weights" not in named(workload(without))


def test_weights_stored_in_float8_have_a_transposed_copy_on_hopper_alone() -> None:
    """The same test on both differs by a byte for each element of its projections, and by nothing else."""
    hopper, blackwell = (GOLDEN[OVERLAP, f"dev_dgx_{name}"] for name in ("h100", "gb200"))
    planned = [named(workload(row)) for row in (hopper, blackwell)]
    assert planned[0]["weights"] - planned[1]["weights"] == float(hopper["alloc"]) - float(blackwell["alloc"])
    assert all("float8 weights" not in items for items in planned)


def test_what_is_stored_where() -> None:
    elements = 8 * (2 * 1024 * 1024 + 2 * 1024 * 256 + 3 * 1024 * 3584)
    plain = named(run())
    cast = named(run(float8=Float8("tensorwise")))
    assert cast["float8 weights"] == 2 * elements
    assert cast["weights"] == plain["weights"]
    assert named(run(float8=Float8("tensorwise", transposed=False)))["float8 weights"] == elements
    # scales of 32 values in one byte, and both copies wherever it runs
    assert named(run(float8=Float8("mxfp8", transposed=False)))["float8 weights"] == 2 * elements * 33 // 32
    # near misses: before the first pass there are none, and neither adapters nor Megatron's own layers have any
    assert "float8 weights" not in named(run(float8=Float8()), Phase.LOAD)
    assert "float8 weights" not in named(run(float8=Float8(), implementation="local"))
    lora = run(float8=Float8(), lora=Lora(8, "all-linear", "bf16"))
    assert named(lora) == named(replace(lora, trainer=replace(lora.trainer, float8=None)))


def test_a_layer_saves_inputs_of_its_projections_in_a_byte() -> None:
    h, f, q = LLAMA.hidden, LLAMA.ffn, LLAMA.query_width
    assert kept(run()) - kept(run(float8=Float8("tensorwise"))) == TOKENS * (2 * h + f)
    # delayed scaling cannot save attention's result as it is: a copy in float8 stands beside it
    assert kept(run()) - kept(run(float8=Float8("delayed"))) == TOKENS * (2 * h + f - q)
    # in plain torch attention has no use for its result
    eager = {"attention": "eager"}
    assert kept(run(**eager)) - kept(run(float8=Float8("delayed"), **eager)) == TOKENS * (2 * h + f + q)
    # near misses: full recomputation keeps the layer's input, and queries, keys and values stay as they are
    assert float8.saved(Run.of(run()), 100) == 100
    full = {"checkpointing": True}
    assert kept(run(**full)) == kept(run(float8=Float8(), **full))


def test_latent_attention_and_experts() -> None:
    """Two projections of one norm keep a copy each, and the router keeps the norm of the experts."""
    mla = LATENT.mla
    assert mla is not None
    copies = LATENT.experts_per_token * (LATENT.hidden + LATENT.expert_ffn)
    saved = mla.q_lora + mla.kv_lora + copies + LATENT.shared_ffn
    block = EXPERTS._replace(attention="mla")
    plain, low = run(LATENT), run(LATENT, float8=Float8("tensorwise"))
    assert kept(plain, block) - kept(low, block) == TOKENS * saved


def test_a_model_without_a_gate_and_with_biases() -> None:
    assert kept(run(GPT)) - kept(run(GPT, float8=Float8("blockwise"))) == pytest.approx(
        TOKENS * (2 * GPT.hidden + GPT.ffn) * (2 - 33 / 32), abs=4
    )
