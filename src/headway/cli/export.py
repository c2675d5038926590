"""`headway export RUN DIR`: a run's weights as a folder that transformers or peft loads.

Imports stand in the function, so that a command loads only what it runs.
"""

from pathlib import Path
from typing import Annotated

import typer


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The output directory of headway train.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to write; new or empty.")],
    merge: Annotated[
        bool, typer.Option("--merge", help="Of a LoRA run the whole model, with the adapter added to its base.")
    ] = False,
    step: Annotated[
        int | None, typer.Option("--step", metavar="N", help="The weights after step N.  [default: the last]", min=0)
    ] = None,
    base: Annotated[
        Path | None, typer.Option("--base", metavar="DIR", help="Where the base model lies, if it was moved.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what an export wrote to DIR.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written as JSON.")] = False,
) -> None:
    """Write a trained model, or a LoRA run's adapter, as a Hugging Face folder.

    With config, tokenizer, safetensors and a model card. The run stays as it is, and may be going on.

    Exit code 0: written. 2: bad input; nothing was written.
    """
    from headway.cli.train import print_json, settle_libraries
    from headway.units import format_bytes

    settle_libraries()
    from headway.train.export import export as write

    found = write(
        run,
        folder,
        lambda text: typer.echo(text, err=True),
        merge=merge,
        step=step,
        base=base,
        overwrite=overwrite,
    )
    if as_json:
        print_json(
            {
                "folder": str(found.folder), "kind": found.kind, "step": found.step, "base": found.base,
                "dtype": found.dtype, "parameters": found.parameters, "files": found.files,
            }
        )  # fmt: skip
        return
    size = format_bytes(sum(found.files.values()))
    what = "the model" if found.kind == "model" else f"the adapter for {found.base}"
    typer.echo(f"{what} after step {found.step}, {found.parameters:,} parameters in {found.dtype}, {size}")
    typer.echo(f"written to {found.folder}/: {', '.join(found.files)}")
