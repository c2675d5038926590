"""The kernel killed a process at a memory cgroup's limit."""

from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Rule

RULE = Rule(
    name="cgroup-oom-kill",
    level="mechanism",
    tier=0,
    sees="The kernel's 'Memory cgroup out of memory', Kubernetes' OOMKilled, Slurm's oom_kill event.",
    why="The group of a pod, container or step has a limit of its own; at it the kernel kills a process of the "
    "group by "
    "SIGKILL, however much the node has free.",
    sure="The kernel's and Slurm's lines prove it. OOMKilled proves a kernel kill inside the container and "
    "supports its "
    "limit: where the whole node ran out the container shows the same. A call trace supports it by the charge to a "
    "group in it (try_charge_memcg); that a frame is called out_of_memory says nothing of the kind.",
    look_alikes="constraint=CONSTRAINT_NONE is the whole machine, whatever group the victim was in. Exit code 137 "
    "alone is SIGKILL by anybody. Ray's sentence about K8s pod memory limits is printed at every non-zero exit and "
    "proves nothing.",
    example="kernel: Memory cgroup out of memory: Killed process 4242 (ray::Trainer) total-vm:9kB, "
    "anon-rss:88000000kB",
    near_miss="The worker may have exceeded K8s pod memory limits. The process receives a SIGTERM.",
    refuters=("memory.events says oom_kill 0", "the exit code is 143, or the text says SIGTERM"),
    advice=(
        Advice(
            "raise the limit on the group's memory if the node has more",
            "room up to the node's memory",
            "none of its own",
            "memory-limit",
        ),
        Advice(
            "lower what the processes of the group hold, /dev/shm included", "below the limit", "depends on the cause"
        ),
    ),
    settle=(settle.DMESG, settle.EVENTS, settle.POD, settle.DOCKER, settle.SLURM),
    ends={
        "kernel-cgroup-oom": "proven", "slurm-oom": "proven", "k8s-oomkilled": "supported",
        "kernel-cgroup-frame": "supported",
    },
)  # fmt: skip
