"""OpenRLHF: old and new names of the same flags, what is off when absent, engines apart, and the run."""

import pytest

from headway.facts.shapes import by_name
from headway.foreign import openrlhf, runs
from headway.foreign.found import KEYS, Found
from headway.foreign.shell import read_text

OLD = (
    "--pretrain Qwen/Qwen3-4B --actor_num_nodes 1 --actor_num_gpus_per_node 4 --vllm_num_engines 2 "
    "--vllm_tensor_parallel_size 2 --colocate_all_models --zero_stage 2 --adam_offload --gradient_checkpointing "
    "--use_dynamic_batch --train_max_tokens_per_gpu 8192 --n_samples_per_prompt 4 --init_kl_coef 0.01 --use_kl_loss "
    "--generate_max_len 512 --save_steps 5 --vllm_gpu_memory_utilization 0.5 --param_dtype bf16 --lora_rank 8"
)
NEW = (
    "--actor.model_name_or_path Qwen/Qwen3-4B --actor.num_nodes 1 --actor.num_gpus_per_node 4 --vllm.num_engines 2 "
    "--vllm.tensor_parallel_size 2 --train.colocate_all --ds.zero_stage 2 --ds.adam_offload "
    "--actor.gradient_checkpointing_enable --train.dynamic_batch_enable --train.max_tokens_per_gpu 8192 "
    "--rollout.n_samples_per_prompt 4 --algo.kl.init_coef 0.01 --algo.kl.use_loss --rollout.max_new_tokens 512 "
    "--ckpt.save_steps 5 --vllm.gpu_memory_utilization 0.5 --ds.param_dtype bf16 --ds.lora.rank 8"
)


def found(flags: str, program: str = "openrlhf.cli.train_ppo_ray") -> Found:
    read = openrlhf.read(read_text(f"python3 -m {program} {flags}"))
    assert read is not None
    return read


def test_both_spellings_say_the_same():
    old, new = found(OLD), found(NEW)
    assert {key: old.settings.get(key) for key in KEYS} == {key: new.settings.get(key) for key in KEYS}
    assert (old.settings["colocate"], old.settings["max_tokens_per_gpu"], old.settings["lora_rank"]) == (
        True,
        8192,
        8,
    )


@pytest.mark.parametrize("key", ["colocate", "dynamic_batch", "use_kl_loss", "optimizer_offload", "recompute"])
def test_an_absent_switch_is_off_and_a_value_is_not_given(key):
    said = found("--pretrain x")
    assert said.settings[key] is False
    assert said.settings["zero_stage"] is None
    assert said.derived["zero_stage"] == 2


def test_a_switch_does_not_swallow_the_word_behind_it_nor_the_flag():
    said = found("--colocate_all_models --zero_stage 3 --bf16 stray --use_kl_loss")
    assert (said.settings["colocate"], said.settings["zero_stage"], said.settings["use_kl_loss"]) == (True, 3, True)


def test_engines_that_hang_on_a_variable():
    said = found("--pretrain x --vllm_num_engines $ENGINES --vllm_tensor_parallel_size 2")
    assert {"engine", "rollout_gpus"} <= set(said.unknown)
    assert said.settings["gpus_per_engine"] == 2


def test_modules_that_do_not_train_are_not_claimed():
    for module in ("openrlhf.cli.serve_rm", "openrlhf.cli.batch_inference", "openrlhf.cli.lora_combiner"):
        assert openrlhf.read(read_text(f"python -m {module} --pretrain x")) is None


def test_sharding_with_fsdp():
    said = found("--actor.model_name_or_path x --fsdp.param_dtype bf16 --fsdp.enable_sleep --vllm.num_engines 1")
    assert said.settings["trainer_backend"] == "fsdp2"


def test_the_run_with_an_engine_on_the_same_devices():
    run = runs.workload(found(OLD), by_name("qwen3-4b"))
    assert (run.layout.replicas, run.layout.zero) == (4, "gradients")
    assert (run.trainer.cap, run.trainer.rows) == (8192, 0)
    assert (run.trainer.reference, run.trainer.optimizer.offload) == ("copy", 1.0)
    assert run.engine is not None
    assert (run.engine.colocated, run.engine.releases) == (True, "nothing")
    assert any("max_prompt_len = 1024" in text for text in run.unknown)


def test_the_run_with_engines_apart():
    run = runs.workload(found(OLD + " --async_train"), by_name("qwen3-4b"))
    assert run.engine is not None
    assert (run.mode, run.engine.colocated, run.engine.devices) == ("async", False, 4)
