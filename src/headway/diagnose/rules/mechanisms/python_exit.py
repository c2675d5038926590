"""Python code called exit."""

from headway.diagnose.evidence import Evidence, Grade
from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Rule


def _code(evidence: Evidence) -> Grade:
    return "proven" if evidence.fields.get("code") == "None" else "supported"


def _exit(evidence: Evidence) -> Grade | None:
    return "proven" if evidence.fields.get("type", "").endswith("SystemExit") else None


RULE = Rule(
    name="python-exit",
    level="mechanism",
    tier=3,
    sees="'Worker exits with an exit code N.' and no SIGTERM text, INTENDED_USER_EXIT, SystemExit.",
    why="sys.exit(), exit(), quit() or ray.actor.exit_actor() in code that runs in the worker, a library's too.",
    sure="Code None comes from a bare exit() alone: proven. Other codes are supported, because a cut text may "
    "lack the "
    "SIGTERM sentence.",
    look_alikes="With 'The process receives a SIGTERM.' beside it the signal's handler called exit.",
    example="Worker exits with an exit code None. The worker may have exceeded K8s pod memory limits.",
    near_miss="Worker exits with an exit code 1. The process receives a SIGTERM.",
    refuters=("a SIGTERM sentence of the same worker",),
    advice=(
        Advice(
            "search the code for exit(), quit() and sys.exit() and raise an exception instead",
            "the reason is printed",
            "none",
        ),
    ),
    settle=(settle.STDERR,),
    ends={
        "ray-exit-code": _code,
        "ray-user-exit": "supported",
        "usage-error": "supported",
        "python-traceback": _exit,
        "python-error": _exit,
    },
)
