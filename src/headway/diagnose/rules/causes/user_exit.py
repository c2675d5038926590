"""Code left by itself."""

from headway.diagnose.case import Case
from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Claim, Rule


def _find(case: Case) -> Claim | None:
    if case.mechanism != "python-exit" or case.event is None:
        return None
    if case.event.kind == "usage-error":
        return None
    code = case.event.fields.get("code")
    if code == "1":
        return Claim("open", "exit code 1 and no SIGTERM text: sys.exit(1), or a cut text", (case.event.place,))
    return Claim("supported", "an exit of Python code, and no signal in the text", (case.event.place,))


RULE = Rule(
    name="user-exit",
    level="cause",
    sees="Exit code None or N of a worker with no SIGTERM text; INTENDED_USER_EXIT.",
    why="exit() left over from debugging, a library's sys.exit.",
    sure="Supported; code 1 alone stays open, because the SIGTERM handler also exits with 1.",
    look_alikes="The K8s sentence beside it says nothing about memory.",
    example="Worker exits with an exit code None. The worker may have exceeded K8s pod memory limits.",
    near_miss="Worker exits with an exit code 1. The process receives a SIGTERM.",
    advice=(
        Advice(
            "search for exit(), quit(), sys.exit() in code that the worker runs; raise instead",
            "the reason is printed",
            "none",
        ),
    ),
    settle=(settle.STDERR,),
    find=_find,
)
