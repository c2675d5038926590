"""From the settings of a script of slime or Miles to the planner's Workload; `runs.py` has those of other systems."""

import re
from collections.abc import Sequence

from msgspec.structs import replace

from headway.errors import InputError
from headway.facts.machine import Machine
from headway.facts.shapes import ModelShape
from headway.facts.workload import ROLES, Offload, OtherModel, Workload
from headway.foreign import counts, presets
from headway.foreign.found import Found, Setting
from headway.foreign.megatron_flags import float8, offloaded
from headway.foreign.not_read import not_read
from headway.foreign.settings import apply
from headway.foreign.shape_flags import shape_of
from headway.foreign.spelling import shares_as_given

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
    "trainer.megatron.offload_fraction": "activation-offload-fraction",
    "layout.first_stage_layers": "decoder-first-pipeline-num-layers",
    "layout.last_stage_layers": "decoder-last-pipeline-num-layers",
}  # fmt: skip
"""Key of the Workload -> flag that gives it and is no key of Found."""

ASKED = ("fully-async", "update-weight-mode", "use-precision-aware-optimizer", "async-save", "no-keep-fp32-master")
"""Further flags that a run is asked for."""

LAYOUT_KEYS = ("layout.tensor", "layout.pipeline", "layout.context", "layout.expert_parallel", "layout.expert_tensor")


def workload(
    found: Found,
    shape: ModelShape | None = None,
    overrides: Sequence[str] = (),
    machine: Machine | None = None,
) -> Workload:
    """The workload of a run that a script starts; what the script does not tell is as its system's preset has it.

    `shape` where the caller knows the model; `overrides` are `key=value` of the Workload and win over the script;
    `machine` tells how many devices there are where the script does not.
    InputError where the model or the trainer is not known, or settings contradict each other.
    """
    found, assumed = counts.settled(found, machine, overrides)
    model = shape if shape is not None else shape_of(found)
    made = _of_slime if found.system in ("slime", "miles") else _of_others
    run = made(found, model, overrides)
    if assumed:
        counts.check_assumed(run.layout, machine)
    unplanned = (*run.unplanned, *found.beside, *counts.open_counts(found))
    return replace(run, unknown=(*assumed, *run.unknown), unplanned=unplanned)


def _of_slime(found: Found, model: ModelShape, overrides: Sequence[str]) -> Workload:
    preset = trainer_of(found)
    given = {each.partition("=")[0].strip() for each in overrides}
    said = [f"{key}={value}" for key, value in settings(found).items() if key not in given]
    # keys of other models change those that the script loads
    of_others = [each for each in overrides if each.partition(".")[0].partition("=")[0].strip() in ROLES]
    try:
        run = presets.workload(model, preset, [*said, *(each for each in overrides if each not in of_others)])
    except InputError as error:
        raise InputError(*(in_flags(text, found, overrides) for text in error.problems)) from None
    system = "miles-megatron" if (found.system, found.value("trainer_backend")) == ("miles", "megatron") else ""
    trainer = replace(run.trainer, system=system) if system and run.trainer.system == "slime" else run.trainer
    run = apply(with_critic(found, replace(run, trainer=trainer)), of_others)
    if "use-opd" in found.flags and (kind := (found.flags.get("opd-type") or ("",))[0]) != "megatron":
        text = f"teacher: --opd-type {kind or 'is not known'}, a server that this script does not describe"
        run = replace(run, unplanned=(*run.unplanned, text))
    hidden = tuple(f"{', '.join(keys)}: {why}" for why, keys in _by_reason(found).items())
    left = not_read(found, (*ALSO.values(), *ASKED))
    return replace(run, unknown=(*run.unknown, *hidden, *found.unread, *found.notes), not_read=left)


def with_critic(found: Found, run: Workload) -> Workload:
    """The run with its critic: a second group of the same trainer, which sleeps in host memory while others work.

    Old versions take `--critic-num-nodes` and `--critic-num-gpus-per-node` for devices of its own; later ones have it
    on the actor's.
    """
    why = found.unknown.get("critic_loaded")
    if why is not None:
        text = f"critic: whether one is loaded is not known ({why})"
        return replace(run, unplanned=(*run.unplanned, text))
    if found.value("critic_loaded") is not True:
        return run
    sizes = [found.flags.get(f"critic-num-{name}", (None,))[0] for name in ("nodes", "gpus-per-node")]
    numbers = [int(text) if text is not None and text.isdigit() and int(text) else None for text in sizes]
    layout, group = run.layout, 0
    # arguments that a log prints have both in every version, and by default they are the actor's
    printed = "use-critic" in found.flags and numbers == [layout.nodes, layout.devices]
    if any(numbers) and not printed:
        nodes, devices = numbers[0] or layout.nodes, numbers[1] or layout.devices
        group, ranks = 1, nodes * devices
        shared = layout.tensor * layout.pipeline * layout.context
        layout = replace(
            layout, nodes=nodes, devices=devices, shards=ranks if layout.shards > 1 else 1,
            replicas=max(1, ranks // shared) if layout.replicas > 1 else 1,
        )  # fmt: skip
    away: Offload = "parameters+optimizer" if run.trainer.offload != "none" else "none"
    trainer = replace(
        run.trainer, reference="none", copies=(), loss="value", offload=away, entropy=False, temperature=False
    )
    critic = OtherModel(run.model.valued(), trainer, layout, trained=True, group=group, process=True)
    return replace(run, critic=critic)


def in_flags(text: str, found: Found, overrides: Sequence[str] = ()) -> str:
    """A message about a Workload's keys in the script's own flags, where they are known and no override has them.

    >>> in_flags("--set layout.nodes=0: must be at least 1", Found("slime"))
    '--actor-num-nodes 0: must be at least 1'
    """
    given = {each.partition("=")[0].strip() for each in overrides}
    text = shares_as_given(found.system, text)
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
    if trains_alone(found):
        told = {key: value for key, value in told.items() if not key.startswith("engine.")}
        told |= {"engine": "none", "mode": None, "rollout.samples": 1}
    if told["rollout.max_prompt"] is None:
        total, answer = found.value("max_total_len"), found.value("max_response_len")
        if isinstance(total, int) and isinstance(answer, int) and total > answer:
            told["rollout.max_prompt"] = total - answer
    updates = told["trainer.updates"]
    if not isinstance(updates, int) or updates < 1:
        told["trainer.updates"] = None
    return {key: value for key, value in told.items() if value is not None}


def trains_alone(found: Found) -> bool:
    """Whether no engine generates: `--debug-train-only`, which supervised fine-tuning sets too."""
    return "debug-train-only" in found.flags or found.flags.get("loss-type") == ("sft_loss",)


def _cap(found: Found) -> dict[str, Setting]:
    """A cap on tokens, which is one of each context parallel rank, or a number of samples."""
    if found.value("dynamic_batch") is True:
        cap, ranks = found.value("max_tokens_per_gpu"), found.value("cp")
        if isinstance(cap, int) and isinstance(ranks, int) and found.value("trainer_backend") == "megatron":
            cap *= ranks
        return {"trainer.cap": cap}
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


def _copies(found: Found) -> tuple[str, ...]:
    """Models whose parameters wait in pinned host memory and take the actor's place to score."""
    teacher = "use-opd" in found.flags and found.flags.get("opd-type") == ("megatron",)
    old = "keep-old-actor" in found.flags
    rollout = old and found.flags.get("update-weights-interval", ("1",)) == ("1",)
    names = (("teacher", teacher), ("old_actor", old), ("rollout_actor", rollout))
    return tuple(name for name, loaded in names if loaded)


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
        if modules := offloaded(found.flags):
            told["trainer.megatron.offload_modules"] = ",".join(modules)
    if found.value("optimizer_offload") is True:
        told["trainer.optimizer.offload"] = 1.0
    if "use-precision-aware-optimizer" in found.flags:
        told["trainer.optimizer.precision_aware"] = True
    if megatron and (low := float8(found.flags)) is not None:
        told |= {"trainer.float8.recipe": low.recipe, "trainer.float8.gather": low.gather}
    told["save"] = "save" in found.flags
    for key in ("save", "eval"):
        every = found.value(f"{key}_interval")
        if isinstance(every, int) and every > 0:
            told[f"{key}_every"] = every
    if found.value("critic_loaded") is True and megatron:
        # a critic always sends both to the host in turns
        told["trainer.offload"] = "dropped"
    if megatron and (copies := _copies(found)):
        told["trainer.copies"] = ",".join(("actor", *copies))
    if "async-save" in found.flags:
        told["checkpoint"] = "async"
    if found.value("dtype") == "fp16":
        told["trainer.param_dtype"] = "fp16"
    if "no-keep-fp32-master" in found.flags and not megatron:
        # parameters, gradients and both moments are in half precision then
        told |= {"trainer.param_dtype": "bf16", "trainer.grad_dtype": "none"}
        told |= {"trainer.optimizer.state_dtype": "bf16", "trainer.optimizer.master": False}
    return told
