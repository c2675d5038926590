"""`headway plan RUN --fix OUT.toml`: the RunSpec with the change that makes it fit, in a new file."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.cli.inputs import Case
from headway.config.edit import differences, with_values
from headway.config.load import as_written, dump, load
from headway.errors import InputError
from headway.facts.workload import Workload
from headway.plan.planned import Planned
from headway.plan.prices import in_words
from headway.plan.remedies import Remedy, as_settings

if TYPE_CHECKING:
    from headway.config.sections import RunSpec


def write_fix(case: Case, planned: Planned, path: Path, source: Path) -> str:
    """Write the RunSpec with the first change that makes it fit, or else the first that makes it tight, and say so.
    The lines of `source`, its file, stay as they are wherever nothing changes.

    Nothing is written where the run fits as it is, or where nothing that a RunSpec can set makes it fit. InputError
    where the file is there already, the input itself included, and for a run that no RunSpec describes, with the
    flags to change instead. The file appears whole or not at all.
    """
    if path.exists():
        raise InputError(f"--fix {path}: is there already; name a file that is not")
    if case.spec is None:
        raise InputError(
            f"--fix {path}: only a RunSpec can be written, and this run is not one{_flags(case, planned)}"
        )
    if planned.outcome.kind == "fits":
        return f"{path} is not written: the run fits as it is"
    chosen = _chosen(planned)
    if chosen is None:
        return f"{path} is not written: nothing that a RunSpec can set makes the run fit"
    head = f"# {_said(chosen)}\n# what it costs: {in_words(chosen.loses) or chosen.cost.word}\n"
    made = changed(case.spec, chosen, path)
    try:
        text = _text(made, chosen, path, source)
    except InputError:
        # the file alone is no run, as where only `--set` names its model
        text = dump(made)
    _write(made, head + text, path)
    return f"{path}: {_said(chosen)}"


def _chosen(planned: Planned) -> Remedy | None:
    """The first remedy that a RunSpec can hold and that fits; a tight one only where the run is not tight already."""
    kinds = ("fits",) if planned.outcome.kind == "tight" else ("fits", "tight")
    possible = [each for each in planned.advice.remedies if all(change.runspec for change in each.changes)]
    return next((each for kind in kinds for each in possible if each.kind == kind), None)


def _flags(case: Case, planned: Planned) -> str:
    """The first remedy that fits in the trainer's own words, and as `--set` for another plan."""
    first = next((each for each in planned.advice.remedies if each.fits), None)
    if first is None:
        return "; it fits as it is" if planned.outcome.kind == "fits" else "; no change that it accepts makes it fit"
    return f"; change instead: {first.text}{_settings(case.workload, first)}"


def _settings(before: Workload, remedy: Remedy) -> str:
    found = as_settings(before, remedy.workload)
    return f" (to plan it: {' '.join(f'--set {each}' for each in found)})" if found else ""


def _said(remedy: Remedy) -> str:
    return f"{remedy.text}, so that it {'fits' if remedy.kind == 'fits' else 'is tight'}"


def changed(spec: "RunSpec", remedy: Remedy, path: Path) -> "RunSpec":
    """The RunSpec with a remedy's keys. An output directory named for the old file is named for the new one."""
    tables: dict[str, Any] = spec.model_dump()
    for key, value in remedy.runspec.items():
        section, _, name = key.partition(".")
        tables[section] = {**(tables[section] or {}), name: value}
    output = spec.output.dir
    if output is not None and output.parent == (Path.cwd() / "runs").resolve():
        tables["output"]["dir"] = output.with_name(path.stem)
    return type(spec).model_validate(tables)


def _write(spec: "RunSpec", text: str, path: Path) -> None:
    """Under a name of its own first; it gets the file's name once it is read back without a problem."""
    if not path.parent.is_dir():
        raise InputError(f"--fix {path}: there is no folder {path.parent}")
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.toml")
    try:
        temporary.write_text(text, encoding="utf-8")
        if rest := _rest(load(temporary), spec, temporary, path):
            temporary.write_text(with_values(text, rest), encoding="utf-8")
            load(temporary)
        temporary.rename(path)
    except OSError as error:
        raise InputError(f"--fix {path}: cannot be written ({error.strerror})") from None
    finally:
        temporary.unlink(missing_ok=True)


def _text(spec: "RunSpec", remedy: Remedy, path: Path, source: Path) -> str:
    """The text of the file with what is to change in it. Of a section that is new the keys that the remedy sets; in
    another folder what the file names beside itself is written out."""
    before = load(source)
    values = differences(before, spec)
    new = {key for key in values if len(key) > 1 and getattr(before, key[0]) is None}
    values = {key: value for key, value in values.items() if key not in new or ".".join(key) in remedy.runspec}
    if path.parent.resolve() != source.parent.resolve():
        values = {**differences(as_written(source), before), **values}
    values.pop(("output", "dir"), None)
    return with_values(source.read_text(encoding="utf-8-sig"), values)


def _rest(found: "RunSpec", spec: "RunSpec", temporary: Path, path: Path) -> dict[tuple[str, ...], Any]:
    """What another folder, or the temporary name, still make of the file: paths beside it, the run's own folder."""
    rest = differences(found, spec)
    own = found.output.dir is not None and found.output.dir.name == temporary.stem
    if own and spec.output.dir is not None and spec.output.dir.name == path.stem:
        rest.pop(("output", "dir"), None)
    return rest
