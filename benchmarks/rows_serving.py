"""Predict measured rows of inference engines, of generation loops and of losses alone.

A row says in its keys what ran; only two things stand nowhere but in its `note`: whether nf4's scales are packed
again ("with double quantisation"), and whether a cache is made for all tokens at once ("sized to").
"""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from headway.facts.shapes import ModelShape
from headway.facts.workload import Dtype, Engine, Packed, Quant
from headway.plan.engine_sizes import KV_BYTES, KvDtype, kv_token_bytes
from headway.plan.engines import EngineMemory, engine_memory, vllm_defaults
from headway.plan.generation import CacheStyle, Generating, hf_generation
from headway.plan.item import Item
from headway.plan.losses import Loss, LossKind, loss_bytes
from headway.units import MIB
from prediction import NotCovered, Prediction, Row, figure_name, need, section
from row_shapes import row_shape

PLAIN: dict[str, Dtype] = {"fp32": "fp32", "bf16": "bf16", "fp16": "fp16"}
PACKED: dict[str, Packed] = {
    "nf4": "nf4",
    "int4": "int4",
    "gptq-int4": "int4",
    "awq": "int4",
    "int8": "int8",
    "fp8": "fp8",
    "mxfp4": "mxfp4",
}
BLOCK_TOKENS = 16
"""Tokens of a block of vLLM's pool, whose count is a multiple of it."""
COMPARED = {"pretrain": 2, "rl": 4}
"""Head matrices that a comparison of two variants holds: each its own, in RL a reference's too."""
COMPARING = ("torch", "liger")
LIGER = "liger"
"""Whose benchmark compares two variants, and leaves logits in the head's precision; its sources name it."""
DEVICE = 600 * MIB
"""CUDA context of a generation loop, where the row's counter is the device's."""


def is_loss(row: Row) -> bool:
    """Whether a row measures a loss alone: a trainer, no layers, and the phase says so."""
    return (
        "trainer" in row
        and not section(row, "model").get("layers")
        and section(row, "measured").get("phase") == "loss"
    )


def predict(row: Row) -> Prediction:
    """The row's own quantity, and those of its `also` that follow. NotCovered says why there is none."""
    if is_loss(row):
        return _loss(row)
    system = section(row, "engine").get("system")
    if system == "hf":
        return _generation(row)
    if system in ("vllm", "sglang"):
        return _engine(row)
    raise NotCovered(f"engine.system {system!r} is not planned")


def _precision(engine: Mapping[str, Any], note: str) -> tuple[Dtype, Quant | None]:
    name = str(engine.get("dtype", "bf16"))
    if name in PLAIN:
        return PLAIN[name], None
    if name not in PACKED:
        raise NotCovered(f"engine.dtype {name!r} is not planned")
    return "bf16", Quant(PACKED[name], double="with double" in note)


def _published(shape: ModelShape, quant: Quant | None) -> Quant | None:
    """The packing as the model is published: the four bits of gpt-oss are mxfp4's, on experts alone."""
    is_packed = shape.family == "gpt_oss" and quant is not None and quant.kind == "int4"
    return Quant("mxfp4") if is_packed else quant


def _kv_dtype(engine: Mapping[str, Any]) -> KvDtype:
    name = str(engine.get("kv_dtype", "bf16"))
    for known in KV_BYTES:
        if name == known:
            return known
    raise NotCovered(f"engine.kv_dtype {name!r} is not planned")


def _generation(row: Row) -> Prediction:
    engine, note = section(row, "engine"), str(row.get("note", ""))
    if int(section(row, "layout").get("gpus") or 1) > 1:
        raise NotCovered("a generation loop over several devices is not planned")
    dtype, quant = _precision(engine, note)
    style: CacheStyle = "sized" if "sized to" in note else "grown"
    prompt, new = int(engine.get("prompt_len") or 0), int(engine.get("new_tokens") or 0)
    if prompt + new < 1:
        raise NotCovered("engine has neither prompt_len nor new_tokens")
    shape = row_shape(section(row, "model"))
    run = hf_generation(
        shape, dtype, _published(shape, quant), batch=int(engine.get("batch") or 1), prompt=prompt,
        new_tokens=new, style=style, kv_dtype=_kv_dtype(engine),
    )  # fmt: skip
    return _answer(row, lambda entry: _of_generation(run, style, entry))


def _of_generation(run: Generating, style: CacheStyle, entry: Mapping[str, Any]) -> Prediction | None:
    quantity = entry.get("quantity")
    if quantity == "allocated":
        return Prediction(run.allocated, run.allocated_upper)
    if quantity == "reserved":
        if style == "sized":
            return Prediction(run.allocated * 51 // 50, run.allocated_upper * 11 // 10)
        return Prediction(run.reserved, run.reserved_upper)
    if quantity == "device_used":
        holes = run.cache.bytes if style == "grown" else 0
        return Prediction(run.allocated + holes + DEVICE, run.allocated_upper + holes * 5 // 4 + 2 * DEVICE)
    if quantity == "weights":
        return _of(run.weights)
    return _of(run.cache) if quantity == "kv_bytes" else None


def _engine(row: Row) -> Prediction:
    keys, machine, note = section(row, "engine"), section(row, "machine"), str(row.get("note", ""))
    system = keys["system"]
    dtype, quant = _precision(keys, note)
    total = int(machine.get("device_bytes") or 0)
    version = str(keys.get("version", ""))
    seqs, batched = vllm_defaults(total, version, device=str(machine.get("device", "")))
    kv_dtype = _kv_dtype(keys)
    engine = Engine(
        system, float(keys.get("memory_fraction") or 0.9), version=version, dtype=dtype,
        kv_dtype=kv_dtype if kv_dtype in ("bf16", "fp16", "fp8") else "bf16", quant=quant,  # type: ignore[arg-type]
        tensor_parallel=int(keys.get("tp") or 1), pipeline_parallel=int(keys.get("pp") or 1),
        max_length=int(keys.get("max_model_len") or 0), max_seqs=int(keys.get("max_seqs") or seqs),
        max_batched_tokens=int(keys.get("max_batched_tokens") or batched), graphs=not keys.get("eager", False),
    )  # fmt: skip
    shape, device = row_shape(section(row, "model")), str(machine.get("device", ""))
    engine = replace(engine, quant=_published(shape, quant))
    longest = engine.max_length or 4096
    memory = engine_memory(
        shape, engine, device_bytes=total, free_bytes=total, longest=longest, device=device,
        stage="first" if section(row, "measured").get("rank") in ("0", 0, "first") else "last",
    )  # fmt: skip
    used = _used(memory) if total else Prediction(0, 0)
    return _answer(row, lambda entry: _of_engine(row, shape, engine, memory, used, entry))


def _used(memory: EngineMemory) -> Prediction:
    """The device once weights and pools are there, before graphs are captured."""
    held = (memory.weights, memory.kv_bytes, memory.buffers, memory.context)
    return Prediction(sum(item.bytes for item in held), sum(item.upper for item in held))


def _of_engine(
    row: Row, shape: ModelShape, engine: Engine, memory: EngineMemory, used: Prediction, entry: Mapping[str, Any]
) -> Prediction | None:
    quantity, total = entry.get("quantity"), used.bytes
    if quantity == "weights":
        return _of(memory.weights)
    if quantity == "activation_peak":
        return _of(memory.activations)
    if quantity == "device_used" and entry.get("phase") == "non-torch":
        return _of(memory.buffers)
    if not total:
        return None
    if quantity == "kv_bytes":
        return _of(memory.kv_bytes)
    if quantity == "device_used":
        return used
    if quantity == "kv_tokens":
        return _tokens(row, shape, engine, memory)
    return None


def _tokens(row: Row, shape: ModelShape, engine: Engine, memory: EngineMemory) -> Prediction:
    """Tokens of the pool: of its measured bytes where the row has them, else of the predicted ones."""
    measured = section(row, "measured")
    pool = _measured(measured, "kv_bytes")
    for entry in row.get("also") or ():
        pool = pool or _measured(entry, "kv_bytes")
    token = kv_token_bytes(shape, engine.kv_dtype, tensor_parallel=engine.tensor_parallel)
    token = -(-token // engine.pipeline_parallel)
    tokens = (pool or memory.kv_bytes.bytes) // token
    most = (pool + pool // 100 if pool else memory.kv_bytes.upper) // token
    if engine.system == "vllm":
        tokens -= tokens % BLOCK_TOKENS
    return Prediction(tokens, most)


def _measured(entry: Any, quantity: str) -> int:
    if isinstance(entry, Mapping) and entry.get("quantity") == quantity and isinstance(entry.get("bytes"), int):
        return int(entry["bytes"])
    return 0


def _loss(row: Row) -> Prediction:
    model, trainer, measured = section(row, "model"), section(row, "trainer"), section(row, "measured")
    vocab = need(model, "vocab", of="model") // int(section(row, "layout").get("tp") or 1)
    tokens = need(trainer, "tokens_per_micro_batch", "seq_len", of="trainer")
    if measured.get("quantity") == "activation_peak":
        return Prediction(4 * tokens * vocab, 4 * tokens * vocab * 11 // 10)
    if measured.get("quantity") != "allocated":
        raise NotCovered(f"a loss's {measured.get('quantity')!r} is not planned")
    dtype = str(trainer.get("param_dtype") or trainer.get("compute_dtype") or "bf16")
    if dtype not in PLAIN:
        raise NotCovered(f"trainer.param_dtype {dtype!r} of a loss is not planned")
    mode = str(trainer.get("mode", "pretrain"))
    compares = trainer.get("system") in COMPARING and (LIGER in str(row.get("source", "")).lower() or mode == "rl")
    # a fused kernel is compiled in its first call, so that a later one is measured
    repeated = compares or trainer.get("loss") == "fused"
    loss = Loss(
        _loss_kind(model, trainer, casts=not compares), tokens, vocab, int(model.get("hidden") or 0), PLAIN[dtype],
        heads=COMPARED.get(mode, 1) if compares else 1, repeated=repeated,
        chunk=int(trainer.get("seq_len") or 0) if mode == "rl" else 0,
    )  # fmt: skip
    return _of(loss_bytes(loss))


def _loss_kind(model: Mapping[str, Any], trainer: Mapping[str, Any], *, casts: bool) -> LossKind:
    """By what is given (logits, or hidden states and a head), the mode, and how the loss is computed.

    `casts`: torch's cross entropy runs on logits cast to fp32, as everywhere but in Liger's comparison, which is of
    2024.
    """
    loss = str(trainer.get("loss", "torch"))
    if not model.get("hidden"):
        fused: LossKind = "logits-inplace" if trainer.get("system") == "liger" else "logits-parallel-fused"
        kinds: dict[str, LossKind] = {
            "torch": "logits",
            "megatron": "logits-parallel",
            "fused": fused,
            "te-fused": fused,
        }
    elif trainer.get("mode") == "rl":
        kinds = {"torch": "policy", "fused": "policy-fused", "chunked": "policy-fused"}
    else:
        kinds = {"torch": "head", "fused": "head-fused", "chunked": "head-chunked"}
        if casts:
            kinds |= {"torch": "head-upcast", "fused": "head-fused-cast"}
    if loss not in kinds:
        raise NotCovered(f"trainer.loss {loss!r} of a loss alone is not planned")
    return kinds[loss]


def _of(item: Item) -> Prediction:
    return Prediction(item.bytes, item.upper)


def _answer(row: Row, predicted: Callable[[Mapping[str, Any]], Prediction | None]) -> Prediction:
    """The row's quantity and those of its `also`."""
    measured = section(row, "measured")
    own = predicted(measured)
    if own is None:
        raise NotCovered(f"{measured.get('quantity')!r} of this engine is not planned, or device_bytes is missing")
    entries = [entry for entry in row.get("also") or () if isinstance(entry, Mapping)]
    found = ((figure_name(entry), predicted(entry)) for entry in entries)
    return Prediction(own.bytes, own.upper, tuple((name, figure) for name, figure in found if figure is not None))
