"""Shapes: from the table, from config.json, and what is refused. Real models are counted in train/test_model.py."""

import json

import pytest

from headway.errors import InputError
from headway.facts.configs import trained_from_config as from_config
from headway.facts.configs import trained_from_folder as from_folder
from headway.facts.shapes import TRAINED as FAMILIES
from headway.facts.shapes import by_name, nearest, table

LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 264, "tie_word_embeddings": True,
}  # fmt: skip
QWEN3_MOE = LLAMA | {
    "model_type": "qwen3_moe", "head_dim": 32, "num_experts": 8, "num_experts_per_tok": 2,
    "moe_intermediate_size": 48, "tie_word_embeddings": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("smollm2-135M", 0.134515008), ("qwen2.5-7B", 7.615616512), ("qwen3-4B", 4.022468096),
        ("qwen3-30B-A3B", 30.532122624), ("llama3.1-8B-Instruct", 8.030261248), ("gemma-2B", 2.506172416),
    ],
)  # fmt: skip
def test_parameters_as_published_on_the_model_pages(name, billions):
    assert by_name(name).parameters() == round(billions * 1e9)


def test_the_table_covers_every_family_and_is_found_in_any_case():
    assert {shape.family for shape in table().values()} >= set(FAMILIES)
    assert by_name("QWEN3-0.6b") is by_name("qwen3-0.6B")
    assert by_name("qwen3-0.7B") is None
    assert nearest("qwen3-0.7B")[0].startswith("qwen3-")
    assert nearest("zzzz") == []


def test_a_config_is_the_shape_of_the_table():
    shape = by_name("tiny-llama")
    assert from_config(shape.name, LLAMA) == shape
    assert from_config("tiny-qwen3-moe", QWEN3_MOE) == by_name("tiny-qwen3-moe")


def test_the_key_that_transformers_5_writes_for_experts():
    config = {key: value for key, value in QWEN3_MOE.items() if key != "num_experts"} | {"num_local_experts": 8}
    assert from_config("tiny-qwen3-moe", config) == by_name("tiny-qwen3-moe")


@pytest.mark.parametrize(
    ("change", "field", "value"),
    [
        ({"num_key_value_heads": None}, "kv_heads", 4),
        ({"head_dim": None}, "head_dim", 16),
        ({"model_type": "gemma"}, "head_dim", 256),
        ({"model_type": "qwen3"}, "head_dim", 128),
        ({"model_type": "qwen3", "head_dim": 32}, "head_dim", 32),
        ({"model_type": "qwen2"}, "qkv_bias", True),
        ({"model_type": "qwen2", "attention_bias": True}, "output_bias", False),
        ({"attention_bias": True}, "output_bias", True),
        ({"mlp_bias": True}, "mlp_bias", True),
        ({"model_type": "gemma", "tie_word_embeddings": True}, "tied", True),
    ],
)
def test_defaults_and_biases_are_those_of_transformers(change, field, value):
    assert getattr(from_config("x", LLAMA | change), field) == value


def test_tied_when_the_file_does_not_say():
    silent = {key: value for key, value in LLAMA.items() if key != "tie_word_embeddings"}
    assert not from_config("x", silent).tied
    assert from_config("x", silent | {"model_type": "gemma"}).tied


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba' is not trained yet; trained are llama, qwen2"),
        ({"model_type": None}, "model_type None"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised"),
        ({"use_sliding_window": True, "sliding_window": 4096}, "sliding-window"),
        ({"mlp_only_layers": [0]}, "mix dense and expert layers"),
        ({"decoder_sparse_step": 2}, "mix dense and expert layers"),
        ({"hidden_size": None}, r"no usable 'hidden_size' \(found None\)"),
        ({"vocab_size": True}, r"no usable 'vocab_size' \(found True\)"),
        ({"num_hidden_layers": -1}, r"no usable 'num_hidden_layers' \(found -1\)"),
        ({"model_type": "gemma", "num_key_value_heads": None}, "no usable 'num_key_value_heads'"),
        ({"model_type": "qwen3_moe"}, "no usable 'num_experts'"),
    ],
)
def test_what_is_not_trained_is_refused(change, message):
    with pytest.raises(InputError, match=message):
        from_config("x", LLAMA | change)


def test_every_reason_is_given_at_once():
    with pytest.raises(InputError) as error:
        from_config("x", LLAMA | {"hidden_size": 0, "vocab_size": "many", "quantization_config": {"bits": 4}})
    assert len(error.value.problems) == 3


@pytest.mark.parametrize("targets", ["all-linear", "attention"])
@pytest.mark.parametrize("name", ["tiny-llama", "tiny-qwen3-moe"])
def test_lora_parameters_count_a_and_b(name, targets):
    shape = by_name(name)
    ends = [(64, 64 if name == "tiny-llama" else 128), (64, shape.kv_width), (64, shape.kv_width)]
    ends += [(ends[0][1], 64)]
    if name == "tiny-llama" and targets == "all-linear":
        ends += [(64, 160), (64, 160), (160, 64)]
    assert shape.lora_parameters(5, targets) == 2 * sum(5 * i + o * 5 for i, o in ends)


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "no config.json"), ("{", "is not JSON"), ("[1]", "holds no table of keys"), ("{}", "model_type None")],
)
def test_folders_without_a_usable_config(tmp_path, text, message):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(InputError, match=message):
        from_folder(tmp_path)


def test_a_folder_names_its_shape(tmp_path):
    (tmp_path / "my-model").mkdir()
    (tmp_path / "my-model" / "config.json").write_text(json.dumps(LLAMA))
    assert from_folder(tmp_path / "my-model").name == "my-model"
