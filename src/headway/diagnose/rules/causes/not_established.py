"""The evidence does not show why."""

from headway.diagnose.case import Case
from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Claim, Rule


def _find(case: Case) -> Claim | None:
    return Claim("open", "nothing in the text shows why") if case.event is None else None


RULE = Rule(
    name="not-established",
    level="cause",
    sees="Every end whose reason stands in no line at hand.",
    why="The sender of a signal, or the reason of a kill, is written by another process in another file.",
    sure="A right answer, with the files that would settle it.",
    look_alikes="-",
    example="connection error code 2. End of file",
    near_miss="OSError: [Errno 28] No space left on device",
    settle=(
        settle.DMESG,
        settle.RAYLET,
        settle.POD,
        settle.DOCKER,
        settle.SLURM,
    ),
    find=_find,
)
