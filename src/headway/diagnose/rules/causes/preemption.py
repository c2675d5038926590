"""The place was taken back."""

from headway.diagnose.case import Case
from headway.diagnose.evidence import Grade
from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Claim, Rule


def _find(case: Case) -> Claim | None:
    found = case.first("slurm-preempted", "ray-node-preempted", "k8s-preempted")
    if found is None:
        return None
    grade: Grade = "supported" if found.kind == "k8s-preempted" else "proven"
    return Claim(grade, "the scheduler or the cloud says so", (found.place,))


RULE = Rule(
    name="preemption",
    level="cause",
    sees="'DUE TO PREEMPTION', 'was preempted', a spot instance's notice.",
    why="A job of higher priority, or the cloud's own need.",
    sure="Proven by the scheduler's words.",
    look_alikes="vLLM's 'preempted' sequences and PreemptionMode are inside the engine.",
    example="slurmstepd: error: *** JOB 4242 ON node07 CANCELLED AT 2026-03-01T10:00:00 DUE TO PREEMPTION ***",
    near_miss="WARNING Sequence group 5 is preempted by PreemptionMode.RECOMPUTE mode because there is not enough KV "
    "cache space.",
    advice=(
        Advice("save on the notice, requeue", "nothing is lost", "a handler"),
        Advice("a partition or class that is not preempted", "it stays", "cost"),
    ),
    settle=(settle.SLURM, settle.NODE, settle.AUTOSCALER),
    find=_find,
)
