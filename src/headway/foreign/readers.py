"""Which system a launch script starts, and its settings: `read_run` asks each reader in turn."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from headway.errors import InputError
from headway.foreign import counts, miles, servers, slime
from headway.foreign.command import launches
from headway.foreign.found import Found
from headway.foreign.jobs import Counts, Job
from headway.foreign.peers import Instead, instead, known_by
from headway.foreign.shell import Command, Script, files, read_script
from headway.foreign.shell.values import Origin, known

Reader = Callable[[Script, Path | None], Found | None]
"""Settings of a script that starts the reader's system; None where it starts another. The folder is the one below
which files that the script names may be read."""


def readers() -> Iterator[Reader]:
    """One reader a system; the first that knows a script reads it. Each is loaded only when those before it pass."""
    yield lambda script, _: miles.read(script)
    yield lambda script, _: slime.read(script)
    from headway.foreign import verl

    yield verl.read
    from headway.foreign import openrlhf

    yield lambda script, _: openrlhf.read(script)
    from headway.foreign import megatron_lm

    yield lambda script, _: megatron_lm.read(script)
    from headway.foreign import python

    yield python.read
    from headway.foreign import trl

    yield trl.read


PYTHON = (".py", ".ipynb")


class NoTrainerError(InputError):
    """A launch that starts no trainer which is read: `why`, and `instead`, what to plan by name in its place."""

    def __init__(self, why: str, instead: Instead, machine: str | None = None, model: str | None = None) -> None:
        self.why, self.instead = why, instead
        super().__init__(f"{why}; {instead.about(machine, model)}")

    def named(self, machine: str | None, model: str | None) -> "NoTrainerError":
        """The same for the user's machine, and the model where the user named one."""
        return NoTrainerError(self.why, self.instead, machine, model)


def read_run(path: Path, root: Path | None = None) -> Found:
    """The settings of a launch script. InputError where it cannot be read, or starts no trainer that is known."""
    if path.suffix.lower() in PYTHON:
        from headway.foreign.python import read_program

        return read_program(path, root)
    return read_launcher(path, root)[1]


def read_launcher(
    path: Path,
    root: Path | None = None,
    arguments: Sequence[str] = (),
    *,
    job: Job | None = None,
    counts: Counts | None = None,
) -> tuple[Script, Found]:
    """A launch script with its arguments, and its settings. Scripts that it starts are read only where it starts no
    trainer itself. `job` is what it was submitted with, `counts` stands for the machine where it asks that how many
    devices it has. InputError as of `read_run`."""
    script = read_script(path, root, arguments, job=job, counts=counts)
    found = known_run(script, root)
    if found is not None:
        return script, found
    script = read_script(path, root, arguments, follows=True, job=job, counts=counts)
    return script, settings_of(script, root)


def read_command(words: Sequence[str]) -> Found:
    """The settings of a command as it is typed: `python3 train.py --rollout-batch-size 8 ...`.

    >>> words = "python3 train.py --num-rollout 1 --rollout-batch-size 8 --colocate".split()
    >>> read_command(words).settings["colocate"]
    True
    """
    at = Origin("the command line", 1)
    command = Command(tuple(known(word, at) for word in words), at)
    return settings_of(Script("the command line", (command,), text=" ".join(words)))


def settings_of(script: Script, root: Path | None = None) -> Found:
    """The settings of a script that was read. InputError where it starts no trainer that is known."""
    found = known_run(script, root) or _behind(script)
    if found is not None:
        return found
    started = dict.fromkeys(launch.name for command in script.commands for launch in launches(command))
    programs = f"it starts {', '.join(list(started)[:5])}" if started else "it starts no Python program"
    why = f" ({script.unread[0]})" if script.unread else ""
    from headway.foreign.python import refused

    if inner := refused(script, root):
        raise InputError(inner)
    peer, command, made = instead(script, root)
    if peer is not None and command is not None:
        raise NoTrainerError(
            f"{script.path}: line {command.at.line} starts {peer.name} ({known_by(peer, command)}), which is known "
            "and not read",
            made,
        )
    raise NoTrainerError(f"{script.path}: no trainer that is known is started in it; {programs}{why}", made)


def read_manifest(path: Path, counts: Counts | None = None) -> tuple[Script, Found, bool]:
    """The job that a manifest of Kubernetes, Anyscale, SkyPilot or dstack starts, its settings, and whether it has a
    pod's template: of several jobs the first whose system is known. InputError where it starts none that is."""
    from headway.foreign.unread import started_by

    scripts, has_pod = started_by(path, counts)
    for script in scripts:
        found = known_run(script, files.root_of(path.resolve()))
        if found is not None:
            return script, found, has_pod
    return scripts[0], settings_of(scripts[0]), has_pod


def known_run(script: Script, root: Path | None) -> Found | None:
    """The settings as the first reader that knows the script reads them."""
    found = next((found for read in readers() if (found := read(script, root)) is not None), None)
    if found is None:
        return None
    for job in (counts.visible(script, found), script.job):
        found = counts.from_job(found, job, script.path)
    return replace(found, beside=servers.beside(script, found))


def _behind(script: Script) -> Found | None:
    """The settings of a launcher that is not here, by its flags."""
    from headway.foreign.unread import stand_ins

    return next((found for each in stand_ins(script) if (found := known_run(each, None)) is not None), None)
