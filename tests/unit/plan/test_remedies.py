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
from headway.foreign.spelling import SPELLINGS, counts, spell
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
        less = [change.value for each in halved for change in each.changes if change.key == "engine.memory_fraction"]
        assert less
        assert 0.06 not in less


def machine_of(like: Machine, size: int) -> Machine:
    """The machine with devices of another size."""
    limit = Limit("device memory", size, "CUDA reports out of memory", "a test")
    return replace(like, pools=tuple(replace(p, limits=(limit,)) if p.kind == "device" else p for p in like.pools))


@pytest.mark.parametrize("system", [name for name in presets.PRESETS if name not in ("headway-lora", "qlora")])
def test_only_what_the_trainer_accepts_is_proposed(system: str) -> None:
    run = foreign(system)
    keys = {key.partition("=")[0] for key in SPELLINGS[run.trainer.system]}
    there = machines.with_host(machines.by_name("l4"), 1 << 38)
    if run.engine is None:
        there = machine_of(there, plan(run, there).peak(DEVICE).bytes * 9 // 10)
    advice = remedies(run, there)
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
    assert "--sglang-mem-fraction-static 1.0 -> 0.75" in [remedy.text for remedy in advice.remedies]
    assert not [remedy.text for remedy in advice.remedies if remedy.text == "--actor-num-gpus-per-node 8"]


# -- the pool that is short -------------------------------------------------------------------------------


VERL = (
    "layout.devices=8", "rollout.prompts=32", "rollout.max_prompt=2048", "rollout.max_answer=4096",
    "trainer.cap=0", "trainer.rows=1", "trainer.offload=parameters+optimizer",
)  # fmt: skip


def verl(*more: str) -> Workload:
    shape = by_name("qwen3-8b")
    assert shape is not None
    return presets.workload(shape, "verl-fsdp", (*VERL, *more))


def on(name: str, host: int) -> Machine:
    return machines.with_host(machines.by_name(name), host << 30)


def not_sure(run: Workload, there: Machine) -> set[str]:
    return {each.pool for each in verdict(plan(run, there), there) if each.kind in ("tight", "does not fit")}


@pytest.mark.parametrize(
    ("name", "host", "short"),
    [
        ("8xh100-80", 150, {HOST}), ("8xh100-80", 170, {HOST}), ("8xh100-80", 512, set()), ("8xl4", 512, {DEVICE}),
        ("8xl4", 150, {HOST, DEVICE}),
    ],
)  # fmt: skip
def test_every_pool_that_is_short_is_addressed_and_no_other(name: str, host: int, short: set[str]) -> None:
    run, there = verl(), on(name, host)
    assert not_sure(run, there) == short
    advice = remedies(run, there)
    assert {effect.pool for each in advice.remedies for effect in each.effects} == short
    for each in (*advice.remedies, *advice.without_effect):
        assert each.pool in short
    for each in advice.remedies:
        held = tops(plan(each.workload, there))
        for effect in each.effects:
            assert (effect.after_bytes, effect.after_upper) == held[effect.pool]
            assert effect.after_bytes <= effect.before_bytes
            assert effect.after_upper <= effect.before_upper
        assert (each.kind == "fits") == (not not_sure(each.workload, there))


def test_the_tightest_pool_is_that_of_the_highest_bound() -> None:
    """By what is expected the device is fuller, and its bound is inside its limit; the host's is not."""
    run = verl()
    there = on("8xh100-80", 170)
    there = machines.with_host(machines.by_name("8xh100-80"), plan(run, there).upper(HOST) - 1)
    there = machine_of(there, plan(run, there).upper(DEVICE) + 1)
    rooms = {each.pool: each.room for each in verdict(plan(run, there), there)}
    assert rooms[DEVICE] < rooms[HOST]
    assert {each.pool for each in remedies(run, there).remedies} == {HOST}


def places(advice: Advice) -> list[tuple[int, int]]:
    kinds = {"fits": 0, "tight": 1, "does not fit": 2}
    return [(max(0, each.cost - Cost.EXPERIMENT), kinds[each.kind]) for each in advice.whole()]


@pytest.mark.parametrize(("name", "host"), [("8xh100-80", 150), ("8xl4", 512), ("8xl4", 150), ("8xa100-40", 130)])
def test_settings_come_before_hardware_before_another_model(name: str, host: int) -> None:
    advice = remedies(verl(), on(name, host))
    found = places(advice)
    assert found == sorted(found)
    for kind in ("fits", "tight"):
        costs = [each.cost for each in advice.whole() if each.kind == kind]
        assert costs == sorted(costs)


def test_neither_hardware_nor_a_model_where_something_cheap_fits() -> None:
    """A reference at coefficient 0 beside the model is all that is too much; at 0.1 it is part of the experiment."""
    run = foreign("openrlhf")
    run = replace(run, trainer=replace(run.trainer, reference_weight=0.0))
    without = replace(run, trainer=replace(run.trainer, reference="none"))
    node = on("8xh100-80", 2048)
    there = machine_of(node, plan(without, node).upper(DEVICE))
    assert DEVICE in not_sure(run, there)
    free = remedies(run, there)
    assert best(free).text == "--init_kl_coef 0"
    assert best(free).cost is Cost.FREE
    assert all(each.cost <= Cost.EXPERIMENT for each in free.remedies)
    weighed = remedies(replace(run, trainer=replace(run.trainer, reference_weight=0.1)), there)
    found = next(each for each in weighed.remedies if each.text == "--init_kl_coef 0")
    assert found.cost is Cost.EXPERIMENT


def test_a_host_that_is_short_gets_less_offloaded_where_the_devices_have_room() -> None:
    run = replace(verl(), save=False)
    advice = remedies(run, on("8xh100-80", 150))
    section = "actor_rollout_ref.actor.fsdp_config"
    texts = [each.text for each in advice.whole() if each.cost is Cost.FREE]
    assert any(f"{section}.optimizer_offload=False" in text for text in texts)
    tight = remedies(run, on("8xl4", 150))
    assert not any(text.startswith(section) for text in (each.text for each in tight.whole() if each.kind == "fits"))


# -- what a system demands --------------------------------------------------------------------------------


def test_fewer_prompts_keep_whole_micro_batches_and_take_the_mini_batch_with_them() -> None:
    run = verl("trainer.rows=4", "rollout.samples=8")
    values = {move.key: values for move, values in accepted(run, on("8xl4", 150))}
    assert values["rollout.prompts"] == (16, 8, 4)
    assert values["rollout.samples"] == (4, 2)
    odd = verl("trainer.rows=4", "rollout.samples=12")
    odd = replace(odd, rollout=replace(odd.rollout, prompts=8))
    assert "rollout.samples" not in {move.key for move, _ in accepted(odd, on("8xl4", 150))}
    text = spell(
        "verl-fsdp", "rollout.prompts", 16, 32, counts(replace(run, rollout=replace(run.rollout, prompts=16)))
    )
    assert text == "data.train_batch_size=16 actor_rollout_ref.actor.ppo_mini_batch_size=16"


def test_an_engine_of_more_devices_divides_heads_and_devices() -> None:
    assert dict(engines(verl())) == {"engine.tensor_parallel": (4, 8)}
    apart = verl("engine.colocated=false", "engine.devices=4")
    assert dict(engines(apart)) == {"engine.tensor_parallel": (4,)}
    shape = by_name("qwen2.5-0.5b")
    assert shape is not None
    assert shape.heads == 14
    assert dict(engines(replace(verl(), model=shape))) == {}


def engines(run: Workload) -> list[tuple[str, tuple[object, ...]]]:
    found = accepted(run, on("8xl4", 150))
    return [(move.key, values) for move, values in found if move.key == "engine.tensor_parallel"]


def test_engines_on_devices_of_their_own_are_addressed_by_what_is_theirs() -> None:
    run = verl("engine.colocated=false", "engine.devices=8", "engine.memory_fraction=0.95", "trainer.offload=none")
    there = on("2x8xh100-80", 4096)
    short = not_sure(run, there)
    assert short == {"node[1].device[0]"}
    advice = remedies(run, there)
    assert best(advice).pool == "node[1].device[0]"
    assert best(advice).kind == "fits"
    assert {change.key for change in best(advice).changes} <= {"engine.memory_fraction", "engine.graphs"}


def test_an_engine_without_room_gets_more_and_never_less() -> None:
    run, there = verl("engine.memory_fraction=0.1"), on("8xh100-80", 4096)
    assert refusals(run, plan(run, there))
    advice = remedies(run, there)
    assert best(advice).kind == "fits"
    assert best(advice).cost is Cost.FREE
    shares = [change.value for each in advice.remedies for change in each.changes if "fraction" in change.key]
    assert shares
    assert all(isinstance(share, float) and share > 0.1 for share in shares)
    roomy = verl("engine.memory_fraction=0.3")
    assert not remedies(roomy, there).remedies
