"""`headway plan RUN`: what a run will hold, whether it fits, and what to change; nothing is loaded or started.

Imports stand in the function, so that a command loads only what it runs.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from headway.cli.inputs import Case
    from headway.foreign.lint.rule import LintNote
    from headway.plan.disk import DiskVerdict
    from headway.plan.planned import Planned

RUN_HELP = (
    "RunSpec (TOML), launch script (shell, Python, notebook), log that prints its arguments, -- python3 train.py "
    "..., or a model: a name such as qwen3-4B, a hub id, a folder with a config.json."
)
SET_HELP = "key=value of a RunSpec or a Workload (docs/runspec.md, docs/workload.md), or machine.host=512GiB."
FIX_HELP = "Write the RunSpec, or the launch script, with the first change that makes it fit."


def plan(
    run: Annotated[list[str] | None, typer.Argument(metavar="RUN", help=RUN_HELP, show_default=False)] = None,
    trainer: Annotated[
        str | None,
        typer.Option("--trainer", "--system", help="Who trains a model, such as miles-fsdp.  [default: headway]"),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="The model of a launch that does not tell it, or RUN itself.")
    ] = None,
    machine: Annotated[
        str | None, typer.Option("--machine", help="Plan for gb10, 8xh100-80, ...  [default: this machine]")
    ] = None,
    pod: Annotated[
        Path | None, typer.Option("--pod", help="YAML of the Pod, RayJob or RayCluster it runs in.")
    ] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help=SET_HELP)] = None,
    at_step: Annotated[
        int | None, typer.Option("--at-step", min=0, help="What a launch had to save and evaluate after N steps.")
    ] = None,
    settings: Annotated[
        bool, typer.Option("--settings", help="Show what was read of a launch, and no plan.")
    ] = False,
    lines: Annotated[
        bool, typer.Option("--lines", help="Show all: each phase and pool, all changes, each line with its formula.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON (docs/plan.md).")] = False,
    fix: Annotated[Path | None, typer.Option("--fix", "--patch", help=FIX_HELP)] = None,
) -> None:
    """Show what a run will hold, by phase and pool, whether it fits, and what to change.

    Exit code 0: it fits (tight too). 3: it does not. 4: cannot tell. 2: bad input.
    """
    if not run and model is not None:
        run, model = [model], None
    run = run or []
    if settings:
        _show_settings(run, at_step, as_json)
        return
    from headway.cli.inputs import read_case
    from headway.plan.planned import examine

    case = read_case(run, trainer, machine, set_ or (), model=model, pod=pod)
    planned = examine(case.workload, case.machine)
    if fix is not None:
        typer.echo(_written(case, planned, fix, model, set_ or (), run), err=True)
    notes = () if case.launch is None else case.launch.lint(case.workload, at_step, planned.outcome.refusals)
    if case.launch is not None:
        from headway.cli.launch import in_words

        planned = in_words(planned, case.launch.found, set_ or ())
    on_disk = _disk(case, here=machine is None)
    if as_json:
        import json

        typer.echo(json.dumps(_document(planned, case, notes, on_disk), indent=1))
    else:
        _print(planned, case, notes, on_disk, lines=lines)
    if on_disk is not None:
        on_disk.check()
    raise typer.Exit(planned.outcome.exit_code)


def _document(
    planned: "Planned", case: "Case", notes: "Sequence[LintNote]", on_disk: "DiskVerdict | None"
) -> dict[str, Any]:
    """The plan as `--json` prints it; docs/plan.md describes it."""
    from headway.reports.plan_json import document

    found = document(planned, case.trainer)
    if case.launch is not None:
        from headway.reports.launch_json import lint_document, settings_document

        read = settings_document(case.launch.found)
        # `unknown` of a plan is what it assumed
        found |= {**read, "unknown": found["unknown"], "unknown_settings": read["unknown"]}
        found["lint"] = lint_document(notes)
    if on_disk is not None:
        from headway.cli.disk import disk_document

        found["disk"] = disk_document(on_disk)
    return found


def _print(
    planned: "Planned", case: "Case", notes: "Sequence[LintNote]", on_disk: "DiskVerdict | None", *, lines: bool
) -> None:
    """The plan in words and tables."""
    from rich.console import Console

    from headway.reports.plan import plan_report

    console = Console(highlight=False)
    by_name = case.launch is None and case.spec is None
    console.print(plan_report(planned, case.trainer, lines=lines, by_name=by_name))
    if case.launch is not None:
        from headway.reports.launch import lint_report

        console.print(lint_report(notes, lines=lines))
    if on_disk is not None:
        console.print(on_disk.text(), markup=False)


def _disk(case: "Case", *, here: bool) -> "DiskVerdict | None":
    """What the run writes to disk; only of a RunSpec's run."""
    if case.spec is None:
        return None
    from headway.cli.disk import disk_verdict

    return disk_verdict(case.spec, case.workload, here=here)


def _show_settings(run: list[str], at_step: int | None, as_json: bool) -> None:
    """What was read of a launch, and the notes of the lint that need no plan."""
    from headway.cli.inputs import is_launch
    from headway.errors import InputError

    if not is_launch(run):
        raise InputError(f"--settings: {' '.join(run)} is no launch script, command or log; leave --settings out")
    from headway.cli.launch import read_launch
    from headway.reports.launch import lint_report, settings_report
    from headway.reports.launch_json import lint_document, settings_document

    launch = read_launch(run)
    notes = launch.lint(None, at_step)
    if as_json:
        import json

        typer.echo(json.dumps({**settings_document(launch.found), "lint": lint_document(notes)}, indent=1))
        return
    from rich.console import Console

    console = Console(highlight=False)
    console.print(settings_report(launch.found))
    console.print(lint_report(notes))


def _written(
    case: "Case", planned: "Planned", path: Path, model: str | None, settings: Sequence[str], run: Sequence[str]
) -> str:
    """What `--fix` or `--patch` did."""
    if case.launch is None:
        from headway.cli.fix import write_fix

        return write_fix(case, planned, path, Path(run[0]).expanduser())
    from headway.cli.inputs import host_memory
    from headway.cli.patch import write_patch

    return write_patch(case, planned, path, model, host_memory(settings)[1])
