"""A run by another system's launch: its script, its command as it is typed, or a log that prints its arguments."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from headway.cli.inputs import (
    LOGS,
    Case,
    beyond_context,
    check_device,
    check_layout,
    find_machine,
    host_memory,
    is_shell_script,
    model_shape,
)
from headway.errors import InputError
from headway.facts import machines
from headway.facts.machine import Machine
from headway.facts.workload import Workload
from headway.foreign import counts, jobs, launched, ray_settings
from headway.foreign.found import Found
from headway.foreign.manifests import is_manifest
from headway.foreign.readers import PYTHON, NoTrainerError, read_launcher, read_manifest, read_run, settings_of
from headway.foreign.shell import Command, Script, files, read_text
from headway.foreign.shell.calls import inner_file
from headway.foreign.shell.values import Origin, known

if TYPE_CHECKING:
    from headway.foreign.lint import LintNote
    from headway.plan.planned import Planned


class Launch(Struct, frozen=True):
    """What was read of a launch. `path` is the script's file, None where there is none that can be changed; `words`
    are those of a command as it is typed, empty for a file; `named` is how it was named. `counts`
    is what it was told of the machine. `pod` is the launch's own file where it describes a pod.

    >>> read_launch(["python3", "train.py", "--rollout-batch-size", "8"]).found.system
    'slime'
    """

    script: Script
    found: Found
    path: Path | None = None
    words: tuple[str, ...] = ()
    named: tuple[str, ...] = ()
    counts: jobs.Counts | None = None
    pod: Path | None = None

    def lint(
        self, workload: Workload | None, at_step: int | None, refusals: tuple[str, ...] = ()
    ) -> tuple["LintNote", ...]:
        """What the rules say to it."""
        from headway.foreign.lint import lint

        return lint(self.found, self.script, workload, at_step, refusals)


def read_launch(words: Sequence[str], there: jobs.Counts | None = None) -> Launch:
    """The launch that the words name. Nothing of it is run. `there` stands for the machine where it asks that how
    many devices it has. InputError where it cannot be read."""
    return replace(_read_launch(words, there), named=tuple(words), counts=there)


def _read_launch(words: Sequence[str], there: jobs.Counts | None) -> Launch:
    if len(words) > 1:
        return _of_command(words, there)
    path = Path(words[0]).expanduser()
    if path.suffix.lower() in PYTHON:
        return Launch(Script(str(path), ()), read_run(path))
    if path.suffix.lower() in LOGS:
        from headway.foreign import arguments_log

        if reason := files.no_file(path):
            raise InputError(f"{path}: {reason}")
        found = arguments_log.read(path)
        if found is not None:
            return Launch(Script(str(path), ()), found)
        if path.suffix.lower() != ".txt" or not is_shell_script(path):
            raise InputError(
                f"{path}: prints no arguments of a run; give the log from its start, or the script that started it"
            )
    if is_manifest(path):
        script, found, has_pod = read_manifest(path, there)
        return Launch(script, found, pod=path if has_pod else None)
    return _of_script(path, there)


def read_settings(path: Path, words: Sequence[str]) -> Launch:
    """The launch by a command of a file of settings, which stands in the file's own folder."""
    at = Origin(path.name, 1)
    command = Command(tuple(known(word, at) for word in words), at)
    script = Script(str(path), (command,), text=" ".join(words))
    return Launch(script, settings_of(script, root_of(path)), named=(str(path),))


def _of_script(path: Path, there: jobs.Counts | None, job: jobs.Job | None = None) -> Launch:
    """A script; one in which another starts the trainer has nothing to change."""
    script, found = read_launcher(path, job=job, counts=there)
    return Launch(script, found, None if found.at is not None and found.at.file in script.started else path)


def _of_command(words: Sequence[str], there: jobs.Counts | None) -> Launch:
    """A command as it is typed; a script that it names is read with the arguments behind it."""
    inner = inner_file([known(word) for word in words])
    if inner is not None:
        place = len(words) - len(inner.arguments) - 1
    elif is_shell_script(Path(words[0]).expanduser()):
        place = 0
    else:
        words, root = _of_python(words)
        script = read_text(shlex.join(words), "command line", job=jobs.of_words(words), counts=there)
        return Launch(script, settings_of(script, root), words=tuple(words))
    path = Path(words[place]).expanduser()
    taken_along = inner.folder.text if inner is not None and inner.folder is not None else None
    if not path.is_file() and taken_along is not None:
        path = Path(taken_along).expanduser() / words[place]
    if reason := files.no_file(path):
        if len(words) == place + 1:
            raise InputError(f"{path}: {reason}")
        return _without_launcher(words, f"{path}: {reason}")
    if len(words) == place + 1 and all("=" not in word for word in words[:place]):
        return replace(_of_script(path, there, jobs.of_words(words[:place])), words=tuple(words))
    whole = path.resolve()
    line = shlex.join([*(words[:place] or ("bash",)), str(whole), *words[place + 1 :]])
    script = read_text(line, "command line", whole, files.root_of(whole), follows=True, counts=there)
    return Launch(script, settings_of(script), words=tuple(words))


def _without_launcher(words: Sequence[str], reason: str) -> Launch:
    """A command whose launcher is not here, by the flags behind it. InputError with the reason where they tell no
    system."""
    script = read_text(shlex.join(words), "command line")
    try:
        return Launch(script, settings_of(script), words=tuple(words))
    except InputError:
        raise InputError(
            f"{reason}; what it starts is not known, and the words behind it are no flags of a system that is; start "
            "headway where the launcher is, or pass the command that the launcher runs"
        ) from None


def _of_python(words: Sequence[str]) -> tuple[list[str], Path]:
    """The words with the first Python file that is there by its whole path, and the folder below which files are
    read: the file's repository, or the present folder where no such file is named."""
    for place, word in enumerate(words):
        path = Path(word).expanduser()
        if path.suffix.lower() == ".py" and path.is_file():
            whole = path.resolve()
            return [*words[:place], str(whole), *words[place + 1 :]], files.root_of(whole)
    return list(words), Path.cwd()


OPTIONS = frozenset({
    "--trainer", "--model", "--machine", "--pod", "--set", "--at-step", "--settings", "--lines", "--json", "--fix",
    "--patch",
})  # fmt: skip
"""headway's own options of `plan`."""


def taken(launch: Launch) -> str:
    """What to say of headway's own options among the words of a command; empty where there are none.

    >>> taken(read_launch("python3 train.py --rollout-batch-size 8 --lines".split()))
    "--lines was read as the command's own: headway's options stand before --, as in: headway plan --lines --"
    """
    words = launch.words
    own = [place for place, word in enumerate(words) if word.partition("=")[0] in OPTIONS]
    if not own:
        return ""
    first = own[0]
    value = words[first + 1 : first + 2] if "=" not in words[first] else ()
    shown = shlex.join([words[first], *(word for word in value if not word.startswith("-"))])
    names = ", ".join(dict.fromkeys(words[place].partition("=")[0] for place in own))
    return f"{names} was read as the command's own: headway's options stand before --, as in: headway plan {shown} --"


def reason_of(error: InputError) -> str:
    """Why a launch cannot be read, on one line, without what `headway plan` takes instead of one.

    >>> from headway.foreign.peers import Instead
    >>> reason_of(NoTrainerError("run.sh: no trainer that is known is started in it", Instead()))
    'run.sh: no trainer that is known is started in it'
    """
    problems = (error.why,) if isinstance(error, NoTrainerError) else error.problems
    return "; ".join(" ".join(problem.split()) for problem in problems)


def in_words(planned: "Planned", found: Found, given: Sequence[str]) -> "Planned":
    """A launch's plan with what it says of keys in the launch's own flags, but for the keys that `--set` gave."""
    keys = host_memory(given)[1]

    def said(texts: Sequence[str]) -> tuple[str, ...]:
        return tuple(launched.in_flags(text, found, keys) for text in texts)

    outcome = planned.outcome
    outcome = replace(outcome, refusals=said(outcome.refusals), deciding=said(outcome.deciding))
    workload = replace(planned.workload, unknown=said(planned.workload.unknown))
    return replace(planned, outcome=outcome, workload=workload)


def root_of(path: Path) -> Path:
    """The folder below which a script may source files."""
    return files.root_of(path.resolve())


def planned_workload(
    found: Found, model: str | None, keys: Sequence[str], machine: Machine | None = None
) -> Workload:
    """The workload of a launch. `model` names the model where the launch does not tell it, or another one; `machine`
    tells how many devices it has where the launch does not."""
    return launched.workload(found, None if model is None else model_shape(model), keys, machine)


def launch_case(
    launch: Launch, model: str | None, machine: str | None, pod: Path | None, given: Sequence[str]
) -> Case:
    """The run of a launch on the machine of that name or on this one, under the limits of a pod."""
    said = taken(launch)
    try:
        return _planned_case(launch, model, machine, pod, given, said)
    except InputError as error:
        raise InputError(*([said] if said else []), *error.problems) from None


def _planned_case(
    launch: Launch, model: str | None, machine: str | None, pod: Path | None, given: Sequence[str], said: str
) -> Case:
    host, keys = host_memory(given)
    there = find_machine(machine, host)
    if pod is None and not there.unified:
        pod = launch.pod
    in_it = None if pod is None else _job_of_pod(pod)
    launch, assumed = _read_there(launch, there, in_it)
    workload = planned_workload(launch.found, model, keys, there)
    workload = replace(workload, unknown=(*assumed, *workload.unknown, *([said] if said else [])))
    there = find_machine(machine, host, ray=True) if workload.ray else there
    there, notes = counts.under_job(there, launch.script.job)
    workload = replace(workload, unknown=(*workload.unknown, *notes, *machines.said(machine or "")))
    if pod is not None:
        there, said_of_pod = in_pod(there, pod, workload)
        workload = replace(workload, unknown=(*workload.unknown, *said_of_pod))
    if workload.ray:
        of_ray, idle = ray_settings.of_launch(launch.script, launch.found)
        there, moved = ray_settings.applied(there, of_ray, launch.script.path)
        workload = replace(workload, unknown=(*workload.unknown, *moved, *idle))
    if (beyond := beyond_context(workload)) is not None:
        text = f"{launched.in_flags(beyond, launch.found, keys)}, or scale its positions"
        workload = replace(workload, unknown=(*workload.unknown, text))
    title = f"{launch.found.system}, {launch.found.value('trainer_backend') or 'its'} trainer ({launch.script.path})"
    check_device(workload, there, launch.script.path)
    try:
        check_layout(workload, there)
    except InputError as error:
        raise InputError(*(launched.in_flags(text, launch.found, keys) for text in error.problems)) from None
    return Case(workload, there, title, launch=launch)


def _job_of_pod(path: Path) -> jobs.Job:
    """How many devices the pod has that the trainer is in."""
    from headway.foreign.pod import read_pods, trainer

    pod = trainer(read_pods(path))
    return jobs.Job(devices=pod.gpus or None, said=pod.name)


def _read_there(launch: Launch, machine: Machine, pod: jobs.Job | None) -> tuple[Launch, tuple[str, ...]]:
    """The launch as it reads on a machine and in a pod, where it asks how many devices there are, and what was
    assumed."""
    there = counts.of_machine(launch.script, machine, pod)
    assumed: tuple[str, ...] = ()
    if there is not None and launch.found.unknown:
        again = read_launch(launch.named, there)
        if (again.found.settings, again.found.unknown) != (launch.found.settings, launch.found.unknown):
            launch, assumed = again, counts.assumed(there, again.found)
    return replace(launch, found=counts.from_job(launch.found, pod, launch.script.path)), assumed


def in_pod(machine: Machine, path: Path, workload: Workload) -> tuple[Machine, tuple[str, ...]]:
    """The machine under the limits of the pod that the trainer's devices are in, and what there is to say of it."""
    from headway.foreign.pod import read_pods, trainer, with_pod

    pod = trainer(read_pods(path))
    notes = list(pod.notes)
    if pod.gpus and pod.gpus < min(workload.layout.devices, machine.device_count):
        notes.append(f"{pod.name} has {pod.gpus} devices, and the run has {workload.layout.devices} on a node")
    limited = with_pod(machine, pod)
    if not workload.ray:
        return limited.without_ray(), tuple(f"pod: {note}" for note in notes)
    limited, of_ray = ray_settings.applied(limited, pod.environment, pod.name)
    return limited, tuple(f"pod: {note}" for note in (*notes, *of_ray))
