"""Ray's own monitor killed the worker."""

from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Rule

RULE = Rule(
    name="ray-memory-monitor",
    level="mechanism",
    tier=0,
    sees="Ray's kill message: 'running low on memory', the node's use over its total, the threshold passed.",
    why="Every 250 ms the raylet compares the memory in use (of the container where it has a limit, else of the "
    "node) "
    "with its threshold, 0.95 by default, and kills a worker by SIGKILL when it is above.",
    sure="The text is Ray's own and has no other reason: proven. It names the node, never a device. The victim is "
    "chosen by Ray's policy and need not be what grew.",
    look_alikes="torch's OutOfMemoryError has the same class name and means device memory; 'K8s pod memory "
    "limits' is "
    "printed at every non-zero exit in Kubernetes.",
    example="1 worker(s) were killed due to the node running low on memory. Memory on the node was 115.86GB / "
    "121.69GB (0.952127)",
    near_miss="ray.exceptions.RayTaskError(OutOfMemoryError): CUDA out of memory. Tried to allocate 2.00 GiB.",
    refuters=("the periodic summary counts 0 workers killed due to memory pressure",),
    advice=(
        Advice("make the run need less memory on that node", "stays below the threshold", "depends on the cause"),
        Advice(
            "do not raise RAY_memory_usage_threshold and do not switch the monitor off "
            "(RAY_memory_monitor_refresh_ms=0)",
            "the kernel would kill instead, any process, without a message of Ray",
            "on unified memory the machine itself can hang or restart",
            on="ray",
        ),
    ),
    settle=(settle.MEMORY, settle.RAYLET),
    ends={"ray-memory-kill": "proven", "ray-memory-numbers": "supported"},
)
