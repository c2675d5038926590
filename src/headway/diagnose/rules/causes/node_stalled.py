"""A live machine was taken for dead."""

from headway.diagnose.case import Case
from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Claim, Rule


def _find(case: Case) -> Claim | None:
    found = case.first("ray-marked-dead")
    return (
        Claim("supported", "the node manager lived and came back after it had been declared dead", (found.place,))
        if found
        else None
    )


RULE = Rule(
    name="node-stalled",
    level="cause",
    sees="'mistakenly been marked as dead by the GCS'.",
    why="The raylet got no CPU, was swapped out, or its machine was frozen for longer than the health check allows.",
    sure="Supported: it came back, so the machine was not lost.",
    look_alikes="A heartbeat text without it leaves both open.",
    example="Exiting because this node manager has mistakenly been marked as dead by the GCS: GCS failed to check "
    "the "
    "health of this node for 5 times.",
    near_miss="The node has been marked dead because the detector has missed too many heartbeats",
    advice=(
        Advice(
            "leave cores for Ray (fewer loader and BLAS threads)", "it answers in time", "a little speed", on="ray"
        ),
        Advice(
            "RAY_health_check_failure_threshold higher",
            "longer stalls are forgiven",
            "true losses are seen later",
            on="ray",
        ),
    ),
    settle=(settle.RAYLET,),
    find=_find,
)
