"""What the allocator held beyond live tensors, from the recording of a rehearsal that counted them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from msgspec import Struct

from headway.facts.calibration import Overhead
from headway.plan.ledger import Phase
from headway.units import MIB

LARGE = 64 * MIB
"""Tensors of a pass that are enough to tell a share of them from small blocks that come and go."""
FIRST = 2
"""The step from which code pages are touched already and moments are there."""


class Pass(Struct, frozen=True):
    """The most that a phase held over what it began with: bytes of memory, and of tensors.

    >>> Pass(Phase.TRAIN, 277 << 20, 272 << 20).beyond >> 20
    5
    """

    phase: Phase
    held: int
    tensors: int

    @property
    def beyond(self) -> int:
        """Bytes that no tensor explains; below 0 where parts of tensors were never written."""
        return self.held - self.tensors


def read_passes(recording: Path, explained: Mapping[Phase, int]) -> tuple[Pass, ...]:
    """Each phase of the CPU that was both measured and counted. `explained`: bytes in it that are no tensors, such as
    the answers' Python objects."""
    held, tensors = dict[Phase, int](), dict[Phase, int]()
    for row in _rows(recording):
        if row["kind"] == "phase" and row["step"] >= FIRST:
            _raise(held, Phase(row["phase"]), row["rss_peak"] - row["rss_start"])
        elif row["kind"] == "tensors":
            _raise(tensors, Phase(row["phase"]), row["peak"])
    return tuple(
        Pass(phase, held[phase] - explained.get(phase, 0), tensors[phase]) for phase in held if phase in tensors
    )


def overhead(passes: Sequence[Pass]) -> Overhead | None:
    """What plans are to expect beyond tensors, and how far passes were from it; None where nothing was measured.

    >>> sizes = ((4, 6), (9, 12), (37, 41), (512, 517))
    >>> found = overhead([Pass(Phase.TRAIN, held << 20, tensors << 20) for tensors, held in sizes])
    >>> found.holes / 2**20, found.spread / 2**20, f"{found.share:.1%}"
    (3.5, 1.5, '0.3%')
    """
    if not passes:
        return None
    holes = max(0, round(median(each.beyond for each in passes)))
    spread = max(abs(each.beyond - holes) for each in passes)
    large = [max(0, each.beyond - holes) / each.tensors for each in passes if each.tensors >= LARGE]
    return Overhead(holes, spread, max(large, default=None))


def device_overhead(recording: Path) -> tuple[Overhead, int] | tuple[None, None]:
    """The same of a CUDA device, and bytes on it that are not the allocator's: the context. None without such counts.

    Segments stay reserved from phase to phase, so that only the phase with the most allocated tells their holes.
    """
    counts = [row["device"] for row in _rows(recording) if row["kind"] == "phase" and row.get("device")]
    if not counts:
        return None, None
    fullest = max(counts, key=lambda each: each["allocated"])
    context = max(each["device_used"] - each["reserved"] for each in counts)
    return Overhead(max(0, fullest["reserved"] - fullest["allocated"]), 0, None), max(0, context)


def _rows(recording: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in recording.read_text().splitlines()]


def _raise(highest: dict[Phase, int], phase: Phase, size: int) -> None:
    highest[phase] = max(size, highest.get(phase, size))
