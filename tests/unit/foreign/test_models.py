"""The models beside the actor that launches of each system load, and what is said where one cannot be planned."""

from typing import NamedTuple

import pytest

from headway.facts import machines
from headway.facts.shapes import by_name
from headway.facts.workload import Lora, OtherModel, Workload
from headway.foreign import arguments_log, launched, runs, verl
from headway.foreign.found import Found
from headway.foreign.hydra import Config
from headway.foreign.models import shape_named
from headway.foreign.readers import settings_of
from headway.foreign.settings import apply
from headway.foreign.shape_flags import shape_of
from headway.foreign.shell import read_text
from headway.plan.ledger import Phase
from headway.plan.plan import plan
from headway.plan.verdict import judge

VERL = (
    "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=gae data.train_batch_size=64 "
    "data.max_prompt_length=512 data.max_response_length=1024 actor_rollout_ref.model.path=Qwen/Qwen3-4B "
    "actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 "
    "actor_rollout_ref.rollout.gpu_memory_utilization=0.4 trainer.n_gpus_per_node=8 trainer.nnodes=1 "
)
OPENRLHF = (
    "python3 -m openrlhf.cli.train_ppo_ray --pretrain Qwen/Qwen3-4B --reward_pretrain Qwen/Qwen3-1.7B "
    "--actor_num_nodes 1 --actor_num_gpus_per_node 4 --vllm_num_engines 2 --vllm_tensor_parallel_size 1 "
    "--micro_train_batch_size 2 --train_batch_size 64 --rollout_batch_size 64 --zero_stage 3 --bf16 "
)
COLOCATED = "--colocate_all_models --vllm_gpu_memory_utilization 0.4 --vllm_enable_sleep "
SLIME = (
    "python3 train.py --actor-num-nodes 1 --actor-num-gpus-per-node 8 --hf-checkpoint /m/Qwen3-4B "
    "--rollout-batch-size 32 --n-samples-per-prompt 8 --rollout-max-response-len 2048 --tensor-model-parallel-size 2 "
    "--use-dynamic-batch-size --max-tokens-per-gpu 4096 --sglang-mem-fraction-static 0.5 --global-batch-size 256 "
)


def found(text: str) -> Found:
    return settings_of(read_text(text))


def made(text: str) -> Workload:
    said = found(text)
    return launched.workload(said) if said.system in ("slime", "miles") else runs.workload(said, shape_of(said))


def roles(run: Workload) -> set[str]:
    return {role for role, _ in run.others}


def one(each: OtherModel | None) -> OtherModel:
    assert each is not None
    return each


# -- verl ---------------------------------------------------------------------------------------------------


class Loads(NamedTuple):
    said: str
    critic: bool


@pytest.mark.parametrize(
    "case",
    [
        Loads("", critic=True),
        Loads("algorithm.adv_estimator=grpo", critic=False),
        Loads("algorithm.adv_estimator=grpo critic.model.path=Qwen/Qwen3-8B critic.strategy=fsdp", critic=False),
        Loads("critic.enable=False", critic=False),
        Loads("algorithm.adv_estimator=grpo critic.enable=True", critic=True),
    ],
)
def test_verl_loads_a_critic_for_gae_or_where_it_is_enabled(case: Loads) -> None:
    run = made(VERL + case.said)
    assert (run.critic is not None) is case.critic
    assert run.in_no_line == ()


def test_verls_critic_has_its_own_size_batch_and_offload_flags() -> None:
    run = made(
        VERL + "critic.model.path=Qwen/Qwen3-8B critic.ppo_micro_batch_size_per_gpu=16 "
        "critic.model.fsdp_config.optimizer_offload=True critic.model.enable_gradient_checkpointing=False "
        "critic.model.fsdp_config.model_dtype=bfloat16 critic.model.fsdp_config.fsdp_size=4"
    )
    critic = one(run.critic)
    assert critic.model == by_name("qwen3-8b").valued()
    assert (critic.trainer.rows, critic.trainer.offload, critic.trainer.checkpointing) == (16, "optimizer", False)
    assert (critic.trainer.param_dtype, critic.layout.shards, critic.layout.replicas) == ("bf16", 4, 2)
    assert (critic.trained, critic.group, critic.process) == (True, 0, False)
    # the actor's own stay as they are
    assert (run.trainer.rows, run.trainer.offload, run.trainer.param_dtype) == (2, "none", "fp32")


@pytest.mark.parametrize(
    ("said", "cap", "rows"),
    [
        ("critic.ppo_micro_batch_size=32", 0, 4),
        ("", 0, 2),
        ("critic.use_dynamic_bsz=True", 32768, 0),
        ("critic.use_dynamic_bsz=True critic.ppo_max_token_len_per_gpu=9000", 9000, 0),
        ("actor_rollout_ref.actor.use_dynamic_bsz=True", 32768, 0),
        (
            "critic.use_dynamic_bsz=True critic.ppo_max_token_len_per_gpu=9000 "
            "critic.ulysses_sequence_parallel_size=2", 18000, 0,
        ),
    ],
)  # fmt: skip
def test_a_micro_batch_of_verls_critic(said: str, cap: int, rows: int) -> None:
    trainer = one(made(VERL + said).critic).trainer
    assert (trainer.cap, trainer.rows) == (cap, rows)


def test_a_critic_that_is_not_named_is_like_the_actor_and_that_is_said() -> None:
    run = made(VERL)
    assert one(run.critic).model == by_name("qwen3-4b").valued()
    assert "critic = qwen3-4B (assumed: critic.model.path is not given; like the actor)" in run.unknown


def test_one_variable_for_both_is_the_actors_model_also_where_it_is_not_set() -> None:
    said = found(
        "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=$MODEL critic.model.path=$MODEL "
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 trainer.n_gpus_per_node=8"
    )
    run = runs.workload(said, by_name("qwen3-8b"))
    assert one(run.critic).model == by_name("qwen3-8b").valued()
    assert run.in_no_line == ()


def test_a_critic_of_unknown_size_is_in_no_line_and_the_verdict_cannot_tell() -> None:
    run = made(VERL + "critic.model.path=/models/our-critic")
    assert roles(run) == set()
    assert run.in_no_line == (
        "critic (critic.model.path /models/our-critic): its sizes are not known; --set critic.model=NAME",
    )
    outcome = judge(run, machines.by_name("8xh100-80"))
    assert (outcome.kind, outcome.exit_code, outcome.unplanned) == ("cannot tell", 4, run.in_no_line)
    told = apply(run, ["critic.model=qwen3-4b"])
    assert told.in_no_line == ()
    assert judge(told, machines.by_name("8xh100-80")).kind == "fits"


def test_a_run_that_does_not_fit_without_it_does_not_fit() -> None:
    run = made(VERL + "critic.model.path=/models/our-critic")
    assert judge(run, machines.by_name("8xt4")).kind == "does not fit"


def test_verls_reward_model_waits_in_the_host_and_may_have_devices_of_its_own() -> None:
    said = "reward_model.enable=True reward_model.model.path=Qwen/Qwen3-8B reward_model.micro_batch_size_per_gpu=4 "
    shared = one(made(VERL + said).reward_model)
    assert (shared.in_host, shared.trained, shared.group, shared.trainer.rows) == (True, False, 0, 4)
    assert (shared.trainer.param_dtype, shared.model.name) == ("bf16", "qwen3-8B")
    pool = "reward_model.enable_resource_pool=True reward_model.nnodes=1 reward_model.n_gpus_per_node=2"
    own = one(made(VERL + said + pool).reward_model)
    assert (own.group, own.layout.ranks, own.layout.shards) == (1, 2, 2)


@pytest.mark.parametrize(
    "said",
    ["", "custom_reward_function.path=/r/reward.py custom_reward_function.name=score", "reward_model.enable=False "
     "reward_model.model.path=Qwen/Qwen3-8B", "reward_model.reward_manager=dapo"],
)  # fmt: skip
def test_a_reward_function_is_no_model(said: str) -> None:
    run = made(VERL + said)
    assert (run.reward_model, run.in_no_line) == (None, ())


def test_what_is_not_known_of_a_model_is_said() -> None:
    enabled = made(VERL + "reward_model.enable=$REWARDS")
    assert enabled.in_no_line == ("reward model: whether one is loaded is not known (reward_model.enable)",)
    away = made(VERL + "critic.model.fsdp_config.param_offload=$AWAY")
    assert one(away.critic).trainer.offload == "none"
    assert any(text.startswith("not read: critic.model.fsdp_config.param_offload") for text in away.unknown)
    grpo = made(VERL + "algorithm.adv_estimator=grpo critic.model.fsdp_config.param_offload=$AWAY")
    assert not any("critic" in text for text in grpo.unknown)
    devices = made(OPENRLHF + "--critic_num_gpus_per_node $CRITICS")
    assert "critic_num_gpus_per_node = 8 (assumed: the script does not say)" in devices.unknown


def test_a_reward_model_that_an_engine_serves_is_not_planned() -> None:
    run = made(VERL + "reward_model.enable=True reward_model.model.path=Qwen/Qwen3-8B reward_model.rollout.name=vllm")
    assert run.unplanned == ("reward model: vllm serves it on the trainer's devices",)
    assert judge(run, machines.by_name("8xh200")).kind == "cannot tell"


def test_a_reference_of_other_sizes_is_a_model_of_its_own() -> None:
    teacher = made(VERL + "algorithm.adv_estimator=opd actor_rollout_ref.ref.model.path=Qwen/Qwen3-32B")
    assert roles(teacher) == {"teacher"}
    assert (one(teacher.teacher).model.name, one(teacher.teacher).in_host) == ("qwen3-32B", True)
    reference = made(VERL + "actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.ref.model.path=Qwen/Qwen3-8B")
    assert one(reference.reference_model).model.name == "qwen3-8B"
    assert reference.trainer.reference == "none"
    same = made(VERL + "actor_rollout_ref.actor.use_kl_loss=True")
    assert (same.reference_model, same.trainer.reference) == (None, "host")


def test_verls_megatron_critic_is_divided_by_its_own_keys() -> None:
    run = made(
        VERL + "actor_rollout_ref.actor.strategy=megatron critic.strategy=megatron "
        "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=4 "
        "critic.megatron.tensor_model_parallel_size=2 critic.megatron.param_offload=True"
    )
    critic = one(run.critic)
    assert (critic.trainer.system, critic.layout.tensor, critic.trainer.offload) == ("verl-megatron", 2, "parameters")
    assert run.layout.tensor == 4


def test_a_configuration_that_a_log_prints_is_read_alike() -> None:
    """Every key is there, and what is not set is None."""
    critic = {
        "enable": None, "strategy": "fsdp", "ppo_micro_batch_size": None, "ppo_micro_batch_size_per_gpu": 4,
        "use_dynamic_bsz": False, "ppo_max_token_len_per_gpu": 32768, "ulysses_sequence_parallel_size": 1,
        "model": {
            "path": "Qwen/Qwen3-8B", "enable_gradient_checkpointing": True, "lora_rank": 0,
            "fsdp_config": {
                "param_offload": True, "optimizer_offload": True, "offload_policy": False, "fsdp_size": -1,
                "model_dtype": "fp32",
            },
        },
    }  # fmt: skip
    base = {
        "actor_rollout_ref": {
            "model": {"path": "Qwen/Qwen3-4B"},
            "actor": {"ppo_micro_batch_size_per_gpu": 2, "strategy": "fsdp"},
            "rollout": {"name": "vllm"}, "ref": {"model": None},
        },
        "critic": critic, "trainer": {"nnodes": 1, "n_gpus_per_node": 8},
        "reward_model": {"enable": False, "model": {"path": "~/models/rm"}, "rollout": {"name": "???"}},
        "algorithm": {"adv_estimator": "gae"},
    }  # fmt: skip
    said = verl.from_config(Config(base=base, base_name="train.log"), "verl.trainer.main_ppo")
    run = runs.workload(said, shape_of(said))
    assert (roles(run), run.in_no_line) == ({"critic"}, ())
    assert (one(run.critic).trainer.offload, one(run.critic).trainer.rows) == ("parameters+optimizer", 4)
    assert one(run.critic).model == by_name("qwen3-8b").valued()
    said = verl.from_config(
        Config(base={**base, "algorithm": {"adv_estimator": "grpo"}}, base_name="train.log"), "verl.trainer.main_ppo"
    )
    assert runs.workload(said, shape_of(said)).critic is None


def test_a_critic_of_adapters_trains_them_alone() -> None:
    trainer = one(made(VERL + "critic.model.lora_rank=32").critic).trainer
    assert (trainer.lora, trainer.grad_dtype) == (Lora(32, "all-linear"), None)


def test_an_engine_that_is_not_planned_makes_the_verdict_cannot_tell() -> None:
    run = made(VERL + "actor_rollout_ref.rollout.name=hf critic.enable=False")
    assert run.unplanned == ("hf, which generates: only vllm and sglang are planned",)
    assert made(VERL).unplanned == ()


# -- OpenRLHF -----------------------------------------------------------------------------------------------


def test_openrlhf_loads_critic_and_reward_model_and_each_has_devices_of_its_own() -> None:
    run = made(
        OPENRLHF + "--critic_num_gpus_per_node 2 --ref_num_gpus_per_node 1 --reward_num_gpus_per_node 3 "
        "--critic_pretrain Qwen/Qwen3-0.6B"
    )
    assert roles(run) == {"critic", "reward", "reference"}
    critic, reward, reference = one(run.critic), one(run.reward_model), one(run.reference_model)
    assert [each.layout.ranks for each in (critic, reward, reference)] == [2, 3, 1]
    assert len({each.group for each in (critic, reward, reference)}) == 3
    assert sum(run.groups) == 6
    assert [each.model.name for each in (critic, reward, reference)] == ["qwen3-0.6B", "qwen3-1.7B", "qwen3-4B"]
    assert (critic.trained, reward.trained, reference.trained) == (True, False, False)
    assert run.trainer.reference == "none"


def test_openrlhfs_models_on_the_actors_devices() -> None:
    run = made(OPENRLHF + COLOCATED + "--deepspeed_enable_sleep --adam_offload")
    assert {each.group for _, each in run.others} == {0}
    critic = one(run.critic)
    assert (critic.process, critic.trainer.offload, critic.trainer.optimizer.offload) == (True, "optimizer", 1.0)
    # named by the reward model, as OpenRLHF does
    assert critic.model == by_name("qwen3-1.7b").valued()
    assert run.trainer.reference == "copy"


def test_what_openrlhf_shares_is_shared() -> None:
    both = made(OPENRLHF + "--colocate_critic_reward --colocate_actor_ref")
    assert one(both.critic).group == one(both.reward_model).group == 1
    assert (both.reference_model, both.trainer.reference) == (None, "copy")


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("--advantage_estimator reinforce", {"reward", "reference"}),
        ("--advantage_estimator reinforce --init_kl_coef 0", {"reward"}),
        ("--remote_rm_url http://host:5000/rm", {"critic", "reference"}),
        ("--advantage_estimator rloo --init_kl_coef 0 --remote_rm_url /r/reward.py", set()),
        ("--advantage_estimator rloo --init_kl_coef 0 --agent_func_path /r/agent.py", set()),
    ],
)
def test_what_openrlhf_loads(said: str, expected: set[str]) -> None:
    assert roles(made(OPENRLHF + said)) == expected


def test_the_newer_flags_say_the_same() -> None:
    run = made(
        "python3 -m openrlhf.cli.train_ppo_ray --actor.model_name_or_path Qwen/Qwen3-4B "
        "--reward.model_name_or_path Qwen/Qwen3-1.7B --critic.model_name_or_path Qwen/Qwen3-0.6B "
        "--vllm.num_engines 4 --actor.num_gpus_per_node 4 --train.colocate_all --vllm.enable_sleep --ds.zero_stage 3 "
        "--reward.offload --rollout.micro_batch_size 6"
    )
    assert roles(run) == {"critic", "reward"}
    assert (one(run.critic).model.name, one(run.reward_model).in_host) == ("qwen3-0.6B", True)
    assert (one(run.reward_model).trainer.rows, one(run.critic).trainer.rows) == (6, run.trainer.rows)


def test_models_that_only_score_are_whole_on_each_rank_unless_zero_is_3() -> None:
    two = made(OPENRLHF.replace("--zero_stage 3", "--zero_stage 2") + COLOCATED)
    assert (one(two.reward_model).layout.shards, one(two.reward_model).layout.zero) == (1, "none")
    assert one(two.critic).layout.zero == "gradients"
    assert one(made(OPENRLHF + COLOCATED).reward_model).layout.shards == 4


def test_without_ray_all_models_of_openrlhf_are_in_one_process_a_device() -> None:
    run = made(
        "deepspeed --num_gpus 8 --module openrlhf.cli.train_ppo --pretrain Qwen/Qwen3-4B --reward_pretrain "
        "Qwen/Qwen3-1.7B --micro_train_batch_size 2 --train_batch_size 64 --rollout_batch_size 64 --zero_stage 2"
    )
    assert roles(run) == {"critic", "reward"}
    assert {(each.group, each.process) for _, each in run.others} == {(0, False)}
    assert run.in_no_line == ("hf, which generates: only vllm and sglang are planned",)


def test_what_a_log_prints_as_not_given_is_not_given() -> None:
    text = (
        "Namespace(pretrain='Qwen/Qwen3-4B', reward_pretrain='Qwen/Qwen3-1.7B', critic_pretrain=None, "
        "remote_rm_url=None, agent_func_path=None, advantage_estimator='gae', vllm_num_engines=4, zero_stage=3, "
        "init_kl_coef=0.0, rollout_batch_size=64, train_batch_size=64, micro_train_batch_size=2, "
        "actor_num_nodes=1, actor_num_gpus_per_node=4, colocate_all_models=True, enable_ema=False)"
    )
    said = arguments_log.read_log(text, "train.log")
    assert said is not None
    run = runs.workload(said, shape_of(said))
    assert (roles(run), run.in_no_line) == ({"critic", "reward"}, ())


def test_several_reward_models_are_not_all_planned() -> None:
    run = made(OPENRLHF.replace("Qwen/Qwen3-1.7B", "Qwen/Qwen3-1.7B,Qwen/Qwen3-8B"))
    assert one(run.reward_model).model.name == "qwen3-1.7B"
    assert run.unplanned == ("1 more reward models of --reward_pretrain",)


# -- TRL ----------------------------------------------------------------------------------------------------

PPO = (
    "accelerate launch --num_processes 1 examples/scripts/ppo/ppo.py --model_name_or_path Qwen/Qwen3-0.6B "
    "--reward_model_path Qwen/Qwen3-1.7B --per_device_train_batch_size 2 --response_length 64 "
)


def test_trls_ppo_trains_a_value_model_with_the_policy_beside_reward_model_and_reference() -> None:
    run = made(PPO)
    assert roles(run) == {"critic", "reward"}
    assert run.trainer.reference == "copy"
    critic = one(run.critic)
    assert (critic.together, critic.trained, critic.model) == (True, True, by_name("qwen3-1.7b").valued())
    held = {line.role for line in plan(run, machines.by_name("h200")).lines if line.item == "weights"}
    assert held == {"trainer", "critic", "reward", "reference"}


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("grpo.py --model_name_or_path Qwen/Qwen3-0.6B --num_generations 4 --max_completion_length 64", set()),
        (
            "grpo.py --model_name_or_path Qwen/Qwen3-0.6B --num_generations 4 --max_completion_length 64 "
            "--reward_model_name_or_path Qwen/Qwen3-1.7B", {"reward"},
        ),
        ("dpo.py --dataset_name d --model_name_or_path Qwen/Qwen3-0.6B --max_length 512", {"reference"}),
        (
            "dpo.py --dataset_name d --model_name_or_path Qwen/Qwen3-0.6B --max_length 512 "
            "--precompute_ref_log_probs", set(),
        ),
        ("dpo.py --dataset_name d --model_name_or_path Qwen/Qwen3-0.6B --max_length 512 --use_peft", set()),
        ("sft.py --dataset_name d --model_name_or_path Qwen/Qwen3-0.6B --max_length 512", set()),
        (
            "gkd.py --dataset_name d --model_name_or_path Qwen/Qwen3-0.6B "
            "--teacher_model_name_or_path Qwen/Qwen3-4B --max_length 512",
            {"teacher"},
        ),
    ],
)  # fmt: skip
def test_what_trls_trainers_load(said: str, expected: set[str]) -> None:
    lines = plan(made(f"accelerate launch --num_processes 1 {said}"), machines.by_name("h200")).lines
    assert {line.role for line in lines} == expected | {"trainer"}


# -- slime and Miles ----------------------------------------------------------------------------------------


def test_slimes_critic_is_a_second_group_on_the_actors_devices() -> None:
    run = made(SLIME + "--colocate --advantage-estimator ppo")
    critic = one(run.critic)
    assert (critic.model, critic.layout, critic.process) == (run.model.valued(), run.layout, True)
    assert (critic.trainer.offload, critic.trainer.copies, critic.group) == ("parameters+optimizer", (), 0)
    assert made(SLIME + "--colocate --advantage-estimator grpo").critic is None


def test_a_critic_of_older_slime_has_devices_of_its_own() -> None:
    run = made(SLIME + "--advantage-estimator ppo --critic-num-nodes 1 --critic-num-gpus-per-node 4 "
               "--rollout-num-gpus 4")  # fmt: skip
    assert (one(run.critic).group, one(run.critic).layout.ranks, run.groups) == (1, 4, (4,))


def test_the_counts_that_a_log_prints_are_the_actors_where_they_are_equal() -> None:
    text = "--colocate --advantage-estimator ppo --use-critic --critic-num-nodes 1 --critic-num-gpus-per-node "
    assert one(made(SLIME + text + "8").critic).group == 0
    assert one(made(SLIME + text + "4").critic).group == 1


def test_a_teacher_of_slime_is_one_more_pinned_copy() -> None:
    run = made(SLIME + "--colocate --advantage-estimator grpo --use-opd --opd-type megatron --opd-teacher-load /m/t")
    assert run.trainer.copies == ("actor", "teacher")
    served = made(SLIME + "--colocate --advantage-estimator grpo --use-opd --opd-type sglang")
    assert served.trainer.copies == ("actor",)
    assert len(served.unplanned) == 1
    assert made(SLIME + "--colocate --advantage-estimator grpo").unplanned == ()


def test_keys_of_the_critic_change_the_one_that_the_script_loads() -> None:
    run = launched.workload(found(SLIME + "--colocate --advantage-estimator ppo"), None, ["critic.model=qwen3-1.7b"])
    critic = one(run.critic)
    assert (critic.model, critic.process, critic.trained) == (by_name("qwen3-1.7b").valued(), True, True)


def test_slimes_critic_sleeps_in_turns_also_where_the_engine_is_apart() -> None:
    run = made(SLIME + "--advantage-estimator ppo --rollout-num-gpus 8")
    assert (run.trainer.offload, one(run.critic).trainer.offload) == ("dropped", "parameters+optimizer")
    ledger = plan(run, machines.by_name("2x8xh100-80"))
    trains = {line.role for line in ledger.select("node[0].device[0]", Phase.TRAIN) if line.item == "optimizer state"}
    assert len(trains) == 1


def test_whether_there_is_a_critic_must_be_known() -> None:
    run = made(SLIME + "--colocate --advantage-estimator $HOW")
    assert run.critic is None
    assert "critic: whether one is loaded is not known" in run.unplanned[0]


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("Skywork/Skywork-Reward-Llama-3.1-8B-v0.2", "llama3.1-8B-Instruct"),
        ("OpenRLHF/Llama-3-8b-rm-mixture", "llama3-8B"),
        ("trl-lib/Qwen2-0.5B-Reward", "qwen2-0.5B"),
        ("sfairXC/FsfairX-LLaMA3-RM-v0.1", None),
        ("/models/reward-8b", None),
    ],
)
def test_the_size_that_the_name_of_a_reward_model_tells(name: str, shape: str | None) -> None:
    found = shape_named(name)
    assert (None if found is None else found.name) == shape
