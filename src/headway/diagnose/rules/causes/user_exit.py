"""Code left by itself, or ended the run by a signal."""

from headway.diagnose.case import Case
from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Claim, Rule


def _find(case: Case) -> Claim | None:
    sent = case.inner
    if sent is not None and sent.fields["pid"] == sent.fields["target"]:
        return Claim("proven", f"{sent.fields['sender']} sent it to itself", (sent.place,))
    if sent is not None:
        return Claim("supported", f"{sent.fields['sender']} of the run sent it", (sent.place,))
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
    sees="Exit code None or N of a worker with no SIGTERM text; INTENDED_USER_EXIT; a signal that, as a black box "
    "saw, the process sent to itself or another process of the run sent.",
    why="exit() left over from debugging, a library's sys.exit; os.kill in a script; a launcher that ends what it "
    "started.",
    sure="Supported; code 1 alone stays open, because the SIGTERM handler also exits with 1. Proven where the kernel "
    "named the process itself as the sender.",
    look_alikes="The K8s sentence beside it says nothing about memory.",
    example="Worker exits with an exit code None. The worker may have exceeded K8s pod memory limits.",
    near_miss="Worker exits with an exit code 1. The process receives a SIGTERM.",
    advice=(
        Advice(
            "search for exit(), quit(), sys.exit() and os.kill() in code that the run executes; raise instead",
            "the reason is printed",
            "none",
        ),
    ),
    settle=(settle.STDERR,),
    find=_find,
)
