"""The kubelet ended the pod."""

from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Rule

RULE = Rule(
    name="pod-eviction",
    level="mechanism",
    tier=0,
    sees="'The node was low on resource: ...', Reason: Evicted, or the eviction manager's own lines.",
    why="A node that is short of memory or disk ends whole pods, those above their requests first. A hard "
    "threshold leaves "
    "one second between SIGTERM and SIGKILL.",
    sure="The status is the kubelet's own: proven. It names the resource.",
    look_alikes="OOMKilled is the kernel at the container's limit. A deletion or a drain also sends SIGTERM.",
    example="Status: Failed  Reason: Evicted  Message: The node was low on resource: memory. Threshold quantity: "
    "100Mi",
    near_miss="12 prefix cache blocks evicted (lru)",
    refuters=("the pod's status is Running, or it was deleted by a user",),
    advice=(
        Advice(
            "set requests equal to limits for memory and ephemeral-storage",
            "the pod is the last to be evicted",
            "needs a node with that much free",
            "pod-requests",
            "kubernetes",
        ),
        Advice(
            "write checkpoints and spills to a volume, not to the container's layer",
            "no eviction for disk",
            "needs a volume",
        ),
    ),
    settle=(settle.POD,),
    ends={"k8s-evicted": "proven"},
)
