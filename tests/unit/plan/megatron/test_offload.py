"""Activations in host memory: what leaves the device, what stays, and what the host holds."""

from typing import Any

import pytest

from headway.facts import machines
from headway.facts.blocks import Block
from headway.facts.shapes import ModelShape, table
from headway.facts.workload import Recompute
from headway.foreign.presets import workload
from headway.plan.activations import Batch
from headway.plan.item import Item
from headway.plan.ledger import Phase
from headway.plan.megatron import passes
from headway.plan.megatron.activations import layer
from headway.plan.megatron.parts import Layer
from headway.plan.megatron.phases import phases
from headway.plan.megatron.run import Run
from headway.plan.plan import plan

from .runs import LATENT, LLAMA, MOE, run

BATCH = Batch(2, 1024)
TOKENS = BATCH.tokens


def one(shape: ModelShape, attention: str = "full", batch: Batch = BATCH, **changes: Any) -> Layer:
    """One layer with experts, if the model has any."""
    block = Block(attention, experts=bool(shape.experts))  # type: ignore[arg-type]
    return layer(Run.of(run(shape, **changes)), batch, block)


def away(shape: ModelShape, *modules: str, **changes: Any) -> int:
    """Bytes that the device no longer keeps of a layer, which are what the host has of it."""
    attention = "mla" if shape.mla else "full"
    plain, moved = one(shape, attention, **changes), one(shape, attention, offload_modules=modules, **changes)
    assert plain.kept - moved.kept == sum(moved.hosted)
    assert plain.hosted == ()
    return sum(moved.hosted)


def test_core_attention_gives_queries_keys_and_values() -> None:
    width = LLAMA.query_width + 2 * LLAMA.kv_width
    assert away(LLAMA, "core_attn") == 2 * TOKENS * width + 4 * TOKENS * LLAMA.heads


def test_its_output_goes_with_the_projection_that_takes_it_and_not_alone() -> None:
    assert away(LLAMA, "attn_proj") == 0
    assert away(LLAMA, "core_attn", "attn_proj") - away(LLAMA, "core_attn") == 2 * TOKENS * LLAMA.query_width


def test_a_norm_goes_alone_only_where_it_is_a_module_of_its_own() -> None:
    assert away(LLAMA, "attn_norm") == 0
    assert away(LATENT, "attn_norm") == 2 * TOKENS * LATENT.hidden
    assert away(LLAMA, "qkv_linear") == 2 * 2 * TOKENS * LLAMA.hidden


def test_experts() -> None:
    copies = TOKENS * MOE.experts_per_token
    assert away(MOE, "expert_fc1") == 2 * copies * MOE.hidden
    assert away(MOE, "moe_act") == 2 * copies * 2 * MOE.expert_ffn
    assert away(MOE, "fused_group_mlp") == 2 * copies * (MOE.hidden + 3 * MOE.expert_ffn)
    assert away(LLAMA, "expert_fc1", "moe_act", "mlp_norm") == 0


def test_what_is_recomputed_is_not_offloaded_too() -> None:
    again = Recompute("selective", ("moe",))
    assert away(MOE, "expert_fc1", "moe_act", recompute=again) == 0
    again = Recompute("selective", ("mla_up_proj",))
    assert away(LATENT, "core_attn", recompute=again) < away(LATENT, "core_attn")


def test_small_tensors_stay() -> None:
    assert away(MOE, "mlp_norm", batch=Batch(1, 512)) == 0
    assert away(MOE, "mlp_norm") == 2 * TOKENS * MOE.hidden


def test_the_last_layer_stays_and_the_host_has_the_others() -> None:
    modules = ("core_attn", "attn_proj")
    plain, work = run(LLAMA), run(LLAMA, offload_modules=modules)
    (stage,) = Run.of(work).stages()
    batch = Batch(1, 2048)
    size = sum(one(LLAMA, batch=batch, offload_modules=modules).hosted)
    kept = {}
    for name, each in (("plain", plain), ("moved", work)):
        found = {item.item: item.bytes for item in passes.train(each, stage)}
        kept[name] = found["saved activations"]
    assert kept["plain"] - kept["moved"] == 7 * size
    (line,) = passes.host_items(work, stage)
    assert (line.bytes, line.upper) == (7 * size, 14 * size)
    assert passes.host_items(plain, stage) == []


def test_every_micro_batch_in_flight_is_in_the_host() -> None:
    work = run(LLAMA, devices=4, pipeline=4, offload_modules=("core_attn",))
    first, *_, last = Run.of(work).stages()
    sizes = [sum(item.bytes for item in passes.host_items(work, stage)) for stage in (first, last)]
    assert sizes[0] == 7 * sizes[1]


def test_a_share_of_the_groups() -> None:
    half = away(MOE, "expert_fc1", offload_fraction=0.5)
    assert half == away(MOE, "expert_fc1") / 2


def test_the_host_s_line_is_in_every_phase_but_the_load() -> None:
    found = phases(run(MOE, devices=8, expert_parallel=8, offload_modules=("moe_act",)))

    def lines(phase: Phase) -> list[Item]:
        return [entry.item for entry in found[phase][1] if entry.item.item == "offloaded activations"]

    assert not lines(Phase.LOAD)
    assert all(len(lines(phase)) == 1 for phase in (Phase.TRAIN, Phase.STEP, Phase.SAVE))
    assert lines(Phase.TRAIN)[0].bytes == pytest.approx(lines(Phase.STEP)[0].bytes)


def test_beside_an_engine_the_host_has_them_from_the_first_training_pass_on() -> None:
    keys = ("trainer.checkpointing=false", "trainer.megatron.offload_modules=core_attn,attn_proj")
    found = plan(workload(table()["qwen3-4b"], "slime", keys), machines.by_name("8xh100-80"))
    there = {line.phase for line in found.lines if line.item == "offloaded activations"}
    assert Phase.LOAD not in there
    assert {Phase.TRAIN, Phase.STEP, Phase.ROLLOUT} <= there
    assert all(line.quantity == "host" for line in found.lines if line.item == "offloaded activations")
