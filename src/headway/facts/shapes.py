"""ModelShape: the sizes of a decoder-only transformer, from the built-in table or a Hugging Face `config.json`."""

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from headway.errors import InputError

FAMILIES = ("llama", "qwen2", "qwen3", "qwen3_moe", "gemma")
"""Model types of transformers that headway trains."""


@dataclass(frozen=True)
class ModelShape:
    """Widths and counts, enough to know every parameter and every activation.

    `family` is transformers' `model_type`. `experts` 0 is a dense model; otherwise every layer routes each token
    to `experts_per_token` of `experts` MLPs of width `expert_ffn`. `head_dim` is explicit because some families
    set heads x head_dim apart from hidden.
    """

    name: str
    family: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    qkv_bias: bool = False
    qk_norm: bool = False
    experts: int = 0
    experts_per_token: int = 0
    expert_ffn: int = 0

    @property
    def query_width(self) -> int:
        """heads x head_dim."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """kv_heads x head_dim: the width of K, and of V."""
        return self.kv_heads * self.head_dim

    def attention_linears(self) -> tuple[tuple[int, int], ...]:
        """(in, out) of the query, key, value and output projections of one block."""
        return (
            (self.hidden, self.query_width), (self.hidden, self.kv_width),
            (self.hidden, self.kv_width), (self.query_width, self.hidden),
        )  # fmt: skip

    def mlp_linears(self) -> tuple[tuple[int, int], ...]:
        """(in, out) of the gate, up and down projections of one dense block; empty for experts."""
        if self.experts:
            return ()
        return ((self.hidden, self.ffn), (self.hidden, self.ffn), (self.ffn, self.hidden))

    def embedding_parameters(self) -> int:
        """Parameters of the token embedding (and of the output head where tied)."""
        return self.vocab * self.hidden

    def head_parameters(self) -> int:
        """Parameters of an untied output head; 0 where tied."""
        return 0 if self.tied else self.vocab * self.hidden

    def block_parameters(self) -> int:
        """Parameters of one block, norms and biases included."""
        count = sum(i * o for i, o in self.attention_linears()) + sum(i * o for i, o in self.mlp_linears())
        if self.experts:
            count += self.experts * (3 * self.hidden * self.expert_ffn) + self.hidden * self.experts
        if self.qkv_bias:
            count += self.query_width + 2 * self.kv_width
        if self.qk_norm:
            count += 2 * self.head_dim
        return count + 2 * self.hidden

    def parameters(self) -> int:
        """All parameters, a tied head counted once."""
        return self.embedding_parameters() + self.head_parameters() + self.layers * self.block_parameters() + self.hidden


def from_config(name: str, config: Mapping[str, Any]) -> ModelShape:
    """Read transformers' `config.json`. InputError names a missing key or a family that headway does not train."""
    family = config.get("model_type")
    if family not in FAMILIES:
        raise InputError(f"model {name}: model_type {family!r} is not trained yet; trained are {', '.join(FAMILIES)}")

    def need(key: str) -> int:
        value = config.get(key)
        if not isinstance(value, int) or value <= 0:
            raise InputError(f"model {name}: config.json has no usable {key!r} (found {value!r})")
        return value

    hidden, heads = need("hidden_size"), need("num_attention_heads")
    moe = family == "qwen3_moe"
    return ModelShape(
        name=name, family=str(family), layers=need("num_hidden_layers"), hidden=hidden,
        ffn=need("intermediate_size"), heads=heads, kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or hidden // heads), vocab=need("vocab_size"),
        tied=bool(config.get("tie_word_embeddings", family == "gemma")),
        qkv_bias=family == "qwen2" or bool(config.get("attention_bias", False)),
        qk_norm=family in ("qwen3", "qwen3_moe"),
        experts=need("num_experts") if moe else 0, experts_per_token=need("num_experts_per_tok") if moe else 0,
        expert_ffn=need("moe_intermediate_size") if moe else 0,
    )  # fmt: skip


def from_folder(folder: Path) -> ModelShape:
    """The shape of a model folder, from its `config.json`."""
    try:
        config = json.loads((folder / "config.json").read_text())
    except FileNotFoundError:
        raise InputError(f"model.path = {folder}: the folder has no config.json, so it is no Hugging Face model") from None
    except ValueError as error:
        raise InputError(f"model.path = {folder}: config.json is not JSON ({error})") from None
    return from_config(folder.name, config)


@cache
def table() -> dict[str, ModelShape]:
    """The built-in shapes by lower-case name."""
    text = resources.files("headway.facts").joinpath("tables/model_shapes.csv").read_text()
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return {row["model"].lower(): _from_row(row) for row in rows}


def _from_row(row: Mapping[str, str]) -> ModelShape:
    def number(key: str) -> int:
        return int(row[key] or 0)

    heads = number("heads")
    return ModelShape(
        name=row["model"], family=row["family"], layers=number("layers"), hidden=number("hidden"),
        ffn=number("ffn"), heads=heads, kv_heads=number("kv_heads") or heads, head_dim=number("head_dim"),
        vocab=number("vocab"), tied=row["tied"] == "yes", qkv_bias=row["qkv_bias"] == "yes",
        qk_norm=row["qk_norm"] == "yes", experts=number("experts"),
        experts_per_token=number("experts_per_token"), expert_ffn=number("expert_ffn"),
    )  # fmt: skip


def by_name(name: str) -> ModelShape | None:
    """A shape of the built-in table, any case; None if the table does not have it."""
    return table().get(name.lower())
