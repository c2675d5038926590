"""Checkpoints: written whole or not at all, checked before they are read.

A checkpoint is a folder `step-000012` with `model.safetensors` (the trained parameters only),
`optimizer.safetensors`, `rollout.json` where a step was under way, and `state.json`, which names every other
file with its size and CRC-32. The folder is written under a temporary name, flushed to disk and renamed.
"""

import json
import os
import re
import shutil
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from headway.errors import HeadwayError, InputError
from headway.rollout.samples import Sample
from headway.train.smaller import Smaller

FORMAT = 2
_NAME = re.compile(r"step-(\d{6,})")


@dataclass
class Progress:
    """Where a run stands.

    `step` counts finished steps; `updates` the optimizer steps done inside the step under way, whose `rollout` is
    kept with its old and reference log-probs so that a resume goes on with the same tokens. `optimizer_steps` and
    `seconds` count over the whole run, resumes included. `smaller` has what memory made smaller, by its key.
    `changes` has what resumes changed: `step`, the first with it, `key`, `before`, `now`, and `file` where a file has
    other content.
    """

    step: int = 0
    updates: int = 0
    optimizer_steps: int = 0
    seconds: float = 0.0
    rollout: tuple[Sample, ...] = ()
    old_logprobs: tuple[tuple[float, ...], ...] | None = None
    ref_logprobs: tuple[tuple[float, ...], ...] | None = None
    sums: dict[str, float] = field(default_factory=dict)
    smaller: dict[str, Smaller] = field(default_factory=dict)
    changes: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class Loaded:
    """A checkpoint read back: progress now, tensors one at a time through `tensors`."""

    folder: Path
    progress: Progress
    identity: dict[str, Any]


def save(
    root: Path,
    progress: Progress,
    identity: Mapping[str, Any],
    parameters: Mapping[str, Tensor],
    optimizer: Mapping[str, Tensor],
    *,
    keep: int,
) -> Path:
    """Write the checkpoint of `progress` under `root` and delete all but the last `keep`.

    Tensors are written from where they are (a CUDA tensor is copied one file at a time by safetensors); nothing is
    duplicated on the CPU. Saving the same place twice replaces the older folder.
    """
    target = root / f"step-{progress.step:06d}"
    temporary = root / f".{target.name}.{os.getpid()}.tmp"
    _prune(root, keep)  # more may have been kept before: their room may be needed
    try:
        _write(temporary, progress, identity, parameters, optimizer)
        _replace(temporary, target)
        _flush(root)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise HeadwayError(
            f"checkpoint {target} could not be written ({error}); the one before it is kept"
        ) from error
    _prune(root, keep)
    return target


def _prune(root: Path, keep: int) -> None:
    """Delete all but the last `keep` checkpoints."""
    for old in folders(root)[:-keep]:
        shutil.rmtree(old)


def _write(
    temporary: Path,
    progress: Progress,
    identity: Mapping[str, Any],
    parameters: Mapping[str, Tensor],
    optimizer: Mapping[str, Tensor],
) -> None:
    """Write every file of a checkpoint and flush it to disk, `state.json` last."""
    temporary.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    save_file(dict(parameters), temporary / "model.safetensors")
    save_file({**optimizer, "torch_rng": torch.get_rng_state()}, temporary / "optimizer.safetensors")
    (temporary / "rollout.json").write_text(json.dumps(asdict(progress)))
    files = {path.name: {"bytes": path.stat().st_size, "crc32": _crc32(path)} for path in temporary.iterdir()}
    state = {"format": FORMAT, "step": progress.step, "identity": dict(identity), "files": files}
    (temporary / "state.json").write_text(json.dumps(state, indent=1))
    for path in (*temporary.iterdir(), temporary):
        _flush(path)


def folders(root: Path) -> list[Path]:
    """Checkpoint folders under `root`, oldest first. Unfinished temporary folders are not among them."""
    if not root.is_dir():
        return []
    found = [path for path in root.iterdir() if _NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=lambda path: int(path.name.removeprefix("step-")))


def sweep(root: Path) -> None:
    """Remove what a killed save left behind, and bring back a checkpoint that was being replaced."""
    if not root.is_dir():
        return
    for path in root.iterdir():
        if path.name.endswith(".tmp"):
            shutil.rmtree(path)
        elif path.name.endswith(".old"):
            target = path.with_name(path.name.removeprefix(".").removesuffix(".old"))
            if target.exists():
                shutil.rmtree(path)
            else:
                path.rename(target)


def identity_of(folder: Path) -> tuple[int, dict[str, Any]]:
    """The step of a checkpoint and whose it is; its other files are not looked at. InputError as `load`."""
    state = _state(folder)
    return state["step"], state["identity"]


def _state(folder: Path) -> dict[str, Any]:
    try:
        state: dict[str, Any] = json.loads((folder / "state.json").read_text())
        if state["format"] != FORMAT:
            raise InputError(
                f"checkpoint {folder} has format {state['format']}, and this version of headway reads format "
                f"{FORMAT}; resume it with the version that wrote it, or set output.dir to a new directory"
            )
        _ = state["files"], state["step"], state["identity"]
    except FileNotFoundError:
        raise InputError(_refusal(folder, "it has no state.json, so headway did not write it")) from None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(_refusal(folder, f"state.json cannot be read ({error!r})")) from None
    return state


def load(folder: Path) -> Loaded:
    """Check and read a checkpoint's state. InputError names what is torn or foreign."""
    state = _state(folder)
    files, identity = state["files"], state["identity"]
    for name, expected in files.items():
        path = folder / name
        size = path.stat().st_size if path.is_file() else None
        if size != expected["bytes"]:
            found = "is missing" if size is None else f"has {size} of {expected['bytes']} bytes"
            raise InputError(_refusal(folder, f"it is torn: {name} {found}"))
        if _crc32(path) != expected["crc32"]:
            raise InputError(_refusal(folder, f"it is damaged: the checksum of {name} differs"))
    missing = {"model.safetensors", "optimizer.safetensors", "rollout.json"} - set(files)
    if missing:
        raise InputError(_refusal(folder, f"state.json does not list {', '.join(sorted(missing))}"))
    return Loaded(folder, _progress(json.loads((folder / "rollout.json").read_text())), identity)


def read_parameters(folder: Path, into: Mapping[str, Tensor]) -> None:
    """Copy the saved parameters into the live ones, one tensor at a time. InputError if they are not the same set."""
    with safe_open(folder / "model.safetensors", framework="pt") as saved:
        names = set(saved.keys())
        if names != set(into):
            odd = sorted(names ^ set(into))[:3]
            raise InputError(_refusal(folder, f"its parameters are another model's (for example {', '.join(odd)})"))
        with torch.no_grad():
            for name, parameter in into.items():
                tensor = saved.get_tensor(name)
                if tensor.shape != parameter.shape or tensor.dtype != parameter.dtype:
                    raise InputError(
                        _refusal(
                            folder,
                            f"{name} is {tensor.dtype} {tuple(tensor.shape)}, "
                            f"the run has {parameter.dtype} {tuple(parameter.shape)}",
                        )
                    )
                parameter.copy_(tensor)


def read_optimizer(folder: Path) -> dict[str, Tensor]:
    """The optimizer's saved state; restores torch's random state on the way."""
    with safe_open(folder / "optimizer.safetensors", framework="pt") as saved:
        state = {name: saved.get_tensor(name) for name in saved.keys()}  # noqa: SIM118 (not a dict)
    torch.set_rng_state(state.pop("torch_rng"))
    return state


def _progress(raw: dict[str, Any]) -> Progress:
    def rows(value: Sequence[Sequence[float]] | None) -> tuple[tuple[float, ...], ...] | None:
        return None if value is None else tuple(tuple(row) for row in value)

    names = {"correct": "score"}  # of older checkpoints
    samples = tuple(
        Sample(
            **{
                names.get(key, key): tuple(value) if isinstance(value, list) else value
                for key, value in sample.items()
            }
        )
        for sample in raw["rollout"]
    )
    known = {
        **raw,
        "rollout": samples,
        "old_logprobs": rows(raw["old_logprobs"]),
        "ref_logprobs": rows(raw["ref_logprobs"]),
        "changes": tuple(raw.get("changes", ())),
        "smaller": {key: Smaller(**each) for key, each in raw.get("smaller", {}).items()},
    }
    return Progress(**known)


def _refusal(folder: Path, reason: str) -> str:
    return (
        f"checkpoint {folder} is refused: {reason}. Delete that folder to resume from the checkpoint before it, "
        "or set output.dir to a new directory"
    )


def _crc32(path: Path) -> int:
    value = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            value = zlib.crc32(block, value)
    return value


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _replace(temporary: Path, target: Path) -> None:
    """Rename onto a folder that may exist: the old one steps aside first, and `sweep` can bring it back."""
    aside = target.with_name(f".{target.name}.old")
    if target.exists():
        shutil.rmtree(aside, ignore_errors=True)
        target.rename(aside)
    temporary.rename(target)
    shutil.rmtree(aside, ignore_errors=True)
