"""Questions that come up in many rules, and where their answers stand."""

from headway.diagnose.rules.rule import Settle

DMESG = Settle(
    "dmesg -T | grep -iE 'oom-kill|Killed process'",
    "kernel log of the node",
    "oom-kill:constraint= with the worker's pid",
)
EVENTS = Settle(
    "cat /sys/fs/cgroup/memory.events",
    "cgroup of the container, before it is restarted",
    "oom_kill above 0 (0 refutes a memory-limit kill)",
)
POD = Settle(
    "kubectl describe pod POD; kubectl get events --field-selector involvedObject.name=POD",
    "Kubernetes, within an hour of the end", "Reason: OOMKilled, Evicted, Preempted, or Killing / Stopping container",
)  # fmt: skip
RAYLET = Settle(
    "grep -nE 'SIGTERM|OOM|killed|dead' /tmp/ray/session_latest/logs/raylet.out", "Ray's session directory on "
        "the worker's node",
    "received SIGTERM, Stop: sending SIGTERM, or a memory monitor kill at the same second",
)  # fmt: skip
STDERR = Settle(
    "tail -n 50 /tmp/ray/session_latest/logs/worker-*PID*.err",
    "the worker's own error output",
    "*** SIG... received, Fatal Python error, or a traceback",
)
EARLIER = Settle(
    "headway doctor ALL-LOGS",
    "the start of the same log and the logs of the other ranks",
    "the first traceback or kill before this line",
)
SLURM = Settle(
    "sacct -j JOB -o State,ExitCode,MaxRSS,Elapsed,Timelimit",
    "Slurm's accounting",
    "TIMEOUT, PREEMPTED, CANCELLED, OUT_OF_MEMORY",
)
JOURNAL = Settle(
    "journalctl -k -b -1; journalctl -u earlyoom -u systemd-oomd",
    "the machine's journal",
    "sending SIGTERM to process, or a last line before a reboot",
)
NODE = Settle(
    "kubectl get events -A | grep -iE 'node|scale|preempt'; ray status -v",
    "the cluster's events and the autoscaler's log",
    "NodeNotReady, ScaleDown, Preempted, idle",
)
MEMORY = Settle(
    "headway watch -- CMD",
    "a recording of the next run",
    "whether memory grows by step, jumps at a save, or is high from the first step",
)
NVIDIA = Settle(
    "nvidia-smi -q -d ECC,ROW_REMAPPER; dmesg -T | grep -i xid",
    "the device's node",
    "NVRM: Xid 48, 79, 94, 95 or uncorrectable counts",
)
