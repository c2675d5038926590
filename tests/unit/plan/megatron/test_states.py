"""Parameters and optimizer state of ranks: sums over ranks, bytes per parameter, groups."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from headway.errors import InputError
from headway.facts.shapes import ModelShape, table
from headway.facts.workload import Lora, Workload
from headway.plan.megatron import states
from headway.plan.megatron.run import Run

from .runs import GPT, LATENT, LLAMA, MOE, run

SHAPES = (LLAMA, GPT, MOE, LATENT)


def totals(workload: Workload) -> list[states.Counts]:
    """Parameters of one rank of each stage."""
    found = Run.of(workload)
    return [states.counts(found, stage) for stage in found.stages()]


def bytes_of(workload: Workload, *, stepped: bool = True) -> int:
    """States of the stage that holds the most."""
    found = Run.of(workload)
    return max(sum(item.bytes for item in states.items(found, stage, stepped=stepped)) for stage in found.stages())


@pytest.mark.parametrize(
    "shape", [*SHAPES, *(table()[name] for name in ("qwen3-4b", "qwen3-30b-a3b", "deepseek-v3"))]
)
@pytest.mark.parametrize("pipeline", [1, 4])
def test_stages_hold_the_whole_model(shape: ModelShape, pipeline: int) -> None:
    """All stages of one tensor rank hold every parameter, and a tied table twice where the ends are apart."""
    shape = replace(shape, vocab=shape.vocab // 128 * 128, mtp_layers=0)
    found = totals(run(shape, devices=pipeline, pipeline=pipeline))
    copy = shape.embedding_parameters() if shape.tied and pipeline > 1 else 0
    assert sum(each.all for each in found) == shape.parameters() + copy


@pytest.mark.parametrize("shape", SHAPES)
def test_tensor_ranks_divide_matrices_and_repeat_norms(shape: ModelShape) -> None:
    whole, half = totals(run(shape))[0].all, totals(run(shape, devices=2, tensor=2))[0].all
    norms = 2 * shape.layers * shape.norm_parameters() + shape.norm_parameters()
    assert whole / 2 <= half
    # what is not divided: norms, biases of row parallel projections, router, narrow latent projections, positions
    assert half - whole / 2 < 0.05 * whole
    assert half >= whole / 2 + norms / 2


def test_the_vocabulary_is_padded_for_all_tensor_ranks() -> None:
    assert Run.of(run(replace(LLAMA, vocab=50257), devices=2, tensor=2)).vocab * 2 == 50432
    assert Run.of(run(replace(LLAMA, vocab=50257), devices=8, tensor=8, vocab_multiple=1)).vocab * 8 == 50264


def test_bytes_per_parameter() -> None:
    count = totals(run())[0].trained
    assert bytes_of(run(distributed=False)) == 18 * count
    assert bytes_of(run(devices=8)) == pytest.approx((6 + 12 / 8) * count, abs=16)
    assert bytes_of(run(devices=8, context=2)) == pytest.approx((6 + 12 / 8) * count, abs=16)
    assert bytes_of(run(devices=8, optimizer_instances=2)) == pytest.approx((6 + 12 / 4) * count, abs=16)
    assert bytes_of(run(distributed=False, param_dtype="fp32")) == 16 * count
    assert bytes_of(run(distributed=False, param_dtype="fp16", grad_dtype="fp16")) == 20 * count
    # before the first step there is only the master
    assert bytes_of(run(distributed=False), stepped=False) == 10 * count


def test_a_precision_aware_optimizer_keeps_half_of_the_master_and_copies_moments_to_step() -> None:
    workload = run(grad_dtype="bf16", precision_aware=True, state_dtype="bf16", devices=4)
    found, count = Run.of(workload), totals(workload)[0]
    assert bytes_of(workload) == pytest.approx((2 + 2 + (2 + 2 + 2) / 4) * count.trained, abs=16)
    assert states.step_bytes(found, count) == pytest.approx(2 * 4 * count.trained / 4, abs=16)
    assert states.step_bytes(Run.of(run(devices=4)), count) == 0


def test_experts_are_shared_over_their_own_group() -> None:
    wide = totals(run(MOE, devices=8))[0]
    shared = totals(run(MOE, devices=8, expert_parallel=4))[0]
    assert shared.experts * 4 == wide.experts
    assert shared.dense == wide.dense
    workload = run(MOE, devices=8, expert_parallel=4)
    expected = 6 * shared.trained + 12 * shared.dense / 8 + 12 * shared.experts / 2
    assert bytes_of(workload) == pytest.approx(expected, abs=32)
    # each tensor rank has a half of each of its experts, unless experts are not divided by tensor
    divided = totals(run(MOE, devices=8, tensor=2, expert_parallel=4))[0]
    whole = totals(run(MOE, devices=8, tensor=2, expert_parallel=4, expert_tensor=1))[0]
    assert whole.experts == 2 * divided.experts


def test_an_offloaded_optimizer_moves_its_share_to_the_host() -> None:
    away, here = run(devices=2, offload=1.0), run(devices=2)
    count = totals(here)[0].trained
    assert bytes_of(here) - bytes_of(away) == pytest.approx(12 * count / 2, abs=16)
    found = Run.of(away)
    held = sum(item.bytes for item in states.host_items(found, found.stages()[0]))
    assert held == pytest.approx((12 + 4) * count / 2, abs=16)
    ladder = [bytes_of(run(devices=2, offload=share / 4)) for share in range(5)]
    steps = {ladder[index] - ladder[index + 1] for index in range(4)}
    assert max(steps) - min(steps) < 16


def test_adapters_leave_the_base_without_gradients() -> None:
    workload = run(lora=Lora(16, "all-linear"), distributed=False)
    found = totals(workload)[0]
    assert found.trained == LLAMA.lora_parameters(16, "all-linear")
    assert bytes_of(workload) == 2 * found.frozen + 18 * found.trained


def test_layers_for_more_tokens_are_on_the_last_stage() -> None:
    plain = totals(run(MOE, devices=2, pipeline=2))
    more = totals(run(replace(MOE, mtp_layers=1), devices=2, pipeline=2))
    assert more[0] == plain[0]
    block = MOE.block_parameters()
    norms, joined, table_copy = 3 * MOE.hidden, 2 * MOE.hidden**2, MOE.embedding_parameters()
    assert more[1].all - plain[1].all == block + norms + joined + table_copy


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"devices": 8, "tensor": 3}, "does not divide the trainer's 8 ranks"),
        ({"devices": 8, "expert_parallel": 3}, "expert_parallel"),
    ],
)
def test_groups_that_do_not_divide_are_said(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        Run.of(run(MOE, **changes))


@settings(deadline=None, max_examples=60)
@given(
    shape=st.sampled_from(SHAPES), tensor=st.sampled_from([1, 2, 4]), pipeline=st.sampled_from([1, 2, 4]),
    data=st.sampled_from([1, 2, 4]), which=st.sampled_from(["tensor", "pipeline", "data"]), sharded=st.booleans(),
)  # fmt: skip
def test_more_ranks_never_raise_a_ranks_state(
    shape: ModelShape, tensor: int, pipeline: int, data: int, which: str, sharded: bool
) -> None:
    """Beyond padding of the vocabulary, and copies of tables at both ends of a pipeline."""
    sizes = {"tensor": tensor, "pipeline": pipeline, "data": data}
    more = {**sizes, which: 2 * sizes[which]}

    def state(sizes: dict[str, int]) -> int:
        devices = sizes["tensor"] * sizes["pipeline"] * sizes["data"]
        layout = {"tensor": sizes["tensor"], "pipeline": sizes["pipeline"], "devices": devices}
        return bytes_of(run(shape, distributed=sharded, **layout))

    spare = 18 * 128 * more["tensor"] * shape.hidden
    assert state(more) <= state(sizes) + spare
