"""Trainers of other systems: measured rows, the optimizer's step in torch, and what must hold for every run."""

import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from torch import nn

import rows_training
from headway.facts.shapes import by_name, table
from headway.facts.workload import Layout, Lora, Optimizer, Quant, Rollout, Trainer, Workload
from headway.foreign import presets
from headway.plan import offload, training
from headway.plan.ledger import Phase
from headway.plan.losses import Loss
from headway.plan.plan import DEVICE, HOST, plan
from headway.plan.rank import Rank

from ..train.live_bytes import LiveBytes

ROWS = [
    json.loads(line)
    for line in (Path(__file__).parents[2] / "data" / "measured" / "trainers.jsonl").read_text().splitlines()
]
"""Public measurements; each names its source."""
MEASURED = [row for row in ROWS if row["measured"].get("bytes")]
TOLERANCE = {"allocated": 0.12, "reserved": 0.12, "device_used": 0.12}


def identity(row: dict[str, Any]) -> str:
    return f"{row['id']} {row['trainer']['system']} {row['trainer']['mode']}"


@pytest.mark.parametrize("row", MEASURED, ids=identity)
def test_a_measured_run_is_near_its_prediction_and_under_its_bound(row: dict[str, Any]) -> None:
    found, measured = rows_training.predict(row), row["measured"]["bytes"]
    assert found.bytes == pytest.approx(measured, rel=TOLERANCE[row["measured"]["quantity"]])
    assert measured <= found.upper <= 1.7 * measured


@pytest.mark.parametrize("row", [row for row in ROWS if row not in MEASURED], ids=identity)
def test_a_run_that_did_not_fit_has_a_bound_above_its_device(row: dict[str, Any]) -> None:
    assert rows_training.predict(row).upper > row["machine"]["device_bytes"]


def test_measured_runs_as_a_whole() -> None:
    errors, ratios = [], []
    for row in MEASURED:
        found = rows_training.predict(row)
        errors.append(abs(found.bytes / row["measured"]["bytes"] - 1))
        ratios.append(found.upper / row["measured"]["bytes"])
    assert median(errors) < 0.03
    assert median(ratios) < 1.2


def workload(**changes: Any) -> Workload:
    """Full fine-tuning of a small Qwen3 in bf16, two samples of 512 tokens; changes by the name of a field."""
    shape = by_name("qwen3-0.6b")
    assert shape is not None
    trainer = Trainer(
        "bf16", None, "none", 1024, False, "sdpa", 256, entropy=False, updates=1, system="hf", rows=2, loss="logits",
        optimizer=Optimizer(state_dtype="bf16", master=False, step="foreach"),
    )  # fmt: skip
    base = Workload(
        shape, trainer, Rollout(2, 1, 0, 512, 0, 0, 1), "cuda", 1, 0, "exact", 0, "json", 0, 3, save=False,
        tensorboard=False,
    )  # fmt: skip
    names = set(Trainer.__struct_fields__)
    inner = {name: value for name, value in changes.items() if name in names}
    outer = {name: value for name, value in changes.items() if name not in names}
    return replace(base, trainer=replace(trainer, **inner), **outer)


def total(items: list[Any]) -> int:
    return sum(item.bytes for item in items)


@pytest.mark.parametrize("foreach", [True, False])
def test_adamw_in_torch_holds_the_planned_states_and_temporaries(foreach: bool) -> None:
    sizes = [(64, 256), (256, 64), (128, 128), (512, 96)]
    parameters = [nn.Parameter(torch.randn(size).bfloat16()) for size in sizes]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    known = [*parameters, *(parameter.grad for parameter in parameters)]
    count = sum(parameter.numel() for parameter in parameters)
    optimizer = torch.optim.AdamW(parameters, foreach=foreach)
    with LiveBytes(*known) as counted:
        optimizer.step()
        states = counted.live
        counted.peak = counted.live
        optimizer.step()
    planned = workload(optimizer=Optimizer(state_dtype="bf16", master=False, step="foreach" if foreach else "blocks"))
    scale = count / planned.model.parameters()
    moments = training.states(planned, stepped=True)[1]
    assert moments.item == "optimizer moments"
    assert moments.bytes * scale == pytest.approx(states, rel=0.01)
    temporaries = next(item for item in training.step(planned) if item.item == "temporaries")
    if foreach:
        assert temporaries.bytes * scale == pytest.approx(counted.peak - states, rel=0.01)
    else:
        largest = max(parameter.numel() for parameter in parameters)
        assert counted.peak - states <= 2 * 4 * largest
        assert temporaries.bytes == 2 * 4 * planned.model.embedding_parameters()


@pytest.mark.parametrize(
    ("optimizer", "bytes_each"),
    [
        (Optimizer(state_dtype="fp32"), 8 + 4),
        (Optimizer(state_dtype="bf16", master=False), 4),
        (Optimizer(state_dtype="int8", master=False), 2 * (1 + 4 / 256)),
        (Optimizer(state_dtype="int4", master=False), 2 * (0.5 + 4 / 128)),
        (Optimizer("adafactor", master=False), 0),
        (Optimizer("sgd", master=False), 0),
        (Optimizer("lion", "bf16", master=False), 2),
        (Optimizer(state_dtype="fp32", master=False, offload=0.5), 4),
    ],
)
def test_optimizers_keep_their_states(optimizer: Optimizer, bytes_each: float) -> None:
    planned = workload(optimizer=optimizer)
    grown = total(training.states(planned, stepped=True)) - total(training.states(planned, stepped=False))
    assert grown == pytest.approx(planned.model.parameters() * bytes_each, rel=1e-6, abs=1)


def test_an_optimizer_in_the_backward_pass_leaves_no_gradients_to_the_step() -> None:
    held, freed = (
        workload(optimizer=Optimizer(in_backward=each), checkpointing=True, rows=1) for each in (False, True)
    )
    assert "gradients" in [item.item for item in training.step(held)]
    assert training.step(freed) == []
    batch = training.micro_batch(held)
    assert total(training.train(freed, batch)) < total(training.train(held, batch)) - held.model.parameters()


def test_paged_state_is_outside_the_allocator_and_may_be_on_the_device() -> None:
    ledger = plan(workload(optimizer=Optimizer(state_dtype="int8", master=False, paged=True)))
    line = next(line for line in ledger.select(DEVICE, Phase.TRAIN) if line.item == "paged optimizer")
    assert (line.quantity, line.bytes) == ("device_used", 0)
    assert line.upper == pytest.approx(2 * 596_049_920 * (1 + 4 / 256), rel=1e-6)
    assert any(line.item == "offloaded optimizer" for line in ledger.select(HOST, Phase.TRAIN))


def test_offload_under_fsdp_leaves_no_states_on_the_device() -> None:
    optimizer = Optimizer(state_dtype="bf16", master=False, offload=1.0)
    planned = workload(system="fsdp1", optimizer=optimizer, layout=Layout(devices=2, shards=2))
    assert training.states(planned, stepped=True) == []
    half = planned.model.parameters() // 2
    found = {item.item: item.bytes for item in offload.host_states(planned)}
    assert found["offloaded optimizer"] == half * 4
    assert found["offloaded weights"] == found["offloaded gradients"]
    # pinned: each tensor is rounded up to a power of two
    assert half * 2 <= found["offloaded weights"] < half * 4


def test_logits_of_fp32_weights_are_not_halved_because_a_master_could_be_there() -> None:
    """TRL's preset has fp32 weights under autocast: 12 B a logit, as transformers' loss has it; a master beside
    half-precision weights is DeepSpeed's, which leaves nothing to cast."""
    run = presets.workload(by_name("qwen3-4b"), "trl")
    half = replace(run, trainer=replace(run.trainer, param_dtype="bf16", compute_dtype=None, grad_dtype="bf16"))
    cells = 8 * run.rollout.longest * run.model.vocab

    def per_logit(planned: Workload) -> float:
        rank, batch = Rank.of(planned), training.micro_batch(planned)
        return training.loss_bytes(planned, rank, batch)[1] / cells

    assert per_logit(run) == 12
    assert per_logit(half) == 6


def test_ligers_loss_holds_a_chunk_and_parts_of_the_heads_gradient() -> None:
    """The same as the loss alone holds (`plan/losses.py`), which torch counts."""
    made = workload(system="trl", loss="fused", rows=4)
    batch, shape = training.micro_batch(made), made.model

    def held(planned: Workload) -> tuple[int, int, int]:
        return training.loss_bytes(planned, Rank.of(planned), batch)

    parts = dict(Loss("head-fused-cast", batch.tokens, shape.vocab, shape.hidden).parts())
    outside = ("workspace", "head matrices", "hidden states", "gradients of the call before")
    assert held(made)[0] == sum(size for name, size in parts.items() if name not in outside)
    # near misses: a frozen head has no gradient, and log-probs of a sample are one chunk
    frozen = replace(made, trainer=replace(made.trainer, lora=Lora(8, "all-linear", "bf16")))
    assert held(frozen)[0] == parts["a chunk's logits"] + parts["states' gradient"]
    scoring = replace(frozen, trainer=replace(frozen.trainer, scores=True))
    assert held(scoring)[0] == 10 * batch.longest * shape.vocab + parts["states' gradient"]
    # log-probs without a loss are made of all logits
    plain = replace(scoring, trainer=replace(scoring.trainer, loss="logits"))
    assert training.score(scoring, batch) == training.score(plain, batch)


@pytest.mark.parametrize("loss", ["fused", "hidden-chunks"])
def test_a_loss_from_hidden_states_leaves_the_head_no_gradient_of_logits(loss: str) -> None:
    made = workload(system="trl", rows=4)
    batch = training.micro_batch(made)

    def head(how: str) -> int:
        planned = replace(made, trainer=replace(made.trainer, loss=how, logprob_chunk=64))
        return next(each.logits for each in training.moments(planned, batch) if each.at == "head, backward")

    assert (head(loss), head("logits")) == (0, 2 * batch.tokens * made.model.vocab)


@pytest.mark.parametrize("system", ["hf", "fsdp1", "fsdp2", "litgpt", "torchtitan", "deepspeed"])
def test_every_model_of_the_table_has_a_plan(system: str) -> None:
    for name, shape in table().items():
        for lora in (None, Lora(16, "all-linear", "bf16", dropout=True)):
            planned = workload(model=shape, system=system, lora=lora, layout=Layout(devices=2, shards=2))
            peak = plan(planned).peak(DEVICE)
            assert shape.parameters() < peak.bytes <= peak.upper, name


def test_gradients_that_are_divided_only_at_the_end_of_a_step_are_whole_until_then() -> None:
    once, often = (
        workload(system="litgpt", layout=Layout(devices=2, shards=2), rollout=Rollout(samples, 1, 0, 512, 0, 0, 1))
        for samples in (4, 16)
    )
    batch = training.micro_batch(once)
    count = once.model.parameters()
    gradients = [max(moment.gradients for moment in training.moments(each, batch)) for each in (once, often)]
    assert gradients == [count, 2 * count]


def test_zero_divides_the_optimizers_state_and_then_the_gradients_over_replicas() -> None:
    plain, first, second = (
        workload(layout=Layout(devices=4, replicas=4, zero=stage)) for stage in ("none", "optimizer", "gradients")
    )
    count = plain.model.parameters()
    assert total(training.states(plain, stepped=True)) == (2 + 4) * count
    assert total(training.states(first, stepped=True)) == total(training.states(second, stepped=True)) == 3 * count
    assert training.gradient_bytes(first) == training.gradient_bytes(plain) == 2 * count
    assert training.gradient_bytes(second) == count // 2


def test_trained_norms_of_weights_keep_both_results() -> None:
    lora = Lora(8, ("v_proj",), "bf16")
    plain, normed = (workload(lora=replace(lora, magnitude=each)) for each in (False, True))
    batch = training.micro_batch(plain)
    saved = [
        next(item.bytes for item in training.train(each, batch) if item.item == "saved activations")
        for each in (plain, normed)
    ]
    shape = plain.model
    assert saved[1] - saved[0] == 2 * 2 * shape.kv_width * batch.tokens * shape.layers


def test_a_trainer_that_counts_tokens_takes_the_longest_sample_alone_if_it_is_over_the_cap() -> None:
    planned = workload(rows=0, cap=256, rollout=Rollout(4, 1, 100, 412, 0, 0, 1))
    batch = training.micro_batch(planned)
    assert (batch.tokens, batch.responses) == (512, 512)
    assert training.micro_batch(workload(rows=0, cap=1536, rollout=planned.rollout)).tokens == 1536


def test_miles_keeps_sixteen_bytes_a_parameter_and_twenty_in_its_step() -> None:
    """fp32 parameters, gradients that stay, two moments; foreach temporaries of one list: facts of its FSDP actor."""
    planned = workload(
        system="miles-fsdp", param_dtype="fp32", compute_dtype="bf16", grad_dtype="fp32", gradients_stay=True,
        optimizer=Optimizer(master=False, step="foreach"), rows=0,
    )  # fmt: skip
    count = planned.model.parameters()
    held = training.states(planned, stepped=True)
    assert total(held) + training.gradient_bytes(planned) == 16 * count
    assert total(held) + total(training.step(planned)) == 20 * count
    batch = training.micro_batch(planned)
    lines = {item.item: item.bytes for item in training.train(planned, batch)}
    assert lines["logits"] == (2 + 2 + 4) * 1024 * planned.model.vocab
    assert lines["gradients"] == 4 * count
    assert {item.item for item in training.score(planned, batch)} >= {"gradients", "gathered blocks", "logits"}


TRAINERS = st.fixed_dictionaries({
    "system": st.sampled_from(["hf", "fsdp1", "fsdp2", "torchtune", "litgpt", "deepspeed", "miles-fsdp"]),
    "lora": st.sampled_from([None, Lora(8, "all-linear", "bf16", dropout=True), Lora(16, "attention")]),
    "checkpointing": st.booleans(), "attention": st.sampled_from(["sdpa", "eager", "flash"]),
    "kernels": st.sampled_from(["eager", "fused"]), "rows": st.integers(0, 4),
    "loss": st.sampled_from(["logits", "logits-chunks", "fused", "hidden-chunks"]),
    "quant": st.sampled_from([None, Quant("nf4"), Quant("int4")]),
})  # fmt: skip


@given(TRAINERS, st.integers(1, 64), st.integers(2, 4))
def test_more_shards_never_raise_a_ranks_states(found: dict[str, Any], shards: int, times: int) -> None:
    found = found if found["lora"] else {**found, "quant": None}
    few, many = (
        workload(**found, layout=Layout(devices=number, shards=number)) for number in (shards, shards * times)
    )
    padding = 8  # a byte for each item that is rounded up
    assert total(training.states(many, stepped=True)) <= total(training.states(few, stepped=True)) + padding
    assert training.gradient_bytes(many) <= training.gradient_bytes(few) + padding


@given(TRAINERS, st.integers(1, 4096), st.integers(1, 4096))
def test_longer_samples_never_lower_a_peak(found: dict[str, Any], length: int, more: int) -> None:
    found = found if found["lora"] else {**found, "quant": None}
    short, long = (
        plan(workload(**found, rollout=Rollout(2, 1, 0, tokens, 0, 0, 1))) for tokens in (length, length + more)
    )
    assert short.peak(DEVICE).bytes <= long.peak(DEVICE).bytes
    assert short.upper(DEVICE) <= long.upper(DEVICE)


@given(TRAINERS)
def test_a_phase_is_the_sum_of_its_lines_and_no_line_is_over_its_bound(found: dict[str, Any]) -> None:
    ledger = plan(workload(**(found if found["lora"] else {**found, "quant": None})))
    assert {Phase.LOAD, Phase.TRAIN, Phase.STEP} == set(ledger.phases(DEVICE))
    for phase in ledger.phases(DEVICE):
        lines = ledger.select(DEVICE, phase)
        assert ledger.peak_of(DEVICE, phase).bytes == sum(line.bytes for line in lines)
        assert all(0 <= line.bytes <= line.upper for line in lines)
        device = ledger.measured_as(DEVICE, phase, "device_used")
        assert ledger.measured_as(DEVICE, phase, "allocated")[0] <= ledger.measured_as(DEVICE, phase, "reserved")[0]
        assert device == (ledger.peak_of(DEVICE, phase).bytes, ledger.peak_of(DEVICE, phase).upper)


def test_a_trainer_that_generates_by_itself_holds_the_cache_of_its_part_of_the_samples() -> None:
    """TRL without an engine: 16 samples of 1,024 tokens over 2 ranks, in half precision."""
    shape = table()["qwen3-0.6b"]
    sets = ("layout.devices=2", "layout.replicas=2", "rollout.prompts=2", "rollout.max_answer=512")
    ledger = plan(presets.workload(shape, "trl", sets))
    (cache,) = [line for line in ledger.select("node[0].device[0]", Phase.ROLLOUT) if line.item == "KV cache"]
    assert cache.bytes == 8 * 1024 * 2 * shape.layers * shape.kv_width * 2
    held = {line.item for line in ledger.select("node[0].device[0]", Phase.ROLLOUT)}
    assert {"weights", "optimizer moments", "reserved beyond"} <= held
    assert "gradients" not in held
    shared = plan(presets.workload(shape, "trl", (*sets, "layout.replicas=1", "layout.shards=2")))
    gathered = [line for line in shared.select("node[0].device[0]", Phase.ROLLOUT) if line.item == "gathered blocks"]
    assert [line.bytes for line in gathered] == [2 * shape.parameters()]
    assert Phase.ROLLOUT not in plan(presets.workload(shape, "hf")).first_step
