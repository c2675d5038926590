"""RunSpec from a TOML file and `--set` overrides, and back. Every problem of a RunSpec is reported at once."""

import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_origin

import tomli_w
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from headway.config import adapter, keys
from headway.config.checks import DATA_SUFFIXES, contradictions
from headway.config.keys import Key, show
from headway.config.sections import ModelSection, RunSpec, Section
from headway.config.source import ModelSource, resolve
from headway.config.words import as_runspec
from headway.errors import InputError

Tables = dict[str, Any]

FOREIGN_NAMES = {
    "batch_size": "rollout.prompts",
    "beta": "objective.kl_coef",
    "dataset": "data.task or data.file",
    "epsilon": "objective.clip_low and clip_high",
    "gradient_checkpointing": "train.checkpointing",
    "learning_rate": "train.lr",
    "max_completion_length": "rollout.max_answer",
    "max_grad_norm": "train.grad_clip",
    "max_new_tokens": "rollout.max_answer",
    "max_prompt_length": "data.max_prompt",
    "max_steps": "train.steps",
    "max_tokens": "rollout.max_answer",
    "num_generations": "rollout.samples",
    "r": "lora.rank",
}
"""What other trainers call a key that no spelling leads to."""


def load(path: Path, overrides: Sequence[str] = ()) -> RunSpec:
    """Read, override, validate and resolve a RunSpec.

    An override is `section.key=value`, or a Workload's name of the same key: the value is read as TOML, else as
    text; a bare `none` takes a key or a whole section away. Paths become absolute: `output.dir`, by default
    `runs/<name of the file>`, and a model's folder are relative to the current directory, every other path, and a
    model's folder that is not there, to the folder of `path`; one of an override that is there, to the current one.

    Raises InputError with every problem found.
    """
    tables = _read(path)
    problems: list[str] = []
    for override in as_runspec(overrides):
        problems += _override(tables, override)
    spec, rejected, faults = _validate(tables)
    problems += faults
    source = None
    if rejected.isdisjoint({"model.path", "model.init"}):
        spec = _beside(spec, path)
        source, missing = _source(spec.model)
        problems += missing
    if source is not None and source.adapter is not None and source.shape is not None:
        problems += adapter.problems(spec.model.path, source.adapter, source.shape.family, spec.lora)
    resolved = _resolve(spec, path, source)
    folders = {key for key, _, file in _sources(spec, resolved) if file is not None and file.is_dir()}
    problems += [
        found.text
        for found in contradictions(spec)
        if rejected.isdisjoint(found.keys) and not folders.issuperset(found.keys)
    ]
    problems += _files(spec, resolved)
    if problems:
        raise InputError(*problems)
    return resolved


def as_written(path: Path) -> RunSpec:
    """The RunSpec in a file as it stands there: nothing is resolved, and no file that it names need be there.

    InputError with every problem found.
    """
    spec, _, faults = _validate(_read(path))
    if faults:
        raise InputError(*faults)
    return spec


def dump(spec: RunSpec) -> str:
    """The RunSpec as TOML, every key with its value. `load` of it gives an equal RunSpec."""
    return tomli_w.dumps(_plain(spec.model_dump(exclude_none=True)))


def _plain(value: Any) -> Any:
    """Values that TOML knows, in place of paths and tuples."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


# -- file ------------------------------------------------------------------------------------------------


def _read(path: Path) -> Tables:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file{_near_files(path)}") from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a folder; name the TOML file in it{_near_files(path / path.name)}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not UTF-8 text (byte {error.start}), so it is no TOML file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(_toml_fault(path, text, str(error))) from None
    except (RecursionError, ValueError) as error:
        raise InputError(f"{path}: is not TOML: {_unreadable(error)}") from None


def _unreadable(error: RecursionError | ValueError) -> str:
    """What tomllib meets beside its own error: Python's limits on nesting and on the digits of an integer."""
    return "nested too deeply" if isinstance(error, RecursionError) else "an integer has too many digits"


def _toml_fault(path: Path, text: str, message: str) -> str:
    """tomllib ends its message with "(at line 3, column 5)" or "(at end of document)"."""
    place = re.search(r" \(at line (\d+), column (\d+)\)$", message)
    if place is None:
        return f"{path}: is not TOML: {message}"
    line, column = int(place[1]), int(place[2])
    content = text.splitlines()[line - 1] if line <= len(text.splitlines()) else ""
    return f"{path}, line {line}: is not TOML: {message[: place.start()]}\n    {content}\n    {' ' * (column - 1)}^"


def _near_files(path: Path) -> str:
    """`; near it: ...` with the names in the folder of `path` that resemble it, else those of the same ending."""
    if not path.parent.is_dir():
        return f"; there is no folder {path.parent} either"
    names = sorted(entry.name for entry in path.parent.iterdir() if entry.is_file())
    near = get_close_matches(path.name, names, n=3, cutoff=0.6)
    near = near or [name for name in names if Path(name).suffix == (path.suffix or ".toml")][:5]
    return f"; near it: {', '.join(str(path.parent / name) for name in near)}" if near else ""


def _moved(key: str, file: Path) -> str:
    """Where a file of the same name is below the current directory, or in it; empty where there is none."""
    here = Path.cwd() / file.name
    return f"; there is a {file.name} here: --set {key}={file.name}" if here.is_file() else ""


# -- overrides -------------------------------------------------------------------------------------------


def _override(tables: Tables, text: str) -> Iterator[str]:
    """Put one `--set` into the tables; yields what is wrong with it."""
    target, equals, value = text.partition("=")
    parts = target.strip().split(".")
    removed = value.strip() == "none"
    if not equals or not all(parts) or (len(parts) == 1 and not removed):
        yield f"--set {text}: {_override_form(parts)}"
        return
    try:
        text.encode()
        parsed = _value(value)
    except UnicodeEncodeError:
        yield f"--set {target!a}: is not UTF-8 text; write it as UTF-8"
        return
    except (RecursionError, ValueError) as error:
        yield f"--set {target}: is not TOML: {_unreadable(error)}; write a smaller value"
        return
    table = tables
    for part in parts[:-1]:
        if removed and part not in table:
            return
        inner = table.setdefault(part, {})
        if not isinstance(inner, dict):
            yield f"--set {text}: {part} = {show(inner)} is set, which holds no keys"
            return
        table = inner
    if removed:
        table.pop(parts[-1], None)
    else:
        table[parts[-1]] = _from_here(parsed) if tuple(parts) in PATHS else parsed


PATHS = {("data", "file"), ("eval", "file"), ("reward", "folder")}
"""Keys of files beside a RunSpec."""


def _from_here(value: Any) -> Any:
    """A path of the command line, from the directory in which that was written where it is there."""
    here = isinstance(value, str) and value and "\0" not in value and (Path.cwd() / value).exists()
    return str(Path.cwd() / value) if here else value


def _override_form(parts: list[str]) -> str:
    """What a `--set` that names no section and key must be."""
    table = keys.table().get(parts[0], {})
    if len(parts) > 1 or not table:
        return "must be section.key=value, such as --set train.lr=1e-5"
    example = (
        "lora.rank=8, or lora=none to train without adapters"
        if parts[0] == "lora"
        else f"{next(iter(table.values())).path}=..."
    )
    return f"{parts[0]} is a section; set its keys one by one, such as --set {example}"


def _value(text: str) -> Any:
    """As TOML, else the text itself."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return parsed["value"] if len(parsed) == 1 else text


# -- validation ------------------------------------------------------------------------------------------


def _validate(tables: Tables) -> tuple[RunSpec, set[str], list[str]]:
    """The RunSpec of the good keys, the keys that were rejected, and why.

    A rejected key takes its default, so that what the good keys say against each other is found in the same pass.
    """
    problems = [_unknown_section(name, table) for name, table in tables.items() if name not in keys.sections()]
    rejected: set[str] = set()
    content: dict[str, Any] = {}
    for name, kind in keys.sections().items():
        table = tables.get(name, {})
        if name == "lora" and name not in tables:
            continue
        if not isinstance(table, dict):
            problems.append(f"{name} = {show(table)}: is a section; write [{name}], and its keys below it")
            rejected |= {key.path for key in keys.table()[name].values()}
            table = {}
        content[name], faults = _section(name, kind, table)
        problems += faults.values()
        rejected |= faults.keys()
    return RunSpec(**content), rejected, problems


def _section(name: str, kind: type[Section], table: Tables) -> tuple[Section, dict[str, str]]:
    """The section of its good keys, and what is wrong with the others by `section.key`."""
    known = keys.table()[name]
    faults = {f"{name}.{key}": _unknown_key(name, key) for key in table if key not in known}
    values = {key: _typed(known[key], value) for key, value in table.items() if key in known}
    for key in values:
        if fault := _unusable(known[key], table[key]):
            faults[f"{name}.{key}"] = f"{name}.{key} = {fault}"
    values = {key: value for key, value in values.items() if f"{name}.{key}" not in faults}
    try:
        return kind.model_validate(values, strict=True), faults
    except ValidationError as error:
        for detail in error.errors(include_url=False, include_context=False):
            bad = known[str(detail["loc"][0])]
            faults.setdefault(bad.path, _fault(bad, table.get(bad.name), detail))
    good = {key: value for key, value in values.items() if f"{name}.{key}" not in faults}
    stand_ins = {key.name: "" for key in known.values() if key.default == keys.REQUIRED and key.name not in good}
    return kind.model_validate(good | stand_ins, strict=True), faults


def _typed(key: Key, value: Any) -> Any:
    """TOML has no paths and no tuples."""
    if key.python_type is Path and isinstance(value, str):
        try:
            return Path(value).expanduser()
        except RuntimeError:  # ~name of no user: the name of a file like any other
            return Path(value)
    if get_origin(key.python_type) is tuple and isinstance(value, list):
        return tuple(value)
    return value


def _unusable(key: Key, value: Any) -> str | None:
    """What keeps a value of the right type from being used; the value comes first."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"{value}: must be {key.accepts}, and finite"
    if isinstance(value, str) and (key.python_type is Path or key.path == "model.path"):
        if "\0" in value:
            return f"{show(value)}: no path has a NUL character in it; remove it"
        if key.python_type is Path and not value:
            return f"{show(value)}: is empty; set {key.accepts}, or remove it"
        if len(value.encode()) > 4095 or any(len(part.encode()) > 255 for part in value.split("/")):
            return f"{show(value)}: is too long for a path; set a shorter one"
    return _unwieldy(value)


def _unwieldy(value: Any, depth: int = 0) -> str | None:
    """Whether the value is more than TOML promises to keep: integers of 64 bits; or nested beyond any use."""
    if isinstance(value, int) and value.bit_length() > 63:
        return "...: holds an integer of more than 64 bits; set a smaller one"
    if not isinstance(value, dict | list):
        return None
    if depth == 32:
        return "...: is nested more than 32 deep; write it flatter"
    inner = value.values() if isinstance(value, dict) else value
    return next((fault for item in inner if (fault := _unwieldy(item, depth + 1))), None)


def _fault(key: Key, value: Any, detail: ErrorDetails) -> str:
    if value is None:
        return f"{key.path} is not set; set {key.meaning.rstrip('.')}"
    out_of_range = detail["type"].startswith(("greater_than", "less_than"))
    return f"{key.path} = {show(value)}: must be {key.bounds if out_of_range else key.accepts}"


def _unknown_section(name: str, table: Any) -> str:
    names = list(keys.sections())
    if not isinstance(table, dict):
        return f"{name} = {show(table)}: is in no section{_did_you_mean(None, name)}"
    if near := get_close_matches(name.lower(), names, n=1, cutoff=0.6):
        return f"[{name}]: unknown section; did you mean [{near[0]}]?"
    homes = [f"{key} is {' or '.join(found)}" for key in table if (found := _elsewhere(key))]
    return "; ".join((f"[{name}]: unknown section", *homes, f"the sections are {', '.join(names)}"))


def _unknown_key(section: str, name: str) -> str:
    return f"{section}.{name}: unknown key{_did_you_mean(section, name)}"


def _did_you_mean(section: str | None, name: str) -> str:
    """The nearest key of the section, the same key of another one, or else the nearest of all."""
    spelling = name.lower().replace("-", "_")
    here = keys.table()[section] if section else {}
    found = [here[near].path for near in get_close_matches(spelling, here, n=1, cutoff=0.6)]
    found += [path for path in _elsewhere(spelling) if path not in found]
    if not found:
        everywhere = {key.name for table in keys.table().values() for key in table.values()}
        found = [
            path for near in get_close_matches(spelling, everywhere, n=1, cutoff=0.7) for path in _elsewhere(near)
        ]
    if found:
        return f"; did you mean {' or '.join(found)}?"
    return f"; [{section}] has {', '.join(here)}" if here else f"; the sections are {', '.join(keys.sections())}"


def _elsewhere(name: str) -> list[str]:
    """Keys of that name in any section, or what other trainers' name for it is here."""
    found = [table[name].path for table in keys.table().values() if name in table]
    return found or ([FOREIGN_NAMES[name]] if name in FOREIGN_NAMES else [])


# -- paths -----------------------------------------------------------------------------------------------


def _source(model: ModelSection) -> tuple[ModelSource | None, tuple[str, ...]]:
    try:
        return resolve(model), ()
    except InputError as error:
        return None, error.problems


def _beside(spec: RunSpec, path: Path) -> RunSpec:
    """The RunSpec with a model's folder that lies beside its file, where none is in the current directory."""
    model = spec.model
    there = path.absolute().parent / model.path
    if model.init == "random" or not model.path or Path(model.path).expanduser().is_dir() or not there.is_dir():
        return spec
    return spec.model_copy(update={"model": model.model_copy(update={"path": str(there.resolve())})})


def _resolve(spec: RunSpec, path: Path, source: ModelSource | None) -> RunSpec:
    """Every path absolute, so that the RunSpec means the same wherever its dump lies."""
    folder = path.absolute().parent

    def absolute(file: Path | None) -> Path | None:
        return None if file is None else (folder / file).resolve()

    module_folder = spec.reward.folder or (Path() if spec.reward.function else None)
    model_path = spec.model.path
    if source is not None and (source.adapter or source.kind == "folder"):
        model_path = str(source.adapter or source.folder)
    output = (Path.cwd() / (spec.output.dir or Path("runs", path.stem))).resolve()
    return spec.model_copy(
        update={
            "model": spec.model.model_copy(update={"path": model_path}),
            "data": spec.data.model_copy(update={"file": absolute(spec.data.file)}),
            "reward": spec.reward.model_copy(update={"folder": absolute(module_folder)}),
            "eval": spec.eval.model_copy(update={"file": absolute(spec.eval.file)}),
            "output": spec.output.model_copy(update={"dir": output}),
        }
    )


def _sources(spec: RunSpec, resolved: RunSpec) -> tuple[tuple[str, Path | None, Path | None], ...]:
    """Key, path as written and absolute path of each file with problems."""
    return (
        ("data.file", spec.data.file, resolved.data.file),
        ("eval.file", spec.eval.file, resolved.eval.file),
    )


def _files(spec: RunSpec, resolved: RunSpec) -> Iterator[str]:
    """Input that is not there, or the same file twice. `spec` has the paths as the user wrote them."""
    data, evaluation = resolved.data.file, resolved.eval.file
    for key, written, file in _sources(spec, resolved):
        if file is not None and file.is_dir():
            yield f"{key} = {show(written)}: is a folder; set it to a {', '.join(DATA_SUFFIXES)} file"
        elif file is not None and not file.is_file():
            yield f"{key} = {show(written)}: there is no file {file}{_moved(key, file) or _near_files(file)}"
    if resolved.reward.folder is not None and not resolved.reward.folder.is_dir():
        yield f"reward.folder = {show(spec.reward.folder)}: there is no folder {resolved.reward.folder}"
    if data is not None and data == evaluation:
        yield (
            f"eval.file = {show(spec.eval.file)}: is the training file, so training sees the evaluation; remove it: "
            "eval.problems are then held out from data.file"
        )
