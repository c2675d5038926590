"""Planned bytes of other systems' passes against a count of what their kind of model holds in torch on the CPU.

The CPU's kernels have temporaries of their own or none where CUDA's have some (attention's backward pass), hence the
tolerances; dropout is off because only CUDA's keeps a mask of one byte.
"""

import pytest
import torch
from msgspec.structs import replace
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM, PhiConfig, PhiForCausalLM

from headway.facts.blocks import Block
from headway.facts.shapes import ModelShape
from headway.facts.workload import Lora, Optimizer, Quant, Rollout, Trainer, Workload
from headway.plan import training
from headway.plan.activations import Batch
from headway.plan.packed import packed_bytes
from headway.plan.stack import block_tape
from headway.plan.systems import Style
from headway.train.model import set_checkpointing

from ..train.live_bytes import LiveBytes

# peft asks transformers 5.24 under a name that it deprecates
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")

ROWS, LONGEST, RANK = 2, 128, 8
BATCH = Batch(ROWS, LONGEST, ROWS * LONGEST)
SHAPE = ModelShape("small", "llama", 4, 128, 352, 8, 4, 16, 512, False)


def workload(
    shape: ModelShape = SHAPE, dtype: str = "bf16", lora: Lora | None = None, *, system: str = "peft",
    checkpointing: bool = False, attention: str = "sdpa", compute: str | None = None,
) -> Workload:  # fmt: skip
    optimizer = Optimizer(master=False, state_dtype=dtype, step="foreach")
    trainer = Trainer(
        dtype, lora, "none", ROWS * LONGEST, checkpointing, attention, 256, entropy=False, updates=1, system=system,
        rows=ROWS, loss="logits", compute_dtype=compute, optimizer=optimizer,
    )  # fmt: skip
    rollout = Rollout(ROWS, 1, 0, LONGEST, 0, 0, 1)
    return Workload(shape, trainer, rollout, "cuda", 1, 0, "exact", 0, "json", 0, 3, save=False, tensorboard=False)


def llama(planned: Workload) -> nn.Module:
    """A transformers model as a plain trainer sets it up."""
    shape, trainer = planned.model, planned.trainer
    model: nn.Module = LlamaForCausalLM(
        LlamaConfig(
            hidden_size=shape.hidden, intermediate_size=shape.ffn, num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads, vocab_size=shape.vocab,
            attn_implementation=trainer.attention, use_cache=False, tie_word_embeddings=False,
        )
    ).to(torch.bfloat16 if trainer.param_dtype == "bf16" else torch.float32)  # fmt: skip
    if trainer.lora is not None:
        targets = trainer.lora.targets if isinstance(trainer.lora.targets, str) else list(trainer.lora.targets)
        config = LoraConfig(r=trainer.lora.rank, target_modules=targets)
        model = get_peft_model(model, config, autocast_adapter_dtype=trainer.lora.dtype == "fp32")
    if trainer.checkpointing:
        set_checkpointing(model, True)
        if trainer.lora is not None:
            model.enable_input_require_grads()
    return model.train()


def one_pass(model: nn.Module, vocab: int, *, autocast: bool = False) -> int:
    """Peak bytes of forward and backward beside the parameters."""
    ids = torch.randint(0, vocab, (ROWS, LONGEST))
    with LiveBytes(*model.parameters(), *model.buffers()) as counted:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
    return counted.peak


def peak(planned: Workload) -> int:
    return max(moment.bytes for moment in training.moments(planned, BATCH))


ADAPTERS = {
    "all": Lora(RANK, "all-linear", "bf16"),
    "two": Lora(RANK, ("q_proj", "v_proj"), "bf16"),
    "fp32": Lora(RANK, "all-linear", "fp32"),
}
CASES = {
    "full": (workload(), 0.03),
    "full, fp32": (workload(dtype="fp32"), 0.03),
    "full, checkpointing": (workload(checkpointing=True), 0.08),
    "full, eager attention": (workload(attention="eager"), 0.03),
    "full, many words": (workload(replace(SHAPE, vocab=8192)), 0.01),
    "LoRA": (workload(lora=ADAPTERS["all"]), 0.05),
    "LoRA on two": (workload(lora=ADAPTERS["two"]), 0.05),
    "LoRA in fp32": (workload(lora=ADAPTERS["fp32"]), 0.04),
    "LoRA, checkpointing": (workload(lora=ADAPTERS["all"], checkpointing=True), 0.05),
}


@pytest.mark.parametrize("name", CASES)
def test_a_transformers_model_holds_what_is_planned(name: str) -> None:
    planned, tolerance = CASES[name]
    counted = one_pass(llama(planned), planned.model.vocab)
    assert peak(planned) == pytest.approx(counted, rel=tolerance)


@pytest.mark.parametrize(("checkpointing", "tolerance"), [(False, 0.03), (True, 0.10)])
def test_autocast_holds_copies_of_weights_and_inputs(checkpointing: bool, tolerance: float) -> None:
    planned = workload(dtype="fp32", system="trl", compute="bf16", checkpointing=checkpointing)
    assert peak(planned) == pytest.approx(one_pass(llama(planned), SHAPE.vocab, autocast=True), rel=tolerance)


def test_a_parallel_block_with_layer_norm_and_no_gate_holds_what_is_planned() -> None:
    shape = ModelShape(
        "phi", "phi", 4, 128, 512, 8, 8, 16, 512, False, qkv_bias=True, output_bias=True, mlp_bias=True, gated=False,
        norm="layer", norm_bias=True, norms=1, parallel=True, head_bias=True,
    )  # fmt: skip
    config = PhiConfig(
        hidden_size=128, intermediate_size=512, num_hidden_layers=4, num_attention_heads=8, vocab_size=512,
        attn_implementation="sdpa", use_cache=False, resid_pdrop=0.0, embd_pdrop=0.0, attention_dropout=0.0,
        bos_token_id=1, eos_token_id=2, hidden_act="gelu",
    )  # fmt: skip
    model = PhiForCausalLM(config).to(torch.bfloat16).train()
    assert peak(workload(shape)) == pytest.approx(one_pass(model, 512), rel=0.05)


class FusedAttention(nn.Module):
    """One frozen projection for queries, keys and values with one adapter over two of them, written as litgpt has it:
    the adapter's result is copied into zeros that are as wide as all three."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.shape, wide = shape, shape.query_width + 2 * shape.kv_width
        self.qkv, self.out = (
            nn.Linear(shape.hidden, wide, bias=False),
            nn.Linear(shape.query_width, shape.hidden, bias=False),
        )
        self.a = nn.Parameter(torch.randn(2 * RANK, shape.hidden))
        self.b = nn.Parameter(torch.randn(shape.query_width + shape.kv_width, RANK))
        places = [*range(shape.query_width), *range(wide - shape.kv_width, wide)]
        self.register_buffer("places", torch.tensor(places))

    def forward(self, x: Tensor) -> Tensor:
        shape, rows, longest = self.shape, *x.shape[:2]
        low = F.linear(x, self.a).transpose(1, 2)
        parts = self.b.split((shape.query_width, shape.kv_width))
        high = torch.cat(
            [F.conv1d(one, part[..., None]) for one, part in zip(low.chunk(2, 1), parts, strict=True)], 1
        )
        zeros = x.new_zeros(rows, longest, self.qkv.out_features)
        qkv = self.qkv(x) + zeros.index_copy_(2, self.places, high.transpose(1, 2)) * 2.0
        q, k, v = qkv.split((shape.query_width, shape.kv_width, shape.kv_width), dim=-1)
        q, k, v = (one.view(rows, longest, -1, shape.head_dim).transpose(1, 2) for one in (q, k, v))
        turned = torch.ones(longest, shape.head_dim, dtype=x.dtype)
        q, k = q * turned, k * turned  # stands for the rotation, which keeps no input either
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(rows, longest, -1))


class FusedBlock(nn.Module):
    """LayerNorm, the attention above, LayerNorm, GELU MLP; only the adapter is trained."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(shape.hidden), nn.LayerNorm(shape.hidden)
        self.attention = FusedAttention(shape)
        self.up, self.down = nn.Linear(shape.hidden, shape.ffn), nn.Linear(shape.ffn, shape.hidden)
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(name in ("attention.a", "attention.b"))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first(x))
        return x + self.down(F.gelu(self.up(self.second(x))))


def test_a_fused_projection_with_a_padded_adapter_keeps_what_is_planned() -> None:
    shape = replace(SHAPE, kv_heads=8, norm="layer", norm_bias=True, gated=False)
    block = FusedBlock(shape).to(torch.bfloat16)
    x = torch.randn(ROWS, LONGEST, shape.hidden, dtype=torch.bfloat16, requires_grad=True)
    with LiveBytes(*block.parameters(), *block.buffers()) as counted:
        source = x * 1.0
        result = block(source)
    lora = Lora(RANK, ("q", "v"), "bf16")
    tape = block_tape(
        shape, Style.of(workload(shape, lora=lora, system="litgpt").trainer), Block("full", experts=False)
    )
    kept = tape.kept().at(BATCH.counts)
    indices = block.attention.places.nbytes
    assert kept == pytest.approx(counted.live - result.nbytes - indices, rel=0.02)


def test_packed_weights_are_what_their_format_says() -> None:
    """nf4: half a byte a weight, an fp32 scale for 64; quantised again, a byte for 64, an fp32 for 256 of those."""
    shape = replace(SHAPE, hidden=1024, ffn=4096, heads=16, kv_heads=16, head_dim=64)
    matrices = shape.layers * (4 * 1024 * 1024 + 3 * 1024 * 4096)
    rest = (shape.parameters() - matrices) * 2
    plain = matrices // 2 + matrices // 64 * 4
    assert packed_bytes(shape, Quant("nf4"), 2, head=False) == plain + rest
    double = matrices // 2 + matrices // 64 + matrices // 64 // 256 * 4
    assert packed_bytes(shape, Quant("nf4", double=True), 2, head=False) == double + rest
    assert packed_bytes(shape, Quant("nf4"), 2, head=True) < plain + rest


def test_a_packed_base_keeps_copies_of_inputs_and_unpacks_one_weight_at_a_time() -> None:
    lora = Lora(RANK, ("q_proj", "v_proj"), "bf16")
    plain = workload(lora=lora)
    packed = replace(plain, trainer=replace(plain.trainer, quant=Quant("nf4")))
    block = Block("full", experts=False)
    frozen, unpacked = (block_tape(SHAPE, Style.of(each.trainer), block) for each in (plain, packed))
    # what q and v's adapters do not keep already: the inputs of o, gate and up (one tensor), and down
    more = unpacked.kept().minus(frozen.kept())
    assert more.tokens == 2 * (SHAPE.hidden + SHAPE.ffn)  # attention keeps its own result, which o reads
    largest = SHAPE.hidden * SHAPE.ffn * 2
    assert max(op.extra.fixed for op in unpacked.ops) == largest
