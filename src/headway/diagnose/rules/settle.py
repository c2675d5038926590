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
    "Kubernetes, within an hour of the end",
    "Reason: OOMKilled, Evicted, Preempted, or Killing / Stopping container",
    on="kubernetes",
)
DOCKER = Settle(
    "docker inspect --format '{{.State.OOMKilled}} {{.State.ExitCode}} {{.State.FinishedAt}}' CONTAINER",
    "Docker, until the container is removed or started again",
    "true (its memory limit was reached), or 137 / 143 and when",
    on="docker",
)
RAYLET = Settle(
    "grep -nE 'SIGTERM|OOM|killed|dead' /tmp/ray/session_latest/logs/raylet.out",
    "Ray's session directory on the worker's node",
    "received SIGTERM, Stop: sending SIGTERM, or a memory monitor kill at the same second",
    on="ray",
)
OUTPUT = Settle(
    "headway doctor LOG-OF-THAT-RANK",
    "the error output of the process that ended (torchrun keeps each rank's with --log-dir LOGS --redirects 3)",
    "*** SIG... received, Fatal Python error, or a traceback",
)
STDERR = Settle(
    "tail -n 50 /tmp/ray/session_latest/logs/worker-*PID*.err",
    "the worker's own error output",
    "*** SIG... received, Fatal Python error, or a traceback",
    on="ray",
    instead=OUTPUT,
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
    on="slurm",
)
LSF = Settle("bhist -l JOB", "LSF's history", "TERM_RUNLIMIT, TERM_MEMLIMIT, TERM_OWNER", on="lsf")
PBS = Settle("qstat -xf JOB", "PBS's record of the job", "Exit_status and the comment", on="pbs")
SCHEDULER = (SLURM, LSF, PBS)
STARTER = Settle(
    "ask what started the run, and who else uses the machine",
    "the record of the scheduler, the container or the terminal that it was started from",
    "a stop, a time limit or a logout at the same second",
    on="unmanaged",
)
JOURNAL = Settle(
    "journalctl -k -b -1; journalctl -u earlyoom -u systemd-oomd",
    "the machine's journal",
    "sending SIGTERM to process, or a last line before a reboot",
)
NODE = Settle(
    "kubectl get events -A | grep -iE 'node|scale|preempt'",
    "the cluster's events",
    "NodeNotReady, ScaleDown, Preempted",
    on="kubernetes",
)
AUTOSCALER = Settle("ray status -v", "Ray's autoscaler", "idle, or a node that failed", on="ray")
SLURM_NODE = Settle(
    "scontrol show node NODE; sacct -j JOB -o State,NodeList,End", "Slurm", "DOWN, DRAIN, NODE_FAIL", on="slurm"
)
NODES = (NODE, AUTOSCALER, SLURM_NODE)
MEMORY = Settle(
    "headway watch -- CMD",
    "a recording of the next run",
    "whether memory grows by step, jumps at a save, or is high from the first step",
)
ANOMALY = Settle(
    "torch.autograd.set_detect_anomaly(True)",
    "the steps from the last good checkpoint on, which then are slow",
    "'Function ... returned nan values', with the call in the forward pass that it belongs to",
)
AMD = Settle(
    "rocm-smi --showrasinfo all; dmesg -T | grep -i amdgpu",
    "the device's node",
    "uncorrectable errors, or a reset of the GPU",
    on="amd",
    instead=Settle("dmesg -T | grep -iE 'xid|amdgpu|ecc'", "the device's node", "a fault of the device"),
)
NVIDIA = Settle(
    "nvidia-smi -q -d ECC,ROW_REMAPPER; dmesg -T | grep -i xid",
    "the device's node",
    "NVRM: Xid 48, 79, 94, 95 or uncorrectable counts",
    on="nvidia",
    instead=AMD,
)
DEVICE_PROCESSES = (
    Settle("nvidia-smi", "the device's node", "which processes hold memory of the device", on="nvidia"),
    Settle("rocm-smi --showpids", "the device's node", "which processes hold memory of the device", on="amd"),
)
