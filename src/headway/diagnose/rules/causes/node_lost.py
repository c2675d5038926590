"""A machine dropped out."""

from headway.diagnose.case import Case
from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Claim, Rule


def _find(case: Case) -> Claim | None:
    found = case.first("slurm-node-fail", "reboot")
    if found is not None and case.mechanism in {
        "node-lost",
        "raylet-lost",
        "scheduler-cancel",
        "peer-lost",
        "gcs-lost",
        "unknown",
    }:
        return Claim("supported", "the scheduler or the kernel says that the machine went", (found.place,))
    return None


RULE = Rule(
    name="node-lost",
    level="cause",
    sees="'DUE TO NODE FAILURE', NODE_FAIL, a kernel panic, a restart.",
    why="Power, hardware, a kernel fault, or the pod's machine was taken.",
    sure="Supported by the scheduler's or the kernel's words; a heartbeat text alone leaves it open.",
    look_alikes="An autoscaler's removal and a preemption are planned.",
    example="slurmstepd: error: *** JOB 4242 ON node07 CANCELLED AT 2026-03-01T10:00:00 DUE TO NODE FAILURE, SEE "
    "SLURMCTLD LOG FOR DETAILS ***",
    near_miss="The node has been marked dead because the detector has missed too many heartbeats",
    advice=(Advice("resume without that node", "the run goes on", "a node less"),),
    settle=(
        settle.JOURNAL,
        *settle.NODES,
    ),
    find=_find,
)
