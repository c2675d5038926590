"""Scripts of tests/data/python: what is read of each, by hand, and near-misses beside them."""

from pathlib import Path

import pytest

from headway.errors import InputError
from headway.foreign.found import Found
from headway.foreign.python import read_program
from headway.foreign.readers import read_run, settings_of
from headway.foreign.shell import read_text

DATA = Path(__file__).parents[3] / "data" / "python"


def read(name: str) -> Found:
    return read_run(DATA / name)


def command(line: str) -> Found:
    """A command as it is typed in the folder of the scripts."""
    return settings_of(read_text(line, "command line"), DATA)


def values(found: Found, *keys: str) -> tuple[object, ...]:
    return tuple(found.value(key) for key in keys)


def line_of(found: Found, key: str) -> int:
    return found.places[key].line


# -- TRL --------------------------------------------------------------------------------------------------


def test_a_script_that_says_nothing_has_the_defaults():
    found = read("grpo_quickstart.py")
    assert found.system == "trl"
    assert values(found, "model_name", "micro_batch", "samples_per_prompt", "max_response_len") == (
        "Qwen2-0.5B-Instruct", 8, 8, 512,
    )  # fmt: skip
    assert values(found, "nodes", "gpus_per_node", "lora_rank", "dtype", "engine") == (1, 1, 0, "fp32", "hf")
    assert not found.unknown
    assert found.settings["micro_batch"] is None, "a default is none of the script's own"


def test_every_key_of_a_whole_script():
    found = read("grpo_gsm8k.py")
    assert values(found, "model_name", "dtype", "lora_rank", "micro_batch", "grad_accum") == (
        "Qwen2.5-1.5B-Instruct", "bf16", 16, 1, 8,
    )  # fmt: skip
    assert values(found, "samples_per_prompt", "max_prompt_len", "max_response_len", "max_total_len") == (
        8, 256, 768, 1024,
    )  # fmt: skip
    assert values(found, "kl_coef", "use_kl_loss", "reference_loaded", "save_interval") == (0.04, True, False, 100)
    assert values(found, "optimizer", "engine", "recompute") == ("adamw_8bit", "hf", "gradient_checkpointing")
    assert found.flags["attn_implementation"] == ("flash_attention_2",)
    assert (line_of(found, "max_response_len"), line_of(found, "model_name")) == (45, 58)
    assert any("USE_PEFT is taken to be '1'" in note for note in found.notes)
    assert not found.unknown


def test_the_commands_environment_decides_where_the_script_asks():
    found = command("USE_PEFT=0 python grpo_gsm8k.py")
    assert values(found, "lora_rank", "reference_loaded") == (0, True)
    assert not any("USE_PEFT" in note for note in found.notes)


def test_a_packed_model_that_functions_make():
    found = read("sft_qlora.py")
    assert values(found, "model_name", "low_precision", "lora_rank", "dtype") == (
        "Mistral-7B-v0.1",
        "4bit",
        64,
        "bf16",
    )
    assert values(found, "micro_batch", "grad_accum", "max_total_len", "optimizer") == (
        4,
        2,
        2048,
        "paged_adamw_32bit",
    )
    assert found.flags["use_bnb_nested_quant"] == ("True",)
    assert found.flags["kbit_prepared"] == ("True",)
    assert any('device_map="auto" spreads the model' in note for note in found.notes)


def test_arguments_of_argparse_have_their_defaults():
    found = read("dpo_argparse.py")
    assert values(found, "model_name", "micro_batch", "max_total_len", "lora_rank", "reference_loaded") == (
        "Llama-3.2-1B-Instruct", 2, 1024, 0, True,
    )  # fmt: skip


def test_the_commands_flags_win_over_defaults():
    found = command("python dpo_argparse.py --batch-size=8 --lora --model Qwen/Qwen3-8B")
    assert values(found, "model_name", "micro_batch", "lora_rank", "reference_loaded") == ("Qwen3-8B", 8, 32, False)


def test_a_shell_script_that_starts_a_python_script():
    found = read_run(DATA / "train.sh")
    assert values(found, "model_name", "micro_batch", "gpus_per_node", "nodes") == ("Qwen2.5-1.5B-Instruct", 1, 4, 1)
    assert values(found, "trainer_backend", "zero_stage", "optimizer_offload") == ("deepspeed", 3, True)
    assert found.places["gpus_per_node"].file.endswith("train.sh")


def test_dataclasses_of_a_parser_with_flags_over_a_yaml_file():
    found = command("python parser_grpo.py --config parser_grpo.yaml --num_generations 8 --answer_tokens 96")
    assert values(found, "model_name", "micro_batch", "samples_per_prompt", "max_response_len", "lora_rank") == (
        "Qwen2.5-3B-Instruct", 4, 8, 96, 8,
    )  # fmt: skip
    assert values(found, "engine", "colocate") == ("vllm", True)
    assert found.places["micro_batch"].file == "parser_grpo.yaml"
    assert (found.flags["reward_model"][0] or "").endswith("reward-model-7B")


def test_a_helper_gives_none_where_the_arguments_do_not_ask_for_it(tmp_path):
    path = tmp_path / "t.py"
    path.write_text(
        "from trl import DPOConfig, DPOTrainer, ModelConfig, TrlParser, get_peft_config\n"
        "args, model_args = TrlParser((DPOConfig, ModelConfig)).parse_args_and_config()\n"
        "peft = get_peft_config(model_args)\n"
        "if peft is None:\n    args.max_length = 256\nelse:\n    args.max_length = 512\n"
        "DPOTrainer(model_args.model_name_or_path, args=args, peft_config=peft).train()\n"
    )
    line = f"python {path.name} --model_name_or_path Qwen/Qwen3-0.6B"
    plain = settings_of(read_text(line, "command line"), tmp_path)
    assert values(plain, "lora_rank", "max_total_len", "reference_loaded") == (0, 256, True)
    adapted = settings_of(read_text(f"{line} --use_peft", "command line"), tmp_path)
    assert values(adapted, "lora_rank", "max_total_len", "reference_loaded") == (16, 512, False)


def test_a_dataclass_field_that_is_switched_off():
    found = command("python parser_grpo.py --model_name_or_path Qwen/Qwen3-0.6B --colocate false")
    assert values(found, "engine", "lora_rank", "model_name") == ("hf", 0, "Qwen3-0.6B")


def test_a_model_that_only_a_flag_would_name_is_unknown():
    found = read("parser_grpo.py")
    assert "--model_name_or_path" in found.unknown["model_name"]


def test_an_open_condition_is_planned_as_the_way_that_takes_the_most():
    found = read("open_conditions.py")
    assert values(found, "micro_batch", "recompute", "max_response_len") == (16, False, 2048)
    told = " ".join(found.notes)
    assert "per_device_train_batch_size = 16 (which takes the most memory of 16 or 4: " in told
    assert "depends on `memory > 40000000000.0`" in told
    assert "max_completion_length = 2048 (which takes the most memory of 2048 or not given: " in told


def test_of_several_trainers_the_last_is_planned_and_the_others_are_named():
    found = read("two_stages.py")
    assert values(found, "model_name", "micro_batch", "max_response_len") == ("Qwen3-1.7B", 4, 1024)
    assert any("line 5: SFTTrainer is another run; planned is GRPOTrainer of line 7" in note for note in found.notes)


def test_what_is_known_only_at_run_time_is_unknown_with_its_line():
    found = read("at_run_time.py")
    assert found.value("samples_per_prompt") == 4
    assert "line 5: `[len(row) for row in open('data.txt')]`" in found.unknown["max_response_len"]
    assert "/etc/site/train.yaml" in found.unknown["micro_batch"], "no file outside the script's tree is read"


def test_a_models_name_is_known_where_its_folder_is_not(tmp_path):
    path = tmp_path / "t.py"
    text = "import os\nfrom trl import SFTTrainer\nSFTTrainer(model=os.environ['MODELS'] + '/Qwen3-8B').train()\n"
    path.write_text(text)
    assert read_program(path).value("model_name") == "Qwen3-8B"
    path.write_text(text.replace("/Qwen3-8B", "-8B"))
    assert read_program(path).value("model_name") is None


def test_a_trainer_made_of_trls_by_its_name(tmp_path):
    path = tmp_path / "t.py"
    text = "from lab.trainer import VLGRPOTrainer as T\nT('Qwen/Qwen3-0.6B', reward_funcs=[len]).train()\n"
    path.write_text(text)
    found = read_program(path)
    assert found.value("samples_per_prompt") == 8
    assert any("VLGRPOTrainer is planned as TRL's own grpo trainer" in note for note in found.notes)
    path.write_text(text.replace("VLGRPOTrainer", "SpeechTrainer"))
    with pytest.raises(InputError, match="SpeechTrainer in line 2, which is not read"):
        read_program(path)


def test_a_part_of_a_script_without_its_imports(tmp_path):
    path = tmp_path / "t.py"
    path.write_text(
        "args = GRPOConfig(num_generations=4, max_completion_length=longest)\n"
        "trainer = GRPOTrainer('Qwen/Qwen3-0.6B', args=args, reward_funcs=[f])\ntrainer.train()\n"
    )
    found = read_program(path)
    assert values(found, "model_name", "samples_per_prompt") == ("Qwen3-0.6B", 4)
    assert "longest is set nowhere before" in found.unknown["max_response_len"]
    assert any("does not import GRPOConfig, GRPOTrainer" in note for note in found.notes)
    path.write_text("args = Config(num_generations=4)\ntrainer = MyLoop(args)\ntrainer.train()\n")
    with pytest.raises(InputError):
        read_program(path)


# -- transformers and Unsloth --------------------------------------------------------------------------------


def test_transformers_own_trainer_with_peft():
    found = read("hf_trainer.py")
    assert found.system == "hf"
    assert values(found, "model_name", "lora_rank", "micro_batch", "max_total_len", "dtype") == (
        "Qwen2.5-7B", 8, 2, 1536, "auto",
    )  # fmt: skip
    assert found.value("recompute") == "gradient_checkpointing"
    assert line_of(found, "max_total_len") == 20


def test_transformers_arguments_do_not_checkpoint_by_themselves(tmp_path):
    path = tmp_path / "t.py"
    text = (DATA / "hf_trainer.py").read_text().replace("model.gradient_checkpointing_enable()\n", "")
    path.write_text(text)
    assert read_program(path).value("recompute") is None
    path.write_text(text.replace("save_steps", "gradient_checkpointing=True, save_steps"))
    assert read_program(path).value("recompute") == "gradient_checkpointing"


def test_arguments_of_a_scripts_own_class_below_transformers(tmp_path):
    path = tmp_path / "t.py"
    path.write_text(
        "from dataclasses import dataclass, field\nimport transformers\n"
        "@dataclass\nclass Arguments(transformers.TrainingArguments):\n"
        "    optim: str = field(default='adamw_torch')\n    model_max_length: int = field(default=512)\n"
        "parser = transformers.HfArgumentParser(Arguments)\n(args,) = parser.parse_args_into_dataclasses()\n"
        "model = transformers.AutoModelForCausalLM.from_pretrained('Qwen/Qwen3-8B')\n"
        "transformers.Trainer(model=model, args=args).train()\n"
    )
    line = f"torchrun --nproc_per_node=4 {path.name} --bf16 True --per_device_train_batch_size 4 --fsdp full_shard"
    found = settings_of(read_text(line, "command line"), tmp_path)
    assert values(found, "max_total_len", "micro_batch", "optimizer", "gpus_per_node", "trainer_backend") == (
        512, 4, "adamw_torch", 4, "fsdp",
    )  # fmt: skip
    longer = settings_of(read_text(f"{line} --model_max_length 2048", "command line"), tmp_path)
    assert longer.value("max_total_len") == 2048


def test_a_packed_base_without_a_dtype_is_in_half_precision(tmp_path):
    text = (DATA / "sft_qlora.py").read_text()
    path = tmp_path / "t.py"
    path.write_text(text.replace(", torch_dtype=torch.bfloat16\n", "\n"))
    assert read_program(path).value("dtype") == "fp16"
    path.write_text(path.read_text().replace("quantization_config=quantization, ", ""))
    found = read_program(path)
    assert found.value("dtype") == "fp32"
    assert any("fp32 is planned" in note for note in found.notes)


def test_unsloth_with_vllm():
    found = read("unsloth_grpo.py")
    assert found.system == "unsloth"
    assert values(found, "model_name", "low_precision", "lora_rank", "engine", "colocate") == (
        "Qwen3-8B", "4bit", 32, "vllm", True,
    )  # fmt: skip
    assert values(found, "max_prompt_len", "max_response_len", "max_total_len", "engine_mem_fraction") == (
        512, 1536, 2048, 0.7,
    )  # fmt: skip
    assert values(found, "micro_batch", "grad_accum", "global_batch") == (1, 2, 2), "Unsloth accumulates 2 by default"
    assert found.flags["unsloth_standby"] == ("True",)


def test_unsloth_with_an_older_trainer():
    found = read("unsloth_sft.py")
    assert values(found, "model_name", "low_precision", "lora_rank", "max_total_len") == (
        "Llama-3.2-3B-Instruct", "4bit", 16, 4096,
    )  # fmt: skip
    assert values(found, "micro_batch", "grad_accum", "optimizer", "recompute") == (
        2, 4, "adamw_8bit", "gradient_checkpointing",
    )  # fmt: skip


def test_a_notebook_with_lines_for_the_shell():
    found = read("grpo.ipynb")
    assert values(found, "model_name", "samples_per_prompt", "micro_batch") == ("Qwen3-0.6B", 4, 4)


# -- launchers -----------------------------------------------------------------------------------------------


def test_a_launcher_of_miles():
    found = read("run_fsdp.py")
    assert values(found, "system", "trainer_backend", "model_name") == ("miles", "fsdp", "Qwen3-4B")
    assert values(found, "nodes", "gpus_per_node", "max_tokens_per_gpu", "max_response_len") == (1, 8, 9216, 4096)
    assert values(found, "rollout_batch", "samples_per_prompt", "engine_mem_fraction") == (16, 8, 0.5)
    assert line_of(found, "max_response_len") == 27
    assert not found.unknown


def test_a_launchers_own_flags():
    found = command("python3 run_fsdp.py --hardware GB200 --num-nodes 2")
    assert values(found, "nodes", "gpus_per_node", "max_tokens_per_gpu") == (2, 4, 16384)


def test_a_launcher_of_slime_with_the_models_own_arguments():
    found = read("run_megatron.py")
    assert values(found, "system", "trainer_backend", "tp", "recompute") == ("slime", "megatron", 2, "full")
    assert found.settings["num_layers"] == 36
    assert found.places["hidden_size"].file.endswith("scripts/models/small.py")


# -- refused -------------------------------------------------------------------------------------------------


def test_a_library_that_defines_but_never_trains():
    with pytest.raises(
        InputError, match=r"train\(\) in line 5 makes a GRPOTrainer, and nothing in the file calls it"
    ):
        read("only_defines.py")


@pytest.mark.parametrize("name", ["only_mentions.py", "settings_beside.py"])
def test_a_script_without_a_trainer_is_refused_with_what_plans_by_name(name):
    with pytest.raises(InputError, match="headway plan qwen3-4B --trainer trl"):
        read(name)


def test_a_command_that_starts_a_script_without_a_trainer_says_so():
    with pytest.raises(InputError, match=r"only_defines\.py: no trainer"):
        command("python only_defines.py")


def test_an_argument_that_the_script_asks_for_and_dies_without(tmp_path):
    path = tmp_path / "t.py"
    path.write_text("import sys\nif len([]) < 1:\n    raise ValueError('no model')\n")
    with pytest.raises(InputError, match=r"ends before it trains \(.*line 3: raise ValueError"):
        read_program(path)
