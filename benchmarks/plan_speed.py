"""How long a plan takes: `headway plan` and `headway size` as whole processes, and plans through the Python API.

    python benchmarks/plan_speed.py [--runs 10] [--plans 10000]

A process is timed from its start to its end, in a fresh interpreter, with this environment's bytecode cache; its run
before the first timed one fills the cache. CPU time is what a machine with nothing else to do would take. The plans
through the API differ in their lengths.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from msgspec.structs import replace

from headway.facts import machines, shapes
from headway.foreign import presets
from headway.plan.plan import plan

ROOT = Path(__file__).parents[1]
GB10 = ("--machine", "gb10")
MILES = ("qwen3-4b", "--trainer", "miles-fsdp", *GB10)
SCRIPT = str(ROOT / "tests" / "data" / "scripts" / "slime-arrays.sh")
COMMANDS: dict[str, tuple[tuple[str, ...], float]] = {
    "plan, a model that fits": (("plan", "qwen3-0.6b", *GB10), 0.5),
    "plan, a model that does not fit": (("plan", "qwen3-8b", "--machine", "rtx4090"), 0.5),
    "plan, Miles on a GB10": (("plan", *MILES), 0.5),
    "plan, a script that sources its model": (("plan", SCRIPT, "--machine", "8xh100-80"), 0.5),
    "plan, a RunSpec": (("plan", str(ROOT / "configs" / "demo.toml"), *GB10), 0.5),
    "plan, a RunSpec, as JSON": (("plan", str(ROOT / "configs" / "demo.toml"), *GB10, "--json"), 0.5),
    "size": (("size", *GB10), 1.0),
}
"""What is timed -> its words, and the seconds that it may take at the median."""
API_SECONDS = 3.0
"""What 10,000 plans may take."""


def seconds_of(words: tuple[str, ...], environment: dict[str, str]) -> tuple[float, float]:
    """(time, CPU time) of one process from start to end. An exit code that is no verdict ends the benchmark."""
    before, used = time.perf_counter(), children_cpu()
    done = subprocess.run(
        [sys.executable, "-m", "headway", *words], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, 3, 4):
        raise SystemExit(f"headway {' '.join(words)}: exit code {done.returncode}\n{done.stderr}")
    return time.perf_counter() - before, children_cpu() - used


def children_cpu() -> float:
    """CPU seconds of all processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def api_seconds(plans: int) -> tuple[float, float]:
    """(time, CPU time) of plans of one model whose lengths all differ."""
    workload = presets.workload(shapes.table()["qwen3-4b"], "headway")
    machine = machines.by_name("gb10").without_ray()
    lengths = [(64 + index % 512, 16 + index) for index in range(plans)]
    before, used = time.perf_counter(), time.process_time()
    for prompt, answer in lengths:
        rollout = replace(workload.rollout, max_prompt=prompt, max_answer=answer)
        plan(replace(workload, rollout=rollout), machine)
    return time.perf_counter() - before, time.process_time() - used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--plans", type=int, default=10_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = cache
        for name, (words, most) in COMMANDS.items():
            seconds_of(words, environment)
            times = [seconds_of(words, environment) for _ in range(options.runs)]
            whole, cpu = (statistics.median(each) for each in zip(*times, strict=True))
            print(f"{name:38} {whole:6.3f} s, CPU {cpu:6.3f} s, medians of {options.runs} (limit {most:.1f} s)")
    whole, cpu = api_seconds(options.plans)
    name = f"{options.plans:,} plans, Python API"
    print(f"{name:38} {whole:6.3f} s, CPU {cpu:6.3f} s (limit {API_SECONDS:.1f} s for 10,000)")


if __name__ == "__main__":
    main()
