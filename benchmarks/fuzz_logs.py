"""Logs changed at random: whatever the bytes are, the doctor has a sentence, and needs little time and memory.

    python benchmarks/fuzz_logs.py [MINUTES] [--seed SEED]
    python benchmarks/fuzz_logs.py [MINUTES] --guided      guided by coverage: pip install atheris

Starts from the recorded deaths and from what the readers look for. Prints what was tried, the slowest log and the
memory at the end; writes each log that failed to a file beside the current directory and exits with 1 where one did.
"""

import argparse
import gzip
import io
import random
import resource
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

DEATHS = Path(__file__).parents[1] / "tests" / "data" / "deaths"
SLOW = 3.0
"""CPU seconds that no log of at most a megabyte may take."""
MOST_MIB = 400
"""Resident memory that the whole process may reach."""
PIECES = (
    b"\n", b"\r", b"\t", b"\0", b"\x1b[36m", b"(A pid=1, ip=10.0.0.1) ", b"[repeated 7x across cluster]", b"\xff\xfe",
    b"Traceback (most recent call last):\n", b'  File "a.py", line 1, in f\n', b"ValueError: x\n", b"step 7: ",
    b"99999999999999999999999\t9.9\tx\n", b"Tried to allocate 9e999 GiB", b"exit code ", b"-9", b"137",
    b"Memory-Usage x: {'used_GB': 7.", b"[2026-03-01 10:00:00,1 E 1] ", b"oom_kill 3\n", b"Killed process 1 (x)",
    b"Reason: OOMKilled\n", b"Exit Code: 137\n", b"0" * 300, b"(" * 200, b"[" * 200, b"{" * 200, b" " * 5000,
)  # fmt: skip


def recordings() -> list[bytes]:
    """What was recorded on a real Ray, and the lines of public reports."""
    files = [*DEATHS.glob("ray-*/*/*"), *DEATHS.glob("seeds/*.log"), *DEATHS.glob("*.jsonl")]
    return [data for file in sorted(files) if (data := file.read_bytes())]


def changed(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    """The log with some random changes."""
    for _ in range(rng.choice((1, 2, 4, 16))):
        first, last = sorted(rng.randrange(len(data) + 1) for _ in range(2))
        match rng.randrange(8):
            case 0:
                data = data[:first] + rng.choice(PIECES) + data[first:]
            case 1:
                data = data[:first] + data[min(last, first + rng.randrange(1, 400)) :]
            case 2:
                data = data[:first] + data[first : min(last, first + 4000)] * rng.choice((2, 3, 50)) + data[first:]
            case 3:
                lines = data.split(b"\n")
                rng.shuffle(lines)
                data = b"\n".join(lines)
            case 4:
                other = rng.choice(others)
                start = rng.randrange(len(other))
                data = data[:first] + other[start : start + rng.randrange(1, 3000)] + data[first:]
            case 5:
                data = data[:first] + bytes(rng.randrange(256) for _ in range(rng.randrange(1, 60))) + data[first:]
            case 6:
                data = data.replace(b"\n", rng.choice((b"", b"\r", b"\r\n", b" ")), rng.choice((1, 10, -1)))
            case _:
                data = data[:first]
        data = data[: 1 << 20]
    return gzip.compress(data)[: rng.randrange(20, 1 << 20)] if rng.random() < 0.05 else data


def attempt(pieces: Sequence[bytes]) -> tuple[float, str]:
    """The CPU seconds that a diagnosis of these logs takes, and the traceback where it fails."""
    from headway.diagnose.doctor import diagnose
    from headway.diagnose.lines import Source
    from headway.reports.doctor import doctor_report
    from headway.reports.doctor_json import document

    start = time.process_time()
    try:
        found = diagnose([Source(f"log-{i}", lambda data=data: io.BytesIO(data)) for i, data in enumerate(pieces)])
        assert found.sentence.endswith("."), found.sentence
        assert document(found)["answer"]["sentence"] == found.sentence
        assert doctor_report(found)
    except Exception:  # noqa: BLE001 - any error is what this looks for
        return time.process_time() - start, traceback.format_exc()
    return time.process_time() - start, ""


def resident_mib() -> float:
    """The most that this process has held, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def at_random(minutes: float, seed: int) -> int:
    """Go on for so many minutes; the number of logs that failed, took too long or too much memory."""
    rng, known = random.Random(seed), recordings()
    tried, slowest, bad = 0, 0.0, 0
    end = time.monotonic() + minutes * 60
    while time.monotonic() < end:
        pieces = [changed(rng.choice(known), known, rng) for _ in range(rng.choice((1, 1, 2, 5)))]
        seconds, problem = attempt(pieces)
        tried += 1
        if problem or seconds > SLOW or resident_mib() > MOST_MIB:
            bad += 1
            path = Path(f"log-{seed}-{tried}.bin")
            path.write_bytes(b"\0====\0".join(pieces))
            print(f"--- {seconds:.1f} s, {resident_mib():.0f} MiB, {path}\n{problem}")
            if resident_mib() > MOST_MIB:
                break
        slowest = max(slowest, seconds)
    print(
        f"seed {seed}: {tried} times, slowest {slowest:.2f} s, at most {resident_mib():.0f} MiB, {bad} failed, took "
        f"over {SLOW:g} s or over {MOST_MIB} MiB"
    )
    return bad


def guided(minutes: float) -> None:
    """Inputs that reach new code are kept and changed again. Ends with the first that fails (libFuzzer's way)."""
    import atheris

    with atheris.instrument_imports(include=["headway.diagnose", "headway.guard", "headway.reports"]):
        import headway.cli.doctor
        import headway.diagnose.doctor
        import headway.reports.doctor
        import headway.reports.doctor_json  # noqa: F401

    def one(data: bytes) -> None:
        seconds, problem = attempt([data])
        if problem or seconds > SLOW:
            raise RuntimeError(f"{seconds:.1f} s\n{problem}")

    corpus = Path("fuzz-corpus")
    corpus.mkdir(exist_ok=True)
    for number, data in enumerate(recordings()):
        (corpus / f"seed-{number}").write_bytes(data[:20_000])
    flags = [f"-max_total_time={int(minutes * 60)}", "-max_len=20000", f"-rss_limit_mb={MOST_MIB * 4}", "-timeout=20"]
    atheris.Setup([sys.argv[0], *flags, str(corpus)], one)
    atheris.Fuzz()


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("minutes", type=float, nargs="?", default=1.0, help="how long to go on (default 1)")
    parser.add_argument("--seed", type=int, default=None, help="of the changes (default: another every time)")
    parser.add_argument("--guided", action="store_true", help="guided by coverage, with atheris")
    options = parser.parse_args(argv)
    if options.guided:
        guided(options.minutes)
        return 0
    return 1 if at_random(options.minutes, time.time_ns() if options.seed is None else options.seed) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
