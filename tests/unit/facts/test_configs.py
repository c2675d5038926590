"""config.json -> ModelShape, held to the parameters that transformers' own modules have on the meta device."""

import json
from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from headway.errors import InputError
from headway.facts.blocks import Block, LinearAttention, Mla
from headway.facts.configs import from_config, from_folder, trained_from_config, trained_problems
from headway.facts.families import COMPOSITES, FAMILIES
from headway.facts.shapes import ModelShape, by_name, source_of, table

CONFIGS = Path(__file__).parents[2] / "data" / "configs"
WRITTEN = sorted(CONFIGS.glob("*.json"))
PUBLISHED = {row["model"]: row for row in map(json.loads, (CONFIGS / "published.jsonl").read_text().splitlines())}
REMOTE = {"mimo": "qwen2", "kimi_k2": "deepseek_v3"}
"""Families whose code is not transformers', and the family of transformers with the same modules."""


def transformers_config(config: dict):
    """transformers' own configuration of a published or written file."""
    family = REMOTE.get(config["model_type"], config["model_type"])
    return AutoConfig.for_model(**config | {"model_type": family})


def count(config) -> int:
    """The parameters of transformers' own modules, on the meta device."""
    auto = AutoModelForImageTextToText if config.model_type in COMPOSITES else AutoModelForCausalLM
    with torch.device("meta"):
        return sum(value.numel() for value in auto.from_config(config).parameters())


def written(config, folder: Path) -> dict:
    """What save_pretrained writes."""
    config.save_pretrained(folder)
    return json.loads((folder / "config.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_every_row_of_the_table_has_the_parameters_of_transformers_modules(name):
    assert by_name(name).parameters() == count(transformers_config(PUBLISHED[name]["config"]))


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_row_of_the_table_is_its_published_file(name):
    shape = from_config(by_name(name).name, PUBLISHED[name]["config"])
    # most of the files are kept without their positions
    assert replaced(shape, context=0) == replaced(by_name(name), context=0)
    assert shape.context in (0, by_name(name).context)
    assert source_of(name) == PUBLISHED[name]["source"]


@pytest.mark.parametrize("name", [name for name, row in PUBLISHED.items() if "parameters" in row])
def test_rows_have_the_parameters_that_the_hub_shows(name):
    assert by_name(name).parameters() == PUBLISHED[name]["parameters"]


def test_every_row_with_a_source_is_checked():
    assert {name for name in table() if source_of(name)} == {name.lower() for name in PUBLISHED}
    assert len(PUBLISHED) >= 60


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.stem)
def test_a_file_as_transformers_writes_it(path):
    config = json.loads(path.read_text())
    assert "transformers_version" in config
    assert from_config(path.stem, config).parameters() == count(transformers_config(config))
    # written from files that were kept without their positions
    assert replaced(from_config(path.stem, config), context=0) == replaced(by_name(path.stem), context=0)


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_save_pretrained_writes_is_the_shape_of_the_published_spelling(name, tmp_path):
    published = PUBLISHED[name]["config"]
    shape = from_config(name, written(transformers_config(published), tmp_path))
    same = {"family": by_name(name).family, "mtp_layers": shape.mtp_layers, "context": 0}
    assert replaced(by_name(name), **same) == replaced(shape, **same, name=by_name(name).name)


def replaced(shape: ModelShape, **changes) -> ModelShape:
    return ModelShape(**{key: getattr(shape, key) for key in shape.__struct_fields__} | changes)


def test_the_written_files_are_of_many_families():
    assert len(WRITTEN) >= 20
    assert len({json.loads(path.read_text())["model_type"] for path in WRITTEN}) >= 20


BASIC = {
    "nemotron": {"num_key_value_heads": 8, "head_dim": 128},
    "hunyuan_v1_dense": {"head_dim": 128},
    "ministral": {"head_dim": 128},
    "bloom": {"hidden_size": 64, "n_layer": 3, "n_head": 4},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 8, "n_shared_experts": 2, "num_experts_per_tok": 2, "first_k_dense_replace": 1},
}
SWITCHES = (
    "attention_bias", "mlp_bias", "use_bias", "bias", "enable_bias", "qk_layernorm", "use_qk_norm",
    "use_parallel_residual", "parallel_attn", "use_qkv_bias", "new_decoder_architecture", "multi_query",
    "lm_head_bias", "attention_out_bias", "qkv_bias", "layer_norm_elementwise_affine",
)  # fmt: skip
PARTS = {
    "qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text", "qwen3_vl_moe_text", "glm4v_text", "glm4v_moe_text",
    "mllama_text_model",
}  # fmt: skip
"""Text models that transformers builds only inside their model with a tower."""
NEW = {
    "mixtral": {"num_hidden_layers": 2}, "smollm3": {"mlp_bias": True, "num_hidden_layers": 2},
    "gemma2": {"tie_word_embeddings": False}, "qwen2_moe": {"mlp_only_layers": [0, 3], "num_hidden_layers": 6},
    "qwen3_moe": {"decoder_sparse_step": 2, "num_hidden_layers": 5},
    "qwen3_next": {"mlp_only_layers": [1], "num_hidden_layers": 8},
    "glm4_moe_lite": {"mlp_layer_types": ["dense", "sparse", "dense"], "num_hidden_layers": 3, "q_lora_rank": None},
    "deepseek_v3": {"first_k_dense_replace": 2, "num_hidden_layers": 5, "q_lora_rank": None},
    "ernie4_5_moe": {"moe_layer_interval": 2, "moe_layer_end_index": 6, "num_hidden_layers": 9},
    "llama4_text": {"interleave_moe_layer_step": 2, "num_hidden_layers": 8},
    "opt": {"word_embed_proj_dim": 512, "do_layer_norm_before": False}, "phi": {"qk_layernorm": True},
    "falcon": {"parallel_attn": False, "multi_query": False}, "granitemoeshared": {"shared_intermediate_size": 512},
    "gpt2": {"n_inner": 1000}, "glm_moe_dsa": {"indexer_types": ["full", "shared", "full"], "num_hidden_layers": 3},
    "llama": {"head_dim": 96, "attention_bias": True, "mlp_bias": True},
    "stablelm": {"use_parallel_residual": True, "qk_layernorm": True, "num_key_value_heads": 8},
}  # fmt: skip
"""Settings away from what the family's own models have."""


@cache
def variants() -> list:
    """Each family as transformers defaults it, with the settings of NEW, and with each switch thrown (slow)."""
    found = []
    for family in [*FAMILIES, *COMPOSITES]:
        if family not in CONFIG_MAPPING_NAMES or family in PARTS:
            continue
        basic = BASIC.get(family, {})
        found.append(pytest.param(family, basic))
        default = AutoConfig.for_model(family, **basic)
        found += [
            pytest.param(family, basic | {key: not getattr(default, key)}, marks=pytest.mark.slow)
            for key in SWITCHES
            if isinstance(getattr(default, key, None), bool)
            and family != "internlm3"  # it wants all of its own at once
        ]
        found += [pytest.param(family, basic | NEW[family])] if family in NEW else []
    return found


@pytest.mark.parametrize(("family", "settings"), variants(), ids=lambda value: str(value)[:60])
def test_parameters_of_every_family_with_every_switch(family, settings, tmp_path):
    config = AutoConfig.for_model(family, **settings)
    shape = from_config("x", written(config, tmp_path))
    # each build changes what the config holds, so it comes last
    assert (shape.parameters(), shape.assumed) == (count(config), ())
    assert sum(number for _, number in shape.blocks()) == shape.layers


def test_every_family_that_is_read_is_checked_or_is_remote_code():
    checked = {each.values[0] for each in variants()} | PARTS | set(REMOTE)
    assert set(FAMILIES) | set(COMPOSITES) == checked
    assert len(checked) > 80


LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 8,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 264,
}  # fmt: skip


def read(**changes) -> ModelShape:
    return from_config("x", LLAMA | changes)


def test_an_unknown_family_is_read_like_llama_and_says_so():
    shape = read(model_type="brand_new", num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32)
    assert shape.assumed == ("model_type 'brand_new' is not known here: its blocks are taken to be like Llama's",)
    assert shape.blocks() == ((Block("full", experts=True), 8),)
    assert read(
        model_type="newer", kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16
    ).mla == Mla(0, 32, 16, 8, 16)
    assert read().assumed == ()


def test_a_tower_that_is_not_known_is_said():
    shape = from_config("x", {"model_type": "novel_vl", "text_config": LLAMA, "vision_config": {"depth": 2}})
    assert (shape.vision_parameters, shape.hidden) == (0, 64)
    assert shape.assumed == ("the vision tower of novel_vl is not counted",)
    shape = from_config("x", {"model_type": "novel_omni", "text_config": LLAMA, "audio_config": {"depth": 2}})
    assert shape.assumed == ("the audio tower of novel_omni is not counted",)
    other = {"model_type": "llava", "text_config": LLAMA, "vision_config": {"model_type": "siglip_vision_model"}}
    assert from_config("x", other).assumed == ("the vision tower of llava is not counted",)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": None}, "no 'model_type'"),
        ({"hidden_size": None}, r"no usable 'hidden_size' \(found None\)"),
        ({"num_attention_heads": "4"}, r"no usable 'num_attention_heads' \(found '4'\)"),
        ({"num_nextn_predict_layers": -1}, r"no usable 'num_nextn_predict_layers' \(found -1\)"),
        ({"model_type": "gemma2", "num_key_value_heads": None}, "no usable 'num_key_value_heads'"),
        ({"model_type": "qwen3_moe"}, "no usable 'num_experts'"),
        ({"model_type": "mixtral", "num_local_experts": 8}, "no usable 'num_experts_per_tok'"),
        ({"model_type": "gpt2"}, "no usable 'max_position_embeddings'"),
        (
            {"layer_types": ["full_attention", "mamba"] * 4},
            "layer_types has 'mamba', a kind of layer that is not read",
        ),
        ({"layer_types": ["full_attention"] * 3}, "layer_types must name each of the 8 layers"),
        ({"layer_types": ["linear_attention"] * 8}, "linear_attention of a kind that is not read"),
        ({"layer_types": ["sliding_attention"] * 8}, "no usable 'sliding_window'"),
        (
            PUBLISHED["qwen3-30B-A3B"]["config"] | {"mlp_only_layers": 5},
            r"mlp_only_layers must be a list of layer numbers \(found 5\)",
        ),
        (
            {"model_type": "gemma3", "vision_config": {"hidden_size": "x"}, "head_dim": 16},
            "vision_config has a value",
        ),
        ({"block_configs": [{}]}, "block_configs gives each layer a width of its own"),
    ],
)
def test_what_cannot_be_known_names_the_key(change, message):
    with pytest.raises(InputError, match=message):
        read(**change)


def test_a_size_that_a_whole_file_leaves_out_is_not_guessed_but_that_of_a_text_config_is_the_family_s():
    with pytest.raises(InputError) as error:
        from_config("x", {"model_type": "gemma3_text"})
    assert [problem.split("'")[1] for problem in error.value.problems] == [
        "num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "vocab_size",
        "intermediate_size",
    ]  # fmt: skip
    nested = from_config("x", {"model_type": "gemma3", "text_config": {"hidden_size": 2560}})
    assert (nested.heads, nested.head_dim, nested.vocab, nested.layers) == (8, 256, 262208, 26)


@pytest.mark.parametrize(
    ("change", "window", "layers"),
    [
        ({"model_type": "mistral"}, 4096, 8),
        ({"model_type": "mistral", "sliding_window": None}, 0, 0),
        ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 512, "max_window_layers": 6}, 512, 2),
        ({"model_type": "qwen2", "use_sliding_window": False, "sliding_window": 512, "max_window_layers": 6}, 0, 0),
        ({"model_type": "qwen3", "sliding_window": 512}, 0, 0),
        ({"model_type": "gemma2", "head_dim": 16}, 4096, 4),
        ({"model_type": "cohere2", "sliding_window_pattern": 2, "sliding_window": 64}, 64, 4),
        ({"model_type": "exaone4", "sliding_window": None}, 0, 0),
    ],
)  # fmt: skip
def test_sliding_layers_by_the_family_s_pattern(change, window, layers):
    shape = read(**change)
    assert (shape.sliding_window, shape.sliding_layers) == (window, layers)
    assert dict(shape.blocks()).get(Block("sliding", experts=False), 0) == layers


def test_dense_layers_and_windows_that_mix_are_counted_together():
    shape = from_config(
        "x",
        LLAMA | {
            "model_type": "dots1", "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
            "n_shared_experts": 2, "first_k_dense_replace": 2, "sliding_window": 64, "max_window_layers": 4,
        },
    )  # fmt: skip
    assert dict(shape.blocks()) == {
        Block("full", experts=False): 2, Block("full", experts=True): 2, Block("sliding", experts=True): 4,
    }  # fmt: skip
    assert (shape.shared_ffn, shape.dense_layers, shape.sliding_layers) == (64, 2, 4)


def test_a_hybrid_model_s_linear_layers():
    shape = by_name("Qwen/Qwen3-Next-80B-A3B-Instruct")
    assert shape.linear == LinearAttention(36, 16, 32, 128, 128, 4, fused=True)
    assert shape.blocks() == ((Block("linear", experts=True), 36), (Block("full", experts=True), 12))


def test_minimax_m2_under_the_name_it_was_published_with():
    config = PUBLISHED["minimax-m2"]["config"] | {"model_type": "minimax", "architectures": ["MiniMaxM2ForCausalLM"]}
    assert from_config("x", config).parameters() == by_name("minimax-m2").parameters()


def test_a_folder_of_any_family_is_read_and_only_some_are_trained(tmp_path):
    folder = tmp_path / "gpt"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(PUBLISHED["gpt2"]["config"]))
    assert from_folder(folder).parameters() == by_name("gpt2").parameters()
    assert "is not trained yet" in trained_problems("gpt", PUBLISHED["gpt2"]["config"])[0]
    with pytest.raises(InputError, match="'gpt2' is not trained yet; trained are llama"):
        trained_from_config("gpt", PUBLISHED["gpt2"]["config"])
    assert trained_problems("q", PUBLISHED["qwen3-4B"]["config"]) == ()
