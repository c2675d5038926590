"""Servers of other models that a script starts beside its trainer: named, and no verdict says that the run fits."""

import pytest

from headway.facts.shapes import by_name
from headway.foreign import launched
from headway.foreign.readers import settings_of
from headway.foreign.shell import read_text

TRAIN = (
    "{0}python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.model.path=Qwen/Qwen3-4B "
    "trainer.n_gpus_per_node=4"
)
TRL = "accelerate launch --num_processes 4 -m trl.scripts.grpo --model_name_or_path Qwen/Qwen3-4B --use_vllm {0}"


def beside(text: str) -> tuple[str, ...]:
    return settings_of(read_text(text)).beside


@pytest.mark.parametrize(
    ("line", "model"),
    [
        ("vllm serve Qwen/Qwen3-32B --tensor-parallel-size 4 &", "Qwen/Qwen3-32B"),
        ("nohup vllm serve --model Qwen/Qwen3-32B > log 2>&1 &", "Qwen/Qwen3-32B"),
        ("python -m vllm.entrypoints.openai.api_server --model judge --port 8001 &", "judge"),
        ("env A=1 python3 -m sglang.launch_server --model-path /m/Judge-32B --tp 2 &", "/m/Judge-32B"),
        ("python -m openrlhf.cli.serve_rm --reward_pretrain OpenRLHF/Llama-3-8b-rm --port 5000 &",
         "OpenRLHF/Llama-3-8b-rm"),
        ("trl vllm-serve --model Qwen/Qwen3-4B &", "Qwen/Qwen3-4B"),
        ("lmdeploy serve api_server internlm2 &", "internlm2"),
    ],
)  # fmt: skip
def test_a_server_is_named_with_its_model(line, model):
    found = settings_of(read_text(f"{line}\nsleep 60\n{TRAIN.format('')}"))
    assert len(found.beside) == 1
    assert f"a server of {model} (" in found.beside[0]
    assert "line 1" in found.beside[0]
    run = launched.workload(found, by_name("qwen3-4B"))
    assert found.beside[0] in run.unplanned


@pytest.mark.parametrize(
    "text",
    [
        f"{TRAIN.format('')}\nvllm serve Qwen/Qwen3-32B",
        f"vllm serve Qwen/Qwen3-32B &\nwork\nkill %1\n{TRAIN.format('')}",
        f"CUDA_VISIBLE_DEVICES=4,5 vllm serve Qwen/Qwen3-32B &\n{TRAIN.format('CUDA_VISIBLE_DEVICES=0,1,2,3 ')}",
        f"echo vllm serve Qwen/Qwen3-8B\nssh other vllm serve Qwen/Qwen3-8B\n{TRAIN.format('')}",
        f"python tools/serve.py --model judge\n{TRAIN.format('')}",
        f"trl vllm-serve --model Qwen/Qwen3-4B &\n{TRL.format('--vllm_mode server')}",
    ],
    ids=["after", "killed", "own devices", "elsewhere", "another program", "the run's engine"],
)
def test_what_holds_nothing_beside_the_trainer(text):
    assert beside(text) == ()


def test_devices_that_both_have_are_no_devices_of_its_own():
    text = f"CUDA_VISIBLE_DEVICES=3,4 vllm serve Qwen/Qwen3-32B &\n{TRAIN.format('CUDA_VISIBLE_DEVICES=0,1,2,3 ')}"
    assert len(beside(text)) == 1


def test_an_engine_of_a_run_that_asks_for_none_is_a_server():
    assert len(beside(f"trl vllm-serve --model Qwen/Qwen3-8B &\n{TRL.format('--vllm_mode colocate')}")) == 1


GOLD = (
    "accelerate launch --num_processes 4 -m trl.scripts.gkd --model_name_or_path Qwen/Qwen3-4B "
    "--teacher_model_name_or_path Qwen/Qwen3-8B --per_device_train_batch_size 1 --lmbda 0.5 {0}"
)


def test_a_teacher_behind_a_server_is_in_no_line():
    run = launched.workload(settings_of(read_text(GOLD.format("--use_teacher_server True"))), by_name("qwen3-4B"))
    assert run.teacher is None
    assert any(text.startswith("teacher: a server") for text in run.unplanned)


def test_a_teacher_in_the_trainer_is_planned():
    run = launched.workload(settings_of(read_text(GOLD.format(""))), by_name("qwen3-4B"))
    assert run.teacher is not None
    assert not run.unplanned
