"""Launch scripts in bash, read without running anything: `read_script` gives the commands that they would run."""

import re
from collections.abc import Sequence
from pathlib import Path

from headway.errors import InputError
from headway.foreign import jobs
from headway.foreign.shell import files
from headway.foreign.shell.commands import Command, Script
from headway.foreign.shell.evaluate import Evaluator
from headway.foreign.shell.state import Budget, State, StoppedError
from headway.foreign.shell.statements import STATEMENTS
from headway.foreign.shell.values import Origin, known

__all__ = ["Command", "Script", "read_commands", "read_script", "read_text"]


def read_commands(path: Path, root: Path | None = None) -> tuple[Command, ...]:
    """The commands that a script would run, in order. See `read_script`."""
    return read_script(path, root).commands


def read_script(
    path: Path,
    root: Path | None = None,
    arguments: Sequence[str] = (),
    *,
    follows: bool = False,
    job: jobs.Job | None = None,
    counts: jobs.Counts | None = None,
) -> Script:
    """A script read without running anything, with its arguments. InputError where it cannot be read as text.

    No other file is read than those that it sources below `root` (its repository, where not given), nothing of this
    machine's environment is used, and the work is bounded: what is not read is named in `unread`. `follows`: scripts
    below `root` that it starts (`bash run.sh`) are read too, as if they stood in it. `job` is what it was submitted
    with, beside the lines of its own; `counts` stands for the machine where the script asks it how many devices or
    nodes it has.
    """
    text = files.read(path) if path.is_file() else None
    if text is None:
        raise InputError(f"{path}: {files.no_file(path) or 'cannot be read as text'}")
    if len(text) > files.LARGEST:
        raise InputError(f"{path}: is larger than 1 MiB, which no launch script is")
    whole = path.resolve()
    tree = root.resolve() if root is not None else files.root_of(whole)
    return read_text(text, str(path), whole, tree, arguments, follows=follows, job=job, counts=counts)


def read_text(
    text: str,
    name: str = "script",
    script: Path | None = None,
    root: Path | None = None,
    arguments: Sequence[str] = (),
    *,
    follows: bool = False,
    job: jobs.Job | None = None,
    counts: jobs.Counts | None = None,
) -> Script:
    """The text of a script read as `read_script` does; without a path, nothing that it sources is read.

    >>> read_text("TP=4; python3 train.py --tensor-model-parallel-size $TP").commands[0].argv[3].text
    '4'
    """
    state = State(arguments=tuple(known(word, Origin("its arguments", 1)) for word in arguments))
    if script is not None:
        state.script = known(str(script))
    run = Evaluator(state, Budget(), STATEMENTS, script, root, follows=follows, counts=counts)
    for variable, value in (counts.variables if counts is not None else {}).items():
        state.set(variable, known(value, Origin(f"the machine {counts.of if counts else ''}", 1)))
        state.exported.add(variable)
    run.schedule(jobs.over(jobs.of_script(text), job), name)
    try:
        run.script_text(text, name, Origin(name, 1), exact=True)
    except StoppedError as stop:
        run.note(Origin(name, 1), f"read in part only: {stop}")
    except RecursionError:
        run.note(Origin(name, 1), "read in part only: nested too deep")
    for number, line in enumerate(text.split("\n"), 1):
        if re.match(r"<{7} |>{7} |={7}$", line):
            run.note(Origin(name, number), "a mark of a merge that was not finished")
    return Script(
        name, tuple(run.commands), dict(run.state.variables), frozenset(run.state.exported), tuple(run.sourced),
        tuple(run.notes), text, tuple(run.started), run.job, frozenset(run.state.asked),
    )  # fmt: skip
