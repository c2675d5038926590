"""A run whose first steps are fine and that dies later, when its answers have grown 20 times longer: foreseen?

    python benchmarks/rehearse_long.py

The model, a tiny random one on the CPU, ends an answer at any small letter, so that its first answers have some 10
tokens of the 240 that are permitted. Its reward is their length: it learns not to end them. Both the rehearsal and
the real run are in a control group of their own with the same memory limit, which the kernel enforces; where none can
be made (it needs root, or a group that was delegated), the run is killed from here when its processes hold more.

Printed: what the first real steps held, the rehearsal's verdict and its time, and how the real run ended.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from headway.facts.probe import memory_levels
from headway.guard.read import descendants, process_status, tree_rss
from headway.units import MIB, format_bytes, parse_bytes

LETTERS = json.dumps(list("abcdefghijklmnopqrstuvwxyz"))
SPEC = f"""
model = {{path = "tiny-qwen3", init = "random", dtype = "fp32"}}
data = {{file = "sums.jsonl", format = "text", max_prompt = 16}}
reward = {{kind = "function", function = "scores:score", extract = "whole", memory = "256MiB"}}
rollout = {{prompts = 8, samples = 32, max_answer = 240, stop = {LETTERS}}}
train = {{steps = 40, lr = 4e-3, cap = 65536, checkpointing = false}}
eval = {{problems = 0}}
memory = {{threads = 1}}
guard = {{policy = "observe"}}
output = {{save_every = 0, tensorboard = false}}
"""
REWARD = '''
"""Longer answers earn more."""


def score(prompt, answer, label, response):
    return min(1.0, len(response) / 240)
'''
FINE = 3
"""Steps whose memory is shown as that of the beginning."""
MINUTES = 3


def write(folder: Path) -> Path:
    """The RunSpec, its problems and its reward function."""
    rows = ({"prompt": f"{a} + {b} =", "label": str(a + b)} for a in range(10) for b in range(10))
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "scores.py").write_text(REWARD)
    path = folder / "long.toml"
    path.write_text(SPEC)
    return path


class Group:
    """A control group with a memory limit below this process's own; `None` for its folder where none can be made."""

    def __init__(self, limit: int) -> None:
        version, levels = memory_levels()
        self.folder: Path | None = None
        if not levels:
            return
        folder = levels[0] / f"headway-{os.getpid()}"
        name = "memory.limit_in_bytes" if version == 1 else "memory.max"
        try:
            folder.mkdir()
            (folder / name).write_text(str(limit))
        except OSError:
            if folder.is_dir():
                folder.rmdir()
            return
        self.folder = folder

    def kills(self) -> int:
        """Processes that the kernel has killed for the group's limit."""
        assert self.folder is not None
        for name in ("memory.oom_control", "memory.events"):
            if (self.folder / name).is_file():
                words = (self.folder / name).read_text().split()
                return int(words[words.index("oom_kill") + 1])
        return 0

    def close(self) -> None:
        """Take it away; the processes in it have ended."""
        if self.folder is not None:
            self.folder.rmdir()


def headway(group: Group, limit: int, log: Path, *words: str) -> tuple[int, str, float]:
    """Run a headway command in the group; its exit code (minus the signal), standard output and seconds."""
    command = [sys.executable, "-m", "headway", *words]
    if group.folder is not None:
        enter = f'echo $$ > {group.folder}/cgroup.procs && exec "$@"'
        command = ["sh", "-c", enter, "sh", *command]
    began = time.monotonic()
    with log.open("w") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
        )
        if group.folder is None and words[0] == "train":
            kill_over(process, limit)
        out, _ = process.communicate()
    return process.returncode, out, time.monotonic() - began


def kill_over(process: "subprocess.Popen[str]", limit: int) -> None:
    """Stand in for the kernel: kill the run when its processes hold more than the limit."""
    while process.poll() is None:
        status, below = process_status(process.pid), descendants(process.pid)
        if status is not None and status.rss + tree_rss(below) > limit:
            os.kill(process.pid, signal.SIGKILL)
            return
        time.sleep(0.02)


def steps(recording: Path) -> dict[int, int]:
    """The most that the process tree held in each step, as far as it was recorded."""
    found: dict[int, int] = {}
    for line in recording.read_text().splitlines():
        row: dict[str, Any] = json.loads(line)
        if row["kind"] == "phase" and row["step"]:
            found[row["step"]] = max(found.get(row["step"], 0), row["tree_peak"])
    return found


def report(name: str, good: bool, text: str) -> bool:
    """One line of the result."""
    print(f"{'yes' if good else 'NO ':3} {name}: {text}", flush=True)
    return good


def main() -> int:
    """Rehearse, then run; 0 if the rehearsal was right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=parse_bytes, default=950 * MIB, help="memory limit, such as 950MiB")
    parser.add_argument("--keep", type=Path, help="folder for the run, which is then kept")
    arguments = parser.parse_args()
    with TemporaryDirectory() as name:
        root = arguments.keep or Path(name)
        root.mkdir(exist_ok=True)
        group = Group(arguments.limit)
        try:
            return measure(root, group, arguments.limit)
        finally:
            group.close()


def measure(root: Path, group: Group, limit: int) -> int:
    """The rehearsal and the real run below `root`."""
    spec = write(root)
    by = "killed from here above" if group.folder is None else "in a control group of"
    own = ("--set", f"memory.limit={limit}") if group.folder is None else ()
    print(f"{by} {format_bytes(limit)}; answers of up to 240 tokens are permitted", flush=True)
    code, out, seconds = headway(group, limit, root / "rehearsal.log", "rehearse", str(spec), "--json", *own)
    if code not in (0, 3):
        raise SystemExit((root / "rehearsal.log").read_text()[-3000:])
    found = json.loads(out)
    killed = group.kills() if group.folder is not None else 0
    ended = found["ended"]
    where = f"in phase {ended['phase']} of step {ended['step']} at {format_bytes(ended['used_bytes'])}"
    good = report("rehearsal says that it dies", code == 3, f"exit code {code}, ended {where} ({ended['reached']})")
    good &= report("in time", seconds < 60 * MINUTES, f"{seconds:.0f} s")
    good &= report("ended before the kernel had to", killed == 0, f"{killed} processes killed")

    words = ("train", str(spec), "--force", "--set", f"output.dir={root / 'run'}")
    code, _, seconds = headway(group, limit, root / "run.log", *words)
    held = steps(root / "run/recording.jsonl")
    rows = [json.loads(line) for line in (root / "run/metrics.jsonl").read_text().splitlines()]
    first, last = rows[:FINE], rows[-1]
    text = ", ".join(f"{row['answer_tokens']:.0f} tokens {format_bytes(held[row['step']])}" for row in first)
    good &= report("first real steps are fine", len(first) == FINE, text)
    good &= report(
        "the real run dies", code in (-signal.SIGKILL, 128 + signal.SIGKILL),
        f"exit code {code} in step {int(last['step']) + 1} after {seconds:.0f} s; the step before had answers of "
        f"{last['answer_tokens']:.0f} tokens, the longest {last['answer_tokens_max']:.0f}, "
        f"and held {format_bytes(held[int(last['step'])])}",
    )  # fmt: skip
    print(f"{'the rehearsal was right' if good else 'NOT as promised'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
