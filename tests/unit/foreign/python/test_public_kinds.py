"""Kinds of construct in which public training scripts differ, each with its value and a near-miss beside it."""

from pathlib import Path

import pytest

from headway.foreign.found import Found
from headway.foreign.python import read_program
from headway.foreign.readers import read_run

HEAD = """
import torch, transformers
from os.path import isdir
from dataclasses import dataclass
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
"""
TAIL = """
trainer = Trainer(model=model, args=TrainingArguments("out"))
trainer.train()
"""


def read(folder: Path, body: str, *arguments: str, tail: str = TAIL) -> Found:
    path = folder / "train.py"
    path.write_text(HEAD + body + tail)
    return read_program(path, folder, arguments)


def values(found: Found, *keys: str) -> tuple[object, ...]:
    return tuple(found.value(key) for key in keys)


# -- a model that one of several ways makes -------------------------------------------------------------------


def test_an_adapter_on_a_model_that_a_condition_has_prepared(tmp_path):
    body = """
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-0.6B", torch_dtype=torch.bfloat16)
if ask():
    model = prepare_model_for_kbit_training(model)
model = get_peft_model(model, LoraConfig(r=24))
"""
    assert values(read(tmp_path, body), "model_name", "lora_rank", "dtype") == ("Qwen3-0.6B", 24, "bf16")


def test_of_two_models_the_larger_is_planned_and_it_is_said(tmp_path):
    body = """
if ask():
    model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-0.6B")
else:
    model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-8B")
model = get_peft_model(model, LoraConfig(r=24))
"""
    found = read(tmp_path, body)
    assert values(found, "model_name", "lora_rank") == ("Qwen3-8B", 24)
    assert any("which takes the most memory of Qwen/Qwen3-0.6B or Qwen/Qwen3-8B" in note for note in found.notes)


LOADS = """
def load(folder):
    model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-0.6B", torch_dtype=torch.float16)
    if folder is not None:
        model = PeftModel.from_pretrained(model, folder, is_trainable=True)
    else:
        model = get_peft_model(model, LoraConfig(r=64))
    for name, module in model.named_modules():
        if "norm" in name:
            module = module.to(torch.float32)
        if "head" in name:
            module = module.to(torch.float16)
        if "embed" in name:
            module = module.to(torch.float16)
    return model, None


folder = "a" if isdir("a") else None
"""


def test_a_run_that_may_resume_its_adapter_has_the_rank_of_a_new_one(tmp_path):
    found = read(tmp_path, LOADS + "model, tokenizer = load(folder)\n")
    assert values(found, "model_name", "lora_rank", "dtype") == ("Qwen3-0.6B", 64, "fp16")
    assert any("lora_r = 64, also where an adapter is loaded" in note for note in found.notes)


def test_an_adapter_that_is_always_loaded_tells_its_rank_itself(tmp_path):
    body = """
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-0.6B")
model = PeftModel.from_pretrained(model, "a", is_trainable=True)
"""
    found = read(tmp_path, body)
    assert values(found, "model_name", "lora_rank") == ("Qwen3-0.6B", None)
    assert "adapter's own files" in found.unknown["lora_rank"]


def test_many_open_conditions_after_it_do_not_lose_the_model(tmp_path):
    body = """
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-0.6B")
if ask():
    model = get_peft_model(model, LoraConfig(r=8))
""" + "".join(f"if ask({place}):\n    x{place} = 1\n" for place in range(6))
    assert read(tmp_path, body).value("model_name") == "Qwen3-0.6B"


def test_rows_of_one_length_are_taken_apart(tmp_path):
    body = """
def load():
    model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-0.6B")
    if ask():
        return model, 1, 2
    return model, 3, 4
model, one, two = load()
"""
    assert read(tmp_path, body).value("model_name") == "Qwen3-0.6B"
    unequal = body.replace("return model, 1, 2", "return None")
    assert read(tmp_path, unequal).value("model_name") is None, "the other way gives no row"


# -- defaults of transformers ---------------------------------------------------------------------------------

DTYPE = """
@dataclass
class Arguments(transformers.TrainingArguments):
    cache_dir: str = None
(args,) = transformers.HfArgumentParser((Arguments,)).parse_args_into_dataclasses()
kind = torch.float16 if args.fp16 else (torch.bfloat16 if args.bf16 else torch.float32)
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-0.6B", torch_dtype=kind)
"""


@pytest.mark.parametrize(("flags", "dtype"), [((), "fp32"), (("--bf16",), "bf16"), (("--fp16", "True"), "fp16")])
def test_the_precision_that_is_not_asked_for_is_off(tmp_path, flags, dtype):
    assert read(tmp_path, DTYPE, *flags).value("dtype") == dtype


def test_a_field_that_transformers_has_not_is_unknown(tmp_path):
    body = DTYPE.replace("args.fp16", "args.half")
    assert read(tmp_path, body).value("dtype") != "fp16"


def test_integers_are_no_floating_point(tmp_path):
    body = """
storage = getattr(torch, "KIND")
model = AutoModelForCausalLM.from_pretrained(
    "Qwen/Qwen3-0.6B", torch_dtype=storage if storage.is_floating_point else torch.float32)
"""
    assert read(tmp_path, body.replace("KIND", "uint8")).value("dtype") == "fp32"
    assert read(tmp_path, body.replace("KIND", "bfloat16")).value("dtype") == "bf16"


# -- the length to which data is cut --------------------------------------------------------------------------

MODEL = 'model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-0.6B")\n'


def test_the_length_of_a_parameter_a_flag_or_a_pair(tmp_path):
    body = "def main(cutoff_len: int = 256):\n    return cutoff_len\nmain()\n"
    assert read(tmp_path, MODEL + body).value("max_total_len") == 256
    body = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--max_source_length", type=int, default=384)
parser.add_argument("--max_target_length", type=int, default=128)
args = parser.parse_args()
"""
    assert read(tmp_path, MODEL + body).value("max_total_len") == 512
    assert read(tmp_path, MODEL + body, "--max_source_length", "1000").value("max_total_len") == 1128


def test_what_a_tokenizer_is_told_stands_above_names(tmp_path):
    body = 'def main(cutoff_len=256):\n    pass\nmain()\nrows = tokenizer("x", max_length=96)\n'
    assert read(tmp_path, MODEL + body).value("max_total_len") == 96


def test_other_numbers_are_no_length(tmp_path):
    found = read(tmp_path, MODEL + "def main(length_penalty=3, max_lengths=7):\n    pass\nmain()\n")
    assert found.settings["max_total_len"] is None


# -- shells ---------------------------------------------------------------------------------------------------


def shell(folder: Path, text: str) -> Found:
    (folder / "train.py").write_text(HEAD + COUNTED + TAIL.replace('TrainingArguments("out")', "args"))
    path = folder / "run.sh"
    path.write_text(text)
    return read_run(path)


COUNTED = """
import sys
parser = transformers.HfArgumentParser((TrainingArguments,))
if len(sys.argv) == 2 and sys.argv[1].endswith(".json"):
    (args,) = parser.parse_json_file(json_file=sys.argv[1])
else:
    (args,) = parser.parse_args_into_dataclasses()
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-0.6B")
"""


def test_a_random_seed_hides_no_flag(tmp_path):
    found = shell(tmp_path, "python train.py --per_device_train_batch_size 3 --seed $RANDOM --bf16\n")
    assert values(found, "micro_batch", "dtype") == (3, "bf16")


def test_a_variable_that_nothing_sets_may(tmp_path):
    found = shell(tmp_path, "source gone.sh\npython train.py --per_device_train_batch_size 3 --seed 1 $EXTRA\n")
    assert found.value("micro_batch") == 3
    assert found.value("dtype") is None


def test_a_module_is_found_in_a_folder_above_the_script(tmp_path):
    (tmp_path / "pyproject.toml").write_text("")
    inner = tmp_path / "lib" / "chat" / "train"
    inner.mkdir(parents=True)
    (inner / "whole.py").write_text(
        HEAD + "def train():\n" + "".join(f"    {line}\n" for line in (MODEL + TAIL).split("\n"))
    )
    (inner / "fast.py").write_text("from chat.train.whole import train\nif __name__ == '__main__':\n    train()\n")
    assert read_run(inner / "fast.py").value("model_name") == "Qwen3-0.6B"
    (inner / "fast.py").write_text("from chat.other import train\ntrain()\n")
    with pytest.raises(Exception, match="no trainer that is known"):
        read_run(inner / "fast.py")


def test_a_length_that_only_the_data_function_sets(tmp_path):
    body = "def cut(row):\n    MAX_LENGTH = 384\n    return row[:MAX_LENGTH]\ndata.map(cut)\n"
    assert read(tmp_path, MODEL + body).value("max_total_len") == 384
    other = "def cut(row):\n    LONGEST_NAME = 384\n    return row\ndata.map(cut)\n"
    assert read(tmp_path, MODEL + other).settings["max_total_len"] is None


def test_a_folder_that_a_hub_downloads_to_is_that_model(tmp_path):
    body = """
from modelscope import prepare, snapshot_download
folder = snapshot_download("Qwen/Qwen3-1.7B", cache_dir="/data", revision="master")
model = AutoModelForCausalLM.from_pretrained(folder)
"""
    assert read(tmp_path, body).value("model_name") == "Qwen3-1.7B"
    assert read(tmp_path, body.replace("= snapshot_download", "= prepare")).value("model_name") is None


@pytest.mark.parametrize(
    ("config", "packed"),
    [
        ("GPTQConfig(bits=4, disable_exllama=True)", "4bit"), ("GPTQConfig(bits=8)", "8bit"), ("AwqConfig()", "4bit"),
        ("GPTQConfig(bits=3)", None), ("None", None), ("Mxfp4Config()", None),
    ],
)  # fmt: skip
def test_weights_that_are_packed_already(tmp_path, config, packed):
    body = f"""
from transformers import AwqConfig, GPTQConfig, Mxfp4Config
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-0.6B", quantization_config={config})
model = get_peft_model(model, LoraConfig(r=8))
"""
    assert read(tmp_path, body).value("low_precision") == packed


@pytest.mark.parametrize(("config", "raised"), [("GPTQConfig(bits=4)", False), ("AwqConfig(bits=4)", True)])
def test_peft_leaves_the_other_weights_of_gptq_as_they_are(tmp_path, config, raised):
    body = f"""
from transformers import AwqConfig, GPTQConfig
from peft import prepare_model_for_kbit_training
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-0.6B", quantization_config={config})
model = get_peft_model(prepare_model_for_kbit_training(model), LoraConfig(r=8))
"""
    found = read(tmp_path, body)
    assert ("kbit_prepared" in found.flags) is raised
    assert found.value("recompute") == "gradient_checkpointing", "checkpointing is turned on either way"


def test_ways_of_ways_come_to_an_end(tmp_path):
    body = MODEL + "".join(f"model = one(model) if ask({n}) else two(other(model))\n" for n in range(40))
    found = read(tmp_path, body)
    assert found.value("model_name") is None
    assert "model_name" in found.unknown
