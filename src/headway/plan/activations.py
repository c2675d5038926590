"""What a block of the transformer computes and what autograd keeps of it, tensor by tensor.

Widths are in elements per token and follow transformers' modeling files of the families llama, qwen2, qwen3 and
gemma (5.17 to 5.24), eager, as headway calls them: right-padded micro-batches without a mask. A frozen parameter
needs no gradient, so the operation that uses it keeps no input for one.
"""

from functools import cache, cached_property

from msgspec import Struct

from headway.facts.shapes import ModelShape
from headway.facts.workload import DTYPE_BYTES, Lora, Trainer
from headway.plan.tape import NOTHING, Peak, Size, Tape

FP32 = 4


class Batch(Struct, frozen=True):
    """Sequences that go through the model together, padded to the longest. `responses` are tokens with a loss.

    A bound over many batches is one row of all their tokens, where `reach` says how far attention can look at most.
    """

    rows: int
    longest: int
    responses: int = 0
    reach: int | None = None

    @property
    def tokens(self) -> int:
        """Tokens that the model computes, padding included."""
        return self.rows * self.longest

    @property
    def pairs(self) -> int:
        """Pairs of tokens that an attention matrix has cells for, in one head."""
        return self.tokens * (self.longest if self.reach is None else self.reach)

    @property
    def counts(self) -> Size:
        """What a size of the tape is multiplied with."""
        return Size(self.tokens, self.pairs, self.responses, 1)


class Precision(Struct, frozen=True):
    """How a block is run: bytes of an element, and which parameters are trained (LoRA: only its adapters)."""

    size: int
    lora: Lora | None
    attention: str

    @property
    def full(self) -> bool:
        """Whether all parameters are trained."""
        return self.lora is None

    @classmethod
    def of(cls, trainer: Trainer) -> "Precision":
        """The trainer's."""
        return cls(DTYPE_BYTES[trainer.param_dtype], trainer.lora, trainer.attention)


@cache
def block(shape: ModelShape, precision: Precision) -> Tape:
    """The tape of one block, from its input `x`, which is the output of the block before."""
    tape = Tape("x", Size(tokens=shape.hidden * precision.size))
    build = _Builder(tape, shape, precision)
    y = build.norm("x", "norm1", shape.hidden)
    attended = build.attention(y)
    build.tape.drop(y)
    middle = tape.add("middle", tape.sizes["x"], "x", attended, passes=True)
    tape.drop(attended)
    y = build.norm(middle, "norm2", shape.hidden)
    out = build.mlp(y)
    tape.drop(y)
    tape.add("out", tape.sizes["x"], middle, out, passes=True)
    tape.drop(middle, out, "x")  # the model's loop over blocks holds x until the block returns
    return tape


class _Builder:
    """Appends the parts of a block to a tape."""

    def __init__(self, tape: Tape, shape: ModelShape, precision: Precision) -> None:
        self.tape, self.shape, self.precision = tape, shape, precision

    def bytes(self, width: int, size: int | None = None) -> Size:
        return Size(tokens=width * (self.precision.size if size is None else size))

    def norm(self, x: str, name: str, width: int, groups: int = 1) -> str:
        """RMSNorm over `width` elements in `groups` per token: everything but its ends is in fp32."""
        tape, exact = self.tape, self.bytes(width, FP32)
        cast = self.precision.size < FP32
        xf = tape.add(f"{name}.fp32", exact, x) if cast else x
        square = tape.add(f"{name}.square", exact, xf, keeps=[xf], backward_extra=exact.times(2))
        mean = tape.add(f"{name}.mean", self.bytes(groups, FP32), square)
        tape.drop(square)
        root = tape.keep(f"{name}.rsqrt", self.bytes(groups, FP32))
        tape.add(f"{name}.root", NOTHING, mean, keeps=[root])
        tape.drop(mean)
        n = tape.add(f"{name}.normal", exact, xf, f"{name}.root", keeps=[xf, root], backward_extra=exact)
        if cast:
            tape.drop(xf)
        if self.shape.family == "gemma":
            return self._gemma_scale(n, name, width)
        if cast:
            low = tape.add(f"{name}.cast", self.bytes(width), n)
            tape.drop(n)
            n = low
        return self._scale(n, f"{name}.out", self.bytes(width), width)

    def _gemma_scale(self, n: str, name: str, width: int) -> str:
        if self.precision.size == FP32:
            return self._scale(n, f"{name}.out", self.bytes(width), width)
        scaled = self._scale(n, f"{name}.scaled", self.bytes(width, FP32), width)
        out = self.tape.add(f"{name}.out", self.bytes(width), scaled)
        self.tape.drop(scaled)
        return out

    def _scale(self, n: str, out: str, size: Size, width: int) -> str:
        """Times the norm's weight; its gradient is a product as large as the input, summed."""
        full = self.precision.full
        self.tape.add(
            out, size, n, keeps=[n] if full else [], backward_extra=size if full else NOTHING,
            weight=Size(fixed=width * self.precision.size) if full else NOTHING,
        )  # fmt: skip
        self.tape.drop(n)
        return out

    def linear(self, x: str, name: str, inside: int, outside: int, *, attention: bool) -> str:
        """A projection, with its adapter where LoRA has one there."""
        tape, p = self.tape, self.precision
        if p.full:
            return tape.add(name, self.bytes(outside), x, keeps=[x], weight=Size(fixed=inside * outside * p.size))
        assert p.lora is not None
        base = tape.add(f"{name}.base", self.bytes(outside), x)
        if not attention and p.lora.targets == "attention":
            return base
        xf = x
        if p.size < FP32:
            xf = tape.add(f"{name}.fp32", self.bytes(inside, FP32), x)
        rank, exact = p.lora.rank, self.bytes(outside, FP32)
        a = tape.add(f"{name}.A", self.bytes(rank, FP32), xf, keeps=[xf], weight=Size(fixed=inside * rank * FP32))
        b = tape.add(f"{name}.B", exact, a, keeps=[a], weight=Size(fixed=rank * outside * FP32))
        tape.drop(a)
        scaled = tape.add(f"{name}.scaled", exact, b)
        tape.drop(b)
        # the sum is fp32, so the gradient of a half-precision base is a cast copy
        wide = base if p.size == FP32 else tape.add(f"{name}.promoted", NOTHING, base)
        total = tape.add(f"{name}.sum", exact, wide, scaled, passes=True)
        tape.drop(base, scaled)
        if p.size == FP32:
            return total
        out = tape.add(name, self.bytes(outside), total)
        tape.drop(total, xf)
        return out

    def attention(self, y: str) -> str:
        shape, tape = self.shape, self.tape
        query, kv = shape.query_width, shape.kv_width
        q = self.linear(y, "q", shape.hidden, query, attention=True)
        if shape.qk_norm:
            q = self._renamed_norm(q, "q_norm", query, shape.heads)
        k = self.linear(y, "k", shape.hidden, kv, attention=True)
        if shape.qk_norm:
            k = self._renamed_norm(k, "k_norm", kv, shape.kv_heads)
        v = self.linear(y, "v", shape.hidden, kv, attention=True)
        q, k = self._rotary(q, "q_rot", query), self._rotary(k, "k_rot", kv)
        out = self._eager(q, k, v) if self.precision.attention == "eager" else self._sdpa(q, k, v)
        tape.drop(q, k, v)
        o = self.linear(out, "o", query, shape.hidden, attention=True)
        tape.drop(out)
        return o

    def _renamed_norm(self, x: str, name: str, width: int, groups: int) -> str:
        out = self.norm(x, name, width, groups)
        self.tape.drop(x)
        return out

    def _rotary(self, x: str, name: str, width: int) -> str:
        """x cos + rotate_half(x) sin: keeps only the sines and cosines, which all blocks share."""
        tape, size, half = self.tape, self.bytes(width), self.bytes(width // 2)
        cosine = tape.add(f"{name}.cos", size, x)
        rotated = tape.add(f"{name}.half", size, x, extra=half, backward_extra=half.plus(size))
        sine = tape.add(f"{name}.sin", size, rotated)
        tape.drop(rotated)
        out = tape.add(name, size, cosine, sine, passes=True)
        tape.drop(cosine, sine, x)
        return out

    def _sdpa(self, q: str, k: str, v: str) -> str:
        """Flash attention keeps its inputs, its result and each row's log-sum-exp; grouped heads need no copy."""
        stats = self.tape.keep("attention.lse", self.bytes(self.shape.heads, FP32))
        return self.tape.add(
            "attention", self.bytes(self.shape.query_width), q, k, v, keeps=[q, k, v, "attention", stats]
        )

    def _eager(self, q: str, k: str, v: str) -> str:
        """Scores [rows, heads, longest, longest]: raw, scaled, masked, softmax in fp32 and in the model's dtype."""
        tape, p = self.tape, self.precision
        cells, exact = Size(pairs=self.shape.heads * p.size), Size(pairs=self.shape.heads * FP32)
        wide = self.bytes(self.shape.query_width)
        if self.shape.heads > self.shape.kv_heads:
            k, v = tape.add("k.repeated", wide, k), tape.add("v.repeated", wide, v)
        raw = tape.add("scores", cells, q, k, keeps=[q, k], extra=wide.times(2))
        scaled = tape.add("scores.scaled", cells, raw)
        masked = tape.add("scores.masked", cells, scaled, passes=True)
        tape.drop(raw, scaled)
        weights = tape.add("softmax", exact, masked, keeps=["softmax"], extra=exact if p.size < FP32 else NOTHING)
        if p.size < FP32:
            weights = tape.add("softmax.cast", cells, weights)
            tape.drop("softmax")
        tape.drop(masked)
        out = tape.add("attention.heads", wide, weights, v, keeps=[weights, v])
        moved = tape.add("attention", wide, out)
        tape.drop(out, weights, *({k, v} & {"k.repeated", "v.repeated"}))
        return moved

    def mlp(self, y: str) -> str:
        """down(act(gate) * up), or the experts in its place."""
        shape, tape = self.shape, self.tape
        if shape.experts:
            return self._experts(y)
        wide = self.bytes(shape.ffn)
        gate = self.linear(y, "gate", shape.hidden, shape.ffn, attention=False)
        active = tape.add("active", wide, gate, keeps=[gate])
        tape.drop(gate)
        up = self.linear(y, "up", shape.hidden, shape.ffn, attention=False)
        product = tape.add("product", wide, active, up, keeps=[active, up])
        tape.drop(active, up)
        down = self.linear(product, "down", shape.ffn, shape.hidden, attention=False)
        tape.drop(product)
        return down

    def _experts(self, y: str) -> str:
        """Each token goes to its experts as a copy; all experts' products are one grouped product.

        Experts are never adapted. "router" is what routing keeps: probabilities in fp32, and for each copy its
        expert, weight and place, in four int64 and one fp32.
        """
        shape, tape, p = self.shape, self.tape, self.precision
        copies, narrow = shape.experts_per_token * shape.hidden, shape.experts_per_token * shape.expert_ffn
        bank = Size(fixed=shape.experts * shape.expert_ffn * shape.hidden * p.size) if p.full else NOTHING
        tape.keep("router", Size(tokens=FP32 * shape.experts + 36 * shape.experts_per_token))
        selected = tape.add("selected", self.bytes(copies), y, keeps=["router"], backward_extra=tape.sizes[y])
        both = tape.add(
            "gate_up", self.bytes(2 * narrow), selected, keeps=[selected] if p.full else [], weight=bank.times(2)
        )
        tape.drop(selected)
        active = tape.add("active", self.bytes(narrow), both, keeps=[both], backward_extra=self.bytes(2 * narrow))
        product = tape.add("product", self.bytes(narrow), active, both, keeps=[active, both])
        tape.drop(active, both)
        down = tape.add("down", self.bytes(copies), product, keeps=[product] if p.full else [], weight=bank)
        tape.drop(product)
        weighted = tape.add("weighted", self.bytes(copies), down, keeps=[down])
        tape.drop(down)
        ordered = tape.add("ordered", self.bytes(copies), weighted, backward_extra=self.bytes(copies))
        tape.drop(weighted)
        out = tape.add("combined", self.bytes(shape.hidden), ordered, backward_extra=self.bytes(copies))
        tape.drop(ordered)
        return out


@cache
def final_norm(shape: ModelShape, precision: Precision) -> Tape:
    """The tape from the last block's output to the hidden states of the response tokens."""
    tape = Tape("x", Size(tokens=shape.hidden * precision.size))
    build = _Builder(tape, shape, precision)
    hidden = build.norm("x", "norm", shape.hidden)
    tape.drop("x")
    # the gradient of an index is put into a copy of zeros
    tape.add("states", Size(responses=shape.hidden * precision.size), hidden, backward_extra=tape.sizes[hidden])
    tape.drop(hidden)
    return tape


class Replay:
    """A tape replayed in the ways that a pass asks for, each once. `result` and `source` are its ends, `kept` what it
    saves.

    `source_kept`: the source is among what it saves. `accumulating` is the backward pass that adds to gradients
    which are there already.
    """

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self.source = tape.sizes[tape.source]
        self.result = tape.sizes[tape.ops[-1].output]
        self.kept = tape.kept()
        self.source_kept = tape.source in tape.kept_names()

    @cached_property
    def forward(self) -> Peak:
        """The forward pass that keeps what the backward pass needs."""
        return self._tape.forward(grad=True)

    @cached_property
    def forward_free(self) -> Peak:
        """The forward pass that keeps nothing."""
        return self._tape.forward(grad=False)

    @cached_property
    def _backwards(self) -> tuple[Peak, Peak]:
        return self._tape.backwards()

    @property
    def backward(self) -> Peak:
        """The backward pass whose gradients stay."""
        return self._backwards[0]

    @property
    def accumulating(self) -> Peak:
        """The backward pass whose gradients are added to others."""
        return self._backwards[1]

    @cached_property
    def recompute(self) -> Peak:
        """The forward pass of a checkpoint, with the gradients that are there by then."""
        return self._tape.recompute()


@cache
def replay_block(shape: ModelShape, precision: Precision) -> Replay:
    """The replays of one block."""
    return Replay(block(shape, precision))


@cache
def replay_final_norm(shape: ModelShape, precision: Precision) -> Replay:
    """The replays of the final norm."""
    return Replay(final_norm(shape, precision))


def shared_bytes(shape: ModelShape, precision: Precision, batch: Batch) -> int:
    """What all blocks share: cosines and sines of one row of positions, and eager attention's mask."""
    mask = batch.pairs * precision.size if precision.attention == "eager" else 0
    return 2 * batch.longest * shape.head_dim * precision.size + mask
