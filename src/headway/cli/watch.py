"""`headway watch -- CMD`: runs any command as if it were not there, and records what it holds, says and dies of.

Imports stand in the function, so that a command loads only what it runs.
"""

from pathlib import Path
from typing import Annotated

import typer

GIVEN_HELP = "As in plan, what the launch does not tell: --model qwen3-4B, --set host.bytes=1600e9."


def watch(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="CMD...", help="The command, with its own options.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of the black box (default: runs/watch-DATE-TIME).")
    ] = None,
    policy: Annotated[
        str, typer.Option("--policy", help="observe: warn. protect: say what it would do. strict: stop in time.")
    ] = "observe",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Decide and record, but do nothing.")] = False,
    pid: Annotated[int | None, typer.Option("--pid", help="Watch a running process instead (records only).")] = None,
    serve: Annotated[
        int | None, typer.Option("--serve", metavar="PORT", help="Serve Prometheus metrics (extra `metrics`).")
    ] = None,
    restart: Annotated[
        int, typer.Option("--restart", metavar="N", min=0, help="Restart up to N times from the last checkpoint.")
    ] = 0,
    interval: Annotated[
        float, typer.Option("--interval", metavar="S", min=0.1, max=60.0, help="Seconds between two frames.")
    ] = 1.0,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show nothing while it runs.")] = False,
    machine: Annotated[
        str | None,
        typer.Option("--machine", help="Plan the launch for gb10, 8xh100-80, ...  [default: this machine]"),
    ] = None,
    given: Annotated[list[str] | None, typer.Option("--set", "--model", metavar="WHAT", help=GIVEN_HELP)] = None,
) -> None:
    """Run a command and keep a black box of it: memory, output, signals, how every process ended.

    A launch that `headway plan` can read is planned first, and the verdict told; it is started whatever that says.

    The exit code is the command's own (128 + n for signal n; 127 where there is no such command). After a bad end
    the doctor's answer is printed on standard error.
    """
    from headway.errors import InputError

    if (pid is None) == (not command):
        raise InputError("watch: name a command after --, or a running process with --pid, and not both")
    if pid is not None and restart:
        raise InputError("--restart: a process that is only attached to (--pid) cannot be started again")
    if pid is not None and (machine is not None or given):
        raise InputError("--machine, --model, --set: plan a command, and a process that runs (--pid) tells none")
    from headway.cli.watch_plan import Planner

    with Planner(command or (), machine, given or ()) as planner:  # beside the imports that follow
        from headway.cli.watching import Asked, attach, run

        asked = Asked(tuple(command or ()), out, policy, dry_run, serve, restart, interval, quiet)
        raise typer.Exit(attach(asked, pid) if pid is not None else run(asked, planner))
