"""The kernel killed a process because the machine ran out of memory."""

from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Rule

RULE = Rule(
    name="kernel-oom-kill",
    level="mechanism",
    tier=0,
    sees="The kernel's 'Out of memory: Killed process' or constraint=CONSTRAINT_NONE; CONSTRAINT_CPUSET and "
    "CONSTRAINT_MEMORY_POLICY, where the process may use some of the machine's memory nodes alone.",
    why="No memory was left on the whole machine, or on the nodes that the process is bound to; the kernel kills the "
    "process with the largest score.",
    sure="The kernel's line proves it. The victim is the largest by score, not always what grew. A 'Killed process' "
    "line without what stands before it supports it: a cgroup's kill has the same line.",
    look_alikes="'Memory cgroup out of memory' is the limit of one group. A bare 'Killed' does not say who did it.",
    example="kernel: Out of memory: Killed process 911 (python3) total-vm:812kB, anon-rss:240000000kB, "
    "shmem-rss:12kB",
    near_miss="bash: line 3:   911 Killed                  python3 train.py",
    refuters=("the log of that boot has no such line at that time",),
    advice=(
        Advice("run less beside it, or the same on a machine with more memory", "room", "cost"),
        Advice(
            "give each run a limit of its own (systemd-run -p MemoryMax=)",
            "a run cannot take the machine down",
            "it dies earlier",
        ),
        Advice(
            "where the line says CPUSET or MEMORY_POLICY, allow more memory nodes (cpuset.mems, numactl --membind)",
            "room on the other nodes",
            "slower access to them",
        ),
    ),
    settle=(settle.DMESG, settle.JOURNAL),
    ends={"kernel-oom": "proven", "kernel-killed": "supported"},
)
