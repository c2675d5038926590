"""A run by another system's launch: its script, its command as it is typed, or a log that prints its arguments."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from headway.cli.inputs import LOGS, Case, check_device, check_layout, find_machine, host_memory, model_shape
from headway.errors import InputError
from headway.facts.machine import Machine
from headway.facts.workload import Workload
from headway.foreign import arguments_log, launched, runs, settings
from headway.foreign.found import Found
from headway.foreign.readers import read_run, settings_of
from headway.foreign.shape_flags import shape_of
from headway.foreign.shell import Script, files, read_script, read_text

if TYPE_CHECKING:
    from headway.foreign.lint import LintNote


@dataclass(frozen=True)
class Launch:
    """What was read of a launch. `path` is the script's file, None where there is none that can be changed.

    >>> read_launch(["python3", "train.py", "--rollout-batch-size", "8"]).found.system
    'slime'
    """

    script: Script
    found: Found
    path: Path | None = None

    def lint(
        self, workload: Workload | None, at_step: int | None, refusals: tuple[str, ...] = ()
    ) -> tuple["LintNote", ...]:
        """What the rules say to it."""
        from headway.foreign.lint import lint

        return lint(self.found, self.script, workload, at_step, refusals)


def read_launch(words: Sequence[str]) -> Launch:
    """The launch that the words name. Nothing of it is run. InputError where it cannot be read."""
    if len(words) > 1:
        script = read_text(shlex.join(words), "command line")
        return Launch(script, settings_of(script))
    path = Path(words[0]).expanduser()
    if path.suffix == ".py":
        return Launch(Script(str(path), ()), read_run(path))
    if path.suffix.lower() in LOGS:
        if not path.is_file():
            raise InputError(f"{path}: no such file")
        found = arguments_log.read(path)
        if found is not None:
            return Launch(Script(str(path), ()), found)
        if path.suffix.lower() != ".txt":
            raise InputError(
                f"{path}: prints no arguments of a run; give the log from its start, or the script that started it"
            )
    script = read_script(path)
    return Launch(script, settings_of(script), path)


def root_of(path: Path) -> Path:
    """The folder below which a script may source files."""
    return files.root_of(path.resolve())


def planned_workload(found: Found, model: str | None, keys: Sequence[str]) -> Workload:
    """The workload of a launch. `model` names the model where the launch does not tell it, or another one."""
    shape = None if model is None else model_shape(model)
    if found.system in ("slime", "miles"):
        return launched.workload(found, shape, keys)
    workload = runs.workload(found, shape if shape is not None else shape_of(found))
    return settings.apply(workload, keys)


def launch_case(
    launch: Launch, model: str | None, machine: str | None, pod: Path | None, given: Sequence[str]
) -> Case:
    """The run of a launch on the machine of that name or on this one, under the limits of a pod."""
    host, keys = host_memory(given)
    workload = planned_workload(launch.found, model, keys)
    there = find_machine(machine, host, ray=workload.ray)
    if pod is not None:
        there, notes = in_pod(there, pod, workload)
        workload = replace(workload, unknown=(*workload.unknown, *notes))
    title = f"{launch.found.system}, {launch.found.value('trainer_backend') or 'its'} trainer ({launch.script.path})"
    check_device(workload, there, title)
    check_layout(workload, there)
    return Case(workload, there, title, launch=launch)


def in_pod(machine: Machine, path: Path, workload: Workload) -> tuple[Machine, tuple[str, ...]]:
    """The machine under the limits of the pod that the trainer's devices are in, and what there is to say of it."""
    from headway.foreign.pod import read_pods, trainer, with_pod

    pod = trainer(read_pods(path))
    notes = list(pod.notes)
    if pod.gpus and pod.gpus < min(workload.layout.devices, machine.device_count):
        notes.append(f"{pod.name} has {pod.gpus} devices, and the run has {workload.layout.devices} on a node")
    limited = with_pod(machine, pod)
    return (limited if workload.ray else limited.without_ray()), tuple(f"pod: {note}" for note in notes)
