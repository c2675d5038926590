"""Somebody outside sent a stop signal."""

from headway.diagnose.case import Case
from headway.diagnose.evidence import Grade
from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Claim, Rule

_SIGNALS = {"sigterm": "15", "sigkill-class": "9", "raylet-lost": "9", "gcs-lost": "9"}


def _seen(case: Case) -> Claim | None:
    """A black box saw the sender of such a signal: the kernel names it, unless it is of another pid namespace."""
    number = _SIGNALS.get(case.mechanism)
    for each in case.evidence:
        if each.kind == "box-sender" and each.fields["signal"] == number:
            grade: Grade = "proven" if "pid" in each.fields else "supported"
            return Claim(grade, f"{each.fields['sender']} sent it", (each.place,))
    return None


def _find(case: Case) -> Claim | None:
    if case.stopped is not None or case.inner is not None:
        return None
    if (sender := _seen(case)) is not None:
        return sender
    found = case.first("driver-sigterm", "elastic-signal", "ray-job-stopped", "hangup") or case.words(
        "python-traceback", "KeyboardInterrupt"
    )
    if found is None:
        found = next((each for each in case.evidence if "KeyboardInterrupt" in each.fields.get("type", "")), None)
    if found is not None and case.mechanism in {"sigterm", "sigkill-class", "python-exception"}:
        return Claim(
            "supported",
            "the signal came to the driver or launcher from outside; from whom is not shown",
            (found.place,),
        )
    stopped = case.first("slurm-cancel", "k8s-deleted")
    if (
        stopped is not None
        and case.mechanism in {"scheduler-cancel", "sigterm"}
        and case.event is not None
        and case.event.kind != "slurm-requeue"
    ):
        return Claim("open", "the job or pod was ended by a command of somebody", (stopped.place,))
    return None


RULE = Rule(
    name="outside-signal",
    level="cause",
    sees="SIGTERM at the driver or at torchrun, Ctrl-C, `ray job stop`; a sender that a black box saw.",
    why="A person, a script or a platform stopped the job as a whole.",
    sure="Supported: the driver is no part of a teardown. A SIGTERM to one worker may come from Ray itself and stays"
    " open. Proven where the kernel told a black box which process sent it.",
    look_alikes="A memory kill is SIGKILL.",
    example="*** SIGTERM received at time=1764412345 on cpu 3 ***",
    near_miss="The process receives a SIGTERM.",
    advice=(
        Advice(
            "look who: the shell's history, the platform's audit log, other launch scripts on the node",
            "names the sender",
            "none",
        ),
    ),
    settle=(
        settle.POD,
        settle.DOCKER,
        *settle.SCHEDULER,
    ),
    find=_find,
)
