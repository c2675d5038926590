"""Names of checkpoints that nobody has listed: of which model they are, and which are of none."""

import pytest

from headway.facts.names import _checkpoints, like, misspelt
from headway.facts.shapes import by_name, sources, table


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
        "Qwen/Qwen3-4B-VL", "Qwen3-Omni-30B-A3B", "Llama-3.1-8B-Llama-3.2-1B", "Qwen1.5-110B",
        "nvidia/Llama-3_3-Nemotron-Super-49B-v1", "HuggingFaceTB/SmolLM-1B", "checkpoint-1000", "model_path",
        "Qwen3-4B-20layers", "Llama-9B", "llama-70b",
        "DeepSeek-R1-Medical-COT", "DeepSeek-R1-Distill-Foo-3B", "mixtral-8x9b", "phi-1-3b", "",
    ],
)  # fmt: skip
def test_what_may_have_another_shape_has_none(name):
    assert like(name) is None


@pytest.mark.parametrize("name", sorted(sources()))
def test_every_model_of_the_table_is_itself(name):
    assert like(name).parameters() == by_name(name).parameters()


PUBLISHED = {
    "Qwen/Qwen2.5-7B-Instruct-1M": 7.62,
    "Qwen/Qwen3-4B-Instruct-2507": 4.02,
    "Qwen/Qwen3-30B-A3B-Thinking-2507": 30.5,
    "Qwen/Qwen3-Coder-30B-A3B-Instruct": 30.5,
    "Qwen/Qwen1.5-7B-Chat": 7.72,
    "Qwen/Qwen1.5-1.8B": 1.84,
    "Qwen/QwQ-32B-Preview": 32.8,
    "meta-llama/Llama-3.2-1B": 1.24,
    "meta-llama/Meta-Llama-3-8B-Instruct": 8.03,
    "allenai/Llama-3.1-Tulu-3-8B-DPO": 8.03,
    "nvidia/Llama-3.1-Nemotron-Nano-8B-v1": 8.03,
    "nvidia/OpenReasoning-Nemotron-14B": 14.8,
    "lmsys/vicuna-7b-v1.5": 6.74,
    "mistralai/Mistral-7B-Instruct-v0.1": 7.24,
    "mistralai/Mistral-Small-3.2-24B-Instruct-2506": 24.0,
    "mistralai/Magistral-Small-2506": 23.6,
    "mistralai/Codestral-22B-v0.1": 22.2,
    "mistralai/Mistral-Large-Instruct-2407": 122.6,
    "HuggingFaceH4/zephyr-7b-beta": 7.24,
    "google/gemma-2-9b-it": 9.24,
    "google/gemma-2-27b": 27.2,
    "google/gemma-3-1b-pt": 1.0,
    "google/gemma-3-12b-pt": 12.2,
    "unsloth/gemma-3-27b-it-bnb-4bit": 27.4,
    "microsoft/Phi-3.5-mini-instruct": 3.82,
    "microsoft/Phi-3-mini-128k-instruct": 3.82,
    "microsoft/Phi-4-reasoning-plus": 14.7,
    "microsoft/Phi-4-mini-reasoning": 3.84,
    "zai-org/GLM-Z1-9B-0414": 9.4,
    "THUDM/GLM-4-32B-Base-0414": 33.1,
    "zai-org/GLM-4.6": 357,
    "zai-org/GLM-4.5-Air-Base": 107,
    "deepseek-ai/DeepSeek-R1-0528": 671,
    "deepseek-ai/DeepSeek-V3.1": 671,
    "deepseek-ai/DeepSeek-R1-0528-Qwen3-8B": 8.19,
    "moonshotai/Kimi-K2-Instruct-0905": 1026,
    "agentica-org/DeepScaleR-1.5B-Preview": 1.78,
    "agentica-org/DeepCoder-14B-Preview": 14.8,
    "Open-Reasoner-Zero/Open-Reasoner-Zero-7B": 7.62,
    "HuggingFaceTB/SmolLM-360M-Instruct": 0.362,
    "HuggingFaceTB/SmolLM2-135M-Instruct": 0.135,
    "HuggingFaceTB/SmolLM3-3B-Base": 3.08,
    "XiaomiMiMo/MiMo-7B-Base": 7.6,
    "allenai/Olmo-3-32B-Think": 32.2,
    "EleutherAI/pythia-1b-deduped": 1.01,
    "EleutherAI/pythia-2.8b": 2.78,
    "openai-community/gpt2-medium": 0.355,
    "facebook/opt-13b": 12.9,
    "bigscience/bloom-7b1": 7.07,
    "swiss-ai/Apertus-8B-Instruct-2509": 8.05,
    "arcee-ai/AFM-4.5B-Base": 4.62,
    "CohereForAI/aya-expanse-8b": 8.03,
    "MiniMaxAI/MiniMax-M2.1": 229,
}
"""Hub ids -> billions of parameters on their public pages."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_names_of_the_hub_have_the_parameters_of_their_pages(name):
    shape = by_name(name) or like(name)
    assert shape.parameters() / 1e9 == pytest.approx(PUBLISHED[name], rel=0.015)


@pytest.mark.parametrize(
    ("written", "model"),
    [
        ("qwen3:4b", "qwen3-4B"),
        ("llama3:8b-instruct-q4_0", "llama3-8B"),
        ("phi3", "phi-3-mini"),
        ("gpt-oss", "gpt-oss-20B"),
        ("mistral-7b", "mistral-7B-v0.3"),
        ("Mistral-7B-Instruct", "mistral-7B-v0.3"),
        ("tinyllama", "tinyllama-1.1B"),
        ("qwen3-30b", "qwen3-30B-A3B"),
        ("ibm-granite/granite-3.3-8b-instruct", "granite3.1-8B"),
        ("granite-3.0-2b-base", "granite3.3-2B"),
        ("llama-8b", "llama3.1-8B-Instruct"),
        ("deepseek-r1-7b", "deepseek-r1-distill-qwen-7B"),
    ],
)
def test_names_as_people_write_them(written, model):
    assert like(written).name == model


@pytest.mark.parametrize(
    ("written", "model"),
    [("lama3-8b", "llama3-8B"), ("gema-3-4b-it", "gemma3-4B"), ("qwn2.5-7b-instruct", "qwen2.5-7B")],
)
def test_a_slip_of_the_keyboard_is_taken_with_a_word(written, model):
    shape = misspelt(written)
    assert shape.name == model
    assert written in shape.assumed[-1]


@pytest.mark.parametrize(
    "written", ["qwen3-7B", "qwen4-8b", "gemma3-5B", "google/gemma-3n-E4B-it", "my-model", "banana-8b", "8b"]
)
def test_another_number_is_no_slip(written):
    assert misspelt(written) is None


def test_every_listed_checkpoint_is_of_a_model_of_the_table():
    assert {model.lower() for model in _checkpoints().values()} <= set(table())
