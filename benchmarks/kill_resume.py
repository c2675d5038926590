"""Kill a run at random moments, resume it, and compare with the run that was never interrupted.

    python benchmarks/kill_resume.py --kills 10 --seed 0

Each trial starts the same 12-step run in a new directory, ends it with SIGKILL at a moment drawn uniformly from the
length of the whole run (loading, generating, training, saving: whatever it is doing), resumes it to the end and
compares the final weights and the metrics of every step, bit for bit.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from safetensors import safe_open

SPEC = """
model = {path = "tiny-qwen3", init = "random", dtype = "fp32"}
data = {file = "sums.jsonl", format = "text"}
reward = {kind = "regex", extract = "whole", format_pattern = "(?s).*[0-9].*", format_weight = 0.5}
rollout = {prompts = 4, samples = 4, max_answer = 12}
objective = {kl_coef = 0.01}
train = {steps = 12, lr = 1e-3, updates = 2, cap = 512, warmup = 3, schedule = "cosine"}
eval = {problems = 8, every = 5}
memory = {threads = 1}
output = {save_every = 2, tensorboard = false}
"""
TIMES = ("time", "seconds", "memory", "rollout_tokens_per_s", "train_tokens_per_s", "trained_tokens")
"""Metrics that begin with these tell of the machine, not of the run."""


@dataclass(frozen=True)
class Outcome:
    """What a finished run learned: every final weight as bytes, and its metrics without times."""

    weights: dict[str, bytes]
    metrics: list[dict[str, float]]
    evaluations: list[dict[str, float]]


def write_spec(folder: Path) -> Path:
    """The RunSpec of the trials."""
    rows = ({"prompt": f"{a} + {b} =", "label": str(a + b)} for a in range(10) for b in range(10))
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = folder / "kill.toml"
    path.write_text(SPEC)
    return path


def start(spec: Path, output: Path) -> subprocess.Popen[bytes]:
    """Start or resume the run that writes to `output`."""
    command = [sys.executable, "-m", "headway", "train", str(spec), "--set", f"output.dir={output}"]
    with (output.parent / f"{output.name}.log").open("ab") as log:
        return subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=os.environ | {"OMP_NUM_THREADS": "1"}
        )


def finish(spec: Path, output: Path) -> Outcome:
    """Run to the end and read what came out."""
    process = start(spec, output)
    if process.wait() != 0:
        raise SystemExit((output.parent / f"{output.name}.log").read_text()[-4000:])
    return read(output)


def read(output: Path) -> Outcome:
    """Read a finished run."""
    with safe_open(output / "final" / "model.safetensors", framework="pt") as file:
        weights = {name: file.get_tensor(name).numpy().tobytes() for name in file.keys()}  # noqa: SIM118
    return Outcome(weights, _rows(output / "metrics.jsonl"), _rows(output / "evaluations.jsonl"))


def _rows(path: Path) -> list[dict[str, float]]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [{key: value for key, value in row.items() if not key.startswith(TIMES)} for row in rows]


def kill_after(spec: Path, output: Path, seconds: float) -> int:
    """Start the run, kill it after `seconds`; returns the finished steps at that moment."""
    process = start(spec, output)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    metrics = output / "metrics.jsonl"
    return len(metrics.read_text().splitlines()) if metrics.exists() else 0


def differences(plain: Outcome, resumed: Outcome) -> list[str]:
    """What differs between two runs; empty when they are identical."""
    found = [f"weights of {name}" for name in plain.weights if plain.weights[name] != resumed.weights.get(name)]
    if plain.metrics != resumed.metrics:
        found.append("metrics")
    if plain.evaluations != resumed.evaluations:
        found.append("evaluations")
    return found


def main() -> int:
    """Run the trials and print one line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    with TemporaryDirectory() as name:
        folder = Path(name)
        spec = write_spec(folder)
        begin = time.monotonic()
        plain = finish(spec, folder / "plain")
        length = time.monotonic() - begin
        print(f"uninterrupted: {length:.1f} s, {len(plain.metrics)} steps")
        bad = 0
        for trial in range(arguments.kills):
            seconds = draw.uniform(0, length)
            output = folder / f"trial-{trial}"
            steps = kill_after(spec, output, seconds)
            found = differences(plain, finish(spec, output))
            bad += bool(found)
            print(f"kill {trial + 1}: after {seconds:5.1f} s, {steps:2d} steps: {', '.join(found) or 'identical'}")
    print(f"{arguments.kills - bad} of {arguments.kills} resumed runs are bit-identical")
    return bad > 0


if __name__ == "__main__":
    raise SystemExit(main())
