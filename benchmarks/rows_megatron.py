"""Rows of Megatron trainers: from a row to a Workload, and what the planner says of the rank that was measured."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from headway.facts.workload import Float8, Layout, Lora, Megatron, Optimizer, Recompute, Rollout, Trainer, Workload
from headway.plan.item import Item
from headway.plan.ledger import DEVICE_QUANTITIES, Phase, Quantity
from headway.plan.megatron import states
from headway.plan.megatron.phases import placed, tensors
from headway.plan.megatron.run import Run
from headway.plan.megatron.stages import Stage
from prediction import NotCovered, Prediction, Row, need, section
from row_shapes import row_shape

DTYPES = {"fp32": "fp32", "bf16": "bf16", "fp16": "fp16", "fp8": "bf16"}
OLDER_CORE = "0.12"
"""A release of early 2025, when most published values of Megatron's own tests were recorded."""
LOSSES = {"te-fused": "te", "fused": "native", "megatron": "unfused"}


def predict(row: Row) -> Prediction:
    """The row's own quantity on the rank that was measured, with its other figure of the same rank."""
    measured = section(row, "measured")
    quantity = measured.get("quantity")
    work = workload(row)
    run = Run.of(work)
    chosen = run.stages()[-1:] if measured.get("rank") == "last" else run.stages()
    if quantity in ("states", "weights"):
        names = ("weights",) if quantity == "weights" else ("weights", "gradient buffer", "optimizer state")
        found = [[item for item in states.items(run, each, stepped=True) if item.item in names] for each in chosen]
        size = max(sum(item.bytes for item in items) for items in found)
        return Prediction(size, round(1.02 * size))
    if quantity not in DEVICE_QUANTITIES:
        raise NotCovered(f"measured.quantity {quantity!r} of Megatron")
    if measured.get("when") == "end_of_step":
        return at_end(work, chosen)
    return peak(work, chosen, quantity)


def peak(work: Workload, chosen: tuple[Stage, ...], quantity: Quantity = "allocated") -> Prediction:
    """The highest phase of the highest of these stages, as that counter shows it."""
    counted = DEVICE_QUANTITIES[: DEVICE_QUANTITIES.index(quantity) + 1]
    found = [
        _sum(
            entry.item
            for entry in placed(work, stage, phase, tensors(work, stage, phase))
            if entry.quantity in counted
        )
        for stage in chosen
        for phase in (Phase.TRAIN, Phase.STEP)
    ]
    return max(found, key=lambda one: one.bytes)


def at_end(work: Workload, chosen: tuple[Stage, ...]) -> Prediction:
    """What stays between steps: states, dummies, workspaces."""
    found = [
        _sum(item for item in tensors(work, stage, Phase.STEP) if item.item != "temporaries") for stage in chosen
    ]
    return max(found, key=lambda one: one.bytes)


def _sum(items: Iterable[Item]) -> Prediction:
    found = list(items)
    return Prediction(sum(item.bytes for item in found), sum(item.upper for item in found))


def workload(row: Row) -> Workload:
    """The run that a row describes."""
    shape = row_shape(section(row, "model"))
    trainer, layout = section(row, "trainer"), _layout(row)
    if "CUDA graphs" in str(row.get("note") or ""):
        raise NotCovered("torch counts what runs in captured graphs only while it captures")
    recompute = section(trainer, "recompute")
    samples, length = int(trainer.get("micro_batch") or 1), int(trainer.get("seq_len") or 0)
    if not length and section(row, "measured").get("phase") in ("init", "load"):
        length = 1
    if not length:
        length = need(trainer, "tokens_per_micro_batch", of="trainer") // samples
    data = layout.ranks // (layout.tensor * layout.context * layout.pipeline)
    accumulated = int(trainer.get("accumulation") or int(trainer.get("global_batch") or 0) // (samples * data))
    if not accumulated:
        # a step that nothing bounds fills the pipeline
        accumulated = 2 * layout.pipeline
    # Transformer Engine takes FlashAttention on Ampere and cuDNN's attention on newer devices
    attention = str(trainer.get("attention") or "te")
    ampere = str(section(row, "machine").get("device") or "").startswith("A")
    whole = Trainer(
        param_dtype=dtype(trainer.get("param_dtype"), "bf16"), lora=_lora(trainer), reference="none",
        cap=samples * length, checkpointing=False,
        attention="eager" if attention == "eager" else "flash" if attention == "flash" or ampere else "sdpa",
        logprob_chunk=0, entropy=False, updates=1,
        system="slime" if trainer.get("mode") == "rl" else "megatron", rows=samples,
        grad_dtype=dtype(trainer.get("grad_dtype"), None), float8=_float8(row),
        optimizer=_optimizer(trainer, section(row, "layout")), loss="logits",
        recompute=_recompute(recompute),
        megatron=megatron(row),
    )  # fmt: skip
    rollout = Rollout(samples * accumulated * data, 1, 0, length, 0, 0, 1)
    return Workload(
        shape, whole, rollout, "cuda", 1, 0, "exact", 0, "json", 0, 3, save=False, tensorboard=False, layout=layout
    )


def _float8(row: Row) -> Float8 | None:
    """Of a row that computes in float8: the recipe that its note names, and no transposed copies on Blackwell."""
    if section(row, "trainer").get("compute_dtype") != "fp8":
        return None
    device, note = str(section(row, "machine").get("device") or ""), str(row.get("note") or "")
    recipe = "tensorwise" if "fp8 recipe: tensorwise" in note else "delayed"
    return Float8(recipe, transposed=not device.startswith(("B200", "B300", "GB200", "GB300")))


def _recompute(given: Mapping[str, Any]) -> Recompute:
    """Full recomputation of one layer at a time, or of the first so many layers."""
    layers = int(given.get("layers") or 0)
    method: Literal["uniform", "block"] = "block" if layers > 1 else "uniform"
    return Recompute(given.get("granularity") or "none", tuple(given.get("modules") or ()), method, layers)


def layout_says_fsdp(row: Row) -> bool:
    """Megatron's own FSDP divides parameters too."""
    return section(row, "layout").get("zero_stage") == 3


def megatron(row: Row) -> Megatron:
    """Implementation, fusions and dropout; a row without a word of them ran with what its note says."""
    trainer, note = section(row, "trainer"), str(row.get("note") or "")
    local = "local transformer implementation" in note
    recent = trainer.get("loss") == "te-fused"
    # Megatron-Bridge's recipes for adapters set its native cross entropy, and its configurations fuse no activation
    bridge = "Megatron-Bridge" in str(row.get("source")) and bool(trainer.get("lora"))
    return Megatron(
        implementation="local" if local else "te",
        # a run with Transformer Engine's cross entropy is of a recent release; the others do not say
        core_version="" if recent else OLDER_CORE,
        fused_gradients="fusion off" not in note,
        cross_entropy="native" if bridge else LOSSES.get(str(trainer.get("loss") or "megatron"), "unfused"),
        fused_activation=not bridge,
        hidden_dropout="dropout 0.1" in note, attention_dropout="dropout 0.1/0.1" in note,
        fsdp="optim_grads_params" if layout_says_fsdp(row) else "",
        context_exchange="a2a" if "a2a context" in note else "p2p",
        capacity=1.0 if "capacity factor 1" in note else 0.0,
        count_embedding="embedding counted as a layer: True" in note,
        count_loss="loss counted as a layer: True" in note,
    )  # fmt: skip


def dtype(value: Any, default: Any) -> Any:
    """A dtype's name here."""
    if value is None:
        return default
    if value not in DTYPES:
        raise NotCovered(f"dtype {value!r}")
    return DTYPES[value]


def _lora(trainer: Mapping[str, Any]) -> Lora | None:
    lora = section(trainer, "lora")
    if not lora.get("rank"):
        return None
    targets = lora.get("targets", "all-linear")
    return Lora(
        need(lora, "rank", of="trainer.lora"), targets if isinstance(targets, str) else tuple(targets), "bf16"
    )


def _optimizer(trainer: Mapping[str, Any], layout: Mapping[str, Any]) -> Optimizer:
    optimizer = section(trainer, "optimizer")
    kind = str(optimizer.get("kind") or "adamw")
    if kind not in ("adamw", "sgd", "muon", "lion"):
        raise NotCovered(f"optimizer.kind {kind!r}")
    state = "bf16" if optimizer.get("state_dtype") in ("bf16", "fp16") else "fp32"
    aware = state == "bf16" or trainer.get("master_dtype") in ("bf16", "fp16")
    return Optimizer(
        kind=kind, state_dtype=state, step="fused", offload=float(optimizer.get("cpu_offload") or 0.0),
        distributed=bool(layout.get("distributed_optimizer")), precision_aware=aware,
        master_dtype=dtype(trainer.get("master_dtype"), "fp32"),
    )  # fmt: skip


def _layout(row: Row) -> Layout:
    given = section(row, "layout")
    tensor, pipeline, context, data = (int(given.get(key) or 1) for key in ("tp", "pp", "cp", "dp"))
    gpus, nodes = int(given.get("gpus") or tensor * pipeline * context * data), int(given.get("nodes") or 1)
    return Layout(
        nodes=nodes, devices=max(1, gpus // nodes), tensor=tensor, context=context, pipeline=pipeline,
        sequence_parallel=bool(given.get("sequence_parallel")), expert_parallel=int(given.get("ep") or 1),
        expert_tensor=int(given["etp"]) if given.get("etp") else None,
        virtual_pipeline=max(1, int(given.get("vpp") or 1)),
    )  # fmt: skip
