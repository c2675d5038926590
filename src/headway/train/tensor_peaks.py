"""The most bytes of tensors that each phase makes, counted on the CPU: what resident memory is compared with.

torch keeps no such count of host memory. Its profiler is told of each block that its allocator takes and gives back,
what a kernel needs for itself included.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch.autograd.profiler import profile

from headway.guard.recorder import Recorder
from headway.plan.ledger import Phase


class TensorPeaks:
    """Stands in a recorder's place and writes a line `tensors` for each phase: its step, and the most bytes of
    tensors over what was alive at its start.

    It measures no resident memory: the profiler's own events would be part of it. What was there before the first
    counted phase and goes in one is not seen to go.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    @contextmanager
    def phase(self, phase: Phase, step: int) -> Iterator[None]:
        """Count what happens inside as one pass through a phase."""
        with profile(profile_memory=True) as profiled:
            yield
        self._recorder.note("tensors", {"phase": phase, "step": step, "peak": _peak(profiled)})

    def note(self, kind: str, row: Mapping[str, Any]) -> None:
        """Write a line of another kind to the recording."""
        self._recorder.note(kind, row)

    def latest(self) -> dict[Phase, int]:
        """What the recorder measured before."""
        return self._recorder.latest()


def _peak(profiled: profile) -> int:
    """The highest sum of what was taken less what was given back, in bytes."""
    assert profiled.kineto_results is not None, "the profiler has been left"
    changes = [each for each in profiled.kineto_results.events() if each.name() == "[memory]"]
    live = peak = 0
    for change in sorted(changes, key=lambda each: each.start_ns()):
        live += change.nbytes()
        peak = max(peak, live)
    return peak
