"""A scheduler ended the job."""

from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Rule

RULE = Rule(
    name="scheduler-cancel",
    level="mechanism",
    tier=0,
    sees="slurmstepd's 'CANCELLED AT ... DUE TO TIME LIMIT / PREEMPTION / JOB REQUEUE', Kubernetes' "
        "DeadlineExceeded, LSF and PBS lines.",
    why="The job reached its time, made room for another, or was cancelled by somebody.",
    sure="Proven: the scheduler says so. A cancel without a reason may follow a rank that failed before (srun "
        "--kill-on-bad-exit).",
    look_alikes="oom_kill events are the kernel's, reported by Slurm.",
    example="slurmstepd: error: *** JOB 4242 ON node07 CANCELLED AT 2026-03-01T10:00:00 DUE TO TIME LIMIT ***",
    near_miss="slurmstepd: error: Detected 1 oom_kill event in StepId=4242.0.",
    refuters=("sacct says COMPLETED or FAILED",),
    advice=(
        Advice(
            "save on the scheduler's signal (--signal=USR2@120) and requeue", "nothing is lost",
            "a handler in the trainer", on="slurm",
        ),
        Advice("save when the scheduler's signal comes, and resume", "nothing is lost", "a handler in the trainer"),
    ),
    settle=(*settle.SCHEDULER, settle.POD),
    ends={
        "slurm-time": "proven", "slurm-preempted": "proven", "slurm-requeue": "proven", "slurm-node-fail": "proven",
        "slurm-cancel": "proven", "k8s-deadline": "proven", "k8s-preempted": "supported",
    },
)  # fmt: skip
