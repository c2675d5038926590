"""Remedies: changes that a run's own trainer accepts, each with the peak that it leads to."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from headway.config.load import load
from headway.facts import machines
from headway.facts.machine import Limit, Machine, Pool
from headway.facts.shapes import by_name
from headway.facts.workload import Engine, Workload
from headway.foreign import presets
from headway.foreign.settings import apply
from headway.foreign.spelling import SPELLINGS
from headway.plan.flight import refusals
from headway.plan.moves import Cost, accepted, value_of
from headway.plan.plan import plan
from headway.plan.remedies import MOST_PLANS, Advice, Remedy, as_settings, remedies
from headway.plan.verdict import tops, verdict

from .test_plan import HOST, example, workloads
from .test_verdict import machine

DEVICE = "node[0].device[0]"
BAD = ("fits", "tight", "does not fit")


def between(workload: Workload, share: float) -> Machine:
    """A machine whose limit is a share of the run's expected peak."""
    return machine(int(plan(workload).peak(HOST).bytes * share))


def best(advice: Advice) -> Remedy:
    return advice.remedies[0]


@settings(max_examples=12, deadline=None)
@given(workloads(), st.floats(0.1, 1.2))
def test_every_remedy_lowers_the_pool_that_it_names_and_has_its_new_peak(workload: Workload, share: float) -> None:
    here = between(workload, share)
    before = tops(plan(workload, here))
    advice = remedies(workload, here)
    assert advice.plans <= MOST_PLANS
    for remedy in advice.remedies:
        assert (remedy.before_bytes, remedy.before_upper) == before[remedy.pool]
        assert (remedy.after_bytes, remedy.after_upper) == tops(plan(remedy.workload, here))[remedy.pool]
        assert remedy.after_bytes <= remedy.before_bytes or remedy.after_upper < remedy.before_upper
        assert (remedy.after_bytes, remedy.after_upper) != (remedy.before_bytes, remedy.before_upper)
        kinds = {each.kind for each in verdict(plan(remedy.workload, here), here)}
        assert kinds == {remedy.kind}


@settings(max_examples=12, deadline=None)
@given(workloads(), st.floats(0.1, 1.0))
def test_a_change_is_what_the_run_that_it_leads_to_has(workload: Workload, share: float) -> None:
    for remedy in remedies(workload, between(workload, share)).remedies:
        keys = [change.key for change in remedy.changes]
        assert len(set(keys)) == len(keys)
        for change in remedy.changes:
            assert change.value == value_of(remedy.workload, change.key) != change.before
            assert change.before == value_of(workload, change.key)
            assert change.text in remedy.text
        assert remedy.cost == max(change.cost for change in remedy.changes)


@settings(max_examples=12, deadline=None)
@given(workloads(), st.floats(0.1, 1.0))
def test_no_remedy_can_leave_out_one_of_its_changes(workload: Workload, share: float) -> None:
    here = between(workload, share)
    for remedy in remedies(workload, here).remedies:
        if remedy.kind != "fits" or len(remedy.changes) == 1:
            continue
        for left_out in remedy.changes:
            run = workload
            moves = {move.key: move for move, _ in accepted(workload, here)}
            for change in sorted(remedy.changes, key=lambda change: change.key == "trainer.cap"):
                if change is not left_out and change.key in moves:
                    run = moves[change.key].apply(run, change.value)
            assert plan(run, here).upper(HOST) > here.pools[0].lowest.bytes


def two_pools(device: int, host: int) -> Machine:
    def pool(name: str, size: int) -> Pool:
        return Pool(name, "host", size, (Limit("memory", size, "the run ends", "a test"),))

    return Machine("a", (pool(HOST, host), pool(DEVICE, device)), 2)


@settings(max_examples=12, deadline=None)
@given(workloads(), st.floats(0.1, 1.1), st.floats(0.5, 1.1))
def test_no_remedy_overfills_another_pool(workload: Workload, device: float, host: float) -> None:
    workload = replace(workload, device="cuda")
    ledger = plan(workload)
    here = two_pools(int(ledger.peak(DEVICE).bytes * device), int(ledger.upper(HOST) * host))
    before = {each.pool: each.kind for each in verdict(ledger, here)}
    for remedy in remedies(workload, here).remedies:
        for each in verdict(plan(remedy.workload, here), here):
            if each.pool != remedy.pool:
                assert BAD.index(each.kind) <= BAD.index(before[each.pool])


def heavy() -> Workload:
    """A run with a cheap way out: nothing is recomputed, and its cap is four of its longest samples."""
    run = example(max_prompt=512, max_answer=512, samples=8, kv_budget=1 << 26)
    return replace(run, trainer=replace(run.trainer, checkpointing=False, cap=4096))


def test_what_is_free_comes_before_what_changes_the_experiment() -> None:
    run = replace(heavy(), trainer=replace(heavy().trainer, cap=1))
    sizes = [
        plan(replace(run, trainer=replace(run.trainer, checkpointing=True))).upper(HOST),
        plan(replace(run, rollout=replace(run.rollout, max_answer=64))).upper(HOST),
    ]
    assert max(sizes) < plan(run).peak(HOST).bytes
    found = [each for each in remedies(run, machine(max(sizes))).remedies if each.kind == "fits"]
    assert [each.cost for each in found] == sorted(each.cost for each in found)
    assert {Cost.FREE, Cost.EXPERIMENT} <= {each.cost for each in found}


def test_changes_are_combined_where_one_is_not_enough() -> None:
    run = heavy()
    both = plan(replace(run, trainer=replace(run.trainer, checkpointing=True, cap=1024))).upper(HOST)
    advice = remedies(run, machine(both))
    assert best(advice).kind == "fits"
    assert {change.key for change in best(advice).changes} == {"trainer.checkpointing", "trainer.cap"}
    cap = next(change.value for change in best(advice).changes if change.key == "trainer.cap")
    assert best(advice).text == f"train.cap = {cap} and train.checkpointing = true"
    assert best(advice).runspec == {"train.cap": cap, "train.checkpointing": True}


def test_the_mildest_value_that_fits_is_proposed() -> None:
    run = example(max_prompt=64, max_answer=2048)
    run = replace(run, trainer=replace(run.trainer, cap=64))
    half = plan(replace(run, rollout=replace(run.rollout, max_answer=1024))).upper(HOST)
    assert half < plan(run).peak(HOST).bytes
    answers = {
        change.value
        for each in remedies(run, machine(half)).remedies
        for change in each.changes
        if change.key == "rollout.max_answer"
    }
    assert answers == {1024}


def test_a_cap_follows_shorter_samples() -> None:
    """Of shorter samples more fill a micro-batch, so that shorter answers alone would lower nothing."""
    run = example(max_prompt=64, max_answer=960, samples=8)
    run = replace(run, trainer=replace(run.trainer, cap=1024, checkpointing=False, lora=None))
    shorter = replace(run.rollout, max_answer=120)
    size = plan(replace(run, rollout=shorter, trainer=replace(run.trainer, checkpointing=True, cap=184))).upper(HOST)
    found = [each for each in remedies(run, machine(size)).remedies if each.kind == "fits"]
    assert found
    for each in found:
        keys = {change.key for change in each.changes}
        assert "rollout.max_answer" not in keys or "trainer.cap" in keys


def test_a_change_that_moves_nothing_is_said_to() -> None:
    run = example(max_prompt=512, max_answer=512, kv_budget=1 << 24)
    assert plan(run).peak(HOST).phase != "rollout"
    advice = remedies(run, between(run, 0.9))
    idle = {change.key: each for each in advice.without_effect for change in each.changes}
    assert "rollout.kv_budget" in idle
    assert idle["rollout.kv_budget"].after_bytes == idle["rollout.kv_budget"].before_bytes
    assert not {change.key for each in advice.remedies for change in each.changes} & {"rollout.kv_budget"}


def test_without_a_known_limit_what_lowers_the_peak_is_still_told() -> None:
    advice = remedies(heavy(), Machine("unknown", (), 1))
    assert advice.remedies
    assert {each.kind for each in advice.remedies} == {"cannot tell"}
    assert all(len(each.changes) == 1 and not each.fits for each in advice.remedies)


def foreign(system: str, **fields: object) -> Workload:
    shape = by_name("qwen3-4b")
    assert shape is not None
    return replace(presets.workload(shape, system), **fields)  # type: ignore[arg-type]


def test_the_engine_keeps_room_for_a_sample() -> None:
    gb10 = machines.by_name("gb10")
    for fraction in (0.4, 0.12):
        run = foreign("miles-fsdp", engine=Engine("sglang", fraction))
        assert not refusals(run, plan(run, gb10))
        found = remedies(run, gb10)
        halved = [each for each in (*found.remedies, *found.without_effect) if "--sglang-mem" in each.text]
        assert all(not refusals(each.workload, plan(each.workload, gb10)) for each in found.remedies)
        assert bool(halved) == (fraction == 0.4)


@pytest.mark.parametrize("system", [name for name in presets.PRESETS if name not in ("headway-lora", "qlora")])
def test_only_what_the_trainer_accepts_is_proposed(system: str) -> None:
    run = foreign(system)
    keys = {key.partition("=")[0] for key in SPELLINGS[run.trainer.system]}
    advice = remedies(run, machines.with_host(machines.by_name("l4"), 1 << 38))
    assert advice.remedies
    found = {change.key for each in (*advice.remedies, *advice.without_effect) for change in each.changes}
    assert found <= keys
    if system == "miles-fsdp":
        assert not found & {"trainer.lora", "trainer.quant", "trainer.optimizer.state_dtype"}
    assert all(not change.runspec for each in advice.remedies for change in each.changes) == (system != "headway")


def test_a_system_that_is_not_known_is_not_advised() -> None:
    run = example()
    run = replace(run, trainer=replace(run.trainer, system="something else"))
    assert remedies(run, machine(1)) == Advice((), (), 1)


def test_the_engine_s_fraction_is_halved_and_both_values_are_said() -> None:
    run = foreign("miles-fsdp", engine=Engine("sglang", 0.4))
    advice = remedies(run, machines.by_name("gb10"))
    texts = [each.text for each in (*advice.remedies, *advice.without_effect)]
    assert "--sglang-mem-fraction-static 0.4 -> 0.2" in texts


def test_the_keys_in_which_a_remedy_differs_make_it_again() -> None:
    run = replace(heavy(), trainer=replace(heavy().trainer, reference="copy", attention="eager"))
    advice = remedies(run, between(run, 0.5))
    assert len(advice.remedies) > 3
    for remedy in (*advice.remedies, *advice.without_effect):
        assert apply(run, as_settings(run, remedy.workload)) == remedy.workload


RUNSPEC = """
[model]
path = "small-llama"
init = "random"
[data]
task = "chain_sum"
[objective]
kl_coef = 0.1
[train]
checkpointing = false
"""


def test_the_runspec_keys_of_a_change_are_keys(tmp_path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(RUNSPEC)
    run = replace(heavy(), trainer=replace(heavy().trainer, reference="copy", attention="eager"))
    advice = remedies(run, machine(1 << 28))
    changes = [change for each in (*advice.remedies, *advice.without_effect) for change in each.changes]
    assert {"trainer.reference", "trainer.lora", "trainer.attention"} <= {change.key for change in changes}
    for change in changes:
        for key, value in change.runspec.items():
            written = str(value).lower() if isinstance(value, bool) else value
            section, name = key.split(".")
            spec = load(file, [f"{key}={written}"])
            assert getattr(getattr(spec, section), name) == value


def test_more_trainer_devices_move_an_engine_s_and_do_not_help_it() -> None:
    overrides = (
        "engine.colocated=false", "engine.devices=4", "engine.tensor_parallel=4", "engine.memory_fraction=1.0",
        "layout.devices=4", "layout.tensor=4", "rollout.max_answer=512", "trainer.cap=1024",
    )  # fmt: skip
    run = presets.workload(by_name("qwen3-4b"), "slime", overrides)
    node = machines.with_host(machines.by_name("8xh100-80"), 10**12)
    advice = remedies(run, node)
    assert "--sglang-mem-fraction-static 1.0 -> 0.5" in [remedy.text for remedy in advice.remedies]
    assert not [remedy.text for remedy in advice.remedies if remedy.text == "--actor-num-gpus-per-node 8"]
