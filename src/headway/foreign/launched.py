"""From the settings of a script of slime or Miles to the planner's Workload; `runs.py` has those of other systems."""

import re
from collections.abc import Sequence

from msgspec.structs import replace

from headway.errors import InputError
from headway.facts.shapes import ModelShape
from headway.facts.workload import Workload
from headway.foreign import presets
from headway.foreign.found import Found, Setting
from headway.foreign.shape_flags import shape_of

TRAINERS: dict[tuple[str, str], tuple[str, ...]] = {
    ("slime", "megatron"): ("slime",),
    ("slime", "fsdp"): ("miles-fsdp",),
    ("miles", "megatron"): ("miles-megatron", "slime"),
    ("miles", "fsdp"): ("miles-fsdp",),
}
"""System and its trainer's backend -> presets that describe it, the closest first."""

PLAIN = {
    "rollout.prompts": "rollout_batch", "rollout.samples": "samples_per_prompt",
    "rollout.max_prompt": "max_prompt_len", "rollout.max_answer": "max_response_len", "layout.nodes": "nodes",
    "layout.devices": "gpus_per_node", "layout.tensor": "tp", "layout.pipeline": "pp", "layout.context": "cp",
    "layout.expert_parallel": "ep", "layout.expert_tensor": "etp",
    "layout.sequence_parallel": "sequence_parallel", "engine.memory_fraction": "engine_mem_fraction",
    "engine.tensor_parallel": "gpus_per_engine", "engine.bucket": "update_weight_buffer_bytes",
    "trainer.lora.rank": "lora_rank", "trainer.updates": "num_steps_per_rollout",
    "engine.colocated": "colocate",
}  # fmt: skip
"""Key of the Workload -> key of Found that it takes as it is."""

ALSO = {
    "steps": "num-rollout", "engine.max_length": "sglang-context-length",
    "trainer.recompute.method": "recompute-method", "trainer.recompute.layers": "recompute-num-layers",
    "layout.first_stage_layers": "decoder-first-pipeline-num-layers",
    "layout.last_stage_layers": "decoder-last-pipeline-num-layers",
}  # fmt: skip
"""Key of the Workload -> flag that gives it and is no key of Found."""

LAYOUT_KEYS = ("layout.tensor", "layout.pipeline", "layout.context", "layout.expert_parallel", "layout.expert_tensor")


def workload(found: Found, shape: ModelShape | None = None, overrides: Sequence[str] = ()) -> Workload:
    """The workload of a run that a script starts; what the script does not tell is as its system's preset has it.

    `shape` where the caller knows the model; `overrides` are `key=value` of the Workload and win over the script.
    InputError where the model or the trainer is not known, or settings contradict each other.
    """
    if found.system not in ("slime", "miles"):
        return _of_others(found, shape if shape is not None else shape_of(found), overrides)
    preset = trainer_of(found)
    model = shape if shape is not None else shape_of(found)
    given = {each.partition("=")[0].strip() for each in overrides}
    said = [f"{key}={value}" for key, value in settings(found).items() if key not in given]
    try:
        run = presets.workload(model, preset, [*said, *overrides])
    except InputError as error:
        raise InputError(*(in_flags(text, found, overrides) for text in error.problems)) from None
    system = "miles-megatron" if (found.system, found.value("trainer_backend")) == ("miles", "megatron") else ""
    trainer = replace(run.trainer, system=system) if system and run.trainer.system == "slime" else run.trainer
    hidden = tuple(f"{', '.join(keys)}: {why}" for why, keys in _by_reason(found).items())
    return replace(run, trainer=trainer, unknown=(*run.unknown, *hidden, *found.unread, *found.notes))


def in_flags(text: str, found: Found, overrides: Sequence[str] = ()) -> str:
    """A message about a Workload's keys in the script's own flags, where they are known and no override has them.

    >>> in_flags("--set layout.nodes=0: must be at least 1", Found("slime"))
    '--actor-num-nodes 0: must be at least 1'
    """
    given = {each.partition("=")[0].strip() for each in overrides}
    flags = {key: flag for key, flag in _flags(found).items() if key not in given}
    names = "|".join(re.escape(key) for key in sorted(flags, key=len, reverse=True))
    if not names:
        return text
    return re.sub(
        rf"(?:--set )?\b({names})\b(?!\.)( ?= ?)?", lambda match: flags[match[1]] + (" " if match[2] else ""), text
    )


def _flags(found: Found) -> dict[str, str]:
    """Key of the Workload -> the flag of the script's system that sets it; of several, the one that is given."""
    if found.system in ("slime", "miles"):
        from headway.foreign.slime import RULES

        names = {rule.key: rule.flags for rule in RULES}
        known = {key: names[name] for key, name in PLAIN.items() if name in names}
        known |= {key: (flag,) for key, flag in ALSO.items()}
        return {key: "--" + next((f for f in flags if f in found.flags), flags[0]) for key, flags in known.items()}
    from headway.foreign.spelling import SPELLINGS

    table = SPELLINGS.get(found.system, {})
    shown = {key: re.fullmatch(r"(?:.* )?([\w.\-]+)[ =]\{(?:value|before)\}.*", text) for key, text in table.items()}
    return {key: match[1] for key, match in shown.items() if match is not None and "." in key}


def _of_others(found: Found, shape: ModelShape, overrides: Sequence[str]) -> Workload:
    from headway.foreign import runs
    from headway.foreign.settings import apply

    return apply(runs.workload(found, shape), overrides)


def _by_reason(found: Found) -> dict[str, list[str]]:
    """The unknown keys of each reason."""
    reasons: dict[str, list[str]] = {}
    for key, why in found.unknown.items():
        reasons.setdefault(why, []).append(key)
    return reasons


def trainer_of(found: Found) -> str:
    """The preset of the run's trainer. InputError where there is none."""
    backend = str(found.value("trainer_backend") or "")
    for name in TRAINERS.get((found.system, backend), ()):
        if name in presets.PRESETS:
            return name
    why = found.unknown.get("trainer_backend", f"its trainer is {backend or 'not told'}")
    known = ", ".join(sorted({" ".join(pair) for pair in TRAINERS}))
    raise InputError(
        f"{found.system}: {why}, which is not planned; planned are {known}; or name a trainer with --trainer"
    )


def settings(found: Found) -> dict[str, Setting]:
    """The run's settings as keys of a Workload with their values."""
    megatron = found.value("trainer_backend") == "megatron"
    told: dict[str, Setting] = {key: found.value(name) for key, name in PLAIN.items()}
    if not megatron:
        told |= dict.fromkeys((*LAYOUT_KEYS, "layout.sequence_parallel"))
    for key, flag in ALSO.items():
        value = (found.flags.get(flag) or (None,))[0]
        told[key] = int(value) if value is not None and value.isdigit() else value
    told |= _cap(found) | _engine(found) | _trainer(found, megatron)
    if told["rollout.max_prompt"] is None:
        total, answer = found.value("max_total_len"), found.value("max_response_len")
        if isinstance(total, int) and isinstance(answer, int) and total > answer:
            told["rollout.max_prompt"] = total - answer
    updates = told["trainer.updates"]
    if not isinstance(updates, int) or updates < 1:
        told["trainer.updates"] = None
    return {key: value for key, value in told.items() if value is not None}


def _cap(found: Found) -> dict[str, Setting]:
    """A cap on tokens, or a number of samples."""
    if found.value("dynamic_batch") is True:
        return {"trainer.cap": found.value("max_tokens_per_gpu")}
    rows = found.value("micro_batch")
    return {"trainer.rows": rows, "trainer.cap": 0 if rows is not None else None}


def _engine(found: Found) -> dict[str, Setting]:
    """Where the engine is apart: its devices, whether it generates ahead, and how it gets new weights."""
    if found.value("colocate") is True:
        return {}
    told: dict[str, Setting] = {"engine.devices": found.value("rollout_gpus")}
    if found.value("mode") == "async":
        # train_async.py generates the next step's samples while it trains
        told["mode"] = "async" if "fully-async" in found.flags else "one-step-off"
    if found.flags.get("update-weight-mode") == ("delta",):
        told["engine.update"] = "delta"
    return told


def _trainer(found: Found, megatron: bool) -> dict[str, Setting]:
    told: dict[str, Setting] = {}
    loaded = found.value("reference_loaded")
    if loaded is not None:
        told["trainer.reference"] = "host" if loaded else "none"
    weights = [found.value(key) for key in ("kl_loss_coef", "kl_coef")]
    numbers = [each for each in weights if isinstance(each, int | float)]
    told["trainer.reference_weight"] = max(numbers) if len(numbers) == len(weights) else "none"
    recompute = found.value("recompute")
    if "recompute" not in found.unknown:
        told["trainer.checkpointing"] = recompute in ("full", "gradient_checkpointing")
        if megatron:
            told["trainer.recompute.granularity"] = recompute if recompute in ("full", "selective") else "none"
    if found.value("optimizer_offload") is True:
        told["trainer.optimizer.offload"] = 1.0
    if "use-precision-aware-optimizer" in found.flags:
        told["trainer.optimizer.precision_aware"] = True
    told["save"] = "save" in found.flags
    for key in ("save", "eval"):
        every = found.value(f"{key}_interval")
        if isinstance(every, int) and every > 0:
            told[f"{key}_every"] = every
    if "async-save" in found.flags:
        told["checkpoint"] = "async"
    if found.value("dtype") == "fp16":
        told["trainer.param_dtype"] = "fp16"
    if "no-keep-fp32-master" in found.flags and not megatron:
        # parameters, gradients and both moments are in half precision then
        told |= {"trainer.param_dtype": "bf16", "trainer.grad_dtype": "none"}
        told |= {"trainer.optimizer.state_dtype": "bf16", "trainer.optimizer.master": False}
    return told
