"""Moments of a stage, losses, what the runtime allocates, and the phases of a run."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from headway.facts.shapes import ModelShape
from headway.facts.workload import Recompute, Workload
from headway.plan import training
from headway.plan.activations import Batch
from headway.plan.ledger import Phase, total
from headway.plan.megatron import passes, runtime
from headway.plan.megatron.loss import loss
from headway.plan.megatron.phases import phases, placed, stages_of, tensors, worst
from headway.plan.megatron.run import Run
from headway.plan.plan import DEVICE, plan

from .runs import GPT, LATENT, LLAMA, MOE, run

SHAPES = (LLAMA, GPT, MOE, LATENT)


def held(workload: Workload, phase: Phase = Phase.TRAIN) -> int:
    """Bytes of a phase on the stage that holds the most."""
    return sum(item.bytes for item in worst(workload, phase)[1])


def moment(workload: Workload, at: str, stage: int = -1) -> passes.Moment:
    """A named moment of a stage."""
    found = Run.of(workload)
    every = passes.moments(workload, found, found.stages()[stage], training.micro_batch(workload))
    return next(each for each in every if each.at == at)


@pytest.mark.parametrize(
    ("changes", "forward", "backward"),
    [
        ({"cross_entropy": "te"}, 2, 2),
        ({"cross_entropy": "unfused"}, 6, 6),
        ({"cross_entropy": "native"}, 10, 10),
        ({"system": "slime"}, 8, 12),
        ({"system": "slime", "temperature": True}, 12, 16),
        ({"system": "slime", "entropy": True}, 16, 12),
    ],
)
def test_bytes_of_a_logit(changes: dict[str, Any], forward: int, backward: int) -> None:
    found = Run.of(run(LLAMA, **changes, devices=2, tensor=2))
    costs, cells = loss(found, Batch(1, 2048)), 2048 * found.vocab
    assert (costs.forward, costs.backward) == (forward * cells, backward * cells)


def test_a_published_tensor_of_fp32_logits() -> None:
    """205,280 tokens of a vocabulary of 152,064 over two ranks: 58.15 GiB (THUDM/slime issue 1951)."""
    found = Run.of(run(replace(LLAMA, vocab=151936), system="slime", devices=2, tensor=2))
    assert found.vocab == 76032
    scored = loss(found, Batch(1, 205280)).score
    # the logits themselves, and as much for the softmax of the log-probs
    assert scored / 2 / 2**30 == pytest.approx(58.15, abs=0.01)


def test_entropy_copies_one_sample_of_a_packed_batch() -> None:
    found = Run.of(run(LLAMA, system="slime", entropy=True))
    packed = loss(found, Batch(1, 8192, reach=2048)).forward
    assert packed == (8 * 8192 + 8 * 2048) * found.vocab


def test_layers_for_more_tokens_keep_their_own_softmax() -> None:
    more = Run.of(run(replace(LLAMA, mtp_layers=2)))
    assert loss(more, Batch(1, 64)).forward == (6 + 2 * 4) * 64 * more.vocab


def test_dummy_gradients_are_one_for_each_distinct_shape() -> None:
    def dummies(shape: ModelShape = LLAMA, **changes: Any) -> int:
        found = Run.of(run(shape, **changes))
        return runtime.dummies(found, found.stages()[-1])

    h, q, kv, f, table = LLAMA.hidden, LLAMA.query_width, LLAMA.kv_width, LLAMA.ffn, 32000 * LLAMA.hidden
    linears = h * (q + 2 * kv) + q * h + 3 * h * f
    assert dummies() == 2 * (linears + table)
    assert dummies(core_version="0.13") == 2 * linears
    assert dummies(te_version="2.2") == dummies(fused_gradients=False) == dummies(implementation="local") == 0
    sparse = replace(MOE, expert_ffn=640)
    assert dummies(sparse) - dummies(sparse, te_version="2.9") == 2 * 3 * MOE.hidden * 640
    # all layers have the same shapes: twice as many of them need no more
    assert dummies(replace(LLAMA, layers=16)) == dummies()


def test_without_fused_gradients_a_weight_s_gradient_is_there_for_a_moment() -> None:
    changes = {"fused_gradients": False, "cross_entropy": "unfused"}
    assert moment(run(**changes), "output layer, backward").weights == 2 * LLAMA.hidden * 32000
    assert moment(run(**changes), "backward, last layer").weights == 2 * LLAMA.hidden * 2 * LLAMA.ffn
    assert moment(run(), "backward, last layer").weights == 0


def test_the_first_stage_holds_activations_and_the_last_one_logits() -> None:
    workload = run(replace(LLAMA, layers=16), devices=4, pipeline=4, accumulated=16)
    first, last = moment(workload, "forward, last layer", 0), moment(workload, "forward, last layer", 3)
    positions = 2048 * LLAMA.head_dim * 4
    assert first.kept - positions == 4 * (last.kept - positions)
    every = passes.moments(workload, Run.of(workload), stages_of(workload)[0], Batch(1, 2048))
    assert {each.at for each in every} == {"forward, last layer", "backward, last layer"}
    wide = run(replace(LLAMA, layers=16, vocab=512000), devices=4, pipeline=4, accumulated=16)
    assert worst(workload, Phase.TRAIN)[0].index == 0
    assert worst(wide, Phase.TRAIN)[0].index == 3


def test_few_micro_batches_bound_what_is_in_flight() -> None:
    few, many = (run(devices=4, pipeline=4, accumulated=number) for number in (2, 8))
    assert moment(few, "forward, last layer", 0).kept < moment(many, "forward, last layer", 0).kept


def test_recomputing_a_part_of_the_layers() -> None:
    def kept(recompute: Recompute) -> int:
        return moment(run(recompute=recompute), "loss, forward").kept

    every, none = kept(Recompute("full", method="block", layers=8)), kept(Recompute())
    half = kept(Recompute("full", method="block", layers=4))
    assert half == pytest.approx((every + none) / 2)
    assert kept(Recompute("full")) == every
    # groups of two keep half of the inputs and replay two layers at once
    pairs = kept(Recompute("full", layers=2))
    assert every - pairs == 4 * 2 * 2048 * LLAMA.hidden
    single, double = (
        moment(run(recompute=Recompute("full", layers=number)), "backward, last layer").working for number in (1, 2)
    )
    assert double > single


def test_a_phase_is_the_sum_of_its_lines_and_names_its_rank() -> None:
    workload = run(replace(LLAMA, vocab=512000, layers=16), nodes=1, devices=8, pipeline=4, tensor=2)
    ledger = plan(workload)
    for phase in (Phase.LOAD, Phase.TRAIN, Phase.STEP, Phase.SAVE):
        lines = ledger.select(DEVICE, phase)
        assert ledger.peak_of(DEVICE, phase).bytes == total(lines)
        assert ledger.measured_as(DEVICE, phase, "allocated")[0] == held(workload, phase)
    # the last of four stages of two ranks each
    assert {line.rank for line in ledger.select(DEVICE, Phase.TRAIN)} == {6}


def test_a_scoring_pass_is_planned_where_log_probs_are_made() -> None:
    workload = run(system="slime", scores=True)
    assert Phase.SCORE in phases(workload)
    assert Phase.SCORE not in phases(run(system="slime"))
    assert held(workload, Phase.SCORE) < held(workload)


def test_one_micro_batch_is_as_long_as_the_longest_sample() -> None:
    """A cap bounds packed samples, but a sample above it is a micro-batch of its own."""

    def length(cap: int, longest: int) -> int:
        workload = run(system="slime", rows=0, cap=cap)
        rollout = replace(workload.rollout, prompts=8, samples=8, max_prompt=512, max_answer=longest - 512)
        return training.micro_batch(replace(workload, rollout=rollout)).tokens

    assert length(8192, 2048) == 8192
    assert length(8192, 32768) == 32768


@settings(deadline=None, max_examples=40)
@given(
    shape=st.sampled_from(SHAPES), tensor=st.sampled_from([1, 2, 4]), pipeline=st.sampled_from([1, 2, 4]),
    parts=st.sampled_from([1, 2]), system=st.sampled_from(["megatron", "slime"]), length=st.integers(64, 4096),
    full=st.booleans(),
)  # fmt: skip
def test_longer_samples_never_lower_a_peak(
    shape: ModelShape, tensor: int, pipeline: int, parts: int, system: str, length: int, *, full: bool
) -> None:
    changes: dict[str, Any] = {
        "tensor": tensor, "pipeline": pipeline, "devices": tensor * pipeline, "system": system,
        "virtual_pipeline": parts if pipeline > 1 else 1, "recompute": Recompute("full" if full else "none"),
    }  # fmt: skip
    shorter, longer = run(shape, length=length, **changes), run(shape, length=length + 64, **changes)
    for stage in stages_of(shorter):
        for phase in (Phase.TRAIN, Phase.SCORE):
            before, after = (tensors(each, stage, phase) for each in (shorter, longer))
            assert sum(item.bytes for item in before) <= sum(item.bytes for item in after)
            assert all(item.upper >= item.bytes for item in after)


@settings(deadline=None, max_examples=30)
@given(
    layers=st.integers(16, 40), parts=st.sampled_from([1, 2]), accumulated=st.integers(1, 16),
    phase=st.sampled_from([Phase.LOAD, Phase.TRAIN, Phase.SCORE, Phase.STEP]),
)  # fmt: skip
def test_the_worst_stage_is_the_worst_of_all(layers: int, parts: int, accumulated: int, phase: Phase) -> None:
    workload = run(
        replace(MOE, layers=layers), devices=8, pipeline=8, virtual_pipeline=parts, accumulated=accumulated
    )
    every = [sum(item.bytes for item in tensors(workload, stage, phase)) for stage in stages_of(workload)]
    assert held(workload, phase) == max(every)


def test_entries_carry_what_is_beside_the_tensors() -> None:
    workload = run(devices=8, tensor=2, offload=0.5)
    stage, items = worst(workload, Phase.TRAIN)
    entries = list(placed(workload, stage, Phase.TRAIN, items))
    quantities = {entry.item.item: entry.quantity for entry in entries}
    assert quantities["fragmentation"] == "reserved"
    assert quantities["communicators"] == "device_used"
    offloaded = next(entry for entry in entries if entry.item.item == "offloaded optimizer")
    assert (offloaded.place, offloaded.count) == ("host", 8)
