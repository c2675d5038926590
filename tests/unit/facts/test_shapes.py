"""Shapes: from the table, from config.json, and what is refused. Real models are counted in train/test_model.py."""

import json
import subprocess
import sys

import pytest
from msgspec.structs import replace

from headway.errors import InputError
from headway.facts.blocks import Block, LinearAttention, Mla
from headway.facts.configs import trained_from_config, trained_from_folder
from headway.facts.shapes import TRAINED, ModelShape, by_name, lora_head, nearest, source_of, table

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
    assert {shape.family for shape in table().values()} >= set(TRAINED)
    assert by_name("QWEN3-0.6b") is by_name("qwen3-0.6B")
    assert by_name("qwen3-0.7B") is None
    assert nearest("qwen3-0.7B")[0].startswith("qwen3-")
    assert nearest("zzzz") == []


def test_a_model_is_found_by_its_hub_repository_in_any_spelling():
    for name in ("Qwen/Qwen3-4B", "qwen/qwen3-4b", "qwen3-4b", "Qwen3_4B", "someone/Qwen3-4B"):
        assert by_name(name) is by_name("qwen3-4B"), name
    assert by_name("meta-llama/Llama-3.1-8B-Instruct").name == "llama3.1-8B-Instruct"
    assert by_name("Llama-3.1-8B-Instruct").name == "llama3.1-8B-Instruct"
    assert by_name("") is None
    assert by_name("Qwen/") is None
    assert source_of("QWEN3-4b") == "Qwen/Qwen3-4B"
    assert source_of("tiny-llama") == ""


def test_no_two_rows_answer_to_one_name():
    sources = [source_of(name) for name in table() if source_of(name)]
    assert len(sources) == len(set(sources))
    assert all(by_name(shape.name) is shape for shape in table().values())
    assert all(by_name(source_of(name)) is shape for name, shape in table().items() if source_of(name))


def test_one_row_is_read_without_building_the_others():
    code = (
        "import sys\nfrom headway.facts import shapes\nshapes.by_name('Qwen/Qwen3-4B')\n"
        "print(shapes._from_row.cache_info().currsize)\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "1"


SMALL = ModelShape("x", "llama", 4, 64, 160, 4, 2, 16, 264, tied=True)
LATENT = replace(SMALL, mla=Mla(24, 32, 16, 8, 16))
SHARED = replace(SMALL, experts=8, experts_per_token=2, expert_ffn=48, shared_ffn=96, dense_layers=1)


def test_blocks_of_each_kind_sum_to_the_layers():
    linear = LinearAttention(3, 2, 4, 8, 8, 4)
    assert SMALL.blocks() == ((Block("full", experts=False), 4),)
    assert LATENT.blocks() == ((Block("mla", experts=False), 4),)
    assert SHARED.blocks() == ((Block("full", experts=True), 3), (Block("full", experts=False), 1))
    assert replace(SMALL, linear=linear).blocks() == ((Block("linear", experts=False), 3), (Block("full", False), 1))
    assert replace(SMALL, sliding_layers=4, sliding_window=8).blocks() == ((Block("sliding", experts=False), 4),)
    assert all(sum(count for _, count in shape.blocks()) == shape.layers for shape in table().values())


@pytest.mark.parametrize("shape", table().values(), ids=lambda shape: shape.name)
def test_parameters_are_the_blocks_and_what_is_outside_them(shape):
    outside = shape.parameters() - sum(count * shape.block_parameters(block) for block, count in shape.blocks())
    assert outside == (
        shape.embedding_parameters() + shape.head_parameters() + shape.norm_parameters()
        + shape.learned_positions * shape.hidden + shape.vision_parameters + shape.other_parameters
    )  # fmt: skip
    assert shape.block_parameters() == max(shape.block_parameters(block) for block, _ in shape.blocks())
    assert shape.active_parameters() <= shape.parameters()
    assert (shape.active_parameters() == shape.parameters()) == (shape.experts == 0)


@pytest.mark.parametrize(
    ("name", "billions"),
    # as the model pages round them
    [("qwen3-235B-A22B", 22.2), ("deepseek-v3", 37.6), ("mixtral-8x7B", 12.9), ("gpt-oss-120B", 5.7)],
)
def test_active_parameters_as_published(name, billions):
    assert round(by_name(name).active_parameters() / 1e9, 1) == billions


def test_lora_targets_by_name():
    query, narrow = (64, 64), (64, 32)
    assert SMALL.lora_linears(("q_proj", "v_proj")) == (query, narrow)
    assert SMALL.lora_linears(("q", "k", "v", "o")) == SMALL.lora_linears("attention")
    assert SMALL.lora_linears(("c_attn",)) == ((64, 128),)
    assert SMALL.lora_linears(("w1", "w2", "w3")) == ((64, 160), (160, 64), (64, 160))
    assert SMALL.lora_linears(("gate_up_proj", "down_proj")) == ((64, 320), (160, 64))
    assert SMALL.lora_linears(("mlp",)) == ((64, 160), (64, 160), (160, 64))
    assert replace(SMALL, gated=False).lora_linears(("mlp",)) == ((64, 160), (160, 64))
    assert replace(SMALL, gated=False).lora_linears(("c_proj",)) == ((64, 64), (160, 64))
    assert SMALL.lora_linears(("q_proj", "q")) == (query,)
    assert SMALL.lora_linears(("lm_head",)) == ()
    with pytest.raises(InputError, match="names qq, which is no known projection; set all-linear, attention"):
        SMALL.lora_linears(("q_proj", "qq"))


def test_lora_of_latent_attention_and_shared_experts():
    names = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")
    assert LATENT.lora_linears(names) == ((64, 24), (24, 96), (64, 40), (32, 128), (64, 64))
    assert LATENT.lora_linears("attention") == LATENT.lora_linears(names)
    assert LATENT.lora_linears(("q_proj",)) == ()
    assert SHARED.lora_linears(("up_proj",), Block("full", experts=True)) == ((64, 96),)
    assert SHARED.lora_linears(("up_proj",), Block("full", experts=False)) == ((64, 160),)
    assert SHARED.lora_parameters(2, ("up_proj",)) == 2 * (3 * (64 + 96) + 64 + 160)


def test_a_head_with_an_adapter_is_counted_once():
    both, alone = SMALL.lora_parameters(4, ("q_proj", "lm_head")), SMALL.lora_parameters(4, ("q_proj",))
    assert both - alone == 4 * (64 + 264)
    assert not lora_head("all-linear")


def test_a_config_is_the_shape_of_the_table():
    shape = by_name("tiny-llama")
    assert trained_from_config(shape.name, LLAMA) == shape
    assert trained_from_config("tiny-qwen3-moe", QWEN3_MOE) == by_name("tiny-qwen3-moe")


def test_the_key_that_transformers_5_writes_for_experts():
    config = {key: value for key, value in QWEN3_MOE.items() if key != "num_experts"} | {"num_local_experts": 8}
    assert trained_from_config("tiny-qwen3-moe", config) == by_name("tiny-qwen3-moe")


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
    assert getattr(trained_from_config("x", LLAMA | change), field) == value


def test_tied_when_the_file_does_not_say():
    silent = {key: value for key, value in LLAMA.items() if key != "tie_word_embeddings"}
    assert not trained_from_config("x", silent).tied
    assert trained_from_config("x", silent | {"model_type": "gemma"}).tied


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
        trained_from_config("x", LLAMA | change)


def test_every_reason_is_given_at_once():
    with pytest.raises(InputError) as error:
        trained_from_config("x", LLAMA | {"hidden_size": 0, "vocab_size": "many", "quantization_config": {"bits": 4}})
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
        trained_from_folder(tmp_path)


def test_a_folder_names_its_shape(tmp_path):
    (tmp_path / "my-model").mkdir()
    (tmp_path / "my-model" / "config.json").write_text(json.dumps(LLAMA))
    assert trained_from_folder(tmp_path / "my-model").name == "my-model"
