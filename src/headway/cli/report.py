"""`headway report DIR`: one HTML page of a run, which needs no network and no other file.

Imports stand in the function, so that a command loads only what it runs.
"""

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from headway.reports.page.build import Run
    from headway.reports.page.records import Doctor

LOGS = (".log", ".out", ".err", ".txt")
"""Files of a run's folder that the doctor reads, beside the recording: none of them holds the model's words."""


def report(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The output directory of headway train, or a black box of watch.")
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Where to write page or JSON.  [default: DIR/report.html]"),
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="What the page shows, as JSON, and no page (docs/report.md).")
    ] = False,
) -> None:
    """Write one HTML page of a run: memory over time, plan against measured, curves, what ended it.

    Exit code 0: written. 2: DIR is no folder of a run, or the file cannot be written.
    """
    from headway.errors import InputError
    from headway.reports.page.build import build, read_run

    if as_json and open_:
        raise InputError("--open: shows the page, and with --json none is written; leave one of the two out")
    run = read_run(folder, running=_in_use(folder))
    page = build(run, _doctor(run) if run.ending().bad else None)
    if as_json:
        from msgspec.json import encode, format

        text = format(encode(page), indent=1).decode()
        if out is None:
            typer.echo(text)
        else:
            _write(out, f"{text}\n")
            typer.echo(f"{page.title}: {page.ending.word}. Written to {out}")
        return
    from headway.reports.page.html import page_html

    path = folder / "report.html" if out is None else out
    beside = path.absolute().parent.resolve() == folder.resolve()
    _write(path, page_html(page, links=beside))
    typer.echo(f"{page.title}: {page.ending.word}. Written to {path}")
    if open_:
        import webbrowser

        if not webbrowser.open(path.absolute().as_uri()):
            typer.echo(f"no browser could be started; open {path.absolute().as_uri()}", err=True)


def _in_use(folder: Path) -> bool:
    """Whether a headway runs in a folder: it holds a lock on it, which the system lets go however it ends."""
    for place in (folder, folder / ".lock"):
        try:
            handle = os.open(place, os.O_RDONLY)
        except OSError:
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            continue  # a file system without locks
        finally:
            os.close(handle)
    return False


def _doctor(run: "Run") -> "Doctor":
    """What `headway doctor` says of the run's logs and its recording."""
    from headway.cli.doctor import diagnosed
    from headway.errors import InputError
    from headway.reports.doctor_json import document
    from headway.reports.page.records import Doctor

    if run.watched:
        logs = [str(run.folder)]
    else:
        found = sorted(path for path in run.folder.iterdir() if path.suffix in LOGS and path.is_file())
        found.append(run.folder / "recording.jsonl")
        logs = [str(path) for path in found if path.is_file() and path.stat().st_size]
    if not logs:
        return Doctor(None, "the folder holds no log and no recording")
    try:
        return Doctor(document(diagnosed(logs, [], None, None, live=False))["answer"])
    except InputError as error:
        return Doctor(None, str(error))


def _write(path: Path, text: str) -> None:
    """Write a file whole: a temporary name, then a rename. InputError where it cannot be written."""
    from headway.errors import InputError

    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8", errors="replace")
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):  # a file system that is read-only, or gone
            temporary.unlink(missing_ok=True)
        raise InputError(
            f"{path}: cannot be written ({error.strerror}); set --out to a file in a directory that can"
        ) from None
