"""Flags that were given and that no line of a plan hangs on are named."""

import pytest

from headway.facts.shapes import by_name
from headway.foreign import launched
from headway.foreign.readers import settings_of
from headway.foreign.shell import read_text

TRL = "python grpo.py --model_name_or_path a/b --num_generations 8 --max_completion_length 512 "
VERL = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.model.path=a/b "
SLIME = "python3 train.py --rollout-batch-size 8 --n-samples-per-prompt 8 --hf-checkpoint /m/Qwen3-4B "
OPENRLHF = "python3 -m openrlhf.cli.train_ppo_ray --pretrain a/b --vllm_num_engines 2 "
MEGATRON = "torchrun pretrain_gpt.py --num-layers 2 --hidden-size 8 --seq-length 8 --train-iters 1 "


def left(text: str) -> tuple[str, ...]:
    return launched.workload(settings_of(read_text(text)), by_name("qwen3-4b")).not_read


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (TRL + "--my_own 3 --vllm_model_impl transformers", ("--my_own", "--vllm_model_impl")),
        (VERL + "actor_rollout_ref.rollout.n=8 +actor_rollout_ref.rollout.foo=3", ("actor_rollout_ref.rollout.foo",)),
        (SLIME + "--my-own 3", ("--my-own",)),
        (OPENRLHF + "--my_other --my_own 3", ("--my_other", "--my_own")),
        (MEGATRON + "--my-own 3", ("--my-own",)),
    ],
)
def test_what_nobody_asked_for_is_named(text, names):
    assert left(text) == names


@pytest.mark.parametrize(
    "text",
    [
        TRL
        + "--learning_rate 1e-6 --output_dir o --logging_steps 1 --report_to wandb --per_device_train_batch_size 2",
        VERL
        + "trainer.logger=[console] trainer.project_name=x data.train_files=/d actor_rollout_ref.actor.optim.lr=1",
        VERL + "actor_rollout_ref.actor.fsdp_config.param_offload=True actor_rollout_ref.rollout.enforce_eager=True",
        SLIME
        + "--lr 1e-6 --rm-type math --colocate --wandb-project x --num-rollout 3 --prompt-data /d --input-key p",
        OPENRLHF + "--actor_learning_rate 5e-7 --save_path o --zero_stage 3 --enforce_eager --vllm_enable_sleep",
        MEGATRON + "--lr 1e-4 --micro-batch-size 1 --tokenizer-type X --use-distributed-optimizer --bf16",
    ],
)
def test_what_is_read_or_holds_no_memory_is_not(text):
    assert left(text) == ()
