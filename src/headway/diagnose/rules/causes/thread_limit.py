"""No more processes or threads."""

import re

from headway.diagnose.case import Case
from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Claim, Rule


def _find(case: Case) -> Claim | None:
    found = case.first("thread-limit")
    if found is None:
        return None
    certain = re.search(
        r"start new thread|pthread_create|pids controller|fork: retry|thread creation", found.place.text, re.I
    )
    return Claim("proven" if certain else "supported", "a thread or process could not be made", (found.place,))


RULE = Rule(
    name="thread-limit",
    level="cause",
    sees="'can't start new thread', 'pthread_create failed', 'Resource temporarily unavailable', [system:11].",
    why="ulimit -u or pids.max; Ray starts tens of threads for each worker, and one worker a core.",
    sure="Proven by the text; supported for error 11 alone.",
    look_alikes="'Cannot allocate memory' at fork is memory.",
    example="RuntimeError: can't start new thread",
    near_miss="OSError: [Errno 12] Cannot allocate memory",
    advice=(
        Advice("raise ulimit -u and the container's pids limit", "room", "none"),
        Advice(
            "ray start --num-cpus with a smaller number; OMP_NUM_THREADS",
            "fewer threads",
            "less parallel work",
            on="ray",
        ),
        Advice("a smaller OMP_NUM_THREADS; fewer workers of the data loader", "fewer threads", "less parallel work"),
    ),
    settle=(settle.STDERR,),
    find=_find,
)
