"""A KV cache of fixed size that transformers writes in place, and the compaction of finished answers inside it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from headway.facts.shapes import ModelShape


@dataclass
class _Extent:
    """Which part of the slab is in use, shared by all layers.

    `rows` sequences hold `length` tokens each. While `targets` is set, a forward is a prefill: its row i is a prompt
    that ends at column `prompt` in every sequence of the range targets[i], and no earlier token exists.
    """

    rows: int
    prompt: int
    length: int = 0
    targets: tuple[tuple[int, int], ...] = ()


class _SlabLayer(CacheLayerMixin):
    """One layer's keys and values: views [B, kv_heads, capacity, head_dim] of the slab."""

    is_sliding = False

    def __init__(self, keys: Tensor, values: Tensor, extent: _Extent) -> None:
        super().__init__()
        self.keys: Tensor = keys
        self.values: Tensor = values
        self.extent = extent
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing: the slab exists from the start."""

    def update(self, key_states: Tensor, value_states: Tensor, *_args: Any, **_kwargs: Any) -> tuple[Tensor, Tensor]:
        """Store new states [b, kv_heads, q, head_dim]; return those that the forward's queries attend to."""
        extent = self.extent
        new = key_states.shape[-2]
        if extent.targets:
            columns = slice(extent.prompt - new, extent.prompt)
            for row, (start, stop) in enumerate(extent.targets):
                self.keys[start:stop, :, columns] = key_states[row]
                self.values[start:stop, :, columns] = value_states[row]
            return key_states, value_states
        end = extent.length + new
        keys, values = self.keys[: extent.rows, :, :end], self.values[: extent.rows, :, :end]
        keys[:, :, extent.length :] = key_states
        values[:, :, extent.length :] = value_states
        return keys, values

    def get_seq_length(self) -> int:
        """Tokens before the current forward's."""
        return 0 if self.extent.targets else self.extent.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(length, offset) of the keys that `update` will return."""
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        """Capacity in tokens."""
        return self.keys.shape[-2]


class SlabCache(Cache):
    """The KV cache of one batch: one allocation of [layers, 2, B, kv_heads, capacity, head_dim], written in place.

    Prompts end at column `prompt` (left padding), answers begin there. The slab is zeroed, which makes the memory
    resident before the first token rather than while answers grow, and keeps padding columns finite: a masked key
    has weight 0, and 0 x NaN would still be NaN.
    """

    def __init__(
        self, shape: ModelShape, rows: int, prompt: int, capacity: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._slab = torch.zeros(
            (shape.layers, 2, rows, shape.kv_heads, capacity, shape.head_dim), dtype=dtype, device=device
        )
        self._extent = _Extent(rows=rows, prompt=prompt)
        super().__init__(layers=[_SlabLayer(keys, values, self._extent) for keys, values in self._slab])

    @property
    def nbytes(self) -> int:
        """Bytes of the slab: kv_token_bytes x rows x capacity."""
        return self._slab.nbytes

    def begin_prompts(self, targets: Sequence[tuple[int, int]]) -> None:
        """The next forward prefills prompts: its row i is for the sequences [start, stop) = targets[i]."""
        self._extent.targets = tuple(targets)

    @property
    def prefilling(self) -> bool:
        """Whether the next forward is over prompts."""
        return bool(self._extent.targets)

    def begin_answers(self) -> None:
        """From now on a forward adds one token to each sequence."""
        self._extent.targets = ()
        self._extent.length = self._extent.prompt

    def advance(self, tokens: int = 1) -> None:
        """The forward that added a token to each sequence is over; or skip `tokens`, whose states stay zero."""
        self._extent.length += tokens

    def compact(self, moves: Sequence[tuple[int, int]], rows: int) -> None:
        """Move sequences (source, hole) and keep the first `rows`. No temporary memory: holes are finished."""
        length = self._extent.length
        for source, hole in moves:
            self._slab[:, :, hole, :, :length] = self._slab[:, :, source, :, :length]
        self._extent.rows = rows


def compaction(finished: Sequence[bool]) -> tuple[list[tuple[int, int]], int]:
    """Moves (source, hole) that bring the unfinished sequences to the front, and how many they are.

    As few as possible: only unfinished sequences behind the new end move, each into a finished one's place.

    >>> compaction([False, True, False, True, False])
    ([(4, 1)], 3)
    """
    rows = sum(not done for done in finished)
    holes = [row for row in range(rows) if finished[row]]
    sources = [row for row in range(rows, len(finished)) if not finished[row]]
    return list(zip(sources, holes, strict=True)), rows
