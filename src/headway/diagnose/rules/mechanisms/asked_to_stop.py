"""The run was asked to stop, and did."""

from headway.diagnose.evidence import Evidence, Grade
from headway.diagnose.rules.rule import Rule


def _launcher(evidence: Evidence) -> Grade | None:
    return "proven" if {evidence.fields.get("name"), evidence.fields.get("signal")} & {"SIGINT", "2"} else None


def _spawned(evidence: Evidence) -> Grade | None:
    return "supported" if evidence.fields.get("name") == "SIGINT" else None


RULE = Rule(
    name="asked-to-stop",
    level="mechanism",
    tier=4,
    sees="'stopped by SIGINT; the same command resumes' and a summary that says so, of `headway train`; a black box "
    "in which Ctrl-C reached the command before it ended; exit code 130; torchrun that received SIGINT.",
    why="Somebody pressed Ctrl-C, or a platform sent a signal that the run handles: it saved and left.",
    sure="Proven: the run, its launcher, or headway beside it received the signal; supported by exit code 130. It "
    "is no death, so nothing is to be mended.",
    look_alikes="SIGTERM that ends a process without its own word is `sigterm`. KeyboardInterrupt of the other ranks "
    "is teardown where one of them failed before.",
    example="run       38 steps in 1.2 s, stopped by SIGINT; the same command resumes",
    near_miss="run       38 steps in 1.2 s, stopped by guard; the same command resumes",
    refuters=("an end of another kind",),
    ends={
        "run-asked-to-stop": "proven",
        "elastic-signal": _launcher,
        "exit-130": "supported",
        "torch-spawn-signal": _spawned,
    },
)
