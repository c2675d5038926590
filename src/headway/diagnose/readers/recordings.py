"""A recording of headway beside the logs: in which phase and step the run was, and what it held then."""

from pathlib import Path

from msgspec import Struct

from headway.errors import InputError
from headway.guard.recorder import Segment, read_recording
from headway.units import format_bytes

START = 4096
"""Bytes in which a recording shows what it is."""


class Recorded(Struct, frozen=True):
    """What a recording tells of a run's end. `phase` is the one that was not finished, or the last that was."""

    phase: str
    step: int | None
    lines: tuple[str, ...]


def read(path: Path) -> Recorded | None:
    """What a recording tells; None where the file is none. InputError where it is one that cannot be read."""
    try:
        with path.open("rb") as file:
            start = file.read(START)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    if not (start.startswith(b'{"kind": "header"') and b'"format"' in start):
        return None
    return _told(path, read_recording(path).segments[-1])


def _told(path: Path, segment: Segment) -> Recorded:
    lines = [f"{path.name}: the process tree held {format_bytes(segment.peak)} at most"]
    lines += [
        f"{path.name}: {phase} held {format_bytes(peak.tree_peak)} at most (step {peak.step}), "
        f"{format_bytes(segment.header.expected[phase])} were expected"
        for phase, peak in segment.peaks.items()
        if phase in segment.header.expected
    ]
    last, reading = segment.last, segment.last_reading
    if reading is not None:
        held = int(reading["rss"]) + int(reading["children"])
        lines.append(
            f"{path.name}: the recording stops inside {reading['phase']} of step {reading['step']}, where "
            f"{format_bytes(held)} were held: the process was killed there, or its end was not recorded"
        )
        return Recorded(str(reading["phase"]), int(reading["step"]), tuple(lines))
    if last is None:
        return Recorded("", None, tuple(lines))
    ended = "finished" if last.ended == "ok" else f"left by {last.ended}"
    lines.append(f"{path.name}: the last phase, {last.phase} of step {last.step}, was {ended}")
    return Recorded(str(last.phase), last.step, tuple(lines))
