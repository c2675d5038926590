"""The time was over."""

from headway.diagnose.case import Case
from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Claim, Rule


def _find(case: Case) -> Claim | None:
    found = case.first("slurm-time", "k8s-deadline")
    if found is not None:
        return Claim("proven", "the scheduler says so", (found.place,))
    again = case.first("slurm-requeue")
    return Claim("open", "the job was requeued, at its limit or for another job", (again.place,)) if again else None


RULE = Rule(
    name="time-limit",
    level="cause",
    sees="'DUE TO TIME LIMIT', TERM_RUNLIMIT, DeadlineExceeded.",
    why="The job's own limit.",
    sure="Proven by the scheduler's words; a requeue leaves it open.",
    look_alikes="NCCL's and RPC timeouts are the program's own.",
    example="slurmstepd: error: *** JOB 4242 ON node07 CANCELLED AT 2026-03-01T10:00:00 DUE TO TIME LIMIT ***",
    near_miss="slurmstepd: error: *** JOB 4242 ON node07 CANCELLED AT 2026-03-01T10:00:00 DUE TO JOB REQUEUE ***",
    advice=(
        Advice("a longer limit, or --signal=USR2@120 with a save and a requeue", "no loss", "a handler", on="slurm"),
        Advice("a longer limit, or a save before it and a resume", "no loss", "a handler"),
    ),
    settle=settle.SCHEDULER,
    find=_find,
)
