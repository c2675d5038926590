"""The connection broke without a banner."""

from headway.diagnose.evidence import Evidence, Grade
from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Rule


def _code(evidence: Evidence) -> Grade | None:
    return "proven" if evidence.fields.get("code") == "-9" or evidence.fields.get("signal") == "9" else None


def _spawned(evidence: Evidence) -> Grade | None:
    names = {evidence.fields.get("name"), evidence.fields.get("signal")}
    return "supported" if names & {"SIGKILL", "SIGHUP", "SIGQUIT", "9", "1", "3"} else None


def _watched(evidence: Evidence) -> Grade | None:
    return {"9": "proven", "1": "supported", "3": "supported"}.get(evidence.fields.get("signal", ""))  # type: ignore[return-value]


def _loader(evidence: Evidence) -> Grade | None:
    return "supported" if "killed" in evidence.fields.get("signal", "").lower() else None


RULE = Rule(
    name="sigkill-class",
    level="mechanism",
    tier=3,
    sees="'connection error code 2. End of file', a bare 'Killed', exit code 137 or -9, and no banner of a crash.",
    why="SIGKILL, SIGHUP, SIGQUIT and _exit leave no word. Senders of SIGKILL: the kernel at a memory limit, "
        "Ray's monitor, "
    "`pkill -9`, `ray stop --force`, the end of a grace period, a person.",
    sure="Supported: a crash prints its banner in the worker's own error output, which may be another file. An "
        "exit code of "
    "-9 proves SIGKILL, not its sender.",
    look_alikes="Ray's list '(1) OOM killer (2) ray stop --force (3) SIGSEGV' is constant text and no evidence "
        "for any "
        "of them.",
    example="Worker unexpectedly exits with a connection error code 2. End of file. There are some potential root "
        "causes.",
    near_miss="*** SIGSEGV received at time=1764412345 on cpu 3 ***",
    refuters=("a crash banner of the same pid", "a SIGTERM text of the same worker"),
    advice=(Advice("look into the kernel's log of that node first", "tells a memory kill from the others", "none"),),
    settle=(
        settle.DMESG, settle.EVENTS, settle.STDERR, settle.POD, settle.DOCKER, settle.SLURM, settle.RAYLET,
    ),
    ends={
        "ray-eof": "supported", "killed": "supported", "exit-137": "supported", "elastic-exit": _code,
        "elastic-signal": _spawned, "torch-spawn-signal": _spawned, "loader-killed": _loader,
        "engine-scheduler-code": _code, "ray-worker-crashed": "supported", "hangup": "supported",
        "box-signal": _watched, "box-cut": "supported",
    },
)  # fmt: skip
