"""A machine left the cluster."""

from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Rule

RULE = Rule(
    name="node-lost",
    level="mechanism",
    tier=3,
    sees="'missed too many heartbeats', 'health check failed', 'was preempted', NodeNotReady, 'terminated "
        "expectedly'.",
    why="The machine crashed, restarted, was taken away, was cut off, or was too busy to answer for longer than "
        "the health check allows.",
    sure="Supported: crash, overload, network and a planned scale-down print the same line. Orderly and preempted "
        "ends say so.",
    look_alikes="'mistakenly been marked as dead' is a live machine that stalled.",
    example="The node with node id: 5f and address: 10.0.0.4 has been marked dead because the detector has missed "
        "too many heartbeats from it.",
    near_miss="Exiting because this node manager has mistakenly been marked as dead by the GCS",
    refuters=("the machine was up all the time and its raylet's log goes on",),
    advice=(
        Advice("run on nodes that are not preemptible, or checkpoint more often", "fewer or shorter losses", "cost"),
        Advice(
            "keep the autoscaler from removing nodes of a running job: a longer idle timeout, and on its pods the "
            "annotation safe-to-evict: false",
            "no planned removal", "idle cost", on="kubernetes",
        ),
        Advice(
            "keep the autoscaler from removing nodes of a running job: a longer idle timeout", "no planned removal",
            "idle cost", on="ray",
        ),
    ),
    settle=(*settle.NODES, settle.RAYLET),
    ends={
        "ray-heartbeats": "supported", "ray-node-orderly": "supported", "ray-node-preempted": "proven",
        "ray-node-dead": "supported", "k8s-node-not-ready": "supported", "reboot": "open",
    },
)  # fmt: skip
