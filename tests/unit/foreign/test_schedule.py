"""How many steps the launches and scripts of other systems say that they run."""

from pathlib import Path

import pytest

from headway.facts.workload import Workload
from headway.foreign.launched import workload
from headway.foreign.readers import read_run, settings_of
from headway.foreign.shell import read_text

TRL = "trl grpo --model_name_or_path Qwen/Qwen3-0.6B --per_device_train_batch_size 8 --num_generations 8 "
VERL = "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen3-4B trainer.n_gpus_per_node=8 "
SLIME = "python3 train.py --hf-checkpoint /m/Qwen3-4B --rollout-batch-size 8 --n-samples-per-prompt 8 --colocate "
SCRIPT = """
from trl import SFTConfig, SFTTrainer
args = SFTConfig(output_dir="out", per_device_train_batch_size=2{more})
SFTTrainer(model="Qwen/Qwen3-0.6B", args=args, train_dataset=data).train()
"""


def steps(run: Workload) -> int | None:
    return run.steps if run.steps_known else None


@pytest.mark.parametrize(("text", "expected"), [
    (f"{TRL} --max_steps 60", 60),
    # steps are the optimizer's, of which one rollout has several
    (f"{TRL} --max_steps 60 --num_iterations 4", 15),
    (f"{TRL} --max_steps -1", None),
    (f"{TRL} --num_train_epochs 3", None),
    (f"{VERL} trainer.total_training_steps=500", 500),
    (f"{VERL} data.train_batch_size=64 actor_rollout_ref.actor.ppo_mini_batch_size=16 "
     "trainer.total_training_steps=500", 500),
    (f"{VERL} trainer.total_epochs=15", None),
    (f"{SLIME} --num-rollout 300", 300),
    (SLIME, None),
])  # fmt: skip
def test_steps_of_a_launch(text: str, expected: int | None) -> None:
    assert steps(workload(settings_of(read_text(text)))) == expected


@pytest.mark.parametrize(("more", "expected"), [(", max_steps=70", 70), (", num_train_epochs=2", None), ("", None)])
def test_steps_of_a_script(tmp_path: Path, more: str, expected: int | None) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.format(more=more))
    assert steps(workload(read_run(path))) == expected


@pytest.mark.parametrize(("program", "more", "expected"), [
    ("examples/scripts/ppo/ppo.py", "--sft_model_path Qwen/Qwen3-0.6B --reward_model_path Qwen/Qwen3-0.6B", (64, 1)),
    ("trl/scripts/grpo.py", "--max_completion_length 256", (8, 8)),
])  # fmt: skip
def test_ppo_answers_each_prompt_once(program: str, more: str, expected: tuple[int, int]) -> None:
    words = "--model_name_or_path Qwen/Qwen3-0.6B --per_device_train_batch_size 16 --gradient_accumulation_steps 4"
    run = workload(settings_of(read_text(f"python {program} {words} {more}")))
    assert (run.rollout.prompts, run.rollout.samples) == expected
