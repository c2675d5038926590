"""Planned bytes of forward and backward passes against a count of what the trainer's own model holds."""

import pytest
import torch
from msgspec.structs import replace

from headway.config.sections import LoraSection, ModelSection
from headway.config.source import ModelSource
from headway.facts.shapes import by_name
from headway.facts.workload import Lora, Rollout, Trainer, Workload
from headway.plan.activations import Batch
from headway.plan.passes import highest, scoring_moments, training_moments
from headway.train.logprob import token_logprobs
from headway.train.lora import add_adapters
from headway.train.model import backbone, head_weight, load, set_checkpointing

from ..train.live_bytes import LiveBytes

ROWS, LONGEST, ANSWER, CHUNK, LAYERS = 4, 64, 32, 16, 4
BATCH = Batch(ROWS, LONGEST, ROWS * ANSWER)


def workload(name: str, dtype: str, rank: int, *, checkpointing: bool, attention: str = "sdpa") -> Workload:
    shape = by_name(name)
    assert shape is not None
    lora = Lora(rank, "all-linear") if rank else None
    trainer = Trainer(dtype, lora, "none", 4096, checkpointing, attention, CHUNK, entropy=False, updates=1)
    rollout = Rollout(1, ROWS, LONGEST - ANSWER, ANSWER, 1 << 30, 0, 1)
    return Workload(
        replace(shape, layers=LAYERS), trainer, rollout, "cpu", 1, 0, "exact", 1 << 30, "task", 10, 2,
        save=True, tensorboard=False,
    )  # fmt: skip


def model(planned: Workload) -> torch.nn.Module:
    shape, trainer = planned.model, planned.trainer
    section = ModelSection(path=shape.name, init="random", dtype=trainer.param_dtype, attention=trainer.attention)
    built = load(ModelSource("random", shape.name, None, shape, 0), section, torch.device("cpu"), 0).model
    if trainer.lora is not None:
        built = add_adapters(built, LoraSection(rank=trainer.lora.rank), 0)
    set_checkpointing(built, trainer.checkpointing)
    return built.train()


def one_pass(built: torch.nn.Module, *, grad: bool) -> int:
    """Peak bytes of one micro-batch beside parameters and earlier gradients."""
    ids = torch.randint(0, 264, (ROWS, LONGEST))
    rows = torch.arange(ROWS).repeat_interleave(ANSWER)
    columns = torch.arange(LONGEST - ANSWER - 1, LONGEST - 1).repeat(ROWS)
    known = [*built.parameters(), *built.buffers()]
    known += [parameter.grad for parameter in built.parameters() if parameter.grad is not None]
    with torch.set_grad_enabled(grad), LiveBytes(*known) as counted:
        hidden = backbone(built)(input_ids=ids, use_cache=False).last_hidden_state
        states = hidden[rows, columns]
        del hidden
        values, _ = token_logprobs(states, head_weight(built), ids[rows, columns], 1.0, CHUNK, False)
        del states
        if grad:
            loss = values.mean()
            del values
            loss.backward()
    return counted.peak


CASES = [
    pytest.param(name, dtype, rank, checkpointing, marks=[] if "llama" in name or checkpointing else pytest.mark.slow)
    for name in ("tiny-llama", "tiny-qwen2", "tiny-qwen3", "tiny-gemma")
    for dtype, rank, checkpointing in (
        ("fp32", 0, False), ("fp32", 8, True), ("bf16", 0, True), ("bf16", 8, False),
    )
]  # fmt: skip


@pytest.mark.parametrize(("name", "dtype", "rank", "checkpointing"), CASES)
def test_training_holds_what_is_planned(name: str, dtype: str, rank: int, checkpointing: bool) -> None:
    planned = workload(name, dtype, rank, checkpointing=checkpointing)
    built = model(planned)
    first = highest(training_moments(planned, BATCH, accumulate=False))
    assert first.bytes == pytest.approx(one_pass(built, grad=True), rel=0.03)
    second = highest(training_moments(planned, BATCH, accumulate=True))
    assert second.bytes - second.gradients == pytest.approx(one_pass(built, grad=True), rel=0.03)


@pytest.mark.parametrize(("dtype", "rank", "checkpointing"), [("fp32", 0, True), ("bf16", 8, False)])
def test_eager_attention_holds_what_is_planned(dtype: str, rank: int, checkpointing: bool) -> None:
    planned = workload("tiny-llama", dtype, rank, checkpointing=checkpointing, attention="eager")
    first = highest(training_moments(planned, BATCH, accumulate=False))
    assert first.bytes == pytest.approx(one_pass(model(planned), grad=True), rel=0.03)


@pytest.mark.parametrize(("dtype", "rank"), [("fp32", 0), ("bf16", 8)])
def test_experts_hold_what_is_planned(dtype: str, rank: int) -> None:
    planned = workload("tiny-qwen3-moe", dtype, rank, checkpointing=False)
    first = highest(training_moments(planned, BATCH, accumulate=False))
    assert first.bytes == pytest.approx(one_pass(model(planned), grad=True), rel=0.04)


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-qwen3", "tiny-gemma"])
@pytest.mark.parametrize(("dtype", "rank"), [("fp32", 0), ("bf16", 0), ("bf16", 8)])
def test_scoring_holds_what_is_planned(name: str, dtype: str, rank: int) -> None:
    planned = workload(name, dtype, rank, checkpointing=True)
    top = highest(scoring_moments(planned, BATCH))
    assert top.bytes == pytest.approx(one_pass(model(planned), grad=False), rel=0.05)
