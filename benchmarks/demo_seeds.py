"""Run the demo with several seeds and with a learning rate of 0, and print what each learned.

    python benchmarks/demo_seeds.py --seeds 0 1 2

The claims: in each seed greedy accuracy on the held-out problems rises by at least 0.25; the control, which cannot
learn, moves by less than 0.05; each run takes less than ten minutes. Exit code 1 when one fails.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

from headway.units import MIB

DEMO = Path(__file__).parents[1] / "configs" / "demo.toml"
GAIN, CONTROL, SECONDS = 0.25, 0.05, 600


def run(output: Path, *settings: str) -> tuple[dict[str, Any], float]:
    """Train the demo with some keys changed; gives its summary and the seconds of the whole command."""
    command = [sys.executable, "-m", "headway", "train", str(DEMO), "--set", f"output.dir={output}"]
    for setting in settings:
        command += ["--set", setting]
    start = monotonic()
    with output.with_suffix(".log").open("w") as log:
        subprocess.run(command, check=True, stdout=log, stderr=subprocess.STDOUT)
    return json.loads((output / "summary.json").read_text()), monotonic() - start


def main() -> int:
    """Print one line per run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arguments = parser.parse_args()
    runs = [(f"seed {seed}", (f"train.seed={seed}",)) for seed in arguments.seeds]
    runs.append(("control, lr 0", ("train.lr=0.0", f"train.seed={arguments.seeds[0]}")))
    failed = False
    print(f"{'run':15} {'before':>7} {'after':>7} {'gain':>7} {'seconds':>8} {'predicted':>10} {'measured':>9}")
    with TemporaryDirectory() as folder:
        for name, settings in runs:
            summary, seconds = run(Path(folder) / name.replace(" ", "-").replace(",", ""), *settings)
            before, after = summary["eval_before"]["reward"], summary["eval_after"]["reward"]
            good = abs(after - before) < CONTROL if name.startswith("control") else after - before >= GAIN
            failed |= not good or seconds > SECONDS
            print(
                f"{name:15} {before:7.3f} {after:7.3f} {after - before:+7.3f} {seconds:8.0f}"
                f" {summary['peak_predicted_bytes'] / MIB:6.0f} MiB {summary['peak_measured_bytes'] / MIB:5.0f} MiB"
                f"{'' if good else '  FAILS'}",
                flush=True,
            )
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
