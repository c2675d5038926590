"""ModelShape: the sizes of a decoder-only transformer, from the built-in table or a Hugging Face `config.json`."""

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from headway.errors import InputError

FAMILIES = ("llama", "qwen2", "qwen3", "qwen3_moe", "gemma")
"""Model types of transformers that headway trains."""

LoraTargets = Literal["all-linear", "attention"]


@dataclass(frozen=True)
class ModelShape:
    """Widths and counts, enough to know every parameter and every activation.

    `family` is transformers' `model_type`. `experts` 0 is a dense model; otherwise every layer routes each token
    to `experts_per_token` of `experts` MLPs of width `expert_ffn`. `head_dim` is explicit because some families
    set heads x head_dim apart from hidden. The biases are those of the query, key and value projections, of the
    attention's output projection, and of the gate, up and down projections.

    >>> table()["smollm2-135m"].parameters()
    134515008
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
    output_bias: bool = False
    mlp_bias: bool = False

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
        if self.output_bias:
            count += self.hidden
        if self.mlp_bias:
            count += 2 * self.ffn + self.hidden
        if self.qk_norm:
            count += 2 * self.head_dim
        return count + 2 * self.hidden

    def parameters(self) -> int:
        """All parameters, a tied head counted once."""
        return (
            self.embedding_parameters() + self.head_parameters() + self.layers * self.block_parameters() + self.hidden
        )

    def lora_linears(self, targets: LoraTargets) -> tuple[tuple[int, int], ...]:
        """(in, out) of the projections of one block that carry an adapter.

        The experts of a mixture are fused tensors that no adapter targets, so "all-linear" is the attention there.
        """
        return self.attention_linears() + (self.mlp_linears() if targets == "all-linear" else ())

    def lora_parameters(self, rank: int, targets: LoraTargets) -> int:
        """Parameters of the adapters: A [rank, in] and B [out, rank] for each projection of each block.

        >>> table()["smollm2-135m"].lora_parameters(16, "all-linear")
        4884480
        """
        return self.layers * sum(rank * (i + o) for i, o in self.lora_linears(targets))


def from_config(name: str, config: Mapping[str, Any]) -> ModelShape:
    """Read transformers' `config.json`. InputError names every reason why headway does not train the model."""
    family = config.get("model_type")
    if family not in FAMILIES:
        raise InputError(f"model {name}: model_type {family!r} is not trained yet; trained are {', '.join(FAMILIES)}")
    problems = [f"model {name}: {reason}" for reason in _refusals(config)]

    def need(*keys: str) -> int:
        value = next((config[key] for key in keys if config.get(key) is not None), None)
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            problems.append(f"model {name}: config.json has no usable {keys[0]!r} (found {value!r})")
            return 1
        return value

    hidden, heads = need("hidden_size"), need("num_attention_heads")
    # llama's older files leave out what is then one key-value head per head
    kv_heads = heads if family == "llama" and not config.get("num_key_value_heads") else need("num_key_value_heads")
    moe, bias = family == "qwen3_moe", bool(config.get("attention_bias", False))
    shape = ModelShape(
        name=name, family=str(family), layers=need("num_hidden_layers"), hidden=hidden,
        ffn=need("intermediate_size"), heads=heads, kv_heads=kv_heads,
        head_dim=int(config.get("head_dim") or _HEAD_DIM.get(str(family)) or hidden // heads),
        vocab=need("vocab_size"),
        tied=bool(config.get("tie_word_embeddings", family == "gemma")),
        qkv_bias=family == "qwen2" or bias, qk_norm=family in ("qwen3", "qwen3_moe"),
        # transformers 5 writes num_local_experts where the published files say num_experts
        experts=need("num_experts", "num_local_experts") if moe else 0,
        experts_per_token=need("num_experts_per_tok") if moe else 0,
        expert_ffn=need("moe_intermediate_size") if moe else 0,
        output_bias=family != "qwen2" and bias, mlp_bias=family == "llama" and bool(config.get("mlp_bias", False)),
    )  # fmt: skip
    if problems:
        raise InputError(*problems)
    return shape


_HEAD_DIM = {"qwen3": 128, "gemma": 256}
"""What transformers takes where `config.json` has no head_dim; the other families take hidden / heads."""


def _refusals(config: Mapping[str, Any]) -> Iterator[str]:
    """What a model of a known family may have that headway's trainer and ledger do not cover."""
    if config.get("quantization_config"):
        yield "the weights are quantised, which cannot be trained; take the unquantised model"
    if config.get("use_sliding_window") and config.get("sliding_window"):
        yield "use_sliding_window is true; sliding-window attention is not trained yet"
    if config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1:
        yield "mlp_only_layers or decoder_sparse_step mix dense and expert layers, which is not trained yet"


def from_folder(folder: Path) -> ModelShape:
    """The shape of a model folder, from its `config.json`."""
    try:
        config = json.loads((folder / "config.json").read_text())
    except FileNotFoundError:
        raise InputError(
            f"model.path = {folder}: the folder has no config.json, so it is no Hugging Face model"
        ) from None
    except ValueError as error:
        raise InputError(f"model.path = {folder}: config.json is not JSON ({error})") from None
    if not isinstance(config, dict):
        raise InputError(f"model.path = {folder}: config.json holds no table of keys, so it is no Hugging Face model")
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


def nearest(name: str) -> list[str]:
    """Names of the built-in table that look most like a name that it does not have, best first."""
    found = get_close_matches(name.lower(), list(table()), n=4, cutoff=0.4)
    return [table()[key].name for key in found]


def by_name(name: str) -> ModelShape | None:
    """A shape of the built-in table, any case; None if the table does not have it."""
    return table().get(name.lower())
