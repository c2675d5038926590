"""From a RunSpec to the planner's Workload."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from headway.config.fits import DataFacts, held_out, refusals
from headway.config.sections import ObjectiveSection, RunSpec
from headway.config.source import ModelSource
from headway.errors import InputError
from headway.facts import probe
from headway.facts.machine import Machine
from headway.facts.workload import Lora, Rollout, Trainer, Workload


def to_workload(
    spec: RunSpec, source: ModelSource, machine: Machine | None = None, data: DataFacts | None = None
) -> Workload:
    """The run that a RunSpec describes, with the model found by `config.source.resolve` and what is known of its
    problems (`data`).

    `memory.device = "auto"` and `memory.threads = 0` are settled by what `machine` has, which is then a named one, or
    by what this machine has where none is given. InputError where the model's files are not on this machine yet,
    because then its shape is not known, for device "cuda" on a named machine without devices, and for what `train`
    would refuse (`config.fits.refusals`).
    """
    if source.shape is None:
        raise InputError(
            f"model.path = {spec.model.path}: its files are not on this machine yet, so its size is not known; "
            "fetch them first (`hf download`) or set model.path to a folder"
        )
    if problems := tuple(refusals(spec, source.shape, data)):
        raise InputError(*problems)
    known = data or DataFacts(spec.data.max_prompt, exact=False)
    held = held_out(spec.eval.problems, None) if known.held_out is None else known.held_out
    trainer = Trainer(
        param_dtype=spec.model.dtype,
        lora=None if spec.lora is None else Lora(spec.lora.rank, spec.lora.targets),
        reference=_reference(spec.objective, lora=spec.lora is not None),
        cap=spec.train.cap,
        checkpointing=spec.train.checkpointing,
        attention=spec.model.attention,
        logprob_chunk=spec.train.logprob_chunk,
        entropy=spec.objective.entropy_coef > 0,
        updates=spec.train.updates,
    )
    rollout = Rollout(
        prompts=spec.rollout.prompts,
        samples=spec.rollout.samples,
        max_prompt=known.longest,
        max_answer=spec.rollout.max_answer,
        kv_budget=spec.rollout.kv_budget,
        eval_problems=held,
        eval_samples=spec.eval.samples,
    )
    return Workload(
        model=source.shape,
        trainer=trainer,
        rollout=rollout,
        device=_device(spec.memory.device, machine),
        threads=spec.memory.threads or _cores(machine),
        weights_file_bytes=source.files_bytes,
        reward_kind=spec.reward.kind,
        reward_limit_bytes=spec.reward.memory,
        data=_source(spec.data.file),
        problems=held + (spec.data.problems if known.train is None else known.train),
        steps=spec.train.steps,
        save=True,
        save_every=spec.output.save_every,
        eval_every=spec.eval.every,
        tensorboard=spec.output.tensorboard,
        unknown=(*([known.said] if known.said else []), *_no_evaluation(spec, known)),
    )


def _no_evaluation(spec: RunSpec, data: DataFacts) -> Iterator[str]:
    """A file so small that its tenth is no problem at all."""
    if spec.eval.problems is None and data.held_out == 0:
        yield f"eval.problems = 0: every tenth of {data.train} problems is none; set it, or eval.file, to evaluate"


def _reference(objective: ObjectiveSection, *, lora: bool) -> Literal["none", "adapter-off", "copy"]:
    """Where the reference log-probs come from."""
    if objective.kl_coef == 0:
        return "none"
    return "adapter-off" if lora else "copy"


def _source(file: Path | None) -> Literal["task", "json", "parquet"]:
    """Where problems come from; Parquet files are read by a library of their own."""
    if file is None:
        return "task"
    return "parquet" if file.suffix.lower() == ".parquet" else "json"


def _device(wanted: Literal["auto", "cpu", "cuda"], machine: Machine | None) -> Literal["cpu", "cuda"]:
    """The device of the model; "auto" is a CUDA device where there is one, or where CPU and GPU share one memory."""
    if wanted == "cuda" and machine is not None and not machine.device_count:
        raise InputError(f'memory.device = "cuda": {machine.name} has no device; set memory.device = "auto"')
    if wanted != "auto":
        return wanted
    there = bool(probe.nvml_devices()) if machine is None else machine.device_count > 0
    return "cuda" if there else "cpu"


def _cores(machine: Machine | None) -> int:
    """CPU threads of a run that does not say: as many as the machine has cores, 1 where its name does not tell."""
    return probe.usable_cores() if machine is None else max(1, machine.cores)
