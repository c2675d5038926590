"""Progress stopped."""

from headway.diagnose.evidence import Evidence, Grade
from headway.diagnose.rules.rule import Advice, Rule, Settle


def _hang(evidence: Evidence) -> Grade | None:
    return None if "watchdog" in evidence.place.text.lower() else "supported"


RULE = Rule(
    name="hang",
    level="mechanism",
    tier=3,
    sees="Health checks without an answer, 'No available block found in 60 second', a log that only waits.",
    why="A process waits for something that does not come: a lock, a rank, an engine that died unseen.",
    sure="Supported at most: the text shows that nobody answered, not why.",
    look_alikes="A long generation or a first compilation is slow, not hung.",
    example="No available shared memory broadcast block found in 60 second.",
    near_miss="readiness probe: health check failed, container not started yet",
    refuters=("progress lines go on",),
    advice=(Advice("py-spy dump --pid PID on every rank while it hangs", "shows where each one waits", "none"),),
    settle=(Settle("py-spy dump --pid PID", "every rank, while it hangs", "the one whose stack differs"),),
    ends={"engine-hang": _hang},
)
