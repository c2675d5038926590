"""The tape of one block as other systems run it: fused or separate projections, their adapters, packed bases.

Widths are in elements per token. Which tensors stay was read from the systems' code and counted on small models in
torch (tests/unit/plan/test_stack.py).
"""

from functools import cache

from headway.facts.blocks import Block, Linear, fused_roles
from headway.facts.shapes import ModelShape
from headway.facts.workload import DTYPE_BYTES
from headway.plan.activations import FP32, Replay
from headway.plan.systems import Style
from headway.plan.tape import NOTHING, Size, Tape

MASK = 1
"""Bytes of an element of a dropout's mask."""
UNPACKING = {"int4": 12}
"""Bytes per weight that unpacking in Python holds beside its result: shifted integers, scales and zero points of
every weight (GPTQ's torch path: an int32, an int16, and three of half precision). nf4 has a kernel."""


@cache
def replay(shape: ModelShape, style: Style, block: Block) -> Replay:
    """The replays of one block."""
    return Replay(block_tape(shape, style, block))


@cache
def saved_by_op(shape: ModelShape, style: Style, block: Block) -> Size:
    """What a block keeps under selective checkpointing per operation: its input, every second matrix product's
    result from the first on, and attention's result with its statistics.

    Source: torchtitan's `apply_ac`. A compiled block drops the result of the down projection, which nothing needs.
    """
    build = _Builder(Tape("x", Size(tokens=shape.hidden * style.size)), shape, style, block)
    wide = [one.outputs for one in (*build.attention_linears, *build.mlp_linears)]
    kept = wide[::2]
    if style.fused and len(wide) % 2:
        kept = kept[:-1]
    attention = build.query * style.size + build.heads * FP32
    return Size(tokens=(sum(kept) * style.size + attention) // style.tensor + shape.hidden * style.size)


def block_tape(shape: ModelShape, style: Style, block: Block) -> Tape:
    """The tape from the block's input `x` to its output."""
    tape = Tape("x", Size(tokens=shape.hidden * style.stream))
    build = _Builder(tape, shape, style, block)
    first = build.norm("x", "norm1")
    if shape.parallel:
        attended = build.post(build.attention(first), "post1")
        second = first if shape.norms == 1 else build.norm("x", "norm2")
        if second != first:
            tape.drop(first)
        mlp = build.post(build.mlp(second), "post2")
        tape.drop(second)
        partial = tape.add("partial", tape.sizes["x"], mlp, attended, passes=True)
        tape.drop(mlp, attended)
        tape.add("result", tape.sizes["x"], partial, "x", passes=True)
        tape.drop(partial, "result", "x")
        return tape
    attended = build.post(build.attention(first), "post1")
    tape.drop(first)
    middle = tape.add("middle", tape.sizes["x"], "x", attended, passes=True)
    tape.drop(attended)
    second = build.norm(middle, "norm2")
    mlp = build.post(build.mlp(second), "post2")
    tape.drop(second)
    tape.add("result", tape.sizes["x"], middle, mlp, passes=True)
    tape.drop(middle, mlp, "x")
    return tape


POINTWISE = (".out", "active", "product", "gated")
"""How names of results end that no matrix product made: of norms, activations, gates."""


class _Builder:
    """Appends the parts of a block to a tape."""

    def __init__(self, tape: Tape, shape: ModelShape, style: Style, block: Block) -> None:
        self.tape, self.shape, self.style, self.block = tape, shape, style, block
        self.heads, self.kv_heads = shape.heads, shape.kv_heads
        self.query, self.kv, self.key = shape.query_width, shape.kv_width, shape.query_width
        if shape.mla is not None and block.attention == "mla":
            self.query, self.kv_heads = shape.heads * shape.mla.v, shape.heads
            self.key = shape.heads * (shape.mla.qk_nope + shape.mla.qk_rope)
        self.attention_linears = tuple(
            Linear(role, inputs, outputs)
            for role, (inputs, outputs) in zip(
                _attention_roles(shape, block), shape.attention_linears(block), strict=True
            )
        )
        width = shape.ffn if not block.experts else shape.shared_ffn
        gate = (Linear("gate", shape.hidden, width),) if shape.gated else ()
        self.mlp_linears = (*gate, Linear("up", shape.hidden, width), Linear("down", width, shape.hidden))
        self.adapted: frozenset[str] = frozenset()
        if style.lora is not None:
            self.adapted = _adapted(style, self.attention_linears, self.mlp_linears)

    def bytes(self, width: int, size: int | None = None) -> Size:
        """Of `width` elements, which tensor parallel ranks split."""
        return Size(tokens=width * (self.style.size if size is None else size) // self.style.tensor)

    def norm(self, x: str, name: str, width: int | None = None, groups: int = 1) -> str:
        """A norm of the residual stream, or of the heads of one projection."""
        shape, tape, style = self.shape, self.tape, self.style
        element = style.stream if width is None else style.size
        width = shape.hidden if width is None else width
        size = self.bytes(width, element)
        full = style.full
        weight = Size(fixed=width // groups * element) if full else NOTHING
        if shape.norm == "layer" or style.fused or style.habits.norm == "fused":
            stats = tape.keep(f"{name}.stats", Size(tokens=FP32 * groups * (2 if shape.norm == "layer" else 1)))
            return tape.add(f"{name}.out", size, x, keeps=[x, stats], weight=weight)
        exact = self.bytes(width, FP32)
        cast = element < FP32
        xf = tape.add(f"{name}.fp32", exact, x) if cast else x
        root = tape.keep(f"{name}.rsqrt", Size(tokens=FP32 * groups))
        normal = low = tape.add(f"{name}.normal", exact, xf, keeps=[xf, root], backward_extra=exact.times(2))
        if cast:
            low = tape.add(f"{name}.cast", size, normal)
            tape.drop(xf, normal)
        out = tape.add(f"{name}.out", size, low, keeps=[low] if full else [], weight=weight)
        tape.drop(low)
        return out

    def post(self, x: str, name: str) -> str:
        """A norm between a part and the residual stream, where the model has four."""
        if self.shape.norms < 4:
            return x
        out = self.norm(x, name)
        self.tape.drop(x)
        return out

    def linear(self, x: str, linear: Linear, adapted: bool) -> str:
        """A projection, with its adapter where it has one."""
        tape, style, name = self.tape, self.style, linear.role
        out, weight = self.bytes(linear.outputs), Size(fixed=linear.size * style.size // style.tensor)
        if style.full and style.float8 is not None:
            return self._float8(x, linear, out, weight)
        if style.full:
            return tape.add(name, out, x, keeps=[self._cast(x, linear)], weight=weight)
        keeps, unpacked = [], NOTHING
        if style.packed:
            unpacked = weight.plus(Size(fixed=UNPACKING.get(style.kind, 0) * linear.size))
            kept = x
            if style.habits.packed_copy != style.size:
                kept = tape.keep(f"{name}.input", self.bytes(linear.inputs, style.habits.packed_copy))
            keeps = [kept]
            if style.kind in UNPACKING:
                # a product in Python keeps the weight that it was made with
                keeps.append(tape.keep(f"{name}.unpacked", weight))
        base = tape.add(
            name if not adapted else f"{name}.base", out, x, keeps=keeps, extra=unpacked, backward_extra=unpacked
        )
        return self.adapter(x, base, linear) if adapted else base

    def _cast(self, x: str, linear: Linear) -> str:
        """What a product keeps of its input: the input, or its own cast copy of a wider residual stream."""
        if self.style.stream == self.style.size or linear.inputs != self.shape.hidden:
            return x
        return self.tape.keep(f"{linear.role}.input", self.bytes(linear.inputs))

    def _float8(self, x: str, linear: Linear, out: Size, weight: Size) -> str:
        """A product of input and weight cast to float8, whose gradients are such products too.

        torchao's `matmul_with_hp_or_float8_args` saves the input as it came and the weight, which under FSDP is a
        view of the gathered one, and casts both again in the backward pass: run as Python says, it keeps what a
        product in half precision keeps, and a cast makes two fp32 tensors on the way (`_ToFloat8ConstrFunc`: scaled,
        clamped). Compiled, a cast is one kernel, and the partitioner keeps no input that it can make again from what
        is kept anyway: a norm's result from the norm's input and statistics, the MLP's product from gate and up. Of
        attention's result it keeps a float8 copy beside the result, which attention's own backward pass takes.
        """
        tape, style, name = self.tape, self.style, linear.role
        byte = Size(fixed=linear.size // style.tensor)
        if not style.fused:
            wide = self.bytes(max(linear.inputs, linear.outputs), 2 * FP32)
            return tape.add(
                name, out, x, keeps=[self._cast(x, linear)], weight=weight,
                extra=self.bytes(linear.inputs, 2 * FP32).plus(byte), backward_extra=wide.plus(byte),
            )  # fmt: skip
        keeps = [self._cast(x, linear)]
        if style.casts_again:
            again = x.endswith(POINTWISE)
            keeps = [] if again else [tape.keep(f"{name}.float8", self.bytes(linear.inputs, 1))]
        casts = self.bytes(linear.inputs, 1).plus(byte)
        return tape.add(name, out, x, keeps=keeps, weight=weight, extra=casts, backward_extra=casts)

    def adapter(self, x: str, base: str, linear: Linear) -> str:
        """base + B(A(dropout(x))) x scale."""
        tape, style, name = self.tape, self.style, linear.role
        assert style.lora is not None
        size = self._adapter_size()
        dropped = self._dropped(x, linear, size)
        rank, wide = style.lora.rank, self.bytes(linear.outputs, size)
        own = DTYPE_BYTES[style.lora.dtype]
        a = tape.add(
            f"{name}.A",
            Size(tokens=rank * size),
            dropped,
            keeps=[dropped],
            weight=Size(fixed=linear.inputs * rank * own),
        )
        b = tape.add(f"{name}.B", wide, a, keeps=[a], weight=Size(fixed=rank * linear.outputs * own))
        tape.drop(a)
        if dropped != x:
            tape.drop(dropped)
        scaled = tape.add(f"{name}.scaled", wide, b)
        tape.drop(b)
        if style.lora.magnitude:
            # both results stay for the gradient of the norms, which are those of weight + B A, made in fp32
            total = tape.add(
                f"{name}.sum", wide, base, scaled, keeps=[base, scaled], extra=Size(fixed=3 * FP32 * linear.size),
                weight=Size(fixed=linear.outputs * own),
            )  # fmt: skip
        else:
            total = tape.add(f"{name}.sum", wide, base, scaled, passes=size == style.size)
        tape.drop(base, scaled)
        if size == style.size:
            return total
        out = tape.add(name, self.bytes(linear.outputs), total)
        tape.drop(total)
        return out

    def _adapter_size(self) -> int:
        """Bytes of an element in the adapter's branch."""
        assert self.style.lora is not None
        return (
            self.style.size
            if self.style.habits.autocast
            else max(DTYPE_BYTES[self.style.lora.dtype], self.style.size)
        )

    def _dropped(self, x: str, linear: Linear, size: int) -> str:
        """The adapter's input: x itself, or a copy where it is cast or dropout makes one."""
        assert self.style.lora is not None
        tape, name = self.tape, linear.role
        cast = DTYPE_BYTES[self.style.lora.dtype] != self.style.size
        if self.style.lora.dropout:
            mask = tape.keep(f"{name}.mask", self.bytes(linear.inputs, MASK))
            return tape.add(f"{name}.dropped", self.bytes(linear.inputs, size), x, keeps=[mask])
        if cast:
            return tape.add(f"{name}.cast", self.bytes(linear.inputs, size), x)
        return x

    def attention(self, y: str) -> str:
        """Projections, rotation, attention, output projection."""
        tape = self.tape
        if self.block.attention == "linear":
            return self._recurrent(y)
        if self.block.attention == "mla":
            q, k, v = self._latent(y)
        elif self.style.habits.fused_qkv:
            q, k, v = self._fused(y)
        else:
            q, k, v = self._separate(y)
        capped = self.style.softcapped and self.style.attention != "flash"
        out = self._scores(q, k, v) if capped or self.style.attention == "eager" else self._flash(q, k, v)
        tape.drop(*{q, k, v})
        if self.shape.attention_gate:
            gate = tape.keep("attention.gate", self.bytes(self.query))
            gated = tape.add("attention.gated", self.bytes(self.query), out, keeps=[out, gate])
            tape.drop(out)
            out = gated
        last = self.attention_linears[-1]
        o = self.linear(out, last, last.role in self.adapted)
        tape.drop(out)
        return o

    def _separate(self, y: str) -> tuple[str, str, str]:
        tape = self.tape
        made = [self.linear(y, one, one.role in self.adapted) for one in self.attention_linears[:3]]
        for index, (name, groups) in enumerate((("q_norm", self.heads), ("k_norm", self.kv_heads))):
            if self.shape.qk_norm:
                out = self.norm(made[index], name, self.query if index == 0 else self.kv, groups)
                tape.drop(made[index])
                made[index] = out
        q, k = self.rotary(made[0], "q_rot", self.query), self.rotary(made[1], "k_rot", self.kv)
        tape.drop(made[0], made[1])
        return self._repeated(q, k, made[2])

    def _repeated(self, q: str, k: str, v: str) -> tuple[str, str, str]:
        """One copy of keys and values for every query head, where the system makes them."""
        if not self.style.habits.repeat_kv or self.heads == self.kv_heads:
            return q, k, v
        wide = self.bytes(self.query)
        many = self.tape.add("k.repeated", wide, k), self.tape.add("v.repeated", wide, v)
        self.tape.drop(k, v)
        return q, *many

    def _fused(self, y: str) -> tuple[str, str, str]:
        """One projection; the value is a view of its result, which stays where nothing copies it."""
        tape = self.tape
        roles = [one.role for one in self.attention_linears[:3]]
        inside, outside = self.attention_linears[0].inputs, sum(one.outputs for one in self.attention_linears[:3])
        whole = Linear("qkv", inside, outside)
        adapted = [role for role in roles if role in self.adapted]
        if adapted and self.style.habits.lora == "litgpt" and not self.style.full:
            qkv = self._padded(y, whole, [one for one in self.attention_linears[:3] if one.role in adapted])
        else:
            qkv = self.linear(y, whole, bool(adapted))
        q = tape.add("q", self.bytes(self.query), qkv)
        k = tape.add("k", self.bytes(self.kv), qkv)
        if self.style.habits.repeat_kv and self.heads != self.kv_heads:
            wide = self.bytes(self.query)
            tape.drop(k)
            many = tape.add("k.many", wide, k)
            v = tape.add("v.many", wide, qkv)
            tape.drop(qkv)
            k_rot = self.rotary(many, "k_rot", self.query)
            tape.drop(many)
        else:
            v = qkv
            k_rot = self.rotary(k, "k_rot", self.kv)
            tape.drop(k)
        q_rot = self.rotary(q, "q_rot", self.query)
        tape.drop(q)
        return q_rot, k_rot, v

    def _padded(self, y: str, whole: Linear, adapted: list[Linear]) -> str:
        """One adapter over some of queries, keys and values: its result is copied into zeros as wide as all of them.

        The copy keeps its source; adapters on all three need no copy. Source: litgpt's `LoRAQKVLinear`.
        """
        tape, style = self.tape, self.style
        assert style.lora is not None
        unpadded = Linear("qkv0", whole.inputs, whole.outputs)
        base = self.linear(y, unpadded, adapted=False)
        dropped = self._dropped(y, whole, style.size)
        rank = style.lora.rank * len(adapted)
        width = sum(one.outputs for one in adapted)
        a = tape.add(
            "qkv.A", self.bytes(rank), dropped, keeps=[dropped], weight=Size(fixed=whole.inputs * rank * style.size)
        )
        if dropped != y:
            tape.drop(dropped)
        b = tape.add(
            "qkv.B", self.bytes(width), a, keeps=[a], weight=Size(fixed=style.lora.rank * width * style.size)
        )
        tape.drop(a)
        if len(adapted) < 3:
            padded = tape.add("qkv.padded", self.bytes(whole.outputs), b, keeps=[b])
            tape.drop(b)
            b = padded
        scaled = tape.add("qkv.scaled", self.bytes(whole.outputs), b)
        tape.drop(b)
        total = tape.add("qkv", self.bytes(whole.outputs), base, scaled, passes=True)
        tape.drop(base, scaled)
        return total

    def _latent(self, y: str) -> tuple[str, str, str]:
        """Compressed queries and keys/values: the narrow vectors, and what is projected up from them."""
        tape, y0 = self.tape, y
        made: dict[str, str] = {}
        for one in self.attention_linears[:-1]:
            source = {"q_b": made.get("q_a", y0), "kv_b": made.get("kv_a", y0)}.get(one.role, y0)
            made[one.role] = self.linear(source, one, one.role in self.adapted)
        q = self.rotary(made.get("q_b", made.get("q", y0)), "q_rot", self.key)
        k = tape.add("k", self.bytes(self.key), made["kv_b"])
        v = tape.add("v", self.bytes(self.query), made["kv_b"])
        tape.drop(*made.values())
        return q, k, v

    def _recurrent(self, y: str) -> str:
        """Gated delta net: what is projected, its convolution, the state's result and the gated norm of it."""
        tape, kind = self.tape, self.shape.linear
        assert kind is not None
        made = [self.linear(y, one, one.role in self.adapted) for one in self.attention_linears[:-1]]
        conv = tape.add("conv", self.bytes(kind.conv_width), made[0], keeps=[made[0]])
        out = tape.add(
            "attention", self.bytes(kind.value_width), conv, *made, keeps=[conv, *made[1:]],
            backward_extra=self.bytes(kind.conv_width, FP32),
        )  # fmt: skip
        tape.drop(conv, *made)
        gated = tape.add("gated", self.bytes(kind.value_width), out, keeps=[out])
        tape.drop(out)
        last = self.attention_linears[-1]
        o = self.linear(gated, last, last.role in self.adapted)
        tape.drop(gated)
        return o

    def rotary(self, x: str, name: str, width: int) -> str:
        """x cos + rotate_half(x) sin keeps only sines and cosines, which all blocks share."""
        size = self.bytes(width)
        return self.tape.add(name, size, x, extra=size.times(2), backward_extra=size.times(2))

    def _flash(self, q: str, k: str, v: str) -> str:
        stats = self.tape.keep("attention.lse", self.bytes(self.heads, FP32))
        # the kernel sums the gradient of the queries in fp32
        return self.tape.add(
            "attention", self.bytes(self.query), q, k, v, keeps=[q, k, v, "attention", stats],
            backward_extra=self.bytes(self.query, FP32),
        )  # fmt: skip

    def _scores(self, q: str, k: str, v: str) -> str:
        """Scores in the model's dtype, softmax in fp32 and cast."""
        tape, style = self.tape, self.style
        cells, exact = Size(pairs=self.heads * style.size), Size(pairs=self.heads * FP32)
        raw = tape.add("scores", cells, q, k, keeps=[q, k], extra=cells)
        if self.style.softcapped:
            capped = tape.add("scores.capped", cells, raw, keeps=["scores.capped"], backward_extra=cells)
            tape.drop(raw)
            raw = capped
        weights = tape.add("softmax", exact, raw, keeps=["softmax"], extra=exact)
        tape.drop(raw)
        if style.size < FP32:
            weights = tape.add("softmax.cast", cells, weights)
            tape.drop("softmax")
        out = tape.add("attention", self.bytes(self.query), weights, v, keeps=[weights, v])
        tape.drop(weights)
        return out

    def mlp(self, y: str) -> str:
        """The dense MLP, or experts with what every token passes beside them."""
        if not self.block.experts:
            return self._dense(y)
        routed = self._experts(y)
        if not self.shape.shared_ffn:
            return routed
        shared = self._dense(y)
        out = self.tape.add("mlp", self.bytes(self.shape.hidden), routed, shared, passes=True)
        self.tape.drop(routed, shared)
        return out

    def _dense(self, y: str) -> str:
        tape = self.tape
        ffn = self.mlp_linears[-1].inputs
        wide = self.bytes(ffn)
        if not self.shape.gated:
            up, down = self.mlp_linears
            raw = self.linear(y, up, "up" in self.adapted)
            active = tape.add("active", wide, raw, keeps=[raw])
            tape.drop(raw)
            out = self.linear(active, down, "down" in self.adapted)
            tape.drop(active)
            return out
        gate_linear, up_linear, down_linear = self.mlp_linears
        gate = self.linear(y, gate_linear, "gate" in self.adapted)
        up = self.linear(y, up_linear, "up" in self.adapted)
        if self.style.fused:
            product = tape.add("product", wide, gate, up, keeps=[gate, up])
            tape.drop(gate, up)
        else:
            active = tape.add("active", wide, gate, keeps=[gate])
            product = tape.add("product", wide, active, up, keeps=[active, up])
            tape.drop(gate, active, up)
        out = self.linear(product, down_linear, "down" in self.adapted)
        tape.drop(product)
        return out

    def _experts(self, y: str) -> str:
        """Each token goes to its experts as a copy; all experts' products are grouped. Experts carry no adapter."""
        shape, tape, style = self.shape, self.tape, self.style
        copies, narrow = shape.experts_per_token * shape.hidden, shape.experts_per_token * shape.expert_ffn
        full = style.full
        bank = Size(fixed=shape.experts * shape.expert_ffn * shape.hidden * style.size) if full else NOTHING
        tape.keep("router", Size(tokens=FP32 * shape.experts + 36 * shape.experts_per_token))
        selected = tape.add("selected", self.bytes(copies), y, keeps=["router"], backward_extra=tape.sizes[y])
        both = tape.add(
            "gate_up", self.bytes(2 * narrow), selected, keeps=[selected] if full else [], weight=bank.times(2)
        )
        tape.drop(selected)
        active = tape.add("e.active", self.bytes(narrow), both, keeps=[both], backward_extra=self.bytes(narrow))
        product = tape.add("e.product", self.bytes(narrow), active, both, keeps=[active, both])
        tape.drop(active, both)
        down = tape.add("e.down", self.bytes(copies), product, keeps=[product] if full else [], weight=bank)
        tape.drop(product)
        weighted = tape.add("weighted", self.bytes(copies), down, keeps=[down])
        tape.drop(down)
        out = tape.add("combined", self.bytes(shape.hidden), weighted, backward_extra=self.bytes(copies))
        tape.drop(weighted)
        return out


def _attention_roles(shape: ModelShape, block: Block) -> tuple[str, ...]:
    """The roles of `shape.attention_linears(block)`, in its order."""
    if block.attention == "mla" and shape.mla is not None:
        return tuple(one.role for one in shape.mla.linears(shape.hidden, shape.heads))
    if block.attention == "linear" and shape.linear is not None:
        return tuple(one.role for one in shape.linear.linears(shape.hidden))
    return ("q", "k", "v", "o")


def _adapted(style: Style, attention: tuple[Linear, ...], mlp: tuple[Linear, ...]) -> frozenset[str]:
    """Roles of one block that carry an adapter."""
    assert style.lora is not None
    targets = style.lora.targets
    if targets == "attention":
        return frozenset(one.role for one in attention)
    if targets == "all-linear":
        return frozenset(one.role for one in (*attention, *mlp))
    names = (targets,) if isinstance(targets, str) else targets
    return frozenset(role for group in fused_roles(names) for role in group)
