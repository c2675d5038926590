"""What changes cost: each says it, they are ranked by it, and none asks for what the machine has not."""

import pytest
from msgspec.structs import replace

from headway.cli.inputs import read_case
from headway.facts import machines
from headway.facts.shapes import by_name
from headway.facts.workload import Engine, Layout, Lora
from headway.foreign import presets
from headway.foreign.spelling import counts, spell
from headway.plan.moves import MOVES, Cost, accepted
from headway.plan.plan import plan
from headway.plan.prices import PRICES
from headway.plan.remedies import Advice, remedies

from .test_remedies import DEVICE, HOST, best, foreign


def of(name: str, trainer: str, there: str, *more: str) -> Advice:
    case = read_case([name], trainer, there, more)
    return remedies(case.workload, case.machine)


@pytest.mark.parametrize(
    ("name", "trainer", "there"),
    [
        ("qwen3-8B", "headway", "rtx4090"), ("qwen3-4B", "miles-fsdp", "gb10"), ("qwen3-8B", "trl", "8xa100-80"),
        ("qwen3-32B", "verl", "8xa6000"), ("qwen3-14B", "slime", "4xa100-40"), ("qwen3-8B", "torchtune", "rtx4090"),
    ],
)  # fmt: skip
def test_every_change_says_what_it_costs(name: str, trainer: str, there: str) -> None:
    advice = of(name, trainer, there)
    assert advice.remedies
    for each in (*advice.remedies, *advice.without_effect):
        aspects = {part.partition(":")[0] for part in each.loses.split("; ")}
        assert aspects <= {"nothing", "speed", "data", "learning", "hardware", "another model"}
        assert ("nothing" in aspects) == all(change.loses.startswith("nothing") for change in each.changes)
        if each.cost in (Cost.EXPERIMENT, Cost.LOSSY):
            assert aspects & {"learning", "data"}


def test_every_move_has_a_price() -> None:
    assert {(move.key, move.cost) for move in MOVES} == set(PRICES)


@pytest.mark.parametrize(("name", "there"), [("qwen3-4B", "gb10"), ("qwen3-8B", "2xgb10"), ("qwen3-4B", "h100-80")])
def test_pure_bf16_comes_after_another_model(name: str, there: str) -> None:
    advice = of(name, "miles-fsdp", there)
    texts = [each.text for each in advice.whole()]
    assert "--no-keep-fp32-master" not in texts[:1]
    lossy = [each.cost is Cost.LOSSY for each in advice.whole()]
    assert lossy == sorted(lossy)


def test_bf16_with_masters_or_a_frozen_base_is_no_pure_bf16() -> None:
    run = foreign("headway")
    run = replace(run, trainer=replace(run.trainer, param_dtype="fp32"))
    costs = {move.cost for move, _ in accepted(run, machines.by_name("h100-80")) if move.key == "trainer.param_dtype"}
    assert costs == {Cost.EXPERIMENT}
    trl = foreign("trl")
    adapted = replace(trl, trainer=replace(trl.trainer, lora=Lora(16, "all-linear")))
    for each, cost in ((trl, Cost.LOSSY), (adapted, Cost.EXPERIMENT)):
        found = {m.cost for m, _ in accepted(each, machines.by_name("h100-80")) if m.key == "trainer.param_dtype"}
        assert found == {cost}


def test_lora_comes_with_a_base_in_half_precision_where_it_was_fp32() -> None:
    found = next(each for each in of("qwen3-8B", "trl", "h100-80").remedies if "--lora_r" in each.text)
    assert found.text == "--use_peft --lora_r 16 --dtype bfloat16"
    assert found.workload.trainer.param_dtype == "bf16"
    half = of("qwen3-8B", "trl", "rtx4090", "trainer.param_dtype=bf16")
    assert "--use_peft --lora_r 16" in {each.text for each in (*half.remedies, *half.without_effect)}


@pytest.mark.parametrize(
    ("trainer", "there", "proposed"),
    [
        ("trl", "a100-80", set()), ("trl", "8xa100-80", {"layout.devices"}), ("trl", "2xa100-80", {"layout.devices"}),
        ("verl", "8xl4", set()), ("miles-fsdp", "gb10", set()), ("miles-fsdp", "2xgb10", set()),
    ],
)  # fmt: skip
def test_no_device_is_proposed_that_the_machine_has_not(trainer: str, there: str, proposed: set[str]) -> None:
    advice = of("qwen3-8B", trainer, there)
    found = [change for each in advice.remedies for change in each.changes if change.key.startswith("layout.")]
    more = {change.key for change in found if change.key in ("layout.devices", "layout.nodes")}
    assert more == proposed
    assert all(int(change.value) <= machines.by_name(there).device_count for change in found)


def test_nodes_of_the_machine_that_a_run_does_not_use_are_proposed() -> None:
    advice = of("qwen3-8B", "miles-fsdp", "4xgb10", "layout.nodes=1")
    assert {"--actor-num-nodes 2", "--actor-num-nodes 4"} & {each.text for each in advice.remedies}


def test_tensor_parallel_ranks_come_before_another_model() -> None:
    advice = of("qwen3-14B", "slime", "8xa100-80", "layout.tensor=1", "layout.devices=8")
    first = best(advice)
    assert "--tensor-model-parallel-size" in first.text
    assert first.cost is Cost.SLOWER
    keys = [[change.key for change in each.changes] for each in advice.whole()]
    assert keys[0] != ["model"]


def test_ranks_that_divide_a_sample_lower_a_long_one() -> None:
    words = ("rollout.max_answer=32768", "trainer.cap=33280")
    run = presets.workload(by_name("qwen2.5-7b"), "verl-fsdp", words)
    move, values = next(
        each for each in accepted(run, machines.by_name("8xh100-80")) if each[0].key == "layout.context"
    )
    assert values == (2, 4), "8 does not divide the model's 28 heads"
    divided = move.apply(run, 2)
    assert divided.trainer.cap == 33280
    there = machines.by_name("8xh100-80")
    before, after = (plan(each, there).peak_of(DEVICE, "train").bytes for each in (run, divided))
    assert after < before
    text = spell("verl-fsdp", "trainer.cap", 33280, None, counts(divided))
    assert text == "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16640"


def test_a_set_of_parameters_is_shared_where_each_rank_has_a_whole_one() -> None:
    run = foreign("trl", layout=Layout(devices=4))
    moves = {move.key: values for move, values in accepted(run, machines.by_name("4xh100-80"))}
    assert moves["layout.shards"] == (4,)
    shared = replace(run, layout=Layout(devices=4, shards=4))
    assert "layout.shards" not in {move.key for move, _ in accepted(shared, machines.by_name("4xh100-80"))}


def test_an_engine_that_holds_on_while_the_trainer_works_is_put_to_sleep() -> None:
    engine = Engine("vllm", 0.3, releases="nothing")
    awake = foreign("trl", engine=engine)
    there = machines.by_name("h100-80")
    assert "engine.releases" in {move.key for move, _ in accepted(awake, there)}
    apart = foreign("trl", engine=replace(engine, colocated=False, devices=1))
    asleep = foreign("trl", engine=replace(engine, releases="weights+kv"))
    for each in (apart, asleep):
        assert "engine.releases" not in {move.key for move, _ in accepted(each, there)}


def test_a_cache_in_fp8_is_for_an_engine_without_room_alone() -> None:
    short = of("qwen3-8B", "verl", "8xh100-80", "engine.memory_fraction=0.16", "machine.host=4096GiB")
    roomy = of("qwen3-8B", "verl", "8xl4", "machine.host=4096GiB")
    assert "engine.kv_dtype" not in {c.key for e in (*roomy.remedies, *roomy.without_effect) for c in e.changes}
    assert all(each.cost is not Cost.FREE for each in short.remedies if "kv_cache_dtype" in each.text)


def test_a_checkpoint_is_saved_in_shards_where_one_rank_gathers_it() -> None:
    there = machines.by_name("8xh100-80")
    run = foreign("trl", layout=Layout(devices=8, shards=8))
    assert "gathers" in {move.key for move, _ in accepted(run, there)}
    for other in (replace(run, gathers="nothing"), replace(run, save=False), foreign("trl")):
        assert "gathers" not in {move.key for move, _ in accepted(other, there)}


def test_parameters_that_ranks_share_go_to_the_host_before_another_model() -> None:
    advice = of("qwen3-32B", "fsdp2", "8xa100-40", "machine.host=2048GiB")
    found = next(each for each in advice.remedies if "CPUOffload" in each.text)
    assert found.cost is Cost.SLOWER
    assert found.workload.trainer.optimizer.offload == 1.0
    models = [each for each in advice.whole() if each.cost is Cost.MODEL]
    assert not models or advice.remedies.index(found) < advice.remedies.index(models[0])
    alone = accepted(foreign("fsdp2"), machines.by_name("h100-80"))
    assert "trainer.offload_parameters" not in {move.key for move, _ in alone}


def test_a_host_of_unknown_size_that_gets_the_state_is_told_of() -> None:
    away = next(each for each in of("qwen3-32B", "fsdp2", "8xa100-40").remedies if "CPUOffload" in each.text)
    assert dict(away.grown)[HOST] > 300 << 30
    known = of("qwen3-32B", "fsdp2", "8xa100-40", "machine.host=2048GiB")
    assert all(not each.grown for each in known.remedies)
    assert all(not each.grown for each in of("qwen3-8B", "headway", "rtx4090").remedies)


def test_verl_s_offload_policy_is_proposed_and_read_again() -> None:
    words = "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen3-32B trainer.n_gpus_per_node=8"
    words += " data.max_prompt_length=512 data.max_response_length=1024 actor_rollout_ref.rollout.n=8"
    words += " actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 data.train_batch_size=64"
    words += " actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.rollout.tensor_model_parallel_size=4"
    words += " actor_rollout_ref.model.enable_gradient_checkpointing=True"
    case = read_case(words.split(), None, "8xh100-80", ())
    found = next(each for each in remedies(case.workload, case.machine).remedies if "offload_policy" in each.text)
    assert found.cost is Cost.SLOWER
    again = read_case([*words.split(), *found.text.replace(" and ", " ").split()], None, "8xh100-80", ()).workload
    assert again.trainer == found.workload.trainer
    assert again.trainer.offload_parameters
    assert not case.workload.trainer.offload_parameters
