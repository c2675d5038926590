"""The records of a script that was read: the commands that it would run, in order."""

from msgspec import Struct, field

from headway.foreign.jobs import Job
from headway.foreign.shell.values import Item, Origin, Value, Word


class Command(Struct, frozen=True):
    """One command that the script would run. `when`: what it hangs on, where the script does not decide that.

    `argv` may hold words with holes, gaps and choices; `values.worlds` makes plain lines of it. `environment` are the
    variables set for it alone (`A=B command`).

    >>> from headway.foreign.shell.values import known
    >>> Command((known("python3"), known("train.py")), Origin("run.sh", 3)).program
    'python3'
    """

    argv: tuple[Item, ...]
    at: Origin
    environment: tuple[tuple[str, Word], ...] = ()
    when: tuple[str, ...] = ()

    @property
    def program(self) -> str:
        """The name of the program without its folder; empty where it is not known."""
        first = self.argv[0] if self.argv else None
        return first.text.rpartition("/")[2] if isinstance(first, Word) and first.text else ""


class Script(Struct, frozen=True):
    """A script that was read: nothing of it was run.

    `sourced` are the files that were read with it, `started` those of them that it starts as scripts, `unread` what
    could not be read, in words with the place, `exports` the names of the variables that its commands see. `job` is
    what it asks its scheduler for. `asked` is what it uses that nothing in it sets: names of variables, and `devices`
    or `nodes` where it counts those of the machine.
    """

    path: str
    commands: tuple[Command, ...]
    variables: dict[str, Value] = field(default_factory=dict)
    exports: frozenset[str] = frozenset()
    sourced: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    text: str = ""
    started: tuple[str, ...] = ()
    job: Job | None = None
    asked: frozenset[str] = frozenset()
