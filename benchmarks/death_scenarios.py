"""The deaths that record_deaths.py plays: what the program does to itself, or what is done to it, and what is true.

`fault` is Python that runs inside the loop's worker at the moment of its death; `act` gets the cluster from outside
at that moment. Exactly what happened is known, so `mechanisms` and `causes` are facts and nobody's reading of a text.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

MEMORY = (
    "host-memory-growth", "host-memory-capacity", "host-memory-checkpoint-spike", "host-memory-pinned",
    "host-memory-data-spike", "unified-memory-full", "ray-memory-monitor", "cgroup-oom-kill", "kernel-oom-kill",
    "oom-daemon", "pod-eviction", "host-allocation-failure", "device-allocation-failure", "device-activations",
    "device-growth",
)  # fmt: skip
"""Names that are false of every death that has nothing to do with memory."""
HARDWARE = ("gpu-hardware", "node-lost", "network", "preemption", "time-limit", "scale-down")
K8S = {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}
NO_MONITOR = {"RAY_memory_monitor_refresh_ms": "0"}


class Cluster(Protocol):
    """What an act may do. Processes are found in the cluster's own pid namespace, by a piece of their command."""

    def signal(self, process: str, number: int) -> None: ...

    def command(self, words: str) -> None: ...


@dataclass(frozen=True)
class Scenario:
    """One death. `causes` holds "not-established" where the text cannot tell why.

    `where`: "step" of an actor, its "init", a "task", or the "driver". `limit_mb` is of a memory group around the
    cluster, `disk_mb` of the file system of its sessions; `keep` are kinds of files beside the driver's log.
    """

    name: str
    mechanisms: tuple[str, ...]
    causes: tuple[str, ...] = ("not-established",)
    fault: str = ""
    act: Callable[[Cluster], None] | None = None
    where: str = "step"
    env: dict[str, str] = field(default_factory=dict)
    limit_mb: int | None = None
    pids: int | None = None
    disk_mb: int = 600
    shm_mb: int = 400
    job: bool = False
    longest_s: int = 60
    keep: tuple[str, ...] = ("worker", "raylet", "gcs_server")
    memory: bool = False
    extra_false: tuple[str, ...] = ()
    system: dict[str, object] = field(default_factory=dict)

    @property
    def must_not_claim(self) -> list[str]:
        own = {*self.mechanisms, *self.causes}
        return sorted({*(() if self.memory else MEMORY), *HARDWARE, *self.extra_false} - own)


def sent(process: str, number: int) -> Callable[[Cluster], None]:
    """An act that sends one signal."""
    return lambda cluster: cluster.signal(process, number)


def told(words: str) -> Callable[[Cluster], None]:
    """An act that runs one command inside the cluster's namespace."""
    return lambda cluster: cluster.command(words)


OUTSIDE = ("outside-signal", "not-established")
OWN = ("user-code-error", "not-established")
EXIT = ("user-exit", "not-established")
LEFT = ("sigkill-class",)
NATIVE = ("native-crash",)
LOST = ("raylet-lost", "node-lost")
GROWTH = ("host-memory-growth", "host-memory-capacity", "host-memory-data-spike", "not-established")
ORDERLY = ("sigterm", "raylet-lost", "node-lost")

GROW = """
held = []
while True:
    held.append(bytearray(os.urandom(1 << 20)) * 16)
    time.sleep(0.05)
"""
GROW_FAST = "held = [bytearray(os.urandom(1 << 20)) * 16 for _ in range(4000)]"
CUT_FILE = """
with open("cache.bin", "wb") as file:
    file.truncate(1 << 20)
with open("cache.bin", "r+b") as file:
    view = mmap.mmap(file.fileno(), 1 << 20)
    file.truncate(0)
    view[70000] = 1
"""
FULL_SHM = """
with open("/dev/shm/batch", "wb") as file:
    file.truncate(1 << 30)
with open("/dev/shm/batch", "r+b") as file:
    view = mmap.mmap(file.fileno(), 1 << 30)
    for at in range(0, 1 << 30, 4096):
        view[at] = 1
"""
LIMITED = """
size = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (size + (64 << 20), resource.getrlimit(resource.RLIMIT_AS)[1]))
"""
FORK = "for _ in range(4000):\n    children.append(subprocess.Popen(['sleep', '30']))"
THREADS = """
for _ in range(4000):
    thread = threading.Thread(target=time.sleep, args=(30,), daemon=True)
    thread.start()
"""
FILES = """
resource.setrlimit(resource.RLIMIT_NOFILE, (200, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
shards = [open(f"shard-{index}.bin", "wb") for index in range(400)]
"""
FULL_DISK = """
for index in range(4000):
    with open(f"/tmp/ray/checkpoint-{index}.pt", "wb") as file:
        file.write(os.urandom(1 << 22))
        file.flush()
        os.fsync(file.fileno())
"""
PUTS = "held = [ray.put(numpy.ones(20 << 20, dtype=numpy.uint8)) for _ in range(60)]"
FREE = "ctypes.CDLL(None).free(ctypes.c_void_p({}))"
BAD_FREE = "block = ctypes.create_string_buffer(4096)\n" + FREE.format("ctypes.addressof(block) + 8")
TWICE = """
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
block = libc.malloc(48)
libc.free(ctypes.c_void_p(block))
libc.free(ctypes.c_void_p(block))
"""
NEW = """
make = ctypes.CDLL("libstdc++.so.6")._Znwm
make.argtypes, make.restype = [ctypes.c_size_t], ctypes.c_void_p
make(1 << 60)
"""
WITH_TORCH = 'import site\nsite.addsitedir(os.environ["TORCH_SITE"])\n'
LOOP = """
def collect(held=[]):
    while True:
        held.append(bytearray(os.urandom(1 << 20)) * 8)
        time.sleep(0.1)
rows = [f'{{"prompt": "{a} + {b} =", "label": "{a + b}"}}' for a in range(10) for b in range(10)]
open("sums.jsonl", "w").write("\\n".join(rows))
open("loop.toml", "w").write('''
model = {path = "tiny-qwen3", init = "random", dtype = "fp32"}
data = {file = "sums.jsonl", format = "text"}
reward = {kind = "regex", extract = "whole", format_pattern = "(?s).*[0-9].*", format_weight = 0.5}
rollout = {prompts = 4, samples = 4, max_answer = 12}
train = {steps = 4000, lr = 1e-3, cap = 512, warmup = 3}
eval = {problems = 8, every = 1000}
memory = {threads = 1}
output = {dir = "out", save_every = 500, tensorboard = false}
''')
threading.Thread(target=collect, daemon=True).start()
import pathlib
from headway.cli.train import train
train(pathlib.Path("loop.toml"))
"""
"""headway's own loop, beside a buffer that grows."""
LEAK = (
    LOOP[LOOP.index("rows = ") :]
    .replace(
        'kind = "regex", extract = "whole", format_pattern = "(?s).*[0-9].*", format_weight = 0.5',
        'kind = "function", function = "scores:score", extract = "whole", memory = "8GiB"',
    )
    .replace("eval = {problems = 8, every = 1000}", 'eval = {problems = 0}\nguard = {policy = "observe"}')
    .replace(
        "threading.Thread(target=collect, daemon=True).start()",
        """import headway
places = os.environ["TORCH_SITE"], os.path.dirname(os.path.dirname(headway.__file__))
os.environ["PYTHONPATH"] = os.pathsep.join(places)  # for the process of the rewards
scores = (
    "kept = []",
    "def score(prompt, answer, label, response):",
    "    kept.append(bytearray(b'x' * (20_000_000 // 16)))",
    "    return (len(response) % 7) / 7",
)
open("scores.py", "w").write("\\n".join(scores))""",
    )
)
"""headway's own loop, whose reward function leaks 20 MB a step: benchmarks/planted_leak.py inside an actor."""
NOT_HOST = ("host-memory-growth", "host-memory-capacity")

SCENARIOS = (
    Scenario("sigkill-actor", LEFT, OUTSIDE, act=sent("ray::Trainer", 9)),
    Scenario("sigkill-task", LEFT, OUTSIDE, act=sent("ray::rollout", 9), where="task"),
    Scenario("sigkill-k8s", LEFT, OUTSIDE, act=sent("ray::Trainer", 9), env=K8S, keep=()),
    Scenario("sigterm-actor", ("sigterm",), OUTSIDE, act=sent("ray::Trainer", 15)),
    Scenario("sigterm-k8s", ("sigterm",), OUTSIDE, act=sent("ray::Trainer", 15), env=K8S),
    Scenario("sigterm-task-k8s", ("sigterm",), OUTSIDE, act=sent("ray::rollout", 15), where="task", env=K8S, keep=()),
    Scenario("sighup-actor", LEFT, OUTSIDE, act=sent("ray::Trainer", 1)),
    Scenario("os-exit-1", LEFT, EXIT, "os._exit(1)"),
    Scenario("os-exit-137", LEFT, EXIT, "os._exit(137)", keep=()),
    Scenario("sys-exit-1", ("python-exit",), EXIT, "sys.exit(1)"),
    Scenario("sys-exit-1-k8s", ("python-exit",), EXIT, "sys.exit(1)", env=K8S, extra_false=("sigterm",)),
    Scenario("exit-bare-k8s", ("python-exit",), EXIT, "exit()", env=K8S, keep=(), extra_false=("sigterm",)),
    Scenario("exit-task", ("python-exit",), EXIT, "sys.exit(3)", where="task"),
    Scenario("exit-actor", ("python-exit",), EXIT, "ray.actor.exit_actor()"),
    Scenario("segfault", NATIVE, OWN, "ctypes.string_at(0)"),
    Scenario("segfault-task", NATIVE, OWN, "ctypes.memset(16, 1, 64)", where="task"),
    Scenario("abort", NATIVE, OWN, "os.abort()"),
    Scenario("bus-cut-file", NATIVE, OWN, CUT_FILE, extra_false=("shm-too-small",)),
    Scenario("bus-full-shm", NATIVE, ("shm-too-small", "not-established"), FULL_SHM),
    Scenario("free-invalid", NATIVE, (*OWN, "library-fault"), BAD_FREE),
    Scenario("free-twice", NATIVE, (*OWN, "library-fault"), TWICE),
    Scenario(
        "bad-alloc", ("host-allocation-failure", "native-crash"), OWN, NEW, memory=True,
        extra_false=("cgroup-oom-kill", "kernel-oom-kill", "ray-memory-monitor", *NOT_HOST),
    ),
    Scenario(
        "memory-error", ("host-allocation-failure", "python-exception"), (*OWN, *GROWTH),
        LIMITED + "held = [bytearray(1 << 22) for _ in range(4000)]", memory=True,
        extra_false=("cgroup-oom-kill", "kernel-oom-kill", "ray-memory-monitor"),
    ),
    Scenario(
        "numpy-refused", ("host-allocation-failure", "python-exception"), (*OWN, *GROWTH),
        LIMITED + "logits = numpy.ones((4096, 151936), dtype=numpy.float32)", memory=True,
        extra_false=("cgroup-oom-kill", "kernel-oom-kill", "ray-memory-monitor"),
    ),
    Scenario(
        "torch-refused", ("host-allocation-failure", "python-exception"), (*OWN, *GROWTH),
        WITH_TORCH + "import torch\nlogits = torch.empty((1 << 40, 151936))", memory=True, longest_s=150,
        extra_false=("cgroup-oom-kill", "kernel-oom-kill", "ray-memory-monitor", "device-allocation-failure"),
    ),
    Scenario(
        "monitor-actor", ("ray-memory-monitor",), GROWTH, GROW, limit_mb=1800, memory=True,
        env={"RAY_memory_usage_threshold": "0.8"}, extra_false=("cgroup-oom-kill", "kernel-oom-kill", "sigterm"),
    ),
    Scenario(
        "monitor-task", ("ray-memory-monitor",), GROWTH, GROW, where="task", limit_mb=1800, memory=True,
        env={"RAY_memory_usage_threshold": "0.8"}, extra_false=("cgroup-oom-kill", "kernel-oom-kill", "sigterm"),
    ),
    Scenario(
        "group-kill", ("cgroup-oom-kill",), GROWTH, GROW_FAST, limit_mb=1800, memory=True, env=NO_MONITOR,
        keep=("worker", "raylet", "dmesg", "memory"), extra_false=("ray-memory-monitor", "kernel-oom-kill"),
    ),
    Scenario(
        "group-kill-counted", ("cgroup-oom-kill",), GROWTH, GROW_FAST, limit_mb=1800, memory=True, env=NO_MONITOR,
        keep=("worker", "memory"), extra_false=("ray-memory-monitor", "kernel-oom-kill"),
    ),
    Scenario(
        "group-kill-untold", LEFT, (*GROWTH, *OUTSIDE), GROW_FAST, limit_mb=1800, memory=True, env=NO_MONITOR,
        keep=("worker", "raylet"), extra_false=("ray-memory-monitor", "kernel-oom-kill", "cgroup-oom-kill"),
    ),
    Scenario("ray-kill", ("ray-kill",), fault="", where="killed"),
    Scenario("owner-killed", ("sigkill-class", "unknown"), OUTSIDE, act=sent("ray::Manager", 9), where="owned"),
    Scenario("raylet-sigkill", (*LOST, "sigkill-class"), OUTSIDE, act=sent("raylet/raylet", 9)),
    Scenario("raylet-sigterm", ORDERLY, OUTSIDE, act=sent("raylet/raylet", 15)),
    Scenario(
        "raylet-stopped", LOST, ("node-stalled", "not-established", "outside-signal"), act=sent("raylet/raylet", 19),
        system={"health_check_period_ms": 500, "health_check_failure_threshold": 4,
                "health_check_initial_delay_ms": 500, "health_check_timeout_ms": 1000},
        extra_false=("sigterm", "native-crash"),
    ),
    Scenario(
        "gcs-sigkill", ("gcs-lost",), OUTSIDE, act=sent("gcs/gcs_server", 9),
        system={"gcs_rpc_server_reconnect_timeout_s": 8},
    ),
    Scenario("driver-sigkill", LEFT, OUTSIDE, act=sent("train.py", 9)),
    Scenario("driver-sigterm", ("sigterm",), OUTSIDE, act=sent("train.py", 15)),
    Scenario("driver-sigkill-k8s", LEFT, OUTSIDE, act=sent("train.py", 9), env=K8S, keep=("gcs_server",)),
    Scenario("job-stop", ("sigterm", "scheduler-cancel"), OUTSIDE, act=told("ray job stop loop-1"), job=True,
             env={"PYTHONUNBUFFERED": "1"}),
    Scenario("raises", ("python-exception",), OWN, "batch = {}\nloss = batch['advantages'].mean()"),
    Scenario("raises-at-start", ("python-exception",), (*OWN, "configuration-error"), where="init",
             fault="raise ValueError(f'clip range must be below 1, got {3.5}')"),
    Scenario("raises-in-task", ("python-exception",), OWN, "assert n < 0, f'reward of {n} samples missing'",
             where="task"),
    Scenario("raises-in-driver", ("python-exception",), OWN, "print(1 / (n - n))", where="driver"),
    Scenario(
        "store-full", ("python-exception", "unknown"), ("object-store-full", "disk-full"), PUTS, where="driver",
        system={"local_fs_capacity_threshold": 0.02},
    ),
    Scenario("disk-full", ("python-exception",), ("disk-full",), FULL_DISK, disk_mb=250),
    Scenario("threads", ("python-exception",), ("thread-limit",), THREADS, pids=60, keep=("worker",)),
    Scenario("forks", ("python-exception",), ("thread-limit",), "children = []\n" + FORK, pids=60, keep=("worker",)),
    Scenario("files", ("python-exception",), ("file-limit",), FILES),
    Scenario("ray-stop", ORDERLY, OUTSIDE, act=told("ray stop")),
    Scenario("ray-stop-k8s", ORDERLY, OUTSIDE, act=told("ray stop"), env=K8S, keep=()),
    Scenario("ray-stop-force", (*LOST, "sigkill-class"), OUTSIDE, act=told("ray stop --force")),
    Scenario("pkill", (*LOST, "sigkill-class"), OUTSIDE, act=told("pkill -9 ray")),
    Scenario("pkill-workers", (*LOST, "sigkill-class"), OUTSIDE, act=told("pkill -9 -f ray::")),
    Scenario(
        "monitor-loop", ("ray-memory-monitor",), GROWTH, WITH_TORCH + LOOP, limit_mb=2200, memory=True,
        longest_s=150, env={"RAY_memory_usage_threshold": "0.85"},
        extra_false=("cgroup-oom-kill", "kernel-oom-kill", "sigterm"),
    ),
    Scenario(
        "group-kill-loop", ("cgroup-oom-kill",), GROWTH, WITH_TORCH + LOOP, limit_mb=2000, memory=True,
        longest_s=150, env=NO_MONITOR, keep=("worker", "dmesg", "memory"),
        extra_false=("ray-memory-monitor", "kernel-oom-kill"),
    ),
    Scenario(
        "monitor-leak", ("ray-memory-monitor",), GROWTH, WITH_TORCH + LEAK, limit_mb=2303, memory=True,
        longest_s=300, env={"RAY_memory_usage_threshold": "0.8"},
        extra_false=("cgroup-oom-kill", "kernel-oom-kill", "sigterm"),
    ),
)  # fmt: skip
