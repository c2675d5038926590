"""The weights that a run kept: after which steps there are some, and one tensor of them at a time."""

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from msgspec import convert
from safetensors import safe_open
from torch import Tensor

from headway.config.adapter import WEIGHTS, read_record
from headway.config.resume import Content
from headway.config.sections import RunSpec
from headway.config.source import weight_files
from headway.errors import InputError
from headway.train import checkpoint
from headway.train.checkpoint import Progress
from headway.train.lora import saved_name
from headway.train.output import RunFolder


@dataclass(frozen=True)
class Trained:
    """The weights of a run after a step: a safetensors file, or files, and the names in them as files have them.

    `names` are of named parameters where they come from a checkpoint, else those of the final folder's files.
    """

    step: int
    files: tuple[Path, ...]
    from_checkpoint: bool
    progress: Progress
    content: Content | None


def trained_of(folder: RunFolder, spec: RunSpec, step: int | None) -> Trained:
    """The weights after a step: a checkpoint's, or those of final/."""
    found = {int(path.name.removeprefix("step-")): path for path in checkpoint.folders(folder.checkpoints)}
    record = read_record(folder.final) if folder.final.is_dir() else None
    kept = {*found, *(() if record is None else (record.step,))}
    if not kept:
        raise InputError(
            f"{folder.root}: the run has no checkpoint yet and no final/; let it go on until it saves one"
        )
    wanted = max(kept) if step is None else step
    if wanted not in kept:
        steps = ", ".join(str(each) for each in sorted(kept))
        raise InputError(
            f"--step {wanted}: the run kept the weights after {'step' if len(kept) == 1 else 'steps'} {steps}; name "
            f"{'it' if len(kept) == 1 else 'one of them'} (output.keep and output.save_every say which are kept)"
        )
    if wanted in found:
        loaded = checkpoint.load(found[wanted])
        content = convert(loaded.identity["content"], Content)
        return Trained(wanted, (found[wanted] / "model.safetensors",), True, loaded.progress, content)
    files = weight_files(folder.final) if spec.lora is None else (folder.final / WEIGHTS,)
    return Trained(wanted, files, False, Progress(step=wanted), None)


class Lazy:
    """A tensor in an open file: its shape and dtype are known, its values are read at each call."""

    def __init__(self, opened: Any, name: str) -> None:
        self._opened, self._name = opened, name
        part = opened.get_slice(name)
        self.shape = tuple(part.get_shape())
        self.dtype = _DTYPES[part.get_dtype()]

    def __call__(self) -> Tensor:
        return self._opened.get_tensor(self._name)  # type: ignore[no-any-return]


_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


def tensors_of(trained: Trained, stack: ExitStack) -> dict[str, Lazy]:
    """Every trained tensor by its name in files, read when it is asked for."""
    found: dict[str, Lazy] = {}
    for file in trained.files:
        opened = stack.enter_context(safe_open(file, framework="pt", backend="pread"))
        found |= {saved_name(name): Lazy(opened, name) for name in opened.keys()}  # noqa: SIM118 (no mapping)
    return found
