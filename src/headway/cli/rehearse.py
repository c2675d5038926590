"""`headway rehearse RUN`: makes the worst step of a run happen first, in minutes, in a process that is ended in time.

Imports stand in the functions, so that a command loads only what it runs.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.answering import answering

if TYPE_CHECKING:
    from headway.guard.rehearsed import Rehearsed

SET_HELP = "section.key=value, over the file's."
RUN_HELP = "RunSpec (TOML), or a launch script of slime or Miles."
STEPS = 2
DOES_NOT_FIT = 3


@answering
def rehearse(
    run: Annotated[Path, typer.Argument(help=RUN_HELP)],
    set_: Annotated[list[str] | None, typer.Option("--set", help=SET_HELP)] = None,
    steps: Annotated[int, typer.Option("--steps", min=1, max=100, help="Optimizer's steps to rehearse.")] = STEPS,
    own_weights: Annotated[
        bool, typer.Option("--own-weights", help="Load the model's own weights.  [default: random ones]")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder to keep; of a script: where its variant is written.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON (docs/rehearse.md).")] = False,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Keep what process and allocator hold here, for later plans.")
    ] = False,
    run_it: Annotated[bool, typer.Option("--run", help="Of a script: run its variant under headway watch.")] = False,
) -> None:
    """Make the worst step of a run happen first, and see whether it fits.

    Exit code 0: it fits. 3: it does not. 2: bad input.
    """
    from headway.cli.inputs import is_launch
    from headway.errors import InputError

    if calibrate and (is_launch([str(run)]) or own_weights):
        raise InputError("--calibrate: takes a RunSpec, with random weights")
    if is_launch([str(run)]):
        if set_ or own_weights or as_json or steps != STEPS:
            raise InputError(f"{run}: of a launch script a variant is written, which takes --out and --run alone")
        _script(run, out, run_it)
        return
    if run_it:
        raise InputError(f"--run: {run} is a RunSpec, which is rehearsed at once; leave --run out")
    import json

    from headway.cli.rehearsing import rehearse as rehearsed
    from headway.reports.rehearse import document, report

    found = rehearsed(run, set_ or (), steps=steps, own=own_weights, out=out, tensors=calibrate)
    if as_json:
        typer.echo(json.dumps(document(found), indent=1))
    else:
        from rich.console import Console

        Console(highlight=False).print(report(found))
    if calibrate:
        _calibrate(found)
    raise typer.Exit(0 if found.fits else DOES_NOT_FIT)


def _calibrate(found: "Rehearsed") -> None:
    """Keep what the process and its allocator were measured to hold, and say so."""
    import time

    from headway.facts.calibration import keep
    from headway.guard.calibrating import measured_base
    from headway.reports.rehearse import calibrated

    base = measured_base(found, time.strftime("%Y-%m-%d"))
    typer.echo(f"calibrated: {calibrated(base)}; kept in {keep(base)}", err=True)


def _script(run: Path, out: Path | None, run_it: bool) -> None:
    """Write the script's variant, say how to run it, and run it where that is asked for."""
    import shlex

    from headway.cli.rehearsal_script import write_variant

    written = write_variant(run, out)
    for line in written.notes:
        typer.echo(line, err=True)
    command = ["headway", "watch", "--out", str(written.box), "--", "bash", str(written.path)]
    typer.echo(shlex.join(command))
    if run_it:
        from headway.cli.watch_plan import Planner

        launch = tuple(command[5:])
        with Planner(launch) as planner:
            from headway.cli.watching import Asked
            from headway.cli.watching import run as watched

            asked = Asked(launch, written.box, "observe", False, None, 0, 1.0, False)
            raise typer.Exit(watched(asked, planner))
