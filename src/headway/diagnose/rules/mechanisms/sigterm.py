"""The process received SIGTERM."""

from headway.diagnose.evidence import Evidence, Grade
from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Rule


def _spawned(evidence: Evidence) -> Grade | None:
    return "proven" if {evidence.fields.get("name"), evidence.fields.get("signal")} & {"SIGTERM", "15"} else None


def _code(evidence: Evidence) -> Grade | None:
    return "proven" if evidence.fields.get("code") in ("-15", "15") or evidence.fields.get("signal") == "15" else None


def _loader(evidence: Evidence) -> Grade | None:
    return "proven" if "terminated" in evidence.fields.get("signal", "").lower() else None


RULE = Rule(
    name="sigterm",
    level="mechanism",
    tier=2,
    sees="'The process receives a SIGTERM.', '*** SIGTERM received', exit code 143 or -15, torchrun's death signal.",
    why="Something asked the process to go: a pod's deletion, drain, preemption or eviction, a raylet that shuts "
        "down, "
    "`ray stop` or `ray job stop`, a scheduler, earlyoom, another launch script, a person.",
    sure="Proven as to the signal; the sender is not in the text. A memory-limit kill is SIGKILL and cannot print "
        "it.",
    look_alikes="'connection error code 2. End of file' is no SIGTERM. The sentence about K8s pod memory limits that "
        "stands "
    "beside it is constant.",
    example="Worker exits with an exit code 1. The worker may have exceeded K8s pod memory limits. The process "
        "receives a SIGTERM.",
    near_miss="Worker exits with an exit code None. The worker may have exceeded K8s pod memory limits.",
    refuters=("the exit code is 137", "a crash banner of the same process"),
    advice=(
        Advice("find the sender before changing memory settings", "the change hits the cause", "none"),
        Advice(
            "write checkpoints often enough, and resume from the last one", "the lost part is short",
            "time for saving", "save-often",
        ),
    ),
    settle=(
        settle.POD, settle.DOCKER, settle.RAYLET, settle.EVENTS, settle.JOURNAL, *settle.SCHEDULER, settle.STARTER,
    ),
    ends={
        "ray-sigterm": "proven", "driver-sigterm": "proven", "elastic-signal": _spawned, "elastic-exit": _code,
        "torch-spawn-signal": _spawned, "loader-killed": _loader, "exit-143": "supported", "terminated": "supported",
        "ray-job-stopped": "supported", "k8s-deleted": "open", "box-signal": _code,
        "box-stop": "proven",
    },
)  # fmt: skip
