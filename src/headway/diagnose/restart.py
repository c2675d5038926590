"""Which deaths a restart from a checkpoint may get past: those that the run's own inputs do not bring again."""

from headway.diagnose.finding import Finding

AGAIN = {
    "scheduler-cancel": "the scheduler ended the job",
    "pod-eviction": "the pod is gone with it",
    "python-exit": "the program left by itself",
    "hang": "nothing ended",
    "unknown": "nothing shows how it ended",
}
"""Mechanisms after which a restart is no answer."""
CAUSES_AGAIN = {
    "configuration-error": "the same setting fails again",
    "user-code-error": "the same code meets the same data again",
    "user-exit": "the program left by itself",
    "disk-full": "the disk is still full",
    "shm-too-small": "/dev/shm is still too small",
    "thread-limit": "the limit is still there",
    "file-limit": "the limit is still there",
    "gpu-hardware": "the device has to be looked at first",
    "time-limit": "the time is over",
    "preemption": "the machine was taken back",
    "scale-down": "the machine was taken back",
    "engine-start-budget": "the engine finds no room again",
    "device-graph-capture": "the engine finds no room again",
    "numerics": "the same step gives the same numbers again",
    "library-fault": "the same library fails again",
    "host-memory-capacity": "the same run needs the same memory",
    "unified-memory-full": "the same run needs the same memory",
}
"""Causes that are there again after a restart, where they are more than open."""
DEVICE_PASSES = frozenset({"device-growth", "device-fragmentation", "device-other-process"})
"""Causes of a refusal of device memory that a fresh process does not have."""


def why_no_restart(finding: Finding) -> str | None:
    """Why a restart would not help after an end; None where it may.

    A run that died of growth, of a signal, of a lost node or peer starts afresh. One that asks for the same too large
    tensor, or whose code raised, does the same again.
    """
    if finding.outcome != "died":
        return "the run finished" if finding.outcome == "finished" else "the run was asked to stop"
    if finding.mechanism in AGAIN:
        return f"{finding.mechanism}: {AGAIN[finding.mechanism]}"
    if finding.cause in CAUSES_AGAIN and finding.cause_grade != "open":
        return f"{finding.cause}: {CAUSES_AGAIN[finding.cause]}"
    if finding.mechanism == "device-allocation-failure" and finding.cause not in DEVICE_PASSES:
        return f"{finding.mechanism} ({finding.cause}): the same batch asks for the same memory again"
    if finding.mechanism == "python-exception" and finding.cause in ("not-established", "user-code-error"):
        return "python-exception: the same code meets the same data again"
    return None
