"""`headway size`: which models train on a machine, by recipe, with the rule of thumb beside the ledger's numbers.

Imports stand in the function, so that a command loads only what it runs.
"""

from typing import Annotated

import typer

SET_HELP = "rollout.max_answer=256 (max_prompt, prompts, samples) of the standard batch, or machine.host=512GiB."


def size(
    machine: Annotated[
        str | None, typer.Option("--machine", help="Size for gb10, h100-80, ...  [default: this machine]")
    ] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help=SET_HELP)] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="Only models whose name has this in it; * and ? match any text.")
    ] = None,
    lines: Annotated[
        bool, typer.Option("--lines", help="Show every model that headway trains, with the memory of each.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON (docs/size.md).")] = False,
) -> None:
    """List the models that train on a machine, the largest first, with the longest answer that fits by recipe."""
    from headway.cli.sizing import sized

    found = sized(machine, set_ or (), model, every=lines or as_json)
    if as_json:
        import json

        from headway.reports.size_json import document

        typer.echo(json.dumps(document(found), indent=1))
        return
    from rich.console import Console

    from headway.reports.size import size_report
    from headway.reports.size_brief import brief

    Console(highlight=False).print(size_report(found) if lines else brief(found))
