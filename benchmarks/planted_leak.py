"""A reward function that leaks 20 MB a step: when is it foreseen, does the guard stop in time, does the run go on?

    python benchmarks/planted_leak.py

Three runs of one RunSpec on the CPU, a tiny random model in fp32. Without the leak, to its end: the weights to
compare with, and the memory that the run needs. With the leak under `memory.limit` and an observing guard: the true
step at which the limit is passed (nothing enforces it). With the leak, the guard and `--on-limit resume`.

The reward's process is a child of the trainer, counted in its tree; a fresh process starts without what it leaked.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import kill_resume

MB = 10**6
SPEC = """
model = {path = "tiny-qwen3", init = "random", dtype = "fp32"}
data = {file = "sums.jsonl", format = "text"}
reward = {kind = "function", function = "scores:score", extract = "whole", memory = "8GiB"}
rollout = {prompts = 2, samples = 4, max_answer = 12}
train = {steps = %(steps)d, lr = 1e-3}
eval = {problems = 4}
memory = {threads = 1}
output = {save_every = 0, tensorboard = false}
"""
REWARD = '''
"""Scores by length, so that there is something to learn, and keeps memory from call to call."""

import time

kept = []
LEAK = %(leak)d


def score(prompt, answer, label, response):
    time.sleep(%(seconds)g)
    if LEAK:
        kept.append(bytearray(b"x" * LEAK))
    return (len(response) %% 7) / 7
'''
SAMPLES = 8


def write(folder: Path, steps: int, leak: int, seconds: float) -> Path:
    """The RunSpec, its problems and its reward function; `leak` in bytes a step, `seconds` of a step's rewards."""
    folder.mkdir()
    rows = ({"prompt": f"{a} + {b} =", "label": str(a + b)} for a in range(10) for b in range(10))
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "scores.py").write_text(REWARD % {"leak": leak // SAMPLES, "seconds": seconds / SAMPLES})
    path = folder / "leak.toml"
    path.write_text(SPEC % {"steps": steps})
    return path


def train(spec: Path, *options: str) -> int:
    """Run `headway train` to its end, its output beside the RunSpec; returns the exit code."""
    command = [sys.executable, "-m", "headway", "train", str(spec), "--set", f"output.dir={spec.parent / 'run'}"]
    with (spec.parent / "run.log").open("wb") as log:
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        return subprocess.run([*command, *options], stdout=log, stderr=subprocess.STDOUT, env=environment).returncode


def lines(spec: Path, kind: str) -> Iterator[dict[str, Any]]:
    """The lines of a kind in a run's recording."""
    for line in (spec.parent / "run/recording.jsonl").read_text().splitlines():
        row = json.loads(line)
        if row["kind"] == kind:
            yield row


def peaks(spec: Path) -> dict[int, int]:
    """The most that the process tree held in each step."""
    found: dict[int, int] = {}
    for row in lines(spec, "phase"):
        found[row["step"]] = max(found.get(row["step"], 0), row["tree_peak"])
    return found


def foreseen(spec: Path, step: int) -> dict[str, Any] | None:
    """The last forecast of `memory.limit` that was made up to a step of the first process."""
    first, found = True, None
    for line in (spec.parent / "run/recording.jsonl").read_text().splitlines()[1:]:
        row = json.loads(line)
        first &= row["kind"] != "header"
        if first and row["kind"] == "forecast" and row["gauge"] == "memory.limit" and (row["at_step"] or 0) <= step:
            found = row
    return found


def report(name: str, good: bool, text: str) -> bool:
    """One line of the result."""
    print(f"{'yes' if good else 'NO ':3} {name}: {text}", flush=True)
    return good


def main() -> int:
    """Run all three and print what came out; 0 if everything is as promised."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100, help="steps of the run")
    parser.add_argument("--reached", type=int, default=75, help="step at which the limit is to be reached")
    parser.add_argument("--leak", type=int, default=20 * MB, help="bytes a step")
    parser.add_argument("--seconds", type=float, default=0.3, help="what a step's rewards take")
    parser.add_argument("--keep", type=Path, help="folder for the runs, which is then kept")
    arguments = parser.parse_args()
    with TemporaryDirectory() as name:
        root = arguments.keep or Path(name)
        root.mkdir(exist_ok=True)
        return measure(root, arguments.steps, arguments.reached, arguments.leak, arguments.seconds)


def measure(root: Path, steps: int, reached: int, leak: int, seconds: float) -> int:
    """The three runs below `root`."""
    plain = write(root / "plain", steps, 0, seconds)
    if train(plain) != 0:
        raise SystemExit((plain.parent / "run.log").read_text()[-3000:])
    limit = max(peaks(plain).values()) + reached * leak
    observed = write(root / "observed", steps, leak, seconds)
    setting = ("--set", f"memory.limit={limit}")
    train(observed, *setting, "--set", "guard.policy=observe")
    over = [step for step, peak in sorted(peaks(observed).items()) if peak > limit]
    if not over:
        raise SystemExit((observed.parent / "run.log").read_text()[-3000:])
    true = over[0]
    print(f"without the leak: {max(peaks(plain).values()) / MB:.0f} MB at most; limit {limit / MB:.0f} MB")
    print(f"with the leak the limit is passed in step {true}")

    guarded = write(root / "guarded", steps, leak, seconds)
    code = train(guarded, *setting, "--on-limit", "resume")
    third = true // 3
    row = foreseen(guarded, third)
    step = None if row is None else row["expected"]["step"]
    said = (
        "none" if row is None else f"step {step} expected, {row['low']['step']} to {(row['high'] or {}).get('step')}"
    )
    error = None if step is None else (step - true) / true
    actions = [(action["name"], action["step"]) for action in lines(guarded, "action") if not action["dry"]]
    stops = [at for name, at in actions if name == "stop"]
    highest = max(peaks(guarded).values())
    good = [
        report("forecast at a third of the way, within 15 %", error is not None and abs(error) <= 0.15,
               f"made by step {third}: {said}" + ("" if error is None else f", error {error:+.1%}")),
        report("stopped before the limit", bool(stops) and highest < limit,
               f"stops in steps {stops}; the most that was held is {highest / limit:.1%} of the limit"),
        report("resumed and finished", code == 0, f"exit code {code}, {len([*lines(guarded, 'header')])} processes"),
    ]  # fmt: skip
    shrunk = [at for name, at in actions if name == "shrink"]
    if code == 0:
        ended = [kill_resume.read(spec.parent / "run") for spec in (plain, guarded)]
        different = ", ".join(kill_resume.differences(*ended))
        text = different or f"weights and metrics, bit for bit; shrink actions: {len(shrunk)}"
        good.append(report("identical to the run without the leak", not different or bool(shrunk), text))
    print("actions:", ", ".join(f"{name} in step {at}" for name, at in actions))
    return 0 if all(good) and code == 0 else 1


if __name__ == "__main__":
    raise SystemExit(main())
