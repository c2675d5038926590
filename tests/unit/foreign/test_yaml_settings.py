"""A YAML file of settings named alone: whose it is, and what is planned of it."""

from pathlib import Path

import pytest

from headway.cli.inputs import read_case
from headway.errors import InputError
from headway.foreign.yaml_settings import command_of

AXOLOTL = "base_model: NousResearch/Meta-Llama-3-8B\nadapter: qlora\nsequence_len: 4096\nmicro_batch_size: 2\n"
FACTORY = "model_name_or_path: Qwen/Qwen3-8B\nstage: sft\nfinetuning_type: lora\ncutoff_len: 1024\n"
GRPO = "model_name_or_path: Qwen/Qwen3-0.6B\nnum_generations: 4\nper_device_train_batch_size: 4\nmax_steps: 30\n"
SFT = "model_name_or_path: Qwen/Qwen3-0.6B\npacking: true\nmax_length: 2048\nper_device_train_batch_size: 2\n"


@pytest.mark.parametrize(("text", "words"), [
    (AXOLOTL, "axolotl train"), (FACTORY, "llamafactory-cli train"), (GRPO, "trl grpo --config"),
    (SFT, "trl sft --config"),
    # accelerate's settings start nothing; neither do those that name no model, or that are no settings at all
    ("distributed_type: FSDP\nnum_processes: 8\nmixed_precision: bf16\n", ""),
    ("num_generations: 4\nper_device_train_batch_size: 4\n", ""),
    ("model_name_or_path: Qwen/Qwen3-0.6B\nlearning_rate: 1.0e-5\n", ""),
    ("- a\n- b\n", ""), ("a: [", ""),
])  # fmt: skip
def test_whose_settings_a_file_has(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    assert " ".join(command_of(path)) == (f"{words} run.yaml" if words else "")


@pytest.mark.parametrize(("text", "samples", "longest"), [(GRPO, 4, 1024), (SFT, 1, 2048)])
def test_settings_of_trl_are_planned_as_their_command_is(
    tmp_path: Path, text: str, samples: int, longest: int
) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    run = read_case([str(path)], None, "a100", []).workload
    assert (run.model.name, run.rollout.samples, run.rollout.longest) == ("qwen3-0.6B", samples, longest)
    assert any("is settings alone" in text for text in run.unknown)


@pytest.mark.parametrize(("text", "name", "told"), [
    (AXOLOTL, "axolotl", "headway plan NousResearch/Meta-Llama-3-8B --trainer qlora --machine a100 --set "
     "rollout.max_answer=4096 --set trainer.rows=2"),
    (FACTORY, "LLaMA-Factory", "headway plan Qwen/Qwen3-8B --trainer peft --machine a100 --set "
     "rollout.max_answer=1024"),
])  # fmt: skip
def test_settings_of_a_system_that_is_not_read_say_what_plans_the_same(tmp_path, text, name, told) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        read_case([str(path)], None, "a100", [])
    assert f"run.yaml: has settings of {name}, which is known and not read" in str(error.value)
    assert told in str(error.value)
