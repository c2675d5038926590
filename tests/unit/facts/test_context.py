"""The context length of a model: from its config.json, rope scaling included, and from the table."""

import csv

import pytest

from headway.facts import context
from headway.facts.configs import from_config
from headway.facts.context import of_config, published, too_long
from headway.facts.names import like
from headway.facts.shapes import TRAINED, by_name, sources, table

LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 160, "vocab_size": 264,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip


@pytest.mark.parametrize(
    ("keys", "tokens"),
    [
        ({}, 0),
        ({"max_position_embeddings": 8192}, 8192),
        ({"max_position_embeddings": 8192, "rope_scaling": None}, 8192),
        ({"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 131072),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "dynamic", "factor": 2.0}}, 8192),
        ({"max_position_embeddings": 4096, "rope_parameters": {"rope_type": "linear", "factor": 4.0}}, 16384),
        (
            {
                "max_position_embeddings": 163840,
                "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096},
            },
            163840,
        ),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": "4"}}, 4096),
        ({"max_position_embeddings": True}, 0),
        ({"max_position_embeddings": -1}, 0),
    ],
)
def test_the_context_of_a_config_counts_its_rope_scaling(keys, tokens):
    assert of_config(LLAMA | keys, keys.get("max_position_embeddings")) == tokens
    if isinstance(keys.get("max_position_embeddings", 1), int) and keys.get("max_position_embeddings", 1) > 0:
        assert from_config("x", LLAMA | keys).context == tokens


def test_models_of_one_shape_have_their_own_context():
    assert by_name("qwen3-4B").context == 40_960
    assert like("Qwen/Qwen3-4B-Instruct-2507").context == 262_144
    assert like("someone/Qwen3-4B-long-context-sft").context == 0


def test_every_published_model_that_is_trained_has_a_context():
    unsure = {"codellama", "deepseek-coder"}
    trained = [name for name in sources() if table()[name.lower()].family in TRAINED]
    without = [name for name in trained if not by_name(name).context]
    assert {name.rpartition("-")[0] for name in without} <= unsure


def test_the_table_names_each_model_once():
    text = (context.Path(context.__file__).parent / "tables" / "contexts.csv").read_text()
    rows = list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))
    assert len({row["source"].lower() for row in rows}) == len(rows)
    assert all(published(row["source"]) == int(row["context"]) for row in rows)


def test_exactly_the_context_passes_and_one_token_more_does_not():
    def said(answer: int, tokens: int = 8192) -> str | None:
        return too_long("m", tokens, 192, answer)

    assert said(8000) is None
    assert "set rollout.max_answer = 8000 or less" in str(said(8001))
    assert said(10**6, tokens=0) is None
