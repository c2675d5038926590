"""Launches of systems that are not read are told by their name, with a command that plans the same run; and scripts
of TRL, verl, slime and Megatron-LM are not taken for those of others, nor others' for theirs."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headway.cli.app import app
from headway.errors import InputError
from headway.foreign.peers import PEERS, peer_of
from headway.foreign.presets import PRESETS
from headway.foreign.readers import NoTrainerError, settings_of
from headway.foreign.shell import read_text

PAGE = (Path(__file__).parents[3] / "docs" / "foreign.md").read_text()


def refused(text: str) -> NoTrainerError:
    with pytest.raises(NoTrainerError) as caught:
        settings_of(read_text(text))
    return caught.value


@pytest.mark.parametrize(
    ("text", "system", "trainer"),
    [
        ("axolotl train qwen_sft.yml --learning_rate 1e-5", "axolotl", "hf"),
        ("accelerate launch -m axolotl.cli.train lora.yml", "axolotl", "peft"),
        ("llamafactory-cli train examples/train_lora/qwen3_lora_sft.yaml", "LLaMA-Factory", "peft"),
        ("python src/train.py --stage sft --model_name_or_path a/b --finetuning_type full", "LLaMA-Factory", "hf"),
        ("python src/train.py --stage sft --finetuning_type lora --quantization_bit 4", "LLaMA-Factory", "qlora"),
        ("swift rlhf --rlhf_type grpo --model Qwen/Qwen3-8B --num_generations 8 --max_completion_length 9 --use_vllm",
         "ms-swift", "trl"),
        ("NPROC_PER_NODE=8 swift sft --model Qwen/Qwen3-8B --train_type lora", "ms-swift", "peft"),
        ("uv run rl @ examples/reverse_text/rl.toml", "prime-rl", "verl-fsdp"),
        ("python -m prime_rl.trainer.sft.train @ sft.toml --model.name Qwen/Qwen3-4B", "prime-rl", "fsdp2"),
        ("uv run examples/run_sft.py --config examples/configs/sft.yaml cluster.gpus_per_node=8", "NeMo-RL", "fsdp2"),
        ("uv run python examples/run_grpo_math.py policy.model_name=Qwen/Qwen3-4B", "NeMo-RL", "verl-fsdp"),
        ("python open_instruct/grpo_fast.py --model_name_or_path a/b --output_dir o", "open-instruct", "openrlhf"),
        ("accelerate launch open_instruct/finetune.py --model_name_or_path a/b", "open-instruct", "hf"),
        ("python unsloth_grpo.py --model_name_or_path a/b --num_generations 8 --max_completion_length 512", "Unsloth",
         "trl"),
        ("tune run --nproc_per_node 4 full_finetune_distributed --config qwen3/4B_full", "torchtune", "torchtune"),
        ("tune run lora_finetune_single_device --config qwen3/4B_lora", "torchtune", "peft"),
        ("litgpt finetune_full Qwen/Qwen3-4B", "litgpt", "litgpt"),
        ("deepspeed main.py --actor_model_name_or_path a/b --critic_model_name_or_path c/d --actor_zero_stage 3",
         "DeepSpeed-Chat", "openrlhf"),
        ("python3 -m areal.launcher.local examples/math/gsm8k_grpo.py --config g.yaml", "AReaL", "verl-fsdp"),
        ("uv run --isolated -m skyrl_train.entrypoints.main_base trainer.policy.model.path=Qwen/Qwen3-4B", "SkyRL",
         "verl-fsdp"),
        ("python examples/start_rlvr_pipeline.py --config_path p --config_name rlvr", "ROLL", "verl-megatron"),
        ("python3 -m verl.trainer.main config=examples/config.yaml worker.actor.model.model_path=a/b", "EasyR1",
         "verl-fsdp"),
        ("torchrun --nproc_per_node=8 -m scripts.chat_rl -- --run=x", "nanochat", "trl"),
        ("torchrun run_clm.py --model_name_or_path a/b --dataset_name c --per_device_train_batch_size 2",
         "transformers' examples", "hf"),
    ],
)  # fmt: skip
def test_a_system_is_told_by_its_name(text, system, trainer):
    found = refused(text)
    assert f"starts {system} (" in found.why
    assert found.instead.trainer == trainer
    assert trainer in PRESETS


@pytest.mark.parametrize(
    "text",
    [
        "python run_grpo.py --config-path conf --config-name x",
        "accelerate launch --num_processes 4 my_sft_job.py --config my.yaml --learning_rate 1e-5",
        "python train_sft.py --model_name_or_path a/b --output_dir o",
        "python sft.py --model_name_or_path a/b --output_dir o --per_device_train_batch_size 2",
        "python sft.py --packing --my_own 1",
        "python grpo.py --gradient_checkpointing --lr 1e-6",
        "python my_grpo.py --num_generations 8 --group_size 4 --actor_lr 1 --critic 2 --num_rollouts 3",
        "python train.py --lr 1e-4 --batch-size 8 --num-layers 4 --hidden-size 512 --seq-length 128",
        "python train.py $MORE_FLAGS --data /d",
        "python -m mylab.recipe.vision.trainer --lr 0.1",
        "python -m recipe.vision.trainer --lr 0.1",
        "source lost.sh\ntorchrun train_lora.py --bf16 ${LORA_ARGS[@]}",
        "python main.py --num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 1024 --bf16",
    ],
)
def test_a_name_and_one_common_flag_are_no_proof(text):
    assert "no trainer that is known is started in it" in refused(text).why


@pytest.mark.parametrize(
    ("text", "system"),
    [
        ("accelerate launch grpo.py --model_name_or_path a/b --num_generations 8 --max_completion_length 512", "trl"),
        ("accelerate launch my_run.py --model_name_or_path unsloth/Qwen3-4B --num_generations 8 --use_vllm", "trl"),
        ("python examples/scripts/sft.py --model_name_or_path a/b --dataset_name c --learning_rate 1e-5", "trl"),
        ("python -m trl.scripts.dpo --model_name_or_path a/b", "trl"),
        ("python sft.py --model_name_or_path a/b --packing --per_device_train_batch_size 2", "trl"),
        ("/opt/unsloth/bin/python3 dpo.py --model_name_or_path a/b --beta 0.1 --max_prompt_length 512", "trl"),
        ("python trl/scripts/grpo.py --config x.yaml --learning_rate 1e-6", "trl"),
        ("accelerate launch src/open_r1/grpo.py --config recipes/x.yaml --vllm_mode server", "trl"),
        ("python sft.py --model_name_or_path a/b --dataset_name c --max_length 2048 --per_device_train_batch_size 2",
         "trl"),
        ("python train.py --use_peft --lora_r 8 --dataset_text_field text --model_name_or_path a/b --packing", "trl"),
        ("python grpo.py --model_name_or_path a/b --num_generations 8 --max_completion_length 9 --beta 0 --bf16 "
         "--use_vllm --output_dir o --logging_steps 1 --my_data d", "trl"),
        ("python -m rllm.trainer.verl.train actor_rollout_ref.model.path=a actor_rollout_ref.rollout.n=8 "
         "actor_rollout_ref.actor.use_kl_loss=False", "verl"),
        ("python3 -m recipe.dapo.main_dapo data.train_batch_size=8", "verl"),
        ("torchrun pretrain_gpt.py --num-layers 2 --hidden-size 8 --train-iters 2 --seq-length 9", "megatron"),
        ("python3 train.py --rollout-batch-size 8", "slime"),
        ("python3 train.py ${MODEL_ARGS[@]} $(cat args)", None),
    ],
)  # fmt: skip
def test_what_is_read_stays_read(text, system):
    if system is not None:
        assert settings_of(read_text(text)).system == system


def test_a_file_of_settings_tells_a_trainer_of_trl(tmp_path):
    script = tmp_path / "run.sh"
    script.write_text("accelerate launch my_trainer.py --config cfg.yaml --learning_rate 1e-6")
    (tmp_path / "cfg.yaml").write_text("model_name_or_path: Qwen/Qwen3-4B\nnum_generations: 8\nuse_vllm: true\n")
    from headway.foreign.readers import read_run

    assert read_run(script).settings["samples_per_prompt"] == 8
    (tmp_path / "cfg.yaml").write_text("model_name_or_path: Qwen/Qwen3-4B\nmy: {num_generations: 8}\nfoo: 1\n")
    with pytest.raises(InputError, match="no trainer that is known"):
        read_run(script)


def run(tmp_path, text: str, *options: str) -> str:
    (tmp_path / "run.sh").write_text(text)
    result = CliRunner().invoke(app, ["plan", str(tmp_path / "run.sh"), *options])
    assert isinstance(result.exception, NoTrainerError)
    return str(result.exception)


def test_the_command_has_the_user_s_model_and_machine_and_works(tmp_path):
    text = (
        "python src/train.py --stage sft --model_name_or_path Qwen/Qwen2.5-7B --finetuning_type lora "
        "--per_device_train_batch_size 2 --cutoff_len 4096"
    )
    said = run(tmp_path, text, "--machine", "4xa100-80")
    command = shlex.split(said.partition("by name: ")[2])
    assert command == shlex.split(
        "headway plan Qwen/Qwen2.5-7B --trainer peft --machine 4xa100-80 --set rollout.max_answer=4096 "
        "--set trainer.rows=2"
    )
    assert CliRunner().invoke(app, command[1:]).exit_code in (0, 3)
    assert "headway plan qwen3-8B " in run(tmp_path, text, "--model", "qwen3-8B")
    tuned = run(tmp_path, "swift sft --model Qwen/Qwen2.5-7B-Instruct --train_type lora", "--machine", "a100")
    command = shlex.split(tuned.partition("by name: ")[2])
    assert command == shlex.split("headway plan Qwen/Qwen2.5-7B-Instruct --trainer peft --machine a100")
    assert CliRunner().invoke(app, command[1:]).exit_code in (0, 3)


def test_the_model_is_found_in_a_file_that_the_command_names(tmp_path):
    (tmp_path / "cfg.yml").write_text(
        "base_model: Qwen/Qwen3-8B\nadapter: qlora\nload_in_4bit: true\nsequence_len: 2048\n"
    )
    said = run(tmp_path, "axolotl train cfg.yml")
    assert "headway plan Qwen/Qwen3-8B --trainer qlora" in said
    assert "rollout.max_answer=2048" in said
    (tmp_path / "rl.toml").write_text('[model]\nname = "Qwen/Qwen3-4B"\n')
    assert "headway plan Qwen/Qwen3-4B --trainer verl-fsdp" in run(tmp_path, "uv run rl @ rl.toml")
    assert "with its model in place of qwen3-4B" in run(tmp_path, "uv run rl @ lost.toml")
    unknown = run(tmp_path, "axolotl train --base_model nobody/has-this-7b")
    assert "nobody/has-this-7b is in no built-in table" in unknown


def test_a_program_that_trains_has_the_nearest_trainer_in_its_refusal():
    """transformers' Trainer under a program of somebody's own."""
    text = (
        "torchrun --nproc_per_node=4 train.py --model_name_or_path Qwen/Qwen2.5-7B --data_path d.json --bf16 True "
        "--num_train_epochs 3 --per_device_train_batch_size 4 --fsdp 'full_shard auto_wrap'"
    )
    found = refused(text).instead
    assert (found.model, found.trainer, found.settings) == ("Qwen/Qwen2.5-7B", "hf", ("trainer.rows=4",))


def test_every_system_is_on_the_page_and_has_presets_that_are_there():
    section = PAGE.partition("## Systems that are known and not read")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if "|" in line][2:]
    assert [row[0] for row in rows] == [peer.name for peer in PEERS]
    for peer, row in zip(PEERS, rows, strict=True):
        assert re.findall(r"`([^`]+)`", row[2]) == list(dict.fromkeys((peer.full, peer.lora, peer.rl)))
        assert {peer.full, peer.lora, peer.rl} <= PRESETS.keys()


@pytest.mark.parametrize(
    "text", ["echo axolotl train x.yml", "cd LLaMA-Factory", "cp unsloth.py x.py", "pip install trl"]
)
def test_what_only_names_a_system_starts_none(text):
    script = read_text(text)
    assert not [command for command in script.commands if peer_of(command)]
