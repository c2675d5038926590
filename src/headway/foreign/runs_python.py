"""From what a Python script says of its trainer to the planner's `Workload`: TRL, Unsloth, transformers with PEFT.

Most is as of TRL's command line (`runs.py`). What differs: samples that are pairs, heads that are trained, embeddings
that PEFT casts, and Unsloth's own ways (unsloth 015bdef0d9, unsloth-zoo of 2026-08: peers_memory).
"""

from math import ceil
from typing import Literal

from msgspec.structs import replace

from headway.facts.shapes import ModelShape
from headway.facts.workload import Engine, Optimizer, Trainer, Workload
from headway.foreign.runs import BUILDERS, Reading
from headway.foreign.spelling import UNSLOTH_FREE

CHUNKS = 4
"""Parts of a sample whose log-probs are made one after the other (`autotune_batch_and_chunks`); more above 16,384
tokens."""
STANDBY = 0.76
"""vLLM's share in standby on a device of 14 to 20 GB; 0.78 up to 25 GB, 0.88 above 40 GB (unsloth-zoo)."""
ASSUMED = {
    "lora_rank": "no adapter", "low_precision": "nothing packed", "dtype": "fp32", "optimizer": "adamw",
    "engine": "the trainer's own generate()", "reference_loaded": "a copy",
}  # fmt: skip
"""What is planned where a key is unknown: what takes the most, but for an engine, whose share nobody knows then."""
VERSIONS = {"hf": "transformers", "unsloth": "Unsloth"}


def workload(reading: Reading, shape: ModelShape) -> Workload:
    """The run of a script's trainer."""
    found = reading.found
    made = BUILDERS["trl"](reading, shape)
    if found.system in VERSIONS:
        reading.notes = [note.replace("TRL 1.x's", f"{VERSIONS[found.system]}'s") for note in reading.notes]
    reading.notes += [
        f"{key} = {used} (assumed: {found.unknown[key]})" for key, used in ASSUMED.items() if key in found.unknown
    ]
    reading.notes += [note for note in found.notes if not note.startswith("the sizes of")]
    trainer = made.trainer
    lora = trainer.lora
    saved = (*found.flags.get("lora_modules_to_save", ()), *found.flags.get("lora_target_modules", ()))
    if lora is not None and any("embed_tokens" in (text or "") or "lm_head" in (text or "") for text in saved):
        targets = lora.targets
        if not isinstance(targets, str):
            plain = tuple(name for name in targets if name not in ("embed_tokens", "lm_head"))
            targets = plain or "all-linear"
        trainer = replace(trainer, lora=replace(lora, embeddings=True, targets=targets))
    if found.system == "unsloth":
        return _unsloth(reading, replace(made, trainer=trainer))
    if reading.flag("no_bf16"):
        trainer = replace(trainer, compute_dtype=None)
    if reading.flag("kbit_prepared") and trainer.quant is not None:
        # prepare_model_for_kbit_training casts what is not packed to fp32: embedding, head and norms
        trainer = replace(trainer, param_dtype="fp32", compute_dtype="bf16")
    system = trainer.system if found.system == "trl" else "hf" if trainer.lora is None else "peft"
    return replace(made, trainer=replace(trainer, system=f"{system}-script"))


def _unsloth(reading: Reading, made: Workload) -> Workload:
    """Checkpoints in pinned host memory, a loss that writes its gradient over the logits, log-probs of one sample's
    hidden states in parts, an engine that shares the weights."""
    found, trainer = reading.found, made.trainer
    kept = reading.text("unsloth_checkpoints") == "True"
    rows, samples = trainer.rows, found.value("samples_per_prompt")
    answers = rows * reading.whole("grad_accum", 1) * made.layout.ranks
    is_sampling = trainer.scores
    rollout = made.rollout
    if is_sampling and isinstance(samples, int) and samples > 0 and answers % samples:
        reading.notes.append(
            f"micro_batch = {samples}: Unsloth raises {rows} to num_generations where the answers of a step are no "
            "multiple of it"
        )
        rows = samples
        rollout = replace(rollout, prompts=max(1, rows * reading.whole("grad_accum", 1) // samples))
    full = trainer.lora is None
    loss: Literal["hidden-chunks", "logits"] = "hidden-chunks" if is_sampling else "logits"
    trainer = replace(
        trainer, system="unsloth-kept" if kept else "unsloth", rows=rows, param_dtype="bf16", compute_dtype=None,
        grad_dtype="bf16" if full else None, attention="flash", loss=loss,
        logprob_chunk=ceil(rollout.longest / CHUNKS) if is_sampling else 0, temperature=False,
        optimizer=_states(trainer),
    )  # fmt: skip
    if is_sampling:
        reading.notes.append(f"log-probs are made of 1/{CHUNKS} of a sample at a time, as Unsloth does by default")
    if reading.flag("offload_embedding"):
        reading.notes.append("offload_embedding moves the embedding to the host, and is planned as if it did not")
    if full:
        reading.notes.append("full fine-tuning by Unsloth is planned with parameters and moments in bf16")
    return replace(made, trainer=trainer, rollout=rollout, engine=_engine(reading, trainer, made.engine))


def _states(trainer: Trainer) -> Optimizer:
    """Adapters are in fp32, so their moments are."""
    optimizer = trainer.optimizer
    if trainer.lora is not None and optimizer.state_dtype == "bf16":
        return replace(optimizer, state_dtype="fp32")
    return optimizer


def _engine(reading: Reading, trainer: Trainer, engine: Engine | None) -> Engine | None:
    """vLLM in the same process, on the trainer's own weights; with UNSLOTH_VLLM_STANDBY its cache sleeps.

    Unsloth gives vLLM a share of what is free (`load_vllm` in unsloth_zoo/vllm_utils.py).
    """
    if engine is None:
        return None
    standby = reading.flag("unsloth_standby")
    if standby:
        share = STANDBY
        reading.notes.append(
            f"engine.memory_fraction = {STANDBY}: with UNSLOTH_VLLM_STANDBY Unsloth sets it itself, 0.71 to 0.88 by "
            "the size of the device, whatever gpu_memory_utilization says"
        )
    else:
        share = round(engine.memory_fraction * UNSLOTH_FREE, 3)
        reading.notes.append(
            "UNSLOTH_VLLM_STANDBY=1 is not set: vLLM's cache stays on the device while the trainer works"
        )
    return replace(
        engine, memory_fraction=share, quant=trainer.quant, shared=True, host_copy=False, bucket=0,
        releases="weights+kv" if standby else "nothing",
    )  # fmt: skip
