"""Properties of a ledger, whatever the run: no torch needed."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from headway.facts.shapes import by_name
from headway.facts.workload import Lora, Rollout, Trainer, Workload
from headway.plan import optimizer, weights
from headway.plan.ledger import Phase, total, total_upper
from headway.plan.own import fullest_micro_batch, micro_batches
from headway.plan.plan import plan

HOST = "node[0].host"


def shapes() -> st.SearchStrategy:
    return st.sampled_from(["tiny-llama", "tiny-qwen3", "tiny-gemma", "tiny-qwen3-moe", "small-llama"]).map(by_name)


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    lora = draw(st.sampled_from([None, Lora(4, "attention"), Lora(16, "all-linear")]))
    reference = draw(st.sampled_from(["none", "adapter-off" if lora else "copy"]))
    updates = draw(st.sampled_from([1, 2]))
    trainer = Trainer(
        param_dtype=draw(st.sampled_from(["fp32", "bf16"])), lora=lora, reference=reference,
        cap=draw(st.integers(1, 4096)), checkpointing=draw(st.booleans()),
        attention=draw(st.sampled_from(["sdpa", "eager"])), logprob_chunk=draw(st.integers(1, 512)),
        entropy=draw(st.booleans()), updates=updates,
    )  # fmt: skip
    rollout = Rollout(
        prompts=updates * draw(st.integers(1, 4)), samples=draw(st.integers(1, 8)),
        max_prompt=draw(st.integers(1, 300)), max_answer=draw(st.integers(1, 300)),
        kv_budget=draw(st.integers(1 << 22, 1 << 30)), eval_problems=draw(st.integers(0, 64)),
        eval_samples=draw(st.integers(1, 2)),
    )  # fmt: skip
    return Workload(
        draw(shapes()), trainer, rollout, "cpu", 1, draw(st.sampled_from([0, 1 << 20])), "exact", 1 << 30, "json",
        100, draw(st.integers(1, 5)), save=True, tensorboard=draw(st.booleans()),
    )  # fmt: skip


def example(**rollout: int) -> Workload:
    shape = by_name("small-llama")
    assert shape is not None
    trainer = Trainer("fp32", None, "none", 1024, True, "sdpa", 256, entropy=False, updates=1)
    sizes = {"prompts": 4, "samples": 4, "max_prompt": 96, "max_answer": 32, "kv_budget": 1 << 28}
    return Workload(
        shape, trainer, Rollout(**(sizes | {"eval_problems": 8, "eval_samples": 1} | rollout)), "cpu", 1, 0, "exact",
        1 << 30, "json", 100, 4, save=True, tensorboard=True,
    )  # fmt: skip


def longer(workload: Workload, key: str) -> Workload:
    rollout = workload.rollout
    return replace(workload, rollout=replace(rollout, **{key: getattr(rollout, key) + 16}))


@settings(deadline=None)
@given(workloads())
def test_no_bound_is_below_what_is_expected(workload: Workload) -> None:
    for line in plan(workload).lines:
        assert 0 <= line.bytes <= line.upper, line


@settings(deadline=None)
@given(workloads())
def test_a_phase_is_the_sum_of_its_lines(workload: Workload) -> None:
    ledger = plan(workload)
    for phase in ledger.phases(HOST):
        lines = ledger.select(HOST, phase)
        peak = ledger.peak_of(HOST, phase)
        assert (peak.bytes, peak.upper) == (total(lines), total_upper(lines))
        assert len({line.item for line in lines}) == len(lines)


@settings(deadline=None)
@given(workloads(), st.sampled_from(["max_prompt", "max_answer"]))
def test_longer_samples_never_lower_the_upper_bound(workload: Workload, key: str) -> None:
    before, after = plan(workload), plan(longer(workload, key))
    assert after.peak_of(HOST, Phase.TRAIN).upper >= before.peak_of(HOST, Phase.TRAIN).upper


@settings(deadline=None)
@given(workloads(), st.sampled_from(["max_prompt", "max_answer"]))
def test_longer_samples_never_lower_the_peak_of_a_lone_micro_batch(workload: Workload, key: str) -> None:
    alone = replace(workload, trainer=replace(workload.trainer, cap=1))
    before, after = plan(alone), plan(longer(alone, key))
    assert after.peak_of(HOST, Phase.TRAIN).bytes >= before.peak_of(HOST, Phase.TRAIN).bytes


@settings(deadline=None)
@given(workloads())
def test_micro_batches_stay_within_the_cap_or_hold_one_sample(workload: Workload) -> None:
    for batch in micro_batches(workload):
        assert batch.rows == 1 or batch.tokens <= workload.trainer.cap
        assert batch.tokens <= fullest_micro_batch(workload).tokens


@settings(deadline=None)
@given(workloads())
def test_the_score_phase_exists_where_log_probs_are_needed_before_training(workload: Workload) -> None:
    needed = workload.trainer.updates > 1 or workload.trainer.reference != "none"
    assert (Phase.SCORE in plan(workload).phases(HOST)) == needed


def test_optimizer_state_does_not_exist_before_the_first_optimizer_step() -> None:
    once = replace(example(), steps=1)
    state = "optimizer moments"
    assert state not in {line.item for line in plan(once).select(HOST, Phase.TRAIN)}
    assert state in {line.item for line in plan(once).select(HOST, Phase.SAVE)}
    later = plan(example())
    assert state in {line.item for line in later.select(HOST, Phase.ROLLOUT)}
    assert later.first_step[Phase.TRAIN] == 2


def test_states_are_bytes_per_parameter() -> None:
    """16 bytes a parameter in fp32 (weight, gradient, two moments); 2 + 2 + 8 + 4 with bf16 weights."""
    workload = example()
    low = replace(workload, trainer=replace(workload.trainer, param_dtype="bf16"))
    for each, expected in ((workload, 16), (low, 16)):
        held = weights.base_bytes(each) + weights.gradient_bytes(each)
        held += optimizer.moment_bytes(each) + optimizer.master_bytes(each)
        assert held == expected * each.model.parameters()


def test_a_frozen_copy_is_a_second_set_of_weights() -> None:
    workload = example()
    kl = replace(workload, trainer=replace(workload.trainer, reference="copy"))
    difference = plan(kl).peak_of(HOST, Phase.STEP).bytes - plan(workload).peak_of(HOST, Phase.STEP).bytes
    assert difference == weights.base_bytes(workload)


def test_a_cuda_run_holds_tensors_on_the_device_and_python_on_the_host() -> None:
    ledger = plan(replace(example(), device="cuda"))
    assert set(ledger.pools()) == {HOST, "node[0].device[0]"}
    on_device = {line.item for line in ledger.select("node[0].device[0]", Phase.TRAIN)}
    assert {"weights", "gradients", "CUDA context"} <= on_device
    assert not on_device & {"process", "problems"}


@pytest.mark.parametrize(("budget", "sequences"), [(12288 * 128 * 5, 5), (12288 * 128 * 100, 16)])
def test_the_cache_is_bounded_by_its_budget_and_by_the_answers(budget: int, sequences: int) -> None:
    lines = plan(example(kv_budget=budget)).select(HOST, Phase.ROLLOUT)
    cache = next(line for line in lines if line.item == "KV cache")
    assert cache.bytes == 12288 * 128 * sequences  # 2 x 8 layers x 192 x 4 B a token
