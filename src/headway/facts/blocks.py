"""The parts of a block: kinds of blocks, compressed and linear attention, and the names of projections."""

from collections.abc import Iterable
from typing import Literal, NamedTuple

from msgspec import Struct

from headway.errors import InputError

AttentionKind = Literal["full", "sliding", "mla", "linear", "encoder", "cross", "mamba", "none"]
"""What mixes the tokens of a block. "encoder" is full attention over the tokens of an encoder, "cross" that of a
decoder's tokens to an encoder's, "mamba" a selective state space; "none" is a block that has an MLP only."""

LoraTargets = Literal["all-linear", "attention"] | tuple[str, ...]
"""Which projections carry an adapter: a keyword, or names as `PROJECTIONS` has them."""


class Block(NamedTuple):
    """What tells the blocks of one model apart: the kind of attention, and experts, a dense MLP or (`mlp` false)
    neither.

    >>> Block("full", experts=False)
    Block(attention='full', experts=False, mlp=True)
    """

    attention: AttentionKind
    experts: bool
    mlp: bool = True

    @property
    def halves(self) -> int:
        """How many of attention and MLP it has, each with a norm and a residual of its own."""
        return (self.attention != "none") + self.mlp


class Linear(NamedTuple):
    """One projection of a block: its role, and the widths of what goes in and comes out.

    >>> Linear("q", 64, 128).size
    8192
    """

    role: str
    inputs: int
    outputs: int

    @property
    def size(self) -> int:
        """Parameters of the matrix."""
        return self.inputs * self.outputs


class Mla(Struct, frozen=True):
    """Multi-head latent attention: queries and keys/values come through narrow latent vectors.

    `q_lora` and `kv_lora` are the widths of those vectors (`q_lora` 0: queries are projected directly); per head a
    query is `qk_nope` + `qk_rope` wide and a value `v`. A token's cache holds `kv_lora` + `qk_rope` numbers a layer.
    Source: DeepSeek-V2, https://arxiv.org/abs/2405.04434, section 2.1.

    >>> Mla(q_lora=1536, kv_lora=512, qk_nope=128, qk_rope=64, v=128).cache_width
    576
    """

    q_lora: int
    kv_lora: int
    qk_nope: int
    qk_rope: int
    v: int

    @property
    def cache_width(self) -> int:
        """Numbers that one token leaves in one layer's cache."""
        return self.kv_lora + self.qk_rope

    def linears(self, hidden: int, heads: int) -> tuple[Linear, ...]:
        """The projections of one block."""
        query = heads * (self.qk_nope + self.qk_rope)
        queries = (
            (Linear("q_a", hidden, self.q_lora), Linear("q_b", self.q_lora, query))
            if self.q_lora
            else (Linear("q", hidden, query),)
        )
        return (
            *queries,
            Linear("kv_a", hidden, self.kv_lora + self.qk_rope),
            Linear("kv_b", self.kv_lora, heads * (self.qk_nope + self.v)),
            Linear("o", heads * self.v, hidden),
        )


class LinearAttention(Struct, frozen=True):
    """Gated delta net: attention whose state per sequence does not grow with its length.

    `layers` of the model's layers use it instead of full attention. `conv` is the length of the causal convolution
    over queries, keys and values. `fused` is true where Q, K, V and the gate Z are one projection, and the two
    small ones (beta and decay, one number a value head) another.
    Source: `Qwen3NextGatedDeltaNet` of transformers.

    >>> LinearAttention(36, 16, 32, 128, 128, 4).conv_width
    8192
    """

    layers: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv: int
    fused: bool = False

    @property
    def key_width(self) -> int:
        """key_heads x key_dim: the width of Q, and of K."""
        return self.key_heads * self.key_dim

    @property
    def value_width(self) -> int:
        """value_heads x value_dim: the width of V, of the gate and of the output."""
        return self.value_heads * self.value_dim

    @property
    def conv_width(self) -> int:
        """Channels of the convolution: Q, K and V."""
        return 2 * self.key_width + self.value_width

    def state_size(self) -> int:
        """Numbers that one sequence keeps in one layer: the matrix per value head, and the convolution's past."""
        return self.value_heads * self.key_dim * self.value_dim + self.conv_width * self.conv

    def linears(self, hidden: int) -> tuple[Linear, ...]:
        """The projections of one block."""
        out = Linear("out", self.value_width, hidden)
        if self.fused:
            wide = self.conv_width + self.value_width
            return (Linear("in_qkvz", hidden, wide), Linear("in_ba", hidden, 2 * self.value_heads), out)
        return (
            Linear("in_qkv", hidden, self.conv_width),
            Linear("in_z", hidden, self.value_width),
            Linear("in_b", hidden, self.value_heads),
            Linear("in_a", hidden, self.value_heads),
            out,
        )

    def other_parameters(self) -> int:
        """Parameters of one block outside the projections: convolution, time step and decay, and the output norm."""
        return self.conv_width * self.conv + 2 * self.value_heads + self.value_dim


class Mamba(Struct, frozen=True):
    """A selective state space (Mamba 2): `heads` of `head_dim`, whose states have `state` numbers for each of them;
    `groups` of heads share what writes to and reads from a state. `conv`: length of the causal convolution.

    Source: `MambaMixer` of Megatron Core.

    >>> Mamba(heads=32, head_dim=64, groups=8, state=128).projected
    6176
    """

    heads: int
    head_dim: int
    groups: int
    state: int
    conv: int = 4

    @property
    def inner(self) -> int:
        """heads x head_dim: the width of the values, of the gate and of the output."""
        return self.heads * self.head_dim

    @property
    def conv_width(self) -> int:
        """Channels of the convolution: values, and what writes and reads."""
        return self.inner + 2 * self.groups * self.state

    @property
    def projected(self) -> int:
        """What the first projection makes: gate, the convolution's channels, and a time step for each head."""
        return self.inner + self.conv_width + self.heads

    def linears(self, hidden: int) -> tuple[Linear, ...]:
        """The projections of one block."""
        return (Linear("in_mamba", hidden, self.projected), Linear("out", self.inner, hidden))

    def other_parameters(self) -> int:
        """Parameters of one block outside the projections: the convolution with its bias, time step, decay and
        skip of each head, and the gated norm."""
        return self.conv_width * (self.conv + 1) + 3 * self.heads + self.inner


LETTERS = {
    "M": Block("mamba", experts=False, mlp=False),
    "G": Block("linear", experts=False, mlp=False),
    "*": Block("full", experts=False, mlp=False),
    "+": Block("mla", experts=False, mlp=False),
    "-": Block("none", experts=False),
    "E": Block("none", experts=True),
}
"""The layers of a hybrid model as Megatron Core's `--hybrid-layer-pattern` writes them."""


def by_letters(pattern: str) -> tuple[Block, ...]:
    """The blocks of a pattern in order, without the bars between parts of stages. InputError for an unknown letter.

    >>> [block.attention for block in by_letters("M-*")]
    ['mamba', 'none', 'full']
    """
    plain = pattern.replace("|", "")
    wrong = sorted(set(plain) - LETTERS.keys())
    if wrong or not plain:
        raise InputError(
            f"the pattern of layers {pattern[:60]!r} has {', '.join(wrong) or 'no letter'}; known letters are "
            f"{' '.join(LETTERS)}"
        )
    return tuple(LETTERS[letter] for letter in plain)


_QKV, _GATE_UP = (("q", "k", "v"),), (("gate", "up"),)

PROJECTIONS: dict[str, tuple[tuple[str, ...], ...]] = {
    **dict.fromkeys(("q_proj", "q", "query", "lora_query"), (("q",),)),
    **dict.fromkeys(("k_proj", "k", "key", "lora_key"), (("k",),)),
    **dict.fromkeys(("v_proj", "v", "value", "lora_value"), (("v",),)),
    **dict.fromkeys(
        ("o_proj", "o", "out_proj", "output_proj", "wo", "dense", "linear_proj", "projection"), (("o",),)
    ),
    **dict.fromkeys(("c_attn", "qkv_proj", "query_key_value", "Wqkv", "wqkv", "linear_qkv", "qkv"), _QKV),
    **dict.fromkeys(("gate_proj", "gate", "w1"), (("gate",),)),
    **dict.fromkeys(("up_proj", "up", "w3", "fc1", "c_fc", "dense_h_to_4h"), (("up",),)),
    **dict.fromkeys(("down_proj", "down", "w2", "fc2", "dense_4h_to_h", "linear_fc2"), (("down",),)),
    **dict.fromkeys(("gate_up_proj", "linear_fc1"), _GATE_UP),
    # GPT-2 gives both the attention's and the MLP's output projection this name
    "c_proj": (("o",), ("down",)),
    "mlp": (("gate",), ("up",), ("down",)),
    "q_a_proj": (("q_a",),),
    "q_b_proj": (("q_b",),),
    "kv_a_proj_with_mqa": (("kv_a",),),
    "kv_b_proj": (("kv_b",),),
    "in_proj_qkvz": (("in_qkvz",),),
    "in_proj_ba": (("in_ba",),),
    "in_proj_qkv": (("in_qkv",),),
    "in_proj_z": (("in_z",),),
    "in_proj_b": (("in_b",),),
    "in_proj_a": (("in_a",),),
}
"""A projection's name in some system -> the adapters that it makes. Each is a tuple of roles: several where one fused
matrix does what is elsewhere several (one A, and one B as wide as all of them)."""

HEADS = frozenset({"lm_head", "head", "output", "lora_head", "embed_out"})
"""Names of the output head, which is no part of a block."""


def fused_roles(targets: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """The adapters of a block that names ask for, each once. InputError for names that nobody uses.

    >>> fused_roles(("q_proj", "gate_up_proj", "lm_head"))
    (('q',), ('gate', 'up'))
    """
    wrong = [name for name in targets if name not in PROJECTIONS and name not in HEADS]
    if wrong:
        raise InputError(
            f"lora.targets names {', '.join(wrong)}, which is no known projection; set all-linear, attention, or "
            "names such as q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj, lm_head"
        )
    return tuple(dict.fromkeys(group for name in targets for group in PROJECTIONS.get(name, ())))
