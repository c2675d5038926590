"""The node manager of a machine ended."""

from headway.diagnose.evidence import Evidence, Grade
from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Rule


def _subprocess(evidence: Evidence) -> Grade | None:
    return "proven" if evidence.fields.get("name") == "raylet" else None


RULE = Rule(
    name="raylet-lost",
    level="mechanism",
    tier=2,
    sees="'Raylet is terminated. Termination is unexpected', 'raylet [exit code=-9]', 'mistakenly been marked as "
    "dead'.",
    why="The raylet was killed, gave up by a check of its own, or was frozen so long that the head declared it "
    "dead. Its workers go with it.",
    sure="Proven as to the raylet; the list of reasons that Ray prints is constant. Its own log's tail says more.",
    look_alikes="A raylet that gets SIGTERM leaves in order and prints nothing of this kind.",
    example="Raylet is terminated. Termination is unexpected. Possible reasons include: (1) SIGKILL by the user or "
    "system OOM killer",
    near_miss="[raylet] main.cc:500: Raylet received SIGTERM, shutting down...",
    refuters=("the raylet's log ends with a shutdown in order",),
    advice=(
        Advice(
            "leave CPU and memory for Ray itself (a request for the head, fewer threads)",
            "the raylet is not starved",
            "a little room",
        ),
    ),
    settle=(settle.RAYLET, settle.DMESG),
    ends={
        "ray-raylet-gone": "proven",
        "ray-marked-dead": "proven",
        "ray-owner-node": "supported",
        "ray-subprocess": _subprocess,
        "box-raylet": "proven",
    },
)
