"""The command `headway`. The only place where a HeadwayError becomes a message and an exit code."""

import sys
from typing import Annotated

import typer

from headway import __version__
from headway.cli import doctor, export, plan, rehearse, report, size, train, watch
from headway.errors import HeadwayError, InputError

app = typer.Typer(
    help="Train language models with reinforcement learning in the memory you have.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("train")(train.train)
app.command("plan")(plan.plan)
app.command("size")(size.size)
app.command("rehearse")(rehearse.rehearse)
app.command("doctor")(doctor.doctor)
app.command("report")(report.report)
app.command("export")(export.export)
app.command("watch", context_settings={"allow_interspersed_args": False})(watch.watch)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"headway {__version__}")
        raise typer.Exit


@app.callback()
def headway(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Train language models with reinforcement learning in the memory you have."""


def main() -> None:
    """Run the command line and exit: 0 done, 2 bad input or usage, 130 Ctrl-C, otherwise the error's own code.

    What is not a HeadwayError is our own mistake and keeps its traceback.
    """
    try:
        app()
    except HeadwayError as error:
        typer.echo(error_text(error), err=True)
        sys.exit(error.exit_code)


def error_text(error: HeadwayError) -> str:
    """What the user reads.

    >>> error_text(InputError("train.lr = -1: must be at least 0", "data.task and data.file are both unset"))
    'headway: 2 problems\\n  train.lr = -1: must be at least 0\\n  data.task and data.file are both unset'
    """
    if isinstance(error, InputError) and len(error.problems) > 1:
        lines = "\n".join(error.problems).splitlines()
        return "\n".join([f"headway: {len(error.problems)} problems", *(f"  {line}" for line in lines)])
    return f"headway: {error}"
