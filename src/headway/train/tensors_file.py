"""Safetensors files written tensor by tensor, so that no second copy of a model is ever in memory.

The safetensors library writes a file from tensors that are all there. The format: 8 bytes of header length, a JSON
header, then the tensors one behind the other (https://huggingface.co/docs/safetensors/index#format).
"""

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from torch import Tensor

SHARD = "50GB"
"""The largest file, as transformers' `save_pretrained` has it (5.24)."""
INDEX = "model.safetensors.index.json"
_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


@dataclass(frozen=True)
class Entry:
    """A tensor to be written: what it will be, and how to get it.

    >>> Entry("norm", (64,), torch.float32, lambda: torch.ones(64)).bytes
    256
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Callable[[], Tensor]

    @property
    def bytes(self) -> int:
        """Bytes in the file."""
        count = 1
        for size in self.shape:
            count *= size
        return count * self.dtype.itemsize


def write_model(folder: Path, entries: Sequence[Entry], shard: int | str = SHARD) -> None:
    """Write `model.safetensors`, or several files and their index where it would be larger than `shard`."""
    empty = {each.name: torch.empty(each.shape, dtype=each.dtype, device="meta") for each in entries}
    split = split_torch_state_dict_into_shards(
        empty, filename_pattern="model{suffix}.safetensors", max_shard_size=shard
    )
    by_name = {each.name: each for each in entries}
    for file, names in split.filename_to_tensors.items():
        write_file(folder / file, [by_name[name] for name in names])
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        (folder / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")


def write_file(file: Path, entries: Sequence[Entry]) -> None:
    """Write one file. ValueError where a tensor is not what its entry says."""
    with file.open("wb") as opened:
        opened.write(_header(entries))
        for each in entries:
            tensor = each.read()
            if tuple(tensor.shape) != each.shape or tensor.dtype != each.dtype:
                raise ValueError(f"{each.name} is {tensor.dtype} {tuple(tensor.shape)}, not as its entry says")
            opened.write(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)


def _header(entries: Sequence[Entry]) -> bytes:
    """Length and header; padded with spaces, so that the tensors begin at a multiple of 8."""
    rows: dict[str, Mapping[str, object]] = {"__metadata__": {"format": "pt"}}
    at = 0
    for each in entries:
        rows[each.name] = {
            "dtype": _NAMES[each.dtype],
            "shape": list(each.shape),
            "data_offsets": [at, at + each.bytes],
        }
        at += each.bytes
    text = json.dumps(rows, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text
