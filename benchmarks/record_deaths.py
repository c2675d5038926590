"""Record real deaths of a small RL loop on Ray, for tests/data/deaths.

    python benchmarks/record_deaths.py --ray /tmp/ray-2.49/bin --out tests/data/deaths [--only NAME ...] [--seed 0]

`--ray` is the bin folder of an environment with `ray[default]`; deaths that need torch take it from this program's
own environment, of the same Python version. Each death gets its own pid, mount and network namespace (and, where it
is about memory or processes, a control group), so nothing outside can be hit and everything ends with it; this needs
root on Linux. What is kept is the driver's output and the tail of the session's files.
Process ids, hexadecimal ids, addresses, host and paths are replaced by random ones, the same one wherever the same
stood; the scenario's name stands in truth.jsonl alone.
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp

from death_scenarios import SCENARIOS, Scenario

GROUPS = Path("/sys/fs/cgroup")
FIRST_PID = 700_000
"""Pids start here in the namespace, so that a number of this size in a text is a pid."""
START_S, AFTER_S = 90, 2
TAIL = {"worker": 60, "raylet": 45, "gcs_server": 30, "dmesg": 200, "memory": 40, "driver": 240}
"""Lines kept of a file, from its end; the driver's first 20 are kept too."""
WIDEST = 3000
STATISTICS = re.compile(r"state-dump|\d+ total \(\d+ active|(?:Queueing|Execution) time: |^\s*$|Event stats:")
"""Lines of Ray's own timing tables, which would push all others out of a tail."""

PROGRAM = """\
import ctypes
import mmap
import os
import resource
import subprocess
import sys
import sysconfig
import threading
import time

import numpy
import ray


@ray.remote(max_retries=0)
def rollout(n):
    time.sleep(0.2)
{task}
    return [0.25 * (n % 4)] * 8


@ray.remote
class Trainer:
    def __init__(self, lr):
        self.lr = lr
{init}

    def update(self, n, rewards):
        time.sleep(0.2)
{step}
        return {{"reward": sum(rewards) / len(rewards), "loss": 1 / (n + 2)}}


@ray.remote
class Manager:
    def trainer(self, lr):
        self.held = Trainer.remote(lr)
        return self.held


def main():
    ray.init(address="auto")
    lr = 1e-6
{make}
    for n in range(50):
        metrics = ray.get(trainer.update.remote(n, ray.get(rollout.remote(n))))
        print(f"step {{n}}/50 " + " ".join(f"{{name}}={{value:.4f}}" for name, value in metrics.items()), flush=True)
{driver}


main()
"""


@dataclass
class Inside:
    """A cluster in its own namespaces, seen from within them."""

    scenario: Scenario
    folder: Path
    env: dict[str, str]
    at: int
    group: str
    ended: list[str] = field(default_factory=list)

    def signal(self, process: str, number: int) -> None:
        for pid, words in running():
            if process in words and pid != os.getpid() and "record_deaths" not in words and "bash" not in words:
                os.kill(pid, number)
                return
        self.ended.append(f"no process {process}")

    def command(self, words: str) -> None:
        done = subprocess.run(
            words.split(), env=self.env, cwd=self.folder, check=False, capture_output=True, text=True
        )
        if done.returncode:
            self.ended.append(f"{words}: {done.stderr[-400:]}")


def running() -> Iterator[tuple[int, str]]:
    """Process ids of the namespace with their commands."""
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                yield int(path.name), (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue


def program(scenario: Scenario, at: int) -> str:
    """The loop's source with the fault at its place."""

    def block(width: int, where: str, otherwise: str = "") -> str:
        text = scenario.fault.strip() if where == scenario.where else otherwise
        busy = f"if n == {at}:\n    time.sleep(1.5)\n"
        inner = "".join(f"    {line}\n" for line in text.splitlines())
        whole = text if where == "init" else busy + inner if text else ""
        return "\n".join(" " * width + line for line in whole.splitlines())

    waits = f"time.sleep({40 if scenario.job else 15})" if scenario.act else ""
    make = "    trainer = Trainer.remote(lr)"
    if scenario.where == "owned":
        make = "    manager = Manager.remote()\n    trainer = ray.get(manager.trainer.remote(lr))"
    if scenario.where == "killed":
        make += "\n    threading.Timer(8, ray.kill, (trainer,)).start()"
    return PROGRAM.format(
        task=block(4, "task", waits if scenario.where == "task" else ""),
        init=block(8, "init"), step=block(8, "step", waits), driver=block(8, "driver"), make=make,
    )  # fmt: skip


def inside(scenario: Scenario, folder: Path, ray: Path, seed: int, group: str) -> None:
    """Play one death; runs as the first process of the new namespaces."""
    dice = random.Random(seed)
    if group:
        for kind in ("memory", "pids"):
            (GROUPS / kind / group / "cgroup.procs").write_text("0")
    Path("/proc/sys/kernel/ns_last_pid").write_text(str(FIRST_PID + dice.randrange(200_000)))
    for path, size in (("/tmp/ray", scenario.disk_mb), ("/dev/shm", scenario.shm_mb)):
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}m", "tmpfs", path], check=True)
    if scenario.limit_mb:
        subprocess.run(["mount", "--bind", str(GROUPS / "memory" / group), str(GROUPS / "memory")], check=True)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    env = {key: value for key, value in os.environ.items() if not key.startswith(("KUBERNETES", "RAY", "PYTHON"))}
    env |= {
        "PATH": f"{ray}:/usr/bin:/bin:/usr/sbin",
        "RAY_API_SERVER_ADDRESS": "http://127.0.0.1:8265",
        "HOME": str(folder),
    }
    env |= {"OMP_NUM_THREADS": "1", "TORCH_SITE": sysconfig.get_paths()["purelib"]} | scenario.env
    at = dice.randrange(3, 8)
    (folder / "train.py").write_text(program(scenario, at))
    (folder / "run.sh").write_text("cd work\npython train.py\n")
    (folder / "work").mkdir()
    shutil.move(folder / "train.py", folder / "work" / "train.py")
    start = ["ray", "start", "--head", "--num-cpus=2", "--object-store-memory=100000000", "--port=6379"]
    start += ["--disable-usage-stats", f"--include-dashboard={str(scenario.job).lower()}"]
    if scenario.system:
        start.append(f"--system-config={json.dumps(scenario.system)}")
    with (folder / "start.log").open("wb") as log:
        subprocess.run(start, env=env, stdout=log, stderr=log, timeout=START_S, check=True, cwd=folder)
    run = ["bash", "run.sh"]
    if scenario.job:
        run = ["ray", "job", "submit", "--submission-id=loop-1", "--", "python", str(folder / "work" / "train.py")]
    cluster = Inside(scenario, folder, env, at, group)
    with (folder / "driver.log").open("wb") as log:
        driver = subprocess.Popen(run, env=env, stdout=log, stderr=log, cwd=folder)
        watch = threading.Thread(target=act, args=(cluster,), daemon=True)
        watch.start()
        try:
            driver.wait(scenario.longest_s)
        except subprocess.TimeoutExpired:
            cluster.ended.append("the driver did not end")
        watch.join(20)
    time.sleep(AFTER_S)
    keep(cluster)


def act(cluster: Inside) -> None:
    """Wait for the step before the fault, then do what the scenario does from outside."""
    log = cluster.folder / "driver.log"
    until = time.monotonic() + cluster.scenario.longest_s
    while f"step {cluster.at - 1}/" not in log.read_text(errors="replace"):
        if time.monotonic() > until:
            return
        time.sleep(0.1)
    if cluster.scenario.pids:
        room = GROUPS / "pids" / cluster.group
        now = int((room / "pids.current").read_text())
        (room / "pids.max").write_text(str(now + cluster.scenario.pids))
    time.sleep(1)
    if cluster.scenario.act:
        cluster.scenario.act(cluster)


def keep(cluster: Inside) -> None:
    """Copy what is to be kept to the folder `raw`, while the session's file system is still there."""
    raw = cluster.folder / "raw"
    raw.mkdir()
    shutil.copy(cluster.folder / "driver.log", raw / "driver.log")
    for file in Path("/tmp/ray/session_latest/logs/").iterdir():
        kind = re.split(r"[-.]", file.name)[0]
        if kind in cluster.scenario.keep and file.suffix in (".out", ".err") and file.stat().st_size:
            shutil.copy(file, raw / file.name)
    if "memory" in cluster.scenario.keep:
        for name in ("memory.oom_control", "memory.failcnt", "memory.max_usage_in_bytes", "memory.limit_in_bytes"):
            source = GROUPS / "memory" / ("" if cluster.scenario.limit_mb else cluster.group) / name
            (raw / name).write_text(source.read_text())
    if "step 49/" in (raw / "driver.log").read_text(errors="replace"):
        cluster.ended.append("nothing died: the loop ran to its end")
    (cluster.folder / "trouble").write_text("\n".join(cluster.ended))


@dataclass
class Names:
    """Random names for what would tell whose machine it was; the same one for the same."""

    dice: random.Random
    fixed: dict[str, str]
    made: dict[str, str] = field(default_factory=dict)

    def clean(self, text: str) -> str:
        for old, new in self.fixed.items():
            text = re.sub(rf"(?<![\w-]){re.escape(old)}(?![\w-])", new, text) if old.isalnum() else text
            text = text if old.isalnum() else text.replace(old, new)
        text = re.sub(r"(?<![.,\d])[789]\d{5}(?!\d|\.\d)", lambda match: self._pid(match[0]), text)
        return re.sub(r"\b[0-9a-f]{16,}\b", lambda match: self._hex(match[0]), text)

    def _pid(self, old: str) -> str:
        return self.made.setdefault(old, str(self.dice.randrange(1000, 4_000_000)))

    def _hex(self, old: str) -> str:
        if len(set(old)) < 4 or old.isdigit():
            return old
        job = old[-8:] if re.fullmatch(r"\d\d000000", old[-8:]) else ""
        new = "".join(self.dice.choice("0123456789abcdef") for _ in range(len(old) - len(job))) + job
        return self.made.setdefault(old, new)


def trimmed(text: str, kind: str) -> str:
    """The end of a text, and for the driver its beginning."""
    lines = [line[:WIDEST] for line in text.splitlines()]
    if kind in ("raylet", "gcs_server"):
        lines = [line for line in lines if not STATISTICS.search(line)]
    most = TAIL.get(kind, 40)
    kept = lines if len(lines) <= most + 20 else [*(lines[:20] if kind == "driver" else []), *lines[-most:]]
    return "".join(f"{line}\n" for line in kept)


def kernel_log(since: float) -> str:
    """Lines of the kernel's log from a moment of its own clock on."""
    text = subprocess.run(["dmesg"], capture_output=True, text=True, check=False).stdout
    later = []
    for line in text.splitlines():
        clock = re.match(r"\[ *(\d+\.\d+)\]", line)
        if clock and float(clock[1]) >= since:
            later.append(line)
    return "\n".join(later)


def play(scenario: Scenario, ray: Path, seed: int) -> tuple[Path, str]:
    """One death in namespaces of its own: the folder that holds `raw`, and what went wrong with the recording."""
    folder = Path(mkdtemp(prefix="loop-"))
    group = folder.name if scenario.limit_mb or scenario.pids else ""
    since = time.clock_gettime(time.CLOCK_BOOTTIME)
    made = [GROUPS / kind / group for kind in ("memory", "pids") if group]
    for path in made:
        path.mkdir()
    if scenario.limit_mb:
        (GROUPS / "memory" / group / "memory.limit_in_bytes").write_text(str(scenario.limit_mb << 20))
    words = ["unshare", "--fork", "--pid", "--mount", "--net", "--mount-proc", "--kill-child", sys.executable]
    words += [__file__, "--inside", scenario.name, "--ray", str(ray), "--out", str(folder)]
    words += ["--seed", str(seed), "--group", group]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if "dmesg" in scenario.keep:
        (folder / "raw" / "dmesg.txt").write_text(kernel_log(since))
    for path in made:
        for _ in range(50):
            try:
                path.rmdir()
                break
            except OSError:
                time.sleep(0.2)
    trouble = folder / "trouble"
    return folder, trouble.read_text() if trouble.exists() else done.stderr[-800:] or "no recording"


def record(scenario: Scenario, ray: Path, seed: int, target: Path) -> str:
    """Play a death and write its recording. Returns what went wrong, empty where nothing did."""
    folder, trouble = play(scenario, ray, seed)
    raw = folder / "raw"
    if not raw.is_dir():
        return trouble
    dice = random.Random(seed)
    user, environment = dice.choice(("lin", "ana", "root7", "mlops", "kay")), dice.choice(("rl", "venv", "env"))
    fixed = {str(folder / "work"): f"/home/{user}/exp{dice.randrange(90)}", str(folder): f"/home/{user}"}
    fixed |= {folder.name: f"pod{dice.randrange(1 << 30):08x}", str(ray.parent): f"/opt/{environment}"}
    fixed |= {os.path.realpath(sys.base_prefix): "/usr/local"}
    fixed |= {socket.gethostname(): f"node-{dice.randrange(1 << 20):05x}"}
    fixed |= {str(Path(__file__).parents[1].resolve()): "/opt/headway"}
    fixed |= {"127.0.0.1": f"10.{dice.randrange(256)}.{dice.randrange(256)}.{dice.randrange(1, 255)}"}
    names = Names(dice, fixed)
    if target.exists():
        shutil.rmtree(target)
    target.mkdir(parents=True)
    for file in sorted(raw.iterdir()):
        kind = re.split(r"[-.]", file.name)[0]
        text = trimmed(names.clean(file.read_text(errors="replace")), kind)
        if text.strip():
            (target / names.clean(file.name)).write_text(text)
    shutil.rmtree(folder)
    return trouble


def number_of(seed: int) -> Callable[[str], str]:
    """A number for each scenario that tells nothing of it."""
    names = [scenario.name for scenario in SCENARIOS]
    numbers = random.Random(seed).sample(range(100, 999), len(names))
    return lambda name: str(numbers[names.index(name)])


def write_truth(out: Path, path: str, scenario: Scenario, version: str) -> None:
    """Put the row of a recording into truth.jsonl, in place of an older one."""
    file = out / "truth.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    row = {"path": path, "ray": version, "what": scenario.name, "mechanism": list(scenario.mechanisms)}
    row |= {"accept_causes": list(scenario.causes), "must_not_claim": scenario.must_not_claim}
    rows = sorted([*(each for each in rows if each["path"] != path), row], key=lambda each: each["path"])
    file.write_text("".join(json.dumps(each) + "\n" for each in rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ray", type=Path, required=True, help="bin folder of an environment with Ray")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    parser.add_argument("--group", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    by_name = {scenario.name: scenario for scenario in SCENARIOS}
    if options.inside:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup's ignoring would be inherited by every worker
        inside(by_name[options.inside], options.out, options.ray, options.seed, options.group)
        return
    Path("/tmp/ray").mkdir(exist_ok=True)
    version = subprocess.run(
        [options.ray / "python", "-c", "import ray; print(ray.__version__)"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    number = number_of(options.seed + sum(map(ord, version)))
    for name in options.only or by_name:
        started = time.monotonic()
        path = f"ray-{version}/{number(name)}"
        trouble = record(by_name[name], options.ray, options.seed + int(number(name)), options.out / path)
        if (options.out / path).is_dir():
            write_truth(options.out, path, by_name[name], version)
        print(f"{name:22} {path:18} {time.monotonic() - started:5.1f} s  {trouble!r}", flush=True)


if __name__ == "__main__":
    main()
