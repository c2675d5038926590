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
    check_device,
    check_layout,
    find_machine,
    host_memory,
    is_shell_script,
    model_shape,
)
from headway.errors import InputError
from headway.facts.machine import Machine
from headway.facts.workload import Workload
from headway.foreign import launched
from headway.foreign.found import Found
from headway.foreign.readers import read_launcher, read_run, settings_of
from headway.foreign.shape_flags import shape_of
from headway.foreign.shell import Script, files, read_text
from headway.foreign.shell.calls import inner_file
from headway.foreign.shell.values import known

if TYPE_CHECKING:
    from headway.foreign.lint import LintNote
    from headway.plan.planned import Planned


class Launch(Struct, frozen=True):
    """What was read of a launch. `path` is the script's file, None where there is none that can be changed; `words`
    are those of a command as it is typed, empty for a file.

    >>> read_launch(["python3", "train.py", "--rollout-batch-size", "8"]).found.system
    'slime'
    """

    script: Script
    found: Found
    path: Path | None = None
    words: tuple[str, ...] = ()

    def lint(
        self, workload: Workload | None, at_step: int | None, refusals: tuple[str, ...] = ()
    ) -> tuple["LintNote", ...]:
        """What the rules say to it."""
        from headway.foreign.lint import lint

        return lint(self.found, self.script, workload, at_step, refusals)


def read_launch(words: Sequence[str]) -> Launch:
    """The launch that the words name. Nothing of it is run. InputError where it cannot be read."""
    if len(words) > 1:
        return _of_command(words)
    path = Path(words[0]).expanduser()
    if path.suffix == ".py":
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
    return _of_script(path)


def _of_script(path: Path) -> Launch:
    """A script; one in which another starts the trainer has nothing to change."""
    script, found = read_launcher(path)
    return Launch(script, found, None if found.at is not None and found.at.file in script.started else path)


def _of_command(words: Sequence[str]) -> Launch:
    """A command as it is typed; a script that it names is read with the arguments behind it."""
    inner = inner_file([known(word) for word in words])
    if inner is not None:
        place = len(words) - len(inner.arguments) - 1
    elif is_shell_script(Path(words[0]).expanduser()):
        place = 0
    else:
        script = read_text(shlex.join(words), "command line")
        return Launch(script, settings_of(script, Path.cwd()), words=tuple(words))
    path = Path(words[place]).expanduser()
    if reason := files.no_file(path):
        raise InputError(f"{path}: {reason}")
    if len(words) == place + 1 and all("=" not in word for word in words[:place]):
        return replace(_of_script(path), words=tuple(words))
    whole = path.resolve()
    line = shlex.join([*(words[:place] or ("bash",)), str(whole), *words[place + 1 :]])
    script = read_text(line, "command line", whole, files.root_of(whole), follows=True)
    return Launch(script, settings_of(script), words=tuple(words))


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

    >>> from headway.foreign.readers import INSTEAD
    >>> reason_of(InputError(f"run.sh: no trainer that is known is started in it; {INSTEAD}", "line 2: too long"))
    'run.sh: no trainer that is known is started in it; line 2: too long'
    """
    from headway.foreign.readers import INSTEAD

    return "; ".join(" ".join(problem.replace(f"; {INSTEAD}", "").split()) for problem in error.problems)


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


def planned_workload(found: Found, model: str | None, keys: Sequence[str]) -> Workload:
    """The workload of a launch. `model` names the model where the launch does not tell it, or another one."""
    shape = None if model is None else model_shape(model)
    if found.system in ("slime", "miles"):
        return launched.workload(found, shape, keys)
    from headway.foreign import runs, settings

    workload = runs.workload(found, shape if shape is not None else shape_of(found))
    return settings.apply(workload, keys)


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
    workload = planned_workload(launch.found, model, keys)
    if said:
        workload = replace(workload, unknown=(*workload.unknown, said))
    there = find_machine(machine, host, ray=workload.ray)
    if pod is not None:
        there, notes = in_pod(there, pod, workload)
        workload = replace(workload, unknown=(*workload.unknown, *notes))
    title = f"{launch.found.system}, {launch.found.value('trainer_backend') or 'its'} trainer ({launch.script.path})"
    check_device(workload, there, launch.script.path)
    try:
        check_layout(workload, there)
    except InputError as error:
        raise InputError(*(launched.in_flags(text, launch.found, keys) for text in error.problems)) from None
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
