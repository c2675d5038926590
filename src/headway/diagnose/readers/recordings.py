"""A recording of headway beside the logs: in which phase and step the run was, and what it held then."""

import json
from pathlib import Path
from typing import Any

from msgspec import MsgspecError, Struct, convert
from msgspec.structs import replace

from headway.diagnose.finding import Outcome
from headway.diagnose.readers import own_growth
from headway.diagnose.sentence import GOES_ON, stop_sentence
from headway.errors import DiskFullError, InputError, RewardsFailedError
from headway.guard.frame import Action
from headway.guard.recorder import Segment, read_recording
from headway.units import format_bytes

LATER_S = 10.0
"""Seconds by which a recording's last line may be younger than the summary of the same run."""
MOST_BYTES = 16 << 20
"""Bytes of a summary that are read."""
START = 4096
"""Bytes in which a recording shows what it is."""


GUARDED = "headway's guard stopped the run at a limit, with a checkpoint to go on from."
"""How a run ended that the guard stopped."""


DISK_FULL = "The disk was full, and the run stopped with no file half written."
"""The same of one that could not write a checkpoint."""


class Recorded(Struct, frozen=True):
    """What a recording tells of a run's end. `phase` is the one that was not finished, or the last that was.

    `ended` is a sentence on how the run ended, as whoever recorded it saw that; empty where nobody did; `outcome`
    whether that was a death. `said` are the last lines of a command that ended with a bad code, `grown` what was
    measured of its own growth, in lines that the rules weigh. `spec` and `ledger` are what was read of the run and
    planned, as a black box has them.
    """

    phase: str
    step: int | None
    lines: tuple[str, ...]
    ended: str = ""
    spec: str = ""
    ledger: str = ""
    outcome: Outcome = "died"
    said: tuple[str, ...] = ()
    grown: tuple[str, ...] = ()


def read(path: Path) -> Recorded | None:
    """What a recording tells; None where the file is none. InputError where it is one that cannot be read."""
    try:
        with path.open("rb") as file:
            start = file.read(START)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    if not (start.startswith(b'{"kind": "header"') and b'"format"' in start):
        return None
    segment = read_recording(path).segments[-1]
    told, grown = _told(path, segment), tuple(own_growth.of_recording(path, _group_limit(segment)))
    action = _stop(segment) if told.ended == GUARDED else None
    if action is None:
        return replace(told, grown=grown)
    lines = (*told.lines, f"{path.name}: the guard stopped the run: {action.reason}")
    return replace(told, lines=lines, grown=(*grown, f"recording: {stopped_by_guard(action)}"))


def stopped_by_guard(action: Action) -> str:
    """What the guard's stop is called in a log. The reason is without the name of the process that grows, which is
    another program's text."""
    grows = action.detector in ("forecast", "fast rise", "steady rise")
    reason = action.reason.partition("; ")[0] if grows else action.reason
    return f"headway's guard stopped the run ({action.detector}, {action.pool}): {reason}"


def _stop(segment: Segment) -> Action | None:
    """The guard's last stop that a process's recording tells; None where it only would have."""
    try:
        action = None if segment.last_stop is None else convert(segment.last_stop, Action)
    except MsgspecError:
        return None
    return action if action is not None and not action.dry else None


def _group_limit(segment: Segment) -> int | None:
    """The limit of the run's control group, where its machine has one."""
    limits = (limit for pool in segment.header.machine.pools for limit in pool.limits)
    return next((limit.bytes for limit in limits if limit.name == "cgroup"), None)


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
        where = f"inside {reading['phase']} of step {reading['step']}"
        ended = f"The recording stops {where}: the process was killed there, or its end was not recorded."
        return Recorded(str(reading["phase"]), int(reading["step"]), tuple(lines), ended)
    if last is None:
        return Recorded("", None, tuple(lines))
    ended = "finished" if last.ended == "ok" else f"left by {last.ended}"
    lines.append(f"{path.name}: the last phase, {last.phase} of step {last.step}, was {ended}")
    outcome, sentence = _summed_up(path, segment)
    return Recorded(str(last.phase), last.step, tuple(lines), sentence, outcome=outcome)


ASKED_TO_GO = ("SIGINT", "SIGTERM", "SIGHUP")
"""Signals at which `headway train` saves and stops."""


def _summed_up(path: Path, segment: Segment) -> tuple[Outcome, str]:
    """How a run says itself that it ended, in the summary.json beside its recording; nothing where that is of an
    earlier process or older."""
    summary = path.with_name("summary.json")
    try:
        if summary.stat().st_mtime < path.stat().st_mtime - LATER_S or summary.stat().st_size > MOST_BYTES:
            return "died", ""
        found = json.loads(summary.read_bytes())
    except (OSError, ValueError, RecursionError):
        return "died", ""
    reason = found.get("exit_reason") if isinstance(found, dict) and _is_of(found, segment.header.pid) else None
    if reason == "finished":
        step = _step(found)
        return "finished", f"The run finished{'' if step is None else f' (step {step})'}: nothing ended it early."
    if reason == RewardsFailedError.exit_reason:
        return "died", "Most answers could not be scored, and the run stopped at once."
    if reason == DiskFullError.exit_reason:
        return "died", DISK_FULL
    if reason == "guard":
        return "died", GUARDED
    if reason in ASKED_TO_GO:
        return "stopped", stop_sentence(reason, _step(found), GOES_ON)
    return "died", ""


def _step(summary: dict[str, Any]) -> int | None:
    """The steps that were finished, where the summary has a number for them."""
    steps = summary.get("steps")
    return steps if isinstance(steps, int) else None


def _is_of(summary: dict[str, Any], pid: int) -> bool:
    """Whether a summary is of the process with that pid; True where it names none."""
    attempts = summary.get("attempts")
    last = attempts[-1] if isinstance(attempts, list) and attempts else None
    return not isinstance(last, dict) or last.get("pid", pid) == pid
