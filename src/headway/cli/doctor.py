"""`headway doctor LOG...`: names what ended a run and why, from evidence; nothing in a log is executed or fetched.

Imports stand in the function, so that a command loads only what it runs.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from headway.diagnose.finding import Diagnosis
    from headway.diagnose.readers.recordings import Recorded
    from headway.diagnose.settings import Settings


def doctor(
    logs: Annotated[
        list[str] | None, typer.Argument(metavar="LOG...", help="Logs, folders of logs, or - for standard input.")
    ] = None,
    run: Annotated[
        list[str] | None, typer.Option("--run", help="One attempt's log or folder; twice to compare two attempts.")
    ] = None,
    script: Annotated[Path | None, typer.Option("--script", help="The launch script (read, never executed).")] = None,
    machine: Annotated[
        str | None, typer.Option("--machine", help="Where it ran: gb10, 8xh100-80, ...: checks with the ledger.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="What the script leaves open, as in plan: host.bytes=1600e9."
        ),
    ] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Also read this machine: kernel log, cgroup files, Ray's session.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the diagnosis as JSON (docs/doctor.md).")] = False,
    explain: Annotated[
        str | None, typer.Option("--explain", metavar="NAME", help="Print the rule of a mechanism or cause.")
    ] = None,
    termination_log: Annotated[
        Path | None, typer.Option("--termination-log", help="Also write the sentence there (/dev/termination-log).")
    ] = None,
) -> None:
    """Name what ended a run and why, from its logs.

    Exit code 0: answered, or no death. 4: not established, or nothing there to read. 2: bad input.
    """
    if explain is not None:
        from headway.diagnose.document import explained

        typer.echo(explained(explain))
        return
    found = diagnosed(logs or [], run or [], script, machine, live=live, changes=set_ or ())
    if termination_log is not None:
        write_termination(termination_log, found.sentence)
    if as_json:
        import json

        from headway.reports.doctor_json import document

        typer.echo(json.dumps(document(found), indent=1))
    else:
        from headway.reports.doctor import doctor_report

        typer.echo(doctor_report(found))
    raise typer.Exit(found.exit_code)


def diagnosed(
    logs: list[str],
    runs: list[str],
    script: Path | None,
    machine: str | None,
    *,
    live: bool,
    changes: Sequence[str] = (),
) -> "Diagnosis":
    """What ended a run, as the command says it. InputError for what cannot be read."""
    from msgspec.structs import replace

    from headway.diagnose.beside import with_recording
    from headway.diagnose.causes import FINISHED, UNKNOWN
    from headway.diagnose.compare import compare
    from headway.diagnose.doctor import diagnose
    from headway.diagnose.ended import no_death
    from headway.diagnose.readers.recordings import DISK_FULL
    from headway.diagnose.run_facts import due, from_spec, merged, other_starts, resume
    from headway.diagnose.sources import sources_of, text_source
    from headway.errors import InputError

    sources = sources_of(logs, runs, live=live)
    settings = _settings(logs + runs, script, machine)
    told = _recordings([source.name for source in sources])
    # a recording's header describes every limit of the machine, which is no evidence that one was reached
    sources = [source for source in sources if source.name not in told]
    sources += [text_source(f"{name} (measured)", "\n".join(each.grown)) for name, each in told.items() if each.grown]
    boxes = _boxes(logs + runs)
    if script is None and boxes and boxes[-1].spec:
        settings = merged(from_spec(boxes[-1].spec), settings)
    recorded = [*told.values(), *boxes]
    if recorded:
        settings = replace(settings, phase=recorded[-1].phase, step=recorded[-1].step)
    found = diagnose(sources, settings)
    last = recorded[-1] if recorded else None
    if last is not None and last.ended and found.answer.mechanism in (UNKNOWN, FINISHED):
        if last.outcome != "died":
            found = found.with_answer(no_death(found.answer, last.outcome, "proven", last.ended))
        elif found.answer.mechanism == UNKNOWN:
            found = replace(found.with_answer(replace(found.answer, sentence=last.ended)), said=last.said)
    elif last is not None and last.ended == DISK_FULL and found.answer.cause == "disk-full":
        found = found.with_answer(replace(found.answer, sentence=last.ended))
    found = with_recording(found, [*logs, *runs], read=bool(recorded))
    step = found.answer.step
    if script is not None and step is not None and settings.lints:
        settings = _settings(logs + runs, script, machine, step)
    context = [*compare(found.findings), *(line for each in recorded for line in each.lines)]
    if step is not None:
        context += [*due(settings, step), *resume(settings, step)]
    context += [*other_starts(settings, found.answer.mechanism), *(f"lint: {each}" for each in settings.lints)]
    found = replace(found, context=(*found.context, *context), notes=(*found.notes, *settings.notes))
    if found.answer.outcome != "died":
        return found  # nothing is to be changed, so no plan is asked for changes
    if settings.workload is not None and machine is not None:
        from headway.cli.inputs import find_machine, host_memory
        from headway.diagnose.planned import with_plan
        from headway.foreign.settings import apply

        host, keys = host_memory(changes)
        kill = found.answer.kill
        if host is None and kill is not None and not find_machine(machine).unified:  # one memory has its size
            host = kill.total
        workload = apply(settings.workload, keys)
        found = with_plan(found, workload, find_machine(machine, host, ray=workload.ray))
    elif boxes and not changes:
        from headway.diagnose.planned import with_kept_plan

        found = with_kept_plan(found, boxes[-1].ledger)
    elif changes:
        raise InputError(f"--set {changes[0]}: changes the plan, and none is made without --script and --machine")
    return found


def _of_script(script: Path, step: int | None) -> "Settings":
    """The settings of a launch script. A script that starts no trainer that is known keeps nobody from an answer."""
    from headway.diagnose.run_facts import from_script, launch_of
    from headway.diagnose.settings import Settings
    from headway.errors import InputError

    try:
        return from_script(script, step)
    except InputError as error:
        if not script.is_file():
            raise
        return Settings(notes=(f"--script {error}",), launch=launch_of(script))


def _recordings(names: list[str]) -> "dict[str, Recorded]":
    """What the recordings among the sources tell, by name."""
    names = [name for name in names if name.endswith(".jsonl") and Path(name).is_file()]
    if not names:
        return {}
    from headway.diagnose.readers.recordings import read

    return {name: told for name in names if (told := read(Path(name))) is not None}


def _boxes(words: list[str]) -> "list[Recorded]":
    """What the black boxes among the words tell."""
    from headway.diagnose.readers.blackbox import read_box
    from headway.diagnose.sources import boxes_in

    folders = [Path(word) for word in words if word != "-" and Path(word).is_dir()]
    return [read_box(box)[1] for folder in folders for box in boxes_in(folder)]


def _settings(logs: list[str], script: Path | None, machine: str | None, step: int | None = None) -> "Settings":
    """What is known of the run: its script's settings, else those that a log prints, and the machine's kind."""
    from msgspec.structs import replace

    from headway.diagnose.run_facts import from_log, merged
    from headway.diagnose.settings import Settings

    found = Settings() if script is None else _of_script(script, step)
    for name in logs:
        path = Path(name)
        if name != "-" and path.is_file() and (printed := from_log(path)) is not None:
            found = merged(found, printed)
            break
    if machine is not None:
        from headway.cli.inputs import find_machine

        kinds = {str(pool.kind) for pool in find_machine(machine).pools}
        found = replace(found, unified=found.unified or "unified" in kinds)
    return found


def write_termination(path: Path, sentence: str) -> None:
    """Write a container's termination message, of which Kubernetes keeps 4096 bytes. InputError where that fails."""
    from headway.errors import InputError

    try:
        path.write_text(sentence.encode()[:4096].decode(errors="ignore"), encoding="utf-8")
    except OSError as error:
        raise InputError(f"--termination-log {path}: cannot be written ({error.strerror})") from None
