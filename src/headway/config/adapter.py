"""A LoRA adapter that a run starts from: what its folder says, and which base it belongs to.

The folder is one that peft wrote, or headway. headway writes `headway.json` beside it, which names the base as it can
be found from anywhere, with the SHA-256 of its files.
"""

import json
import os
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from headway.config.sections import LoraSection
from headway.errors import InputError

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
RECORD = "headway.json"
"""What headway writes beside a model or an adapter."""

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
FUSED_EXPERTS = ("qwen3_moe",)
"""Families whose experts are one 3-D parameter. peft adapts those only by building the whole updated tensor in every
forward pass, which costs more memory than training it, so adapters go on the attention alone."""


class Base(Struct, frozen=True):
    """The model under an adapter. `path` is the package's name, a hub id, a folder relative to the adapter's, or a
    shape; `files` have the SHA-256 of its files, nothing for random weights.

    >>> Base("hub", "Qwen/Qwen3-0.6B", {"model.safetensors": "ab"}).path
    'Qwen/Qwen3-0.6B'
    """

    kind: Literal["package", "folder", "hub", "random"]
    path: str
    files: dict[str, str] = {}


class Record(Struct, frozen=True):
    """`headway.json`: who wrote the folder, after which step of which kind of run, and the base of an adapter.

    >>> Record("0.1", 5, None).step
    5
    """

    headway: str
    step: int
    base: Base | None = None


def target_modules(family: str, targets: str) -> tuple[str, ...]:
    """Names of the linear layers that carry an adapter; they match `ModelShape.lora_linears`.

    >>> target_modules("qwen3_moe", "all-linear")
    ('q_proj', 'k_proj', 'v_proj', 'o_proj')
    """
    return ATTENTION if targets == "attention" or family in FUSED_EXPERTS else ATTENTION + MLP


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter and no model."""
    return (folder / CONFIG).is_file() and not (folder / "config.json").is_file()


def read_config(path: str, folder: Path) -> dict[str, Any]:
    """The adapter_config.json of a LoRA adapter whose weights are there. InputError for what headway cannot use."""
    try:
        config = json.loads((folder / CONFIG).read_text())
        kind = config["peft_type"]
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise InputError(
            f"model.path = {path}: holds a LoRA adapter whose {CONFIG} cannot be read ({error!r}); save it again"
        ) from None
    if kind != "LORA":
        raise InputError(f"model.path = {path}: the adapter is a {kind}, and headway reads LORA; merge it with peft")
    if not (folder / WEIGHTS).is_file():
        raise InputError(f"model.path = {path}: the adapter has no {WEIGHTS}; save it again with peft's safetensors")
    return config  # type: ignore[no-any-return]


def base_of(path: str, folder: Path) -> Base:
    """The base that an adapter's folder names: by headway's record, else by peft's config.

    InputError where it names none, or random weights, which are nowhere on disk.
    """
    record = read_record(folder)
    if record is not None and record.base is not None:
        base = record.base
    else:
        name = str(read_config(path, folder).get("base_model_name_or_path") or "")
        if not name:
            raise InputError(f"model.path = {path}: {CONFIG} names no base model; set base_model_name_or_path in it")
        there = Path(os.path.expanduser(name))
        if not there.is_absolute() and (folder / there).is_dir():
            there = folder / there
        base = Base("folder", str(there)) if there.is_dir() else Base("hub", name)
    if base.kind == "random":
        raise InputError(
            f"model.path = {path}: the adapter's base has random weights, which are nowhere on disk; write the "
            "merged model with `headway export RUN DIR --merge`, and set model.path to DIR"
        )
    return base


def read_record(folder: Path) -> Record | None:
    """headway's record in a folder; None where there is none that can be read."""
    try:
        return msgspec.json.decode((folder / RECORD).read_bytes(), type=Record)
    except (OSError, msgspec.DecodeError):
        return None


def problems(path: str, folder: Path, family: str, section: LoraSection | None) -> tuple[str, ...]:
    """Why an adapter cannot go on training under a [lora] section; nothing where it can, or where there is no such
    section and it is merged."""
    if section is None:
        return ()
    config = read_config(path, folder)
    targets = config.get("target_modules")
    found = {
        "lora.rank": (config.get("r"), section.rank),
        "lora.alpha": (float(config.get("lora_alpha") or 0), section.alpha),
        "lora.targets": (
            sorted(targets) if isinstance(targets, list) else targets,
            sorted(target_modules(family, section.targets)),
        ),
    }
    other = [
        f"{key} = {_shown(wanted)}, the adapter has {_shown(has)}"
        for key, (has, wanted) in found.items()
        if has != wanted
    ]
    other += [f"the adapter has {key} = {config[key]}" for key in _PLAIN if config.get(key) not in _NOTHING]
    if not other:
        return ()
    return (
        f"model.path = {path}: the adapter cannot go on training under this [lora] section ({'; '.join(other)}); set "
        "the section to what the adapter has, or merge it first (`headway export RUN DIR --merge`, or peft's "
        "merge_and_unload) and set model.path to the merged model, or remove [lora] to merge it and train all "
        "parameters",
    )


_PLAIN = ("use_dora", "use_rslora", "modules_to_save", "rank_pattern", "alpha_pattern", "bias", "lora_bias",
          "trainable_token_indices", "layers_to_transform", "target_parameters")  # fmt: skip
_NOTHING: tuple[object, ...] = (None, False, "none", {}, [])


def _shown(value: object) -> str:
    return " ".join(value) if isinstance(value, list) else f"{value:g}" if isinstance(value, float) else str(value)
