"""headway's own record beside a saved model or adapter: `headway.json`, which is found again on any machine."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

from msgspec.json import encode, format

from headway import __version__
from headway.config.adapter import CONFIG, RECORD, WEIGHTS, Base, Record, read_record
from headway.config.source import PACKAGED_HUB, ModelSource
from headway.errors import InputError

_SNAPSHOT = re.compile(r"models--([^/]+?)--([^/]+)")


def record_of(source: ModelSource, digests: Mapping[str, str], step: int, folder: Path, *, adapter: bool) -> Record:
    """The record of a model or adapter that is saved in `folder`; only an adapter has a base."""
    return Record(__version__, step, base_in(source, digests, folder) if adapter else None)


def base_in(source: ModelSource, digests: Mapping[str, str], folder: Path) -> Base:
    """The base of an adapter as seen from the adapter's folder: never a path of this machine alone."""
    files = {name: digest for name, digest in digests.items() if name not in (CONFIG, WEIGHTS)}
    if source.kind == "package" or source.kind == "random":
        return Base(source.kind, source.path, files)
    assert source.folder is not None
    named = source.path if source.kind == "hub" else _hub_id(source.folder)
    if named is not None:
        return Base("hub", named, files)
    return Base("folder", os.path.relpath(source.folder, folder), files)


def name_of(base: Base) -> str:
    """What adapter_config.json calls the base: peft and transformers know hub ids and folders."""
    if base.kind == "random":
        return f"{base.path} (random weights)"
    return PACKAGED_HUB if base.kind == "package" else base.path


def write_record(folder: Path, record: Record) -> None:
    """Write the record into a folder that was just saved, and the base's name into an adapter's config."""
    (folder / RECORD).write_bytes(format(encode(record), indent=1) + b"\n")
    if record.base is not None:
        config = json.loads((folder / CONFIG).read_text())
        config["base_model_name_or_path"] = name_of(record.base)
        (folder / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def check_base(source: ModelSource, digests: Mapping[str, str]) -> None:
    """InputError with the name of each file of the base that is another than the adapter was trained on."""
    record = None if source.adapter is None else read_record(source.adapter)
    if record is None or record.base is None:
        return
    other = [name for name, digest in record.base.files.items() if digests.get(name) != digest]
    if other:
        raise InputError(
            f"model.path = {source.adapter}: the adapter's base at {source.folder} is not the one that it was "
            f"trained on: {', '.join(other)} differ{'' if len(other) > 1 else 's'}; put that base back, or remove "
            f"{RECORD} in the adapter's folder to use this one"
        )


def _hub_id(folder: Path) -> str | None:
    """The hub id of a folder in the hub's cache, .../models--owner--name/snapshots/<commit>."""
    parts = folder.parts
    if len(parts) < 3 or parts[-2] != "snapshots":
        return None
    match = _SNAPSHOT.fullmatch(parts[-3])
    return None if match is None else f"{match[1]}/{match[2]}"
