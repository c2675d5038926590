"""How long `headway doctor` takes on a large log, and in how much memory: whole processes on generated logs.

    python benchmarks/doctor_speed.py [--lines 10000000] [--keep FILE]

The log is that of a training run in a Ray cluster: a line for each request, step counters, measured memory, warnings
that repeat, and at its end a worker that dies. The limits are those of the project: 1 GiB in 30 s and 150 MB, and
1 MB in 0.7 s with a cold start. CPU seconds are about what a machine with nothing else to do takes.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REQUEST = (
    "(RolloutManager pid=4242, ip=10.0.0.{host}) [2026-03-01 10:{minute:02d}:{second:02d}] request {number} "
    "finished: {tokens} tokens, {speed:.2f} token/s\n"
)
STEP = "(MegatronTrainRayActor pid=4243, ip=10.0.0.4) step {step}: {{'loss': 0.{number}, 'grad_norm': 1.2}}\n"
MEMORY = (
    "(MegatronTrainRayActor pid=4243, ip=10.0.0.4) [Rank 0] Memory-Usage after train: "
    "{{'used_GB': 61.{number}, 'free_GB': 18.0, 'host_used_GB': 412.5}}\n"
)
WARNING = "(raylet, ip=10.0.0.4) [2026-03-01 10:00:00,1 E 1 2] /tmp/ray is over 95% full, available space: 48.2 GB\n"
END = (
    "(raylet) A worker died or was killed while executing a task by an unexpected system error.\n"
    "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task. Worker exit type: "
    "SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file.\n"
)
LIMITS = {"large": (30.0, 150 << 20), "small": (0.7, 150 << 20)}


def write_log(path: Path, lines: int) -> None:
    """A log of so many lines, about 107 bytes each."""
    with path.open("w", encoding="utf-8", buffering=1 << 20) as file:
        for number in range(lines):
            if number % 1000 == 999:
                file.write(STEP.format(step=number // 1000, number=number))
            elif number % 500 == 250:
                file.write(MEMORY.format(number=number % 10))
            elif number % 5000 == 77:
                file.write(WARNING)
            else:
                file.write(
                    REQUEST.format(
                        host=number % 250, minute=number // 60 % 60, second=number % 60, number=number,
                        tokens=number * 37 % 9000, speed=number % 977 / 7,
                    )
                )  # fmt: skip
        file.write(END)


def measure(path: Path) -> tuple[float, float, int, str]:
    """(seconds, CPU seconds, highest resident bytes, first line) of one diagnosis as a process of its own."""
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "headway", "doctor", str(path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    text = process.stdout.read()
    _, _, usage = os.wait4(process.pid, 0)
    used = usage.ru_utime + usage.ru_stime
    return time.perf_counter() - started, used, usage.ru_maxrss * 1024, text.splitlines()[0] if text else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=10_000_000)
    parser.add_argument("--keep", type=Path, help="write the large log there, or use what is there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        small, large = Path(folder) / "small.log", options.keep or Path(folder) / "large.log"
        write_log(small, 10_000)
        if not large.exists():
            write_log(large, options.lines)
        measure(small)
        failed = False
        for name, path in (("small", small), ("large", large)):
            seconds, cpu, memory, first = measure(path)
            most, bytes_ = LIMITS[name]
            failed |= seconds > most or memory > bytes_
            size = path.stat().st_size / 2**20
            print(
                f"{name}: {size:.1f} MiB in {seconds:.2f} s ({cpu:.2f} s of CPU; limit {most} s), "
                f"{memory / 2**20:.0f} MiB; {first}"
            )
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
