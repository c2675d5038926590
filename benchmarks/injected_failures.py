"""Memory runs out over one micro-batch in twenty: the weights at the end are the calm run's, and the count is right.

    python benchmarks/injected_failures.py --steps 20 --rate 0.05

Runs `headway train` (a tiny random model in fp32 on the CPU, two optimizer steps a rollout, so that it scores too)
three times: calm; with other micro-batches, which changes nothing but the order of sums; and with failures. A failure
is a real one of torch's allocator, which is asked for an exbibyte, before the forward pass of a micro-batch or in the
middle of its backward pass, half of them each. Reported: how far the weights are from the calm run's, as a share of
how far training moved them, and the failures that were caused, recorded and counted.
"""

import argparse
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors import safe_open

SPEC = """
model = {path = "tiny-qwen3", init = "random", dtype = "fp32"}
data = {file = "sums.jsonl", format = "text"}
reward = {kind = "regex", extract = "whole", format_pattern = "(?s).*[0-9].*", format_weight = 0.5}
rollout = {prompts = 4, samples = 8, max_answer = 12}
objective = {kl_coef = 0.01}
train = {steps = %(steps)d, lr = 1e-4, updates = 2, cap = 64}
eval = {problems = 0}
memory = {threads = 1}
output = {save_every = 0, tensorboard = false}
"""


def inject(rate: float, log: Path) -> None:
    """Make every model that a run loads fail over some of its micro-batches; each failure is a line of `log`."""
    from headway.train import job

    load, draw = job.load, random.Random(0)
    middle: list[torch.Tensor] = []

    def exhaust(stage: str) -> None:
        with log.open("a") as file:
            file.write(stage + "\n")
        torch.empty(1 << 60)

    def generates(kwargs: dict[str, Any]) -> bool:
        return bool(kwargs.get("use_cache"))

    def before(_module: object, _args: object, kwargs: dict[str, Any]) -> None:
        if not generates(kwargs) and draw.random() < rate / 2:
            exhaust("forward")

    def after(_module: object, _args: object, kwargs: dict[str, Any], _output: object) -> None:
        if not generates(kwargs) and middle[0].requires_grad and draw.random() < rate / 2:
            middle[0].register_hook(lambda _gradient: exhaust("backward"))

    def keep(_module: object, _args: object, output: Any) -> None:
        middle[:] = [output[0] if isinstance(output, tuple) else output]

    def loading(*arguments: Any) -> Any:
        loaded = load(*arguments)
        inner = loaded.model.get_submodule("model")
        inner.register_forward_pre_hook(before, with_kwargs=True)
        inner.get_submodule("layers.0").register_forward_hook(keep)
        inner.register_forward_hook(after, with_kwargs=True)
        return loaded

    job.load = loading


def child(rate: float, log: Path, arguments: list[str]) -> None:
    """`headway train` in this process, with failures."""
    from headway.cli import app

    inject(rate, log)
    sys.argv = ["headway", "train", *arguments]
    app.main()


def run(folder: Path, name: str, rate: float, *settings: str) -> Path:
    """One run; returns its output directory."""
    output = folder / name
    options = [part for setting in (f"output.dir={output}", *settings) for part in ("--set", setting)]
    command = [sys.executable, __file__, "--child", str(rate), str(folder / f"{name}.caused")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [*command, str(folder / "run.toml"), *options], capture_output=True, text=True, env=environment
    )
    if ran.returncode:
        raise SystemExit(ran.stdout[-2000:] + ran.stderr[-2000:])
    return output


def weights(path: Path) -> torch.Tensor:
    """Every final weight, in one vector."""
    with safe_open(path / "final" / "model.safetensors", framework="pt") as file:
        return torch.cat([file.get_tensor(name).double().flatten() for name in sorted(file.keys())])


def rows(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSONL file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def main() -> int:
    """Run all and print what came out; 0 if the weights agree and nothing is miscounted."""
    if sys.argv[1:2] == ["--child"]:
        child(float(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rate", type=float, default=0.05)
    arguments = parser.parse_args()
    with TemporaryDirectory() as name:
        return compare(Path(name), arguments.steps, arguments.rate)


def compare(folder: Path, steps: int, rate: float) -> int:
    """The three runs, and one that learns nothing to measure from."""
    problems = ({"prompt": f"{a} + {b} =", "label": str(a + b)} for a in range(10) for b in range(10))
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in problems))
    (folder / "run.toml").write_text(SPEC % {"steps": steps})
    start = weights(run(folder, "start", 0.0, "train.lr=0", "train.steps=1"))
    calm = weights(run(folder, "calm", 0.0))
    other = weights(run(folder, "other", 0.0, "train.cap=48"))
    output = run(folder, "failing", rate)
    failing = weights(output)
    moved = (calm - start).norm()
    distances = {
        name: float((found - calm).norm() / moved) for name, found in (("other", other), ("failing", failing))
    }
    caused = (folder / "failing.caused").read_text().splitlines()
    recorded = [row for row in rows(output / "recording.jsonl") if row["kind"] == "failure"]
    metrics = rows(output / "metrics.jsonl")
    counted = sum(int(row["splits"] + row["dropped"]) for row in metrics)
    of_train = sum(row["phase"] == "train" for row in recorded)
    print(f"failures caused: {len(caused)} ({caused.count('forward')} forward, {caused.count('backward')} backward)")
    print(f"recorded: {len(recorded)}, of them in phase train {of_train}; counted in metrics.jsonl {counted}")
    print(f"samples dropped: {sum(int(row['dropped']) for row in metrics)}")
    print(f"distance of the final weights from the calm run's, by how far training moved them ({float(moved):.3g}):")
    print(f"  other micro-batches {distances['other']:.2e}, failures {distances['failing']:.2e}")
    good = len(caused) == len(recorded) > 0 and counted == of_train and distances["failing"] < 1e-3
    print("as promised" if good else "NOT as promised")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
