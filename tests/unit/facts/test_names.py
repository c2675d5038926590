"""Names of checkpoints that nobody has listed: of which model they are, and which are of none."""

import pytest

from headway.facts.names import like
from headway.facts.shapes import by_name, sources


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("meta-llama/Llama-3.1-8B", "llama3.1-8B-Instruct"), ("Qwen/Qwen2.5-Coder-14B-Instruct", "qwen2.5-14B"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7B-v0.3"), ("unsloth/gemma-3-4b-it-bnb-4bit", "gemma3-4B"),
        ("OpenRLHF/Llama-3-8b-sft-mixture", "llama3-8B"), ("qwen3-4b-sft-SGLang-RL", "qwen3-4B"),
        ("google/gemma-1.1-7b-it", "gemma-7B"), ("DeepSeek-V3-config-verl", "deepseek-v3"),
        ("/ckpt/Qwen3-30B-A3B-mine/", "qwen3-30B-A3B"), ("Qwen2.5-VL-7B-Instruct-AWQ", "qwen2.5-vl-7B"),
    ],
)  # fmt: skip
def test_a_checkpoint_has_the_shape_of_the_model_that_its_name_begins_with(name, model):
    shape = like(name)
    assert shape.name == model
    assert shape.assumed[-1] == f"{name}: taken to have the shape of {model}"


@pytest.mark.parametrize(
    "name",
    [
        "Qwen/Qwen3-4B-VL", "Qwen3-Omni-30B-A3B", "gpt2-medium", "Llama-3.1-8B-Llama-3.2-1B", "Qwen1.5-7B",
        "nvidia/Llama-3.1-Nemotron-Nano-8B-v1", "HuggingFaceTB/SmolLM-135M", "checkpoint-1000", "model_path",
        "Qwen3-4B-20layers", "Llama-8B", "",
    ],
)  # fmt: skip
def test_what_may_have_another_shape_has_none(name):
    assert like(name) is None


@pytest.mark.parametrize("name", sorted(sources()))
def test_every_model_of_the_table_is_itself(name):
    assert like(name).parameters() == by_name(name).parameters()
