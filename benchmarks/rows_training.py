"""Rows of trainers of other systems than Megatron: from a row to a Workload, and what the planner says of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from headway.facts.shapes import ModelShape
from headway.facts.workload import Float8, Layout, Lora, Optimizer, Quant, Rollout, Trainer, Workload
from headway.plan.ledger import Ledger, Phase, Quantity
from headway.plan.plan import DEVICE, HOST, plan
from prediction import NotCovered, Prediction, Row, need, section
from row_shapes import row_shape

OTHERS = ("megatron", "nemo", "headway", "slime")
"""Trainers with layouts of their own, which are not predicted here; a system without a row runs as a plain one."""
FUSED_STEP = ("torchtune", "torchao", "torchtitan", "fsdp2")
"""Systems whose recipes set `fused=True`; torch's own default is foreach."""
DTYPES = {"fp32": "fp32", "bf16": "bf16", "fp16": "fp16", "fp8": "bf16"}
QUANTS = {
    "nf4": "nf4",
    "fp4": "nf4",
    "gptq-int4": "int4",
    "int4": "int4",
    "awq-int4": "int4",
    "int8": "int8",
    "fp8": "fp8",
}
LOSSES = {"torch": "logits", "fused": "fused", "chunked": "logits-chunks"}
WITHOUT_DROPOUT = ("peft", "torchtune", "trl", "unsloth")
"""Systems whose adapters have no dropout unless they are told; the scripts of the others set 0.05 or 0.1."""
FUSED_CHUNK = 256


def covers(row: Row) -> bool:
    """Whether a row is of a trainer that this file predicts: no loss alone, no Megatron."""
    trainer = section(row, "trainer")
    return bool(trainer) and trainer.get("system") not in OTHERS and section(row, "measured").get("phase") != "loss"


def predict(row: Row) -> Prediction:
    """The row's own quantity, expected and upper; NotCovered with the reason where its configuration is not."""
    quantity = section(row, "measured").get("quantity")
    if quantity == "host":
        return _on_host(row)
    ledger = plan_of(row)
    if quantity in ("states", "weights"):
        size = sum(line.bytes for line in ledger.select(DEVICE, Phase.STEP) if line.item in _STATES[quantity])
        return Prediction(size, round(size * 1.02))
    if quantity not in ("allocated", "reserved", "device_used"):
        raise NotCovered(f"measured.quantity {quantity!r} of a trainer")
    also = tuple(
        (name, _measured(row, ledger, name)) for name in ("allocated", "reserved", "device_used") if name != quantity
    )
    expected = _measured(row, ledger, quantity)
    return Prediction(expected.bytes, expected.upper, also)


def _on_host(row: Row) -> Prediction:
    """The highest phase of a node's host memory; a save counts unless the row says "train"."""
    ledger = plan(replace(workload(row), save=True))
    phase = section(row, "measured").get("phase")
    chosen = {"train": (Phase.TRAIN, Phase.STEP), "load": (Phase.LOAD,), "init": (Phase.LOAD,)}.get(str(phase))
    found = [ledger.peak_of(HOST, phase) for phase in chosen or ledger.phases(HOST)]
    return Prediction(max(peak.bytes for peak in found), max(peak.upper for peak in found))


_STATES = {
    "weights": ("weights", "adapters"),
    "states": ("weights", "adapters", "optimizer moments", "fp32 master", "gradients"),
}


def plan_of(row: Row) -> Ledger:
    """The whole ledger of a row."""
    return plan(workload(row))


def _measured(row: Row, ledger: Ledger, quantity: Quantity) -> Prediction:
    """The highest phase as that counter shows it; loading alone where the row says that only that was measured."""
    phases = ledger.phases(DEVICE)
    if section(row, "measured").get("phase") in ("init", "load"):
        phases = (Phase.LOAD,)
    found = [ledger.measured_as(DEVICE, phase, quantity) for phase in phases]
    return Prediction(max(size for size, _ in found), max(upper for _, upper in found))


def workload(row: Row) -> Workload:
    """The run that a row describes."""
    trainer = section(row, "trainer")
    if not trainer.get("system") or trainer["system"] in OTHERS:
        raise NotCovered(f"trainer.system {trainer.get('system')!r}")
    shape = row_shape(section(row, "model"))
    layout = _layout(section(row, "layout"))
    batch = Rows(1, 1, 1) if section(row, "measured").get("phase") in ("init", "load") else _rows(row, layout)
    return Workload(
        shape, _trainer(row, shape, batch), batch.rollout(layout), "cuda", 1, 0, "exact", 0, "json", 0, 3,
        save=False, tensorboard=False, layout=layout,
    )  # fmt: skip


@dataclass(frozen=True)
class Rows:
    """The micro-batch of a row: samples, tokens of each, and micro-batches of an optimizer step."""

    samples: int
    tokens: int
    accumulated: int

    def rollout(self, layout: Layout) -> Rollout:
        """Samples of a whole optimizer step, over all ranks that take different ones."""
        ranks = max(1, layout.shards * layout.replicas // layout.context)
        return Rollout(self.samples * self.accumulated * ranks, 1, 0, self.tokens, 0, 0, 1)


def _rows(row: Row, layout: Layout) -> Rows:
    trainer = section(row, "trainer")
    samples = int(trainer.get("micro_batch") or 1)
    length = trainer.get("seq_len")
    if not length and trainer.get("tokens_per_micro_batch"):
        length = int(trainer["tokens_per_micro_batch"]) // samples
    if not length:
        raise NotCovered("trainer has neither seq_len nor tokens_per_micro_batch")
    accumulated = trainer.get("accumulation")
    if not accumulated:
        ranks = max(1, layout.shards * layout.replicas // layout.context)
        accumulated = max(1, int(trainer.get("global_batch") or 0) // (samples * ranks))
    return Rows(samples, int(length), int(accumulated))


def _trainer(row: Row, shape: ModelShape, batch: Rows) -> Trainer:
    trainer = section(row, "trainer")
    system = _system(row)
    recompute = section(trainer, "recompute")
    granularity = recompute.get("granularity", "none")
    partial = recompute.get("layers")
    if granularity == "full" and partial and int(partial) < shape.layers:
        raise NotCovered("checkpointing of a part of the layers")
    attention = str(trainer.get("attention") or "sdpa")
    lora = _lora(trainer, system)
    if lora is None and trainer.get("mode") in ("lora", "qlora", "dora"):
        raise NotCovered("trainer.mode is an adapter's, but trainer.lora is absent")
    return Trainer(
        param_dtype=_dtype(trainer.get("param_dtype"), "bf16"), lora=lora, reference="none",
        cap=batch.tokens * batch.samples, checkpointing=granularity == "full",
        attention="eager" if attention == "eager" else "flash" if attention == "flash" else "sdpa",
        logprob_chunk=FUSED_CHUNK, entropy=False, updates=1, system=system, rows=batch.samples,
        compute_dtype=_dtype(trainer.get("compute_dtype"), None), grad_dtype=_dtype(trainer.get("grad_dtype"), None),
        quant=_quant(trainer), float8=_float8(trainer), optimizer=_optimizer(trainer),
        loss=LOSSES.get(str(trainer.get("loss") or "torch"), "logits"),
        kernels="fused" if trainer.get("compile") else "eager", selective=granularity == "selective",
    )  # fmt: skip


def _system(row: Row) -> str:
    """The system; torchtitan's release of 2025 compiles the loss too, and runs on Blackwell are of no older one.

    What torchao measured of sharded training are runs of torchtitan, as its pages on float8 say.
    """
    system = str(section(row, "trainer")["system"])
    if system == "torchao" and int(section(row, "layout").get("fsdp_shards") or 1) > 1:
        system = "fsdp2"
    device = str(section(row, "machine").get("device") or "")
    return "torchtitan" if system == "fsdp2" and device.startswith(BLACKWELL) else system


BLACKWELL = ("B200", "B300", "GB200", "GB300")


def _dtype(value: Any, default: Any) -> Any:
    if value is None:
        return default
    if value not in DTYPES:
        raise NotCovered(f"dtype {value!r}")
    return DTYPES[value]


def _lora(trainer: Mapping[str, Any], system: str) -> Lora | None:
    lora = section(trainer, "lora")
    if not lora or not lora.get("rank"):
        return None
    targets = lora.get("targets", "all-linear")
    return Lora(
        rank=need(lora, "rank", of="trainer.lora"),
        targets=targets if isinstance(targets, str) else tuple(targets),
        dtype=_dtype(lora.get("dtype"), "fp32"), embeddings=bool(lora.get("modules_to_save")),
        dropout=system not in WITHOUT_DROPOUT, magnitude=trainer.get("mode") == "dora",
    )  # fmt: skip


def _float8(trainer: Mapping[str, Any]) -> Float8 | None:
    """torchao's default, tensorwise, where the row says float8; that weights are gathered in it no row says."""
    return Float8() if trainer.get("compute_dtype") == "fp8" else None


def _quant(trainer: Mapping[str, Any]) -> Quant | None:
    quant = section(trainer, "base_quant")
    if not quant:
        return None
    if quant.get("kind") not in QUANTS:
        raise NotCovered(f"base_quant.kind {quant.get('kind')!r}")
    # torchtune's nf4 has its scales quantised always
    double = bool(quant.get("double")) or trainer.get("system") == "torchtune"
    return Quant(QUANTS[quant["kind"]], double)


def _optimizer(trainer: Mapping[str, Any]) -> Optimizer:
    optimizer = section(trainer, "optimizer")
    kind = str(optimizer.get("kind") or "adamw")
    kind = "adamw" if kind.startswith(("adam", "paged_adam")) else kind
    if kind not in ("adamw", "adafactor", "sgd", "muon", "lion"):
        raise NotCovered(f"optimizer.kind {kind!r}")
    state = optimizer.get("state_dtype") or trainer.get("param_dtype") or "fp32"
    low = {"int8": "int8", "int4": "int4", "bf16": "bf16", "fp16": "bf16"}.get(str(state), "fp32")
    foreach = optimizer.get("foreach")
    if foreach is None:
        foreach = trainer.get("system") not in FUSED_STEP
    return Optimizer(
        kind=kind, state_dtype=low, master=trainer.get("master_dtype") == "fp32",
        step="blocks" if low in ("int8", "int4") else "foreach" if foreach else "fused",
        in_backward=bool(optimizer.get("in_backward")), paged=bool(optimizer.get("paged")),
        offload=float(optimizer.get("cpu_offload") or 0.0),
    )  # fmt: skip


ZERO: Mapping[Any, Any] = {1: "optimizer", 2: "gradients"}


def _layout(layout: Mapping[str, Any]) -> Layout:
    gpus, nodes = int(layout.get("gpus") or 1), int(layout.get("nodes") or 1)
    tensor, pipeline, context = (int(layout.get(key) or 1) for key in ("tp", "pp", "cp"))
    data = int(layout.get("dp") or max(1, gpus // (tensor * pipeline * context)))
    stage = layout.get("zero_stage")
    shards = int(layout.get("fsdp_shards") or (data * context if stage == 3 else 1))
    replicas = max(1, data * context // shards)
    return Layout(
        nodes, max(1, gpus // nodes), shards, replicas, tensor, context, pipeline,
        bool(layout.get("sequence_parallel", True)), zero=ZERO.get(stage, "none"),
    )  # fmt: skip
