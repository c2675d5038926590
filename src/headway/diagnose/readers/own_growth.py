"""What a recording shows of the growth of what ended itself: its process, or its control group; never the node's."""

import json
from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import Any

from headway.diagnose.rises import NEAR, Point, Rise, rise, until_peak
from headway.diagnose.sign import Sign
from headway.guard.blackbox import Box
from headway.guard.boxrecords import Ended
from headway.guard.frame import Frame, Gauge, ProcessUse
from headway.plan.ledger import Phase
from headway.units import format_bytes

SIGNS = (
    Sign(
        "own-growth",
        "context",
        ("own growth (",),
        r"own growth \((?P<of>process|cgroup), (?P<how>long|short|no limit)\): (?P<reason>.+)$",
        says="what ended grew by itself, as was measured: its process, or its control group",
    ),
)
"""`how`: over steps or for long, up to its own limit; so short that it may be a start; with no limit known."""
LOAD = str(Phase.LOAD)
MOST = 2000
"""Steps of a recording of which the peaks are kept; above, every second is dropped."""


def of_box(box: Box, ended: Ended) -> Iterator[str]:
    """What a black box shows of a process that ended badly, and of its control group meanwhile."""
    seen = ((frame, _use(frame, ended.pid)) for frame in box.recent if frame.phase != LOAD)
    alive = [(frame, use) for frame, use in seen if use is not None]
    own = until_peak([Point(frame.t, use.rss, frame.step) for frame, use in alive])
    found = rise(own)
    if found is not None and (text := _of_process(found, ended.pid, alive[len(own) - 1][1])):
        yield text
    groups = [(frame, gauge) for frame, _ in alive if (gauge := _group(frame)) is not None]
    own = until_peak([Point(frame.t, gauge.used, frame.step) for frame, gauge in groups])
    found = rise(own)
    if found is not None and (limit := groups[-1][1].limit) and found.last >= NEAR * limit:
        most = _most_in([frame for frame, _ in groups[: len(own)]])
        yield f"own growth (cgroup, {_how(found)}): the control group {found}, of {format_bytes(limit)}{most}"


def _of_process(found: Rise, pid: int, use: ProcessUse) -> str:
    """The words for a process; empty where a limit of its own was not near: then it asked for much at once."""
    text = f"process {pid} {found}"
    if use.wall is None:
        return f"own growth (process, no limit): {text}"
    if use.wall.used < NEAR * use.wall.limit:
        return ""
    at = f"{format_bytes(use.wall.used)} of the {format_bytes(use.wall.limit)} of {use.wall.name} that it may have"
    return f"own growth (process, {_how(found)}): {text}, to {at}"


def _most_in(frames: list[Frame]) -> str:
    """Whose growth it was most: the process that gained most between two frames."""
    before = {use.pid: use.rss for use in frames[0].processes}
    gains = {use.pid: use.rss - before.get(use.pid, 0) for use in frames[-1].processes}
    pid = max(gains, key=lambda each: gains[each])
    return f", most of it in process {pid} ({format_bytes(gains[pid])})" if gains[pid] > 0 else ""


def _how(found: Rise) -> str:
    return "long" if found.long else "short"


def _use(frame: Frame, pid: int) -> ProcessUse | None:
    return next((use for use in frame.processes if use.pid == pid), None)


def _group(frame: Frame) -> Gauge | None:
    return next((gauge for gauge in frame.gauges if gauge.name == "cgroup"), None)


def of_recording(path: Path, limit: int | None) -> Iterator[str]:
    """What the last process of a recording of `headway train` shows of itself: its own memory, and that of its tree
    beside the `limit` of its control group, where that is known."""
    own, tree = _peaks(path)
    found = rise(own)
    if found is not None and found.long:
        yield f"own growth (process, long): the run's process {found}"
    found = rise(tree)
    if found is not None and found.long and limit and found.last >= NEAR * limit:
        yield f"own growth (cgroup, long): the run's processes {found}, of {format_bytes(limit)}"


def _peaks(path: Path) -> tuple[list[Point], list[Point]]:
    """The highest of each step, of the process and of its tree, in the recording's last process."""
    own: dict[int, Point] = {}
    tree: dict[int, Point] = {}
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            row = _row(line)
            if row.get("kind") == "header":
                own, tree = {}, {}
            elif row.get("kind") == "phase" and row.get("phase") != LOAD:
                step, t = int(row["step"]), float(row["t"])
                for kept, name in ((own, "rss_peak"), (tree, "tree_peak")):
                    if int(row[name]) > kept.get(step, Point(t, -1)).bytes:
                        kept[step] = Point(kept[step].t if step in kept else t, int(row[name]), step)
            if len(own) > MOST:
                own, tree = ({step: each[step] for step in list(each)[::2]} for each in (own, tree))
    return list(own.values()), list(tree.values())


def _row(line: str) -> dict[str, Any]:
    """The object on a line; empty where the line is not whole."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def first_bad(ended: list[Ended], until: float, last_s: float, together_s: float) -> Ended | None:
    """Of the processes that ended badly near the run's end the first; of several at about that time the one that held
    most."""
    near = [each for each in ended if each.t >= until - last_s]
    start = min((each.t for each in near), default=inf)
    return max((each for each in near if each.t <= start + together_s), key=lambda each: each.rss or 0, default=None)
