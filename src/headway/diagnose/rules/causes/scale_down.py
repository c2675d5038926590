"""An autoscaler removed the machine."""

from headway.diagnose.case import Case
from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Claim, Rule


def _find(case: Case) -> Claim | None:
    found = case.first("ray-scale-down")
    if found is None or case.mechanism not in {"node-lost", "raylet-lost", "sigterm", "peer-lost"}:
        return None
    return Claim("supported", "the autoscaler says that it removed a node", (found.place,))


RULE = Rule(
    name="scale-down",
    level="cause",
    sees="An autoscaler's line about an idle or unneeded node beside the node's end.",
    why="The node looked idle: no task of Ray, or below the cluster autoscaler's use.",
    sure="Supported by the autoscaler's own line.",
    look_alikes="A heartbeat text alone does not tell.",
    example="autoscaler: Removing 1 nodes of type worker (idle).\nThe node has been marked dead because the detector "
    "has"
    " missed too many heartbeats",
    near_miss="autoscaler: Adding 1 nodes of type worker.\nThe node has been marked dead because the detector has "
    "missed "
    "too many heartbeats",
    advice=(
        Advice(
            "a longer idle timeout of the autoscaler, or the pod's annotation safe-to-evict: false",
            "the node stays",
            "idle cost",
            on="kubernetes",
        ),
        Advice("a longer idle timeout of the autoscaler", "the node stays", "idle cost"),
    ),
    settle=(settle.NODE, settle.AUTOSCALER),
    find=_find,
)
