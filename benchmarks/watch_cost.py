"""What the sampler costs: its CPU time and memory over a tree of processes, and what it takes from a job beside it.

    python benchmarks/watch_cost.py [--seconds 60] [--processes 50] [--pairs 10] [--control] [--json]

The sampler runs in its own process at 1 Hz, as under `headway watch`: frames of the tree, which are written as JSON
lines. The job is a fixed amount of arithmetic on every core that this process may use; runs with the sampler and
without alternate, and each pair gives one ratio of wall time and one of CPU time. Limits: 1 % of a core, 60 MB, and
3 % for the median of the wall times' ratios. Exit code 1 where one is passed. Other work on the machine moves wall
times by far more than the sampler does: the ratios without a sampler in either run (`--control`) show by how much.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headway.facts.probe import usable_cores

CORE, RSS, SLOWER = 0.01, 60e6, 0.03


def sample(pid: int) -> None:
    """The sampler: frames of the tree of a process until standard input ends, then its own figures as JSON."""
    import select

    import msgspec

    from headway.guard.frames import Frames, interval
    from headway.guard.tree import Tree

    tree = Tree(pid)
    frames = Frames(tree, disks=(Path.cwd(),))
    encoder, previous, count, processes = msgspec.json.Encoder(), None, 0, 0
    began, used = time.perf_counter(), time.process_time()
    with open(os.devnull, "wb") as sink:
        while True:
            frame = frames.take()
            sink.write(encoder.encode(frame) + b"\n")
            count, processes = count + 1, max(processes, len(frame.processes))
            wait = interval(previous, frame)
            previous = frame
            if select.select([sys.stdin], [], [], wait)[0]:
                break
    seconds, used = time.perf_counter() - began, time.process_time() - used
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": seconds, "cpu": used, "frames": count, "processes": processes, "rss": rss}))


def work(amount: int) -> None:
    """The job: `amount` rounds of arithmetic; prints its wall and CPU seconds."""
    began, used, total = time.perf_counter(), time.process_time(), 0
    for number in range(amount):
        total += number * number % 7
    print(json.dumps({"wall": time.perf_counter() - began, "cpu": time.process_time() - used, "total": total}))


@contextmanager
def tree_of(processes: int) -> Iterator[int]:
    """A shell with so many sleepers below it; its pid. All of them are in a process group of their own."""
    script = f"for i in $(seq {processes - 1}); do sleep 100000 & done; echo ready; wait"
    shell = subprocess.Popen(["bash", "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert shell.stdout is not None
    shell.stdout.readline()
    time.sleep(0.5)
    try:
        yield shell.pid
    finally:
        os.killpg(shell.pid, 9)
        shell.wait()


class Sampler:
    """The sampler as a process of its own."""

    def __init__(self, pid: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--sample", str(pid)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        time.sleep(1.0)

    def stop(self) -> dict[str, float]:
        """End it; its figures."""
        text, _ = self.process.communicate("end\n", timeout=30)
        return dict(json.loads(text))


def run_job(amount: int) -> tuple[float, float]:
    """Wall seconds until all parts of the job are done, each a process of its own, and CPU seconds of all of them."""
    command, began = [sys.executable, __file__, "--work", str(amount)], time.perf_counter()
    parts = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(usable_cores())]
    texts = [part.communicate()[0] for part in parts]
    return time.perf_counter() - began, sum(float(json.loads(text)["cpu"]) for text in texts)


def measure_pairs(pid: int, pairs: int, amount: int, control: bool) -> list[tuple[float, float]]:
    """Wall and CPU time of the job with the sampler over without it, pair by pair; which comes first alternates."""
    ratios = []
    for number in range(pairs):
        times = {}
        for watched in (number % 2 == 0, number % 2 == 1):
            sampler = Sampler(pid) if watched and not control else None
            times[watched] = run_job(amount)
            if sampler is not None:
                sampler.stop()
        ratios.append((times[True][0] / times[False][0], times[True][1] / times[False][1]))
    return ratios


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--processes", type=int, default=50)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--amount", type=int, default=20_000_000, help="rounds of the job, one or two seconds")
    parser.add_argument("--control", action="store_true", help="pairs without the sampler")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--sample", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--work", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.sample is not None:
        sample(options.sample)
        return 0
    if options.work is not None:
        work(options.work)
        return 0
    with tree_of(options.processes) as pid:
        sampler = Sampler(pid)
        time.sleep(options.seconds)
        figures = sampler.stop()
        ratios = measure_pairs(pid, options.pairs, options.amount, options.control)
    share = figures["cpu"] / figures["seconds"]
    wall, cpu = ([each[kind] for each in ratios] or [1.0] for kind in (0, 1))
    slower, more = statistics.median(wall) - 1, statistics.median(cpu) - 1
    passed = share <= CORE and figures["rss"] <= RSS and slower <= SLOWER
    if options.json:
        print(
            json.dumps(
                {"core": share, "slower": slower, "more_cpu": more, "ratios": ratios, "passed": passed, **figures}
            )
        )
    else:
        print(
            f"{figures['frames']:.0f} frames of {figures['processes']:.0f} processes in {figures['seconds']:.0f} s:"
            f" {1000 * figures['cpu'] / figures['frames']:.2f} ms of CPU a frame, {100 * share:.2f} % of a core"
            f" (limit {100 * CORE:.0f} %), at most {figures['rss'] / 1e6:.1f} MB resident (limit {RSS / 1e6:.0f} MB)"
        )
        print(
            f"a job beside it, {len(ratios)} pairs: wall time median {100 * slower:+.2f} %"
            f" (limit {100 * SLOWER:.0f} %), from {100 * (min(wall) - 1):+.1f} % to {100 * (max(wall) - 1):+.1f} %;"
            f" CPU time median {100 * more:+.2f} %"
        )
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
