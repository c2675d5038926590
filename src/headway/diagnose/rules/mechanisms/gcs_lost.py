"""The control service on the head was gone."""

from headway.diagnose.evidence import Evidence, Grade
from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Rule


def _subprocess(evidence: Evidence) -> Grade | None:
    return "proven" if evidence.fields.get("name") == "gcs_server" else None


RULE = Rule(
    name="gcs-lost",
    level="mechanism",
    tier=2,
    sees="'Failed to connect to GCS within 60 seconds. GCS may have been killed'.",
    why="The head's process or pod ended, or its address could not be reached; actors go on until the timeout.",
    sure="Proven that it could not be reached; why is in gcs_server.out on the head.",
    look_alikes="'Connection refused' to another port is another service.",
    example="Failed to connect to GCS within 60 seconds. GCS may have been killed.",
    near_miss="wandb: Network error (ConnectionError), entering retry loop.",
    refuters=("gcs_server.out goes on after that time",),
    advice=(
        Advice(
            "give the head memory and CPU of its own, and no training work",
            "the head outlives the job",
            "a small node",
        ),
    ),
    settle=(settle.RAYLET, settle.DMESG),
    ends={"ray-gcs-lost": "proven", "ray-subprocess": _subprocess, "box-gcs": "proven"},
)
