"""Float8 training under FSDP 2: what changes, what does not, and public runs with and without it."""

from typing import Any

import pytest
from msgspec.structs import replace

from headway.facts.shapes import ModelShape, by_name
from headway.facts.workload import Float8, Layout, Optimizer, Rollout, Trainer, Workload
from headway.foreign import presets
from headway.foreign.settings import apply
from headway.plan import training
from headway.plan.plan import DEVICE, plan
from headway.plan.rank import Rank
from headway.units import GIB

LLAMA_8B = ModelShape("llama-8b", "llama", 32, 4096, 14336, 32, 8, 128, 128256, False)
TENSORWISE, ROWWISE = Float8("tensorwise", gather=True), Float8("rowwise")


def workload(devices: int = 8, rows: int = 1, **changes: Any) -> Workload:
    """Pretraining of samples of 8,192 tokens as torchtitan runs it: fp32 shards, bf16 products, compiled."""
    trainer = Trainer(**{
        "param_dtype": "fp32", "lora": None, "reference": "none", "cap": rows * 8192, "checkpointing": False,
        "attention": "sdpa", "logprob_chunk": 0, "entropy": False, "updates": 1, "system": "fsdp2", "rows": rows,
        "compute_dtype": "bf16", "grad_dtype": "fp32", "optimizer": Optimizer(step="fused"), "loss": "logits",
        "kernels": "fused", "selective": True, **changes,
    })  # fmt: skip
    return Workload(
        LLAMA_8B, trainer, Rollout(rows * devices, 1, 0, 8192, 0, 0, 1), "cuda", 1, 0, "exact", 0, "json", 0, 3,
        save=False, tensorboard=False, layout=Layout(devices=devices, shards=devices),
    )  # fmt: skip


def reserved(planned: Workload) -> tuple[float, float]:
    """GiB and bound of the highest phase."""
    ledger = plan(planned)
    found = [ledger.measured_as(DEVICE, phase, "reserved") for phase in ledger.phases(DEVICE)]
    return max(size for size, _ in found) / GIB, max(upper for _, upper in found) / GIB


PUBLIC = {
    "torchtitan 2024-12, eager": (82.4, {"rows": 2, "kernels": "eager"}),
    "torchtitan 2024-12": (77.0, {"rows": 2}),
    "torchtitan 2024-12, float8": (76.8, {"rows": 2, "float8": TENSORWISE}),
    "torchtitan 2024-12, 128 ranks": (62.0, {"rows": 2, "devices": 128}),
    "torchtitan 2024-12, 128 ranks, float8": (61.8, {"rows": 2, "devices": 128, "float8": TENSORWISE}),
    "torchao 0.10, H100": (47.65, {}),
    "torchao 0.10, H100, tensorwise": (47.77, {"float8": TENSORWISE}),
    "torchao 0.10, H100, rowwise": (47.79, {"float8": ROWWISE}),
    "torchao 0.13, B200": (33.71, {"system": "torchtitan"}),
    "torchao 0.13, B200, tensorwise": (33.38, {"system": "torchtitan", "float8": TENSORWISE}),
    "torchao 0.13, B200, rowwise": (33.72, {"system": "torchtitan", "float8": ROWWISE}),
}
"""`max_memory_reserved` of Llama 3 8B with per-operation checkpointing: torchtitan's `llama3_h100_202412` and
torchao's page on training."""


@pytest.mark.parametrize("name", PUBLIC)
def test_public_runs_are_near_their_plan_and_under_its_bound(name: str) -> None:
    measured, how = PUBLIC[name]
    size, upper = reserved(workload(**how))
    assert size == pytest.approx(measured, rel=0.035)
    assert measured < upper < 1.25 * measured


@pytest.mark.parametrize("how", [{"selective": True}, {"selective": False, "checkpointing": True}])
def test_checkpointing_keeps_the_same_in_float8(how: dict[str, Any]) -> None:
    """Selective checkpointing keeps results of products, which are in half precision, and full a block's input."""
    plain = workload(**how)
    batch = training.micro_batch(plain)

    def kept(planned: Workload) -> int:
        return training.blocks(planned, Rank.of(planned), batch).kept

    assert kept(workload(float8=ROWWISE, **how)) == kept(plain)
    # near miss: without checkpointing the compiler keeps fewer inputs
    assert kept(workload(float8=ROWWISE, selective=False)) < 0.72 * kept(workload(selective=False))


@pytest.mark.parametrize(("float8", "less"), [(TENSORWISE, 29.72), (ROWWISE, 29.25)])
def test_a_public_14b_model_held_as_much_less_without_checkpointing(float8: Float8, less: float) -> None:
    """torchao issue 4101: 99.36 GiB in half precision, 69.64 and 70.11 GiB in float8, 16,384 tokens, compiled."""
    shape = by_name("qwen3-14b")
    assert shape is not None

    def of(**how: Any) -> float:
        made = workload(selective=False, system="torchtitan", **how)
        return reserved(replace(made, model=shape, rollout=replace(made.rollout, max_answer=16384)))[0]

    assert of() - of(float8=float8) == pytest.approx(less, rel=0.1)


def test_a_bound_holds_if_the_compiler_keeps_inputs_as_they_are() -> None:
    plain, float8 = workload(selective=False), workload(selective=False, float8=ROWWISE)
    saved = {
        each.trainer.float8 is not None: next(
            item for item in training.train(each, training.micro_batch(each)) if item.item == "saved activations"
        )
        for each in (plain, float8)
    }
    assert saved[True].bytes < saved[False].bytes <= saved[True].upper


def test_weights_gathered_in_float8_are_a_byte_each_but_for_the_head() -> None:
    linears = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336
    plain, half, byte = (
        training.gathered(each, Rank.of(each))
        for each in (workload(), workload(float8=ROWWISE), workload(float8=TENSORWISE))
    )
    assert half == plain
    assert half.blocks - byte.blocks == 2 * linears
    assert half.loss - byte.loss == linears
    assert byte.head_gradients == plain.head_gradients


def test_run_as_python_says_a_cast_makes_two_fp32_tensors() -> None:
    """The widest one is the input of the down projection, in forward and backward."""
    plain, float8 = (
        Rank.of(workload(kernels="eager", selective=False, float8=each)).groups[0].replay for each in (None, ROWWISE)
    )
    counts = training.micro_batch(workload()).counts
    assert float8.kept == plain.kept
    assert float8.backward.at(counts) > plain.backward.at(counts) + 4 * 14336 * 8192


def test_sharded_gradients_have_a_pool_of_their_own() -> None:
    eight, many = workload(rows=2), workload(devices=128, rows=2)
    difference = (reserved(eight)[0] - reserved(many)[0]) * GIB
    assert difference == pytest.approx(16 * LLAMA_8B.parameters() * (1 / 8 - 1 / 128), rel=0.02)
    # near misses: in the bound alone where the loss is compiled, and nothing on one rank
    later = workload(rows=2, system="torchtitan")
    assert training.gradient_pool([], Rank.of(later)) == (0, Rank.of(later).gradients)
    assert training.gradient_pool([], Rank.of(workload(devices=1))) == (0, 0)


def test_float8_is_set_by_key() -> None:
    found = apply(workload(), ["trainer.float8.recipe=rowwise"])
    assert found.trainer.float8 == Float8("rowwise")
    assert apply(found, ["trainer.float8=none"]) == replace(found, trainer=replace(found.trainer, float8=None))


def test_torchtitan_is_a_trainer_by_name() -> None:
    """Its own rule keeps results of every second product; compiled it is what was measured on B200."""
    made = presets.workload(LLAMA_8B, "torchtitan", ["layout.devices=8", "trainer.rows=1", "rollout.max_answer=8192"])
    assert (made.trainer.system, made.trainer.selective, made.layout.shards) == ("torchtitan", True, 8)
    compiled = apply(made, ["trainer.kernels=fused", "rollout.prompts=8"])
    assert reserved(compiled)[0] == pytest.approx(33.71, rel=0.035)
    # near miss: the loss that is not compiled has fp32 logits, as FSDP 2 has them
    assert reserved(apply(made, ["rollout.prompts=8"]))[0] > reserved(compiled)[0] + 6
