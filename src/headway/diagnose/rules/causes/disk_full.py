"""A file system is full."""

import re

from headway.diagnose.case import Case
from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Claim, Rule


def _find(case: Case) -> Claim | None:
    found = case.first("disk-full")
    if found is not None and not case.has("shm-insufficient"):
        certain = re.search(r"No space left|Errno 28|StorageFull|ENOSPC", case.text, re.I) is not None
        return Claim("proven" if certain else "supported", "a write was refused for want of space", (found.place,))
    warned = case.first("ray-disk-warning")
    if warned is not None and (warned.number("left") or 1.0) <= 0 and case.mechanism != "unknown":
        return Claim("supported", "Ray's disk monitor saw no space left", (warned.place,))
    return None


RULE = Rule(
    name="disk-full",
    level="cause",
    sees="[Errno 28], 'No space left on device', StorageFull, a quota, PytorchStreamWriter's failure.",
    why="Checkpoints, spilled objects (/tmp/ray) or logs filled the file system, or its inodes or quota are used up.",
    sure="Proven by error 28; the path in the text names the file system.",
    look_alikes="'is over 95% full, available space: 40 GB' alone is noise. Error 28 on /dev/shm is shared memory.",
    example="OSError: [Errno 28] No space left on device: '/ckpt/iter_50/model.pt'",
    near_miss="/tmp/ray is over 95% full, available space: 48.2 GB. Object creation will fail if spilling is "
    "required.",
    advice=(
        Advice("keep fewer checkpoints, or write them elsewhere", "room", "older ones are gone"),
        Advice("--temp-dir of ray start on a larger disk", "spills have room", "none", on="ray"),
    ),
    settle=(settle.EARLIER,),
    find=_find,
)
