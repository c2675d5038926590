"""ModelShape: the sizes of a decoder-only transformer, from the built-in table or a Hugging Face `config.json`."""

import csv
from collections import Counter
from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from headway.facts.blocks import (
    HEADS,
    AttentionKind,
    Block,
    Linear,
    LinearAttention,
    LoraTargets,
    Mamba,
    Mla,
    by_letters,
    fused_roles,
)
from headway.facts.context import published

TRAINED = ("llama", "qwen2", "qwen3", "qwen3_moe", "gemma")
"""Model types of transformers that headway trains."""


class ModelShape(Struct, frozen=True, dict=True):
    """Widths and counts, enough to know every parameter and every activation.

    `family` is transformers' `model_type`. `experts` 0 is a dense model; otherwise a layer routes each token to
    `experts_per_token` of `experts` MLPs of width `expert_ffn`, but for `dense_layers` layers, which have an MLP of
    width `ffn`. `head_dim` is explicit because some families set heads x head_dim apart from hidden. The biases are
    those of the query, key and value projections, of the attention's output projection, and of the gate, up and
    down projections.

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
    mla: Mla | None = None
    qk_norm_wide: bool = False
    """Each projection's norm has its own weight for every head (OLMo 2), not one head's width for all (Qwen3)."""
    attention_gate: bool = False
    """The query projection is twice as wide: its other half gates the attention's output (Qwen3-Next)."""
    sinks: bool = False
    """One learned logit a head (gpt-oss)."""
    shared_ffn: int = 0
    """Total width of the experts' gated MLP that every token passes."""
    shared_gate: bool = False
    """One logit a token scales the shared experts (qwen2_moe, qwen3_next)."""
    router_bias: bool = False
    """One number an expert beside the router's matrix."""
    expert_bias: bool = False
    dense_layers: int = 0
    gated: bool = True
    """False: up and down with one activation between them, no gate."""
    norm: Literal["rms", "layer"] = "rms"
    norm_weight: bool = True
    norm_bias: bool = False
    norms: int = 2
    """Norms of a block on the residual stream: 4 in Gemma 2 and 3, 1 where attention and MLP share it."""
    parallel: bool = False
    """Attention and MLP read the same input (Falcon, Phi, GPT-NeoX)."""
    learned_positions: int = 0
    """Rows of a learned position table."""
    head_bias: bool = False
    sliding_window: int = 0
    """Tokens that a sliding layer looks back on, itself included; 0: none."""
    sliding_layers: int = 0
    linear: LinearAttention | None = None
    vision_parameters: int = 0
    """A vision tower with its projector."""
    mtp_layers: int = 0
    """Layers for multi-token prediction that the published weights have beside the model; not in `parameters()`."""
    other_parameters: int = 0
    """Parameters that belong to no block, no embedding and no head, such as a norm of the embeddings."""
    encoder_layers: int = 0
    """Blocks of an encoder; then each of `layers` attends to its tokens as well (T5)."""
    masked_head: bool = False
    """BERT's ends: token types, and before the output layer a projection with a norm; a pooler for the next
    sentence."""
    mamba: Mamba | None = None
    letters: str = ""
    """A hybrid's layers in order, by the letters of `blocks.LETTERS`; each has attention or an MLP, not both. A
    bar ends a part of a pipeline stage."""
    mixed: tuple[tuple[Block, int], ...] = ()
    """The groups of `blocks()` where dense layers and a second kind of attention mix, so that counts do not tell."""
    assumed: tuple[str, ...] = ()
    """What was assumed where the configuration does not say, in words."""
    context: int = 0
    """Tokens that its positions are made for, prompt and answer together; 0: not known."""

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        # a plan looks a shape up thirty times. Numbers alone tell models apart, and hash alike in every process
        return hash((self.layers, self.hidden, self.ffn, self.heads, self.kv_heads, self.vocab, self.expert_ffn))

    @property
    def query_width(self) -> int:
        """heads x head_dim."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """kv_heads x head_dim: the width of K, and of V."""
        return self.kv_heads * self.head_dim

    def blocks(self) -> tuple[tuple[Block, int], ...]:
        """Groups of identical blocks with their numbers, which sum to `layers`; the largest group first.

        >>> table()["qwen3-30b-a3b"].blocks()
        ((Block(attention='full', experts=True, mlp=True), 48),)
        """
        return self._blocks

    @cached_property
    def _blocks(self) -> tuple[tuple[Block, int], ...]:
        # a plan asks for the blocks and the parameters some thirty times, and a search makes hundreds of plans
        if self.mixed:
            return self.mixed
        if self.letters:
            return tuple(Counter(by_letters(self.letters)).most_common())
        if self.encoder_layers:
            own = Block("full", experts=False, mlp=False), Block("cross", experts=False)
            return ((Block("encoder", experts=False), self.encoder_layers), *((block, self.layers) for block in own))
        whole: AttentionKind = "mla" if self.mla else "full"
        special: AttentionKind = "linear" if self.linear else "sliding"
        special_layers = self.linear.layers if self.linear else self.sliding_layers
        counts = Counter({Block(whole, bool(self.experts)): self.layers})
        if special_layers:
            counts = Counter({
                Block(special, bool(self.experts)): special_layers,
                Block(whole, bool(self.experts)): self.layers - special_layers,
            })  # fmt: skip
        elif self.experts and self.dense_layers:
            counts = Counter({
                Block(whole, experts=True): self.layers - self.dense_layers,
                Block(whole, experts=False): self.dense_layers,
            })  # fmt: skip
        return tuple((block, count) for block, count in counts.most_common() if count)

    def _block(self, block: Block | None) -> Block:
        """The block that is meant: where none is named, the one with the most parameters."""
        if block is not None:
            return block
        groups = self.blocks()
        return groups[0][0] if len(groups) == 1 else max((kind for kind, _ in groups), key=self.block_parameters)

    def _attention(self, block: Block) -> tuple[Linear, ...]:
        if block.attention == "none":
            return ()
        if block.attention == "linear":
            assert self.linear is not None
            return self.linear.linears(self.hidden)
        if block.attention == "mamba":
            assert self.mamba is not None
            return self.mamba.linears(self.hidden)
        if self.mla:
            return self.mla.linears(self.hidden, self.heads)
        query, kv = self.query_width, self.kv_width
        return (
            Linear("q", self.hidden, query * (2 if self.attention_gate else 1)),
            Linear("k", self.hidden, kv), Linear("v", self.hidden, kv), Linear("o", query, self.hidden),
        )  # fmt: skip

    def _mlp(self, width: int) -> tuple[Linear, ...]:
        gate = (Linear("gate", self.hidden, width),) if self.gated else ()
        return (*gate, Linear("up", self.hidden, width), Linear("down", width, self.hidden))

    def _plain_mlp(self, block: Block) -> tuple[Linear, ...]:
        """The dense MLP, or the shared experts, as plain matrices."""
        if not block.mlp:
            return ()
        if not block.experts:
            return self._mlp(self.ffn)
        return self._mlp(self.shared_ffn) if self.shared_ffn else ()

    def attention_linears(self, block: Block | None = None) -> tuple[tuple[int, int], ...]:
        """(in, out) of the attention's projections: query, key, value and output where it is the common kind.

        Without `block`, those of the block with the most parameters.
        """
        return tuple((one.inputs, one.outputs) for one in self._attention(self._block(block)))

    def mlp_linears(self, block: Block | None = None) -> tuple[tuple[int, int], ...]:
        """(in, out) of the gate, up and down projections of a dense block; empty for experts."""
        chosen = self._block(block)
        plain = self._mlp(self.ffn) if chosen.mlp and not chosen.experts else ()
        return tuple((one.inputs, one.outputs) for one in plain)

    def norm_parameters(self) -> int:
        """Parameters of one norm on the residual stream."""
        return self.hidden * (self.norm_weight + self.norm_bias)

    def embedding_parameters(self) -> int:
        """Parameters of the token embedding (and of the output head where tied)."""
        return self.vocab * self.hidden

    def head_parameters(self) -> int:
        """Parameters of an untied output head; 0 where tied, but for a bias."""
        return (0 if self.tied else self.vocab * self.hidden) + (self.vocab if self.head_bias else 0)

    def expert_parameters(self) -> int:
        """Parameters of one routed expert; 0 in a dense model."""
        if not self.experts:
            return 0
        linears = self._mlp(self.expert_ffn)
        return sum(one.size + (one.outputs if self.expert_bias else 0) for one in linears)

    def attention_parameters(self, block: Block | None = None) -> int:
        """Parameters of one block's attention, its own norms and biases included."""
        chosen = self._block(block)
        linears = self._attention(chosen)
        count = sum(one.size for one in linears)
        if chosen.attention == "linear":
            assert self.linear is not None
            return count + self.linear.other_parameters()
        if chosen.attention == "mamba":
            assert self.mamba is not None
            return count + self.mamba.other_parameters()
        if chosen.attention == "none":
            return 0
        if self.mla:
            count += self.mla.q_lora + self.mla.kv_lora
            biased: tuple[str, ...] = ("q_a", "kv_a")
        else:
            biased = ("q", "k", "v")
        if self.qkv_bias:
            count += sum(one.outputs for one in linears if one.role in biased)
        if self.output_bias:
            count += self.hidden
        if self.qk_norm:
            count += self.query_width + self.kv_width if self.qk_norm_wide else 2 * self.head_dim
        return count + (self.heads if self.sinks else 0)

    def block_parameters(self, block: Block | None = None) -> int:
        """Parameters of one block, norms and biases included; without `block`, of the largest."""
        return self._largest_block if block is None else self._count_block(block)

    @cached_property
    def _largest_block(self) -> int:
        return self._count_block(self._block(None))

    def _count_block(self, chosen: Block) -> int:
        mlp = self._plain_mlp(chosen)
        count = self.attention_parameters(chosen) + sum(one.size for one in mlp)
        if chosen.experts:
            count += self.experts * self.expert_parameters() + self.hidden * self.experts
            count += (self.experts if self.router_bias else 0) + (self.hidden if self.shared_gate else 0)
        if self.mlp_bias:
            count += sum(one.outputs for one in mlp)
        return count + self.block_norms(chosen) * self.norm_parameters()

    def block_norms(self, block: Block) -> int:
        """Norms of one block on the residual stream."""
        return self.norms if block.halves == 2 else block.halves

    def masked_head_parameters(self) -> int:
        """Parameters that BERT's ends have beside the tables: projection and norm before the output layer, and for
        the next sentence a pooler, an output of two, and two token types."""
        if not self.masked_head:
            return 0
        dense = self.hidden**2 + self.hidden
        return 2 * dense + 2 * self.hidden + 2 * self.hidden + 2 + 2 * self.hidden

    def parameters(self) -> int:
        """All parameters, a tied head counted once, a vision tower included."""
        return self._parameters

    @cached_property
    def _parameters(self) -> int:
        return (
            self.embedding_parameters() + self.head_parameters() + self.learned_positions * self.hidden
            + sum(count * self.block_parameters(block) for block, count in self.blocks())
            + self.norm_parameters() * (2 if self.encoder_layers else 1) + self.masked_head_parameters()
            + self.vision_parameters + self.other_parameters
        )  # fmt: skip

    def valued(self) -> "ModelShape":
        """The model with one output a token in place of its vocabulary, as critics and reward models are.

        The `hidden` parameters of that output are left out.

        >>> table()["qwen3-8b"].valued().head_parameters()
        0
        """
        return replace(self, tied=True, head_bias=False, mtp_layers=0)

    def active_parameters(self) -> int:
        """Parameters that one token passes: all, less the experts that it is not routed to.

        >>> round(table()["qwen3-30b-a3b"].active_parameters() / 1e9, 2)
        3.35
        """
        sparse = sum(count for block, count in self.blocks() if block.experts)
        return self.parameters() - sparse * (self.experts - self.experts_per_token) * self.expert_parameters()

    def lora_linears(self, targets: LoraTargets, block: Block | None = None) -> tuple[tuple[int, int], ...]:
        """(in, out) of the projections of one block that carry an adapter; without `block`, of the largest.

        `targets` is a keyword or names as `blocks.PROJECTIONS` has them; the head is no part of a block: see
        `lora_head`. The experts of a mixture are fused tensors that no adapter targets, so "all-linear" is the
        attention there, and the shared experts. InputError for an unknown name.
        """
        chosen = self._block(block)
        attention = self._attention(chosen)
        linears = {one.role: one for one in (*attention, *self._plain_mlp(chosen))}
        if targets == "attention":
            groups: Iterable[tuple[str, ...]] = [(one.role,) for one in attention]
        elif targets == "all-linear":
            groups = [(role,) for role in linears]
        elif isinstance(targets, str):
            groups = fused_roles((targets,))
        else:
            groups = fused_roles(targets)
        found = []
        for group in groups:
            parts = [linears[role] for role in group if role in linears]
            if parts:
                found.append((parts[0].inputs, sum(one.outputs for one in parts)))
        return tuple(found)

    def lora_parameters(self, rank: int, targets: LoraTargets) -> int:
        """Parameters of the adapters: A [rank, in] and B [out, rank] for each projection of each block, and the head.

        >>> table()["smollm2-135m"].lora_parameters(16, "all-linear")
        4884480
        """
        return _lora_parameters(self, rank, targets)


@cache
def _lora_parameters(shape: ModelShape, rank: int, targets: LoraTargets) -> int:
    head = rank * (shape.hidden + shape.vocab) if lora_head(targets) else 0
    return head + sum(
        count * rank * (inputs + outputs)
        for block, count in shape.blocks()
        for inputs, outputs in shape.lora_linears(targets, block)
    )


def lora_head(targets: LoraTargets) -> bool:
    """Whether the output head carries an adapter.

    >>> lora_head(("q_proj", "lm_head")), lora_head("all-linear")
    (True, False)
    """
    return not isinstance(targets, str) and any(name in HEADS for name in targets)


@cache
def _rows() -> dict[str, dict[str, str]]:
    """The rows of the built-in table by lower-case name."""
    text = (Path(__file__).parent / "tables" / "model_shapes.csv").read_text()
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return {row["model"].lower(): row for row in rows}


@cache
def _hub_names() -> dict[str, str]:
    """Each row's hub repository, whole and without its owner, and its own name -> the row's key, all as `_plain`.

    headway's own shapes go by their exact names: tinyllama is another model than tiny-llama.
    """
    found: dict[str, str] = {}
    for key, row in _rows().items():
        if row["source"]:
            found.setdefault(_plain(row["source"]), key)
            found.setdefault(_plain(row["source"].rpartition("/")[2]), key)
    return {_plain(key): key for key, row in reversed(_rows().items()) if row["source"]} | found


def _plain(name: str) -> str:
    """A name without what spellings differ in: case, dashes and underscores."""
    return name.lower().replace("-", "").replace("_", "")


@cache
def table() -> dict[str, ModelShape]:
    """The built-in shapes by lower-case name."""
    return {key: _from_row(key) for key in _rows()}


@cache
def _from_row(key: str) -> ModelShape:
    """One row's shape. The column `more` holds the fields of ModelShape that few models need, as `field=value`."""
    row = _rows()[key]

    def number(column: str) -> int:
        return int(row[column] or 0)

    heads = number("heads")
    more = dict(item.split("=", 1) for item in row["more"].split())
    return ModelShape(
        name=row["model"], family=row["family"], layers=number("layers"), hidden=number("hidden"),
        ffn=number("ffn"), heads=heads, kv_heads=number("kv_heads") or heads, head_dim=number("head_dim"),
        vocab=number("vocab"), tied=row["tied"] == "yes", qkv_bias=row["qkv_bias"] == "yes",
        qk_norm=row["qk_norm"] == "yes", experts=number("experts"),
        experts_per_token=number("experts_per_token"), expert_ffn=number("expert_ffn"),
        context=published(row["source"]),
        **{field: _value(field, text) for field, text in more.items()},
    )  # fmt: skip


def _value(field: str, text: str) -> Any:
    """One value of the column `more`: yes or no, a number, a word, or numbers with slashes for a record."""
    if field == "mla":
        return Mla(*(int(part) for part in text.split("/")))
    if field == "linear":
        *numbers, layout = text.split("/")
        layers, *widths = (int(part) for part in numbers)
        key_heads, value_heads, key_dim, value_dim, conv = widths
        return LinearAttention(layers, key_heads, value_heads, key_dim, value_dim, conv, layout == "fused")
    if field == "mixed":
        groups = [group.split("/") for group in text.split(";")]
        return tuple((Block(kind, mlp == "experts"), int(count)) for kind, mlp, count in groups)  # type: ignore[arg-type]
    if text in ("yes", "no"):
        return text == "yes"
    return int(text) if text.isdigit() else text


def sources() -> dict[str, str]:
    """Each row's name -> its public repository, of the rows that have one."""
    return {row["model"]: row["source"] for row in _rows().values() if row["source"]}


def source_of(name: str) -> str:
    """The public repository whose `config.json` a row of the table was read from; empty for headway's own shapes."""
    return _rows()[name.lower()]["source"]


def nearest(name: str) -> list[str]:
    """Names of the built-in table that look most like a name that it does not have, best first."""
    found = get_close_matches(name.lower().rpartition("/")[2], list(_rows()), n=4, cutoff=0.4)
    return [_rows()[key]["model"] for key in found]


def by_name(name: str) -> ModelShape | None:
    """A shape of the built-in table by its name or hub repository, in any case; None if the table does not have it.

    >>> by_name("Qwen/Qwen3-4B") is by_name("qwen3-4b")
    True
    """
    key = name.lower()
    if key not in _rows():
        plain = _hub_names()
        key = plain.get(_plain(name)) or plain.get(_plain(name.rpartition("/")[2])) or ""
    return _from_row(key) if key else None
