"""Predicted against measured memory: named and random runs, each trained for real in a process of its own.

    python benchmarks/ledger_accuracy.py                       # the named configurations
    python benchmarks/ledger_accuracy.py --random 12 --seed 0  # random ones from RANGES
    python benchmarks/ledger_accuracy.py --only full-small --json

Each run is `headway train` on a RunSpec with random weights, prompts of exactly data.max_prompt tokens and two or
three steps. Measured is the recording's peak of resident memory, phase by phase, of the trainer and its children;
predicted is the plan that the run itself made. The claims (named; random): whole run within 5 % (7 %), each phase
within 12 %, the upper bound never below the measurement, 1.15 x of it at the median and 1.35 x at most.
Exit code 1 when a claim fails.
"""

import argparse
import json
import os
import random
import statistics
import string
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from headway.guard.recorder import read_recording
from headway.plan.ledger import Phase
from headway.units import MIB

RUN_TOLERANCE = {"named": 0.05, "random": 0.07}
PHASE_TOLERANCE = 0.12
UPPER_MEDIAN, UPPER_WORST = 1.15, 1.35

REWARD = '''"""A reward without meaning, so that the answers of a group differ."""

import random


def score(prompt, answer, label, response):
    return random.random()
'''

ENTROPY = 1e-9
"""Random weights seldom write text, and then all answers of a group score 0 and have no gradient; with an entropy
bonus every sample is trained. Log-probs with entropy take as many bytes as without."""


@dataclass(frozen=True)
class Config:
    """One run to measure. `rank` 0 trains all parameters; `threads` are torch's."""

    name: str
    model: str
    dtype: str
    rank: int
    checkpointing: bool
    cap: int
    max_prompt: int
    max_answer: int
    prompts: int
    samples: int
    kv_mib: int = 256
    kl: float = 0.0
    updates: int = 1
    chunk: int = 256
    attention: str = "sdpa"
    threads: int = 1
    steps: int = 2


NAMED = (
    Config("full-135M", "smollm2-135M", "fp32", 0, True, 512, 96, 32, 4, 2),
    Config("full-135M-no-checkpointing", "smollm2-135M", "fp32", 0, False, 512, 96, 32, 4, 2),
    Config("lora-135M", "smollm2-135M", "fp32", 16, True, 2048, 160, 32, 4, 2),
    Config("lora-135M-bf16", "smollm2-135M", "bf16", 8, False, 512, 48, 16, 2, 2),
    Config("full-small-long", "small-llama", "fp32", 0, True, 4096, 256, 256, 4, 4),
    Config("full-small-no-checkpointing", "small-llama", "fp32", 0, False, 2048, 128, 128, 4, 4),
    Config("lora-small-kl-long", "small-llama", "fp32", 16, False, 2048, 256, 256, 4, 2, kl=0.01),
    Config("full-small-bf16-kl", "small-llama", "bf16", 0, True, 1024, 32, 32, 4, 2, kl=0.01, updates=2),
)

RANGES: Mapping[str, Sequence[Any]] = {
    "model": ("smollm2-135M", "small-llama", "small-llama", "small-qwen3", "small-gemma"),
    "dtype": ("fp32", "bf16"),
    "rank": (0, 0, 4, 16, 64),
    "checkpointing": (True, False),
    "cap": (512, 1024, 2048, 4096),
    "max_prompt": (16, 64, 128, 256),
    "max_answer": (16, 32, 64, 128, 256),
    "prompts": (2, 4, 8),
    "samples": (2, 4),
    "kv_mib": (32, 128, 512),
    "kl": (0.0, 0.0, 0.01),
    "updates": (1, 1, 2),
    "chunk": (64, 256, 1024),
    "attention": ("sdpa", "sdpa", "sdpa", "eager"),
    "threads": (1, 2),
}
"""Random configurations take one value of each, independently; a repeated value is more likely."""

STEP_TOKENS = {
    ("smollm2-135M", "fp32"): 1024, ("smollm2-135M", "bf16"): 256,
    ("small", "fp32"): 4096, ("small", "bf16"): 1024,
}  # fmt: skip
"""Tokens in a step beyond which a random configuration is halved: prompts first, then samples, then lengths. bf16 is
slow on CPUs without arithmetic for it."""


@dataclass(frozen=True)
class Row:
    """One phase of one run, or the whole run ("run"), in bytes."""

    config: str
    phase: str
    predicted: int
    measured: int
    upper: int

    @property
    def error(self) -> float:
        """Relative error of the prediction."""
        return self.predicted / self.measured - 1

    @property
    def upper_ratio(self) -> float:
        """Upper bound over measurement."""
        return self.upper / self.measured


def random_configs(count: int, seed: int) -> Iterator[Config]:
    """`count` configurations drawn from RANGES; the same for the same seed."""
    draw = random.Random(seed)
    for number in range(count):
        config = Config(
            name=f"random-{seed}-{number}", **{key: draw.choice(values) for key, values in RANGES.items()}
        )
        yield shortened(replace(config, prompts=max(config.prompts, config.updates)))


def shortened(config: Config) -> Config:
    """The configuration with no more tokens in a step than STEP_TOKENS."""
    model = config.model if config.model.startswith("smollm2") else "small"
    while config.prompts * config.samples * longest(config) > STEP_TOKENS[model, config.dtype]:
        if config.prompts > config.updates:
            config = replace(config, prompts=config.prompts // 2)
        elif config.samples > 2:
            config = replace(config, samples=config.samples // 2)
        else:
            config = replace(config, max_prompt=config.max_prompt // 2, max_answer=config.max_answer // 2)
    return config


def longest(config: Config) -> int:
    """Tokens of a sample at its full length."""
    return config.max_prompt + config.max_answer


def runspec(config: Config, device: str) -> dict[str, dict[str, Any]]:
    """The RunSpec of a configuration, section by section."""
    spec: dict[str, dict[str, Any]] = {
        "model": {
            "path": config.model, "init": "random", "dtype": config.dtype, "attention": config.attention,
        },
        "data": {
            "file": "problems.jsonl", "format": "text", "template": "{prompt}", "max_prompt": config.max_prompt,
            "problems": 32,
        },
        "reward": {"kind": "function", "function": "reward_of_text:score", "memory": "24MiB"},
        "rollout": {
            "prompts": config.prompts, "samples": config.samples, "max_answer": config.max_answer,
            "kv_budget": f"{config.kv_mib}MiB",
        },
        "objective": {"kl_coef": config.kl, "entropy_coef": ENTROPY},
        "train": {
            "steps": config.steps, "cap": config.cap, "checkpointing": config.checkpointing,
            "logprob_chunk": config.chunk, "updates": config.updates, "lr": 1e-6,
        },
        "eval": {"problems": 4},
        "memory": {"device": device, "threads": config.threads},
        "output": {"dir": "run"},
    }  # fmt: skip
    if config.rank:
        spec["lora"] = {"rank": config.rank}
    return spec


def toml(spec: Mapping[str, Mapping[str, Any]]) -> str:
    """TOML of sections with plain values; JSON writes those the same way."""
    sections = (
        f"[{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in section.items())
        for name, section in spec.items()
    )
    return "\n".join(sections)


def write_problems(path: Path, tokens: int, count: int) -> None:
    """Problems whose prompts are `tokens` bytes, which the tokenizer of random models reads one by one."""
    draw = random.Random(tokens)
    with path.open("w") as file:
        for _ in range(count):
            prompt = "".join(draw.choices(string.ascii_lowercase, k=tokens))
            file.write(json.dumps({"prompt": prompt, "label": "none"}) + "\n")


def run(config: Config, folder: Path, device: str) -> list[Row]:
    """Train one configuration and compare its recording with its plan."""
    write_problems(folder / "problems.jsonl", config.max_prompt, 64)
    (folder / "reward_of_text.py").write_text(REWARD)
    (folder / "spec.toml").write_text(toml(runspec(config, device)))
    command = [sys.executable, "-m", "headway", "train", "spec.toml"]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False,
        env=os.environ | {"OMP_NUM_THREADS": str(config.threads)},
    )  # fmt: skip
    if done.returncode != 0:
        raise SystemExit(f"{config}\nfailed with exit code {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return compare(config.name, folder / "run")


def compare(name: str, folder: Path) -> list[Row]:
    """Rows of every phase and of the whole run, from the run's own files."""
    summary = json.loads((folder / "summary.json").read_text())
    peaks = read_recording(folder / "recording.jsonl").segments[-1].peaks
    rows = []
    for phase in Phase:
        found = summary["phases"].get(phase)
        if found is not None and phase in peaks:
            rows.append(Row(name, phase, found["predicted_bytes"], peaks[phase].tree_peak, found["upper_bytes"]))
    predicted, upper = summary["peak_predicted_bytes"], summary["peak_upper_bytes"]
    return [*rows, Row(name, "run", predicted, summary["peak_measured_bytes"], upper)]


def claims(rows: Sequence[Row], kind: str) -> Iterator[str]:
    """Every claim that the rows break."""
    for row in rows:
        tolerance = RUN_TOLERANCE[kind] if row.phase == "run" else PHASE_TOLERANCE
        if abs(row.error) > tolerance:
            yield f"{row.config} {row.phase}: error {row.error:+.1%} is over {tolerance:.0%}"
        if row.upper < row.measured:
            yield f"{row.config} {row.phase}: measured {row.measured / row.upper - 1:.1%} above the upper bound"
    ratios = [row.upper_ratio for row in rows if row.phase == "run"]
    if statistics.median(ratios) > UPPER_MEDIAN:
        yield f"upper bound at the median {statistics.median(ratios):.2f} x of measured, over {UPPER_MEDIAN}"
    if max(ratios) > UPPER_WORST:
        yield f"upper bound at worst {max(ratios):.2f} x of measured, over {UPPER_WORST}"


def print_rows(rows: Sequence[Row]) -> None:
    """One line for each phase."""
    for row in rows:
        print(
            f"{row.config:28s} {row.phase:8s} {row.predicted / MIB:9,.0f} {row.measured / MIB:9,.0f} MiB "
            f"{row.error:+7.1%}  upper {row.upper_ratio:5.2f} x",
            flush=True,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--random", type=int, default=0, metavar="N", help="measure N random configurations instead")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--only", metavar="TEXT", help="only configurations whose name contains it")
    parser.add_argument("--json", action="store_true", help="print rows as JSON")
    arguments = parser.parse_args()
    kind = "random" if arguments.random else "named"
    configs = list(random_configs(arguments.random, arguments.seed)) if arguments.random else list(NAMED)
    if arguments.only:
        configs = [config for config in configs if arguments.only in config.name]
    rows: list[Row] = []
    for config in configs:
        with tempfile.TemporaryDirectory(prefix="headway-ledger-") as folder:
            found = run(config, Path(folder), arguments.device)
        rows += found
        if not arguments.json:
            print(f"# {config}")
            print_rows(found)
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
    broken = list(claims(rows, kind))
    print(*broken or ["every claim holds"], sep="\n", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    raise SystemExit(main())
