"""config.json -> ModelShape, held to the parameters that transformers' own modules have on the meta device."""

import json
from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from headway.facts.configs import from_config
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


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_row_of_the_table_has_the_parameters_of_transformers_modules(name):
    assert by_name(name).parameters() == count(transformers_config(PUBLISHED[name]["config"]))


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_row_of_the_table_is_its_published_file(name):
    assert from_config(by_name(name).name, PUBLISHED[name]["config"]) == by_name(name)
    assert source_of(name) == PUBLISHED[name]["source"]


def test_every_row_with_a_source_is_checked():
    assert {name for name in table() if source_of(name)} == {name.lower() for name in PUBLISHED}
    assert len(PUBLISHED) >= 60


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.stem)
def test_a_file_as_transformers_writes_it(path):
    config = json.loads(path.read_text())
    assert "transformers_version" in config
    assert from_config(path.stem, config).parameters() == count(transformers_config(config))
    assert from_config(path.stem, config) == by_name(path.stem)


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_save_pretrained_writes_is_the_shape_of_the_published_spelling(name, tmp_path):
    published = PUBLISHED[name]["config"]
    shape = from_config(name, written(transformers_config(published), tmp_path))
    same = {"family": by_name(name).family, "mtp_layers": shape.mtp_layers}
    assert replaced(by_name(name), **same) == replaced(shape, **same, name=by_name(name).name)


def replaced(shape: ModelShape, **changes) -> ModelShape:
    return ModelShape(**{key: getattr(shape, key) for key in shape.__dataclass_fields__} | changes)


def test_the_written_files_are_of_many_families():
    assert len(WRITTEN) >= 20
    assert len({json.loads(path.read_text())["model_type"] for path in WRITTEN}) >= 20


BASIC = {
    "nemotron": {"num_key_value_heads": 8, "head_dim": 128},
    "hunyuan_v1_dense": {"head_dim": 128},
    "bloom": {"hidden_size": 64, "n_layer": 3, "n_head": 4},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 8, "n_shared_experts": 2, "num_experts_per_tok": 2, "first_k_dense_replace": 1},
}
SWITCHES = (
    "attention_bias", "mlp_bias", "use_bias", "bias", "enable_bias", "qk_layernorm", "use_qk_norm",
    "use_parallel_residual", "parallel_attn", "use_qkv_bias", "new_decoder_architecture", "multi_query",
    "lm_head_bias", "attention_out_bias", "qkv_bias", "layer_norm_elementwise_affine",
)  # fmt: skip
PARTS = {"qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text", "qwen3_vl_moe_text"}
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
    "gpt2": {"n_inner": 1000}, "llama": {"head_dim": 96, "attention_bias": True, "mlp_bias": True},
    "stablelm": {"use_parallel_residual": True, "qk_layernorm": True, "num_key_value_heads": 8},
}  # fmt: skip
"""Settings away from what the family's own models have."""


@cache
def variants() -> list[tuple[str, dict]]:
    """Each family as transformers defaults it, with each of its switches thrown, and with the settings of NEW."""
    found = []
    for family in [*FAMILIES, *COMPOSITES]:
        if family not in CONFIG_MAPPING_NAMES or family in PARTS:
            continue
        basic = BASIC.get(family, {})
        found.append((family, basic))
        default = AutoConfig.for_model(family, **basic)
        found += [
            (family, basic | {key: not getattr(default, key)})
            for key in SWITCHES
            if isinstance(getattr(default, key, None), bool)
        ]
        found += [(family, basic | NEW[family])] if family in NEW else []
    return found


@pytest.mark.parametrize(("family", "settings"), variants(), ids=lambda value: str(value)[:60])
def test_parameters_of_every_family_with_every_switch(family, settings, tmp_path):
    config = AutoConfig.for_model(family, **settings)
    shape = from_config("x", written(config, tmp_path))
    # each build changes what the config holds, so it comes last
    assert (shape.parameters(), shape.assumed) == (count(config), ())
    assert sum(number for _, number in shape.blocks()) == shape.layers


def test_every_family_that_is_read_is_checked_or_is_remote_code():
    checked = {family for family, _ in variants()} | PARTS | set(REMOTE)
    assert set(FAMILIES) | set(COMPOSITES) == checked
    assert len(checked) > 60
