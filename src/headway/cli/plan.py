"""`headway plan RUN`: what a run will hold, whether it fits, and what to change; nothing is loaded or started.

Imports stand in the function, so that a command loads only what it runs.
"""

from pathlib import Path
from typing import Annotated

import typer

RUN_HELP = "RunSpec (a TOML file), or a model: a name such as qwen3-4B, a hub id, a folder with a config.json."
SET_HELP = "key=value: of the RunSpec, or of the Workload for a model (docs/workload.md), or machine.host=512GiB."


def plan(
    run: Annotated[list[str], typer.Argument(metavar="RUN", help=RUN_HELP)],
    trainer: Annotated[
        str | None, typer.Option("--trainer", help="Who trains a model, such as miles-fsdp.  [default: headway]")
    ] = None,
    machine: Annotated[
        str | None, typer.Option("--machine", help="Plan for gb10, 8xh100-80, ...  [default: this machine]")
    ] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help=SET_HELP)] = None,
    lines: Annotated[
        bool, typer.Option("--lines", help="Show every line with its formula, numbers put in, and its source.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON (docs/plan.md).")] = False,
    fix: Annotated[
        Path | None, typer.Option("--fix", help="Write the RunSpec with the first change that makes it fit here.")
    ] = None,
) -> None:
    """Show what a run will hold, by phase and pool, whether it fits, and what to change.

    Exit code 0: it fits (tight too). 3: it does not. 4: cannot tell. 2: bad input.
    """
    from headway.cli.inputs import read_case
    from headway.plan.planned import examine

    case = read_case(run, trainer, machine, set_ or ())
    planned = examine(case.workload, case.machine)
    if fix is not None:
        from headway.cli.fix import write_fix

        typer.echo(write_fix(case, planned, fix), err=True)
    if as_json:
        import json

        from headway.reports.plan_json import document

        typer.echo(json.dumps(document(planned, case.trainer), indent=1))
    else:
        from rich.console import Console

        from headway.reports.plan import plan_report

        Console(highlight=False).print(plan_report(planned, case.trainer, lines=lines))
    raise typer.Exit(planned.outcome.exit_code)
