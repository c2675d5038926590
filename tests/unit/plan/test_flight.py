"""Samples that generate at once, by what the ledger's cache holds."""

from hypothesis import given, settings
from msgspec.structs import replace

from headway.facts import machines
from headway.facts.shapes import table
from headway.facts.workload import Workload
from headway.foreign import presets
from headway.plan import kvcache
from headway.plan.flight import in_flight, refusals
from headway.plan.plan import plan
from headway.plan.verdict import judge

from .test_plan import workloads

H200 = machines.by_name("h200")


def miles(fraction: float, max_answer: int) -> Workload:
    settings = (f"engine.memory_fraction={fraction}", f"rollout.max_answer={max_answer}")
    return presets.workload(table()["qwen3-4b"], "miles-fsdp", settings)


@settings(max_examples=30, deadline=None)
@given(workloads())
def test_the_embedded_engine_s_batch_is_what_the_planner_of_its_cache_says(workload: Workload) -> None:
    answers = workload.rollout.prompts * workload.rollout.samples
    held = kvcache.generation(workload, answers, per_prompt=workload.rollout.samples)
    assert in_flight(workload, plan(workload)) == held.sequences


def test_an_engine_s_pool_holds_samples_by_their_bytes() -> None:
    run = miles(0.4, 1024)
    run = replace(run, rollout=replace(run.rollout, prompts=1000))
    ledger = plan(run, H200)
    pool = next(line.bytes for line in ledger.lines if line.item == "KV pool")
    token = 2 * 36 * 8 * 128 * 2  # keys and values of 36 layers, 8 heads of 128, in bf16
    assert in_flight(run, ledger) == min(run.engine.max_seqs, pool // (token * 1536))
    assert in_flight(replace(run, rollout=replace(run.rollout, prompts=2)), ledger) == 16


def test_an_engine_without_room_for_a_sample_refuses() -> None:
    run = miles(0.06, 1024)
    (text,) = refusals(run, plan(run, H200))
    assert text.startswith("engine.memory_fraction = 0.06: ")
    assert "no sample of 1,536 tokens" in text
    assert judge(run, H200).kind == "does not fit"
    assert judge(run, H200).refusals == (text,)
    assert not refusals(miles(0.4, 1024), plan(miles(0.4, 1024), H200))


def test_a_trainer_whose_generation_is_not_planned_has_no_count() -> None:
    run = presets.workload(table()["qwen3-0.6b"], "hf")
    assert in_flight(run, plan(run, H200)) is None
    assert refusals(run, plan(run, H200)) == ()
