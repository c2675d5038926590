"""The folder of a run, named in place of its RunSpec: the run is resumed wherever the folder lies by now."""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from headway.config.load import as_written, load
from headway.config.sections import RunSpec

RUNSPEC = "runspec.toml"
"""The RunSpec in a run's folder, as `headway train` wrote it."""


def load_run(path: Path, overrides: Sequence[str] = ()) -> RunSpec:
    """`load`, where `path` may also be the folder of a run, or the runspec.toml in it.

    The folder is then the run's `output.dir`. A file or folder of the RunSpec that is no longer in its place is
    looked for where it lay as seen from the folder, as after both were moved together; an override is stronger.
    """
    folder = run_folder(path)
    if folder is None:
        return load(path, overrides)
    spec = as_written(folder / RUNSPEC)
    moved = (f"{key}={json.dumps(str(path), ensure_ascii=False)}" for key, path in _moved(folder, spec))
    return load(folder / RUNSPEC, (*moved, *overrides))


def recorded(folder: Path) -> RunSpec:
    """The RunSpec in a run's folder, its paths where they are now. What they lead to need not be there."""
    spec = as_written(folder / RUNSPEC)
    for key, path in _moved(folder, spec):
        section, _, name = key.partition(".")
        value = str(path) if key == "model.path" else path
        part = getattr(spec, section).model_copy(update={name: value})
        spec = spec.model_copy(update={section: part})
    return spec


def run_folder(path: Path) -> Path | None:
    """The folder of a run that `path` names; None where it names none.

    A runspec.toml without the plan that a run writes beside it is a RunSpec like any other.
    """
    folder = path if path.is_dir() else path.parent
    if path != folder and path.name != RUNSPEC:
        return None
    return folder.resolve() if (folder / RUNSPEC).is_file() and (folder / "plan.json").is_file() else None


def _moved(folder: Path, spec: RunSpec) -> Iterator[tuple[str, Path]]:
    """Keys of the RunSpec in a folder whose path is another one by now."""
    yield "output.dir", folder
    before = spec.output.dir
    for key, path in (
        ("data.file", spec.data.file),
        ("eval.file", spec.eval.file),
        ("reward.folder", spec.reward.folder),
        ("model.path", Path(spec.model.path) if spec.model.init == "pretrained" else None),
    ):
        if path is None or before is None or not path.is_absolute() or path.exists():
            continue
        there = Path(os.path.normpath(folder / os.path.relpath(path, before)))
        if there.exists():
            yield key, there
