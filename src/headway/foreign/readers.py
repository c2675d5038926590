"""Which system a launch script starts, and its settings: `read_run` asks each reader in turn."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from headway.errors import InputError
from headway.foreign import miles, slime
from headway.foreign.command import launches
from headway.foreign.found import Found
from headway.foreign.shell import Command, Script, read_script
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
INSTEAD = (
    "name the model and its trainer instead, such as: headway plan qwen3-4B --trainer miles-fsdp --machine gb10 "
    "--set rollout.max_answer=1024"
)


def read_run(path: Path, root: Path | None = None) -> Found:
    """The settings of a launch script. InputError where it cannot be read, or starts no trainer that is known."""
    if path.suffix.lower() in PYTHON:
        from headway.foreign.python import read_program

        return read_program(path, root)
    return read_launcher(path, root)[1]


def read_launcher(path: Path, root: Path | None = None, arguments: Sequence[str] = ()) -> tuple[Script, Found]:
    """A launch script with its arguments, and its settings. Scripts that it starts are read only where it starts no
    trainer itself. InputError as of `read_run`."""
    script = read_script(path, root, arguments)
    found = known_run(script, root)
    if found is not None:
        return script, found
    script = read_script(path, root, arguments, follows=True)
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
    found = known_run(script, root)
    if found is not None:
        return found
    started = dict.fromkeys(launch.name for command in script.commands for launch in launches(command))
    programs = f"it starts {', '.join(list(started)[:5])}" if started else "it starts no Python program"
    why = f" ({script.unread[0]})" if script.unread else ""
    from headway.foreign.python import refused

    if inner := refused(script, root):
        raise InputError(inner)
    raise InputError(f"{script.path}: no trainer that is known is started in it; {programs}{why}; {INSTEAD}")


def known_run(script: Script, root: Path | None) -> Found | None:
    """The settings as the first reader that knows the script reads them."""
    return next((found for read in readers() if (found := read(script, root)) is not None), None)
