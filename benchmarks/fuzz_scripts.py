"""Launch scripts changed at random: reading one may say that it is not understood, but never fail or hang.

    python benchmarks/fuzz_scripts.py [MINUTES] [--seed SEED]

Prints what was tried, the slowest script, and each script that failed with its error; exit code 1 where one did.
"""

import argparse
import random
import sys
import time
import traceback
from pathlib import Path

from headway.errors import InputError
from headway.foreign.readers import settings_of
from headway.foreign.shell import read_text

SCRIPTS = Path(__file__).parents[1] / "tests" / "data" / "scripts"
PIECES = (
    "${", "}", "$(", ")", "((", "))", "[[", "]]", '"', "'", "`", "\\", "\\\n", "\n", "#", "<<EOF", "<<'EOF'\n",
    "EOF\n", "if ", "then", "else", "elif ", "fi", "for ((", "for x in ", "while true; do ", "do", "done",
    "case $x in ", ";;", "esac", "f() {", "f", "eval ", "source $0", ". ./x", "bash -c '", "$((", "A+=($A $A)",
    "A=$A$A", "${A[@]}", "${A[@]/x/y}", "${!A}", "${A:-${B:-$(", "${#A[@]}", "${A%%*}", "local -n A=A",
    "declare -A M=([", "read -ra A <<< ", "exec ", "|", "&&", "||", "&", ";", "{1..99999}", "{a,b}{a,b}{a,b}",
    "seq 1 100000000", "printf -v A '%9999999s' x", "$'\\x", "\0", "é", "[$((1/0))]", "return", "exit 1",
    "break", "shift", "set -- ", "A[99999999]=1", "A[-5]=", "unset A", "--flag=", "python3 train.py ",
)  # fmt: skip
SLOW = 3.0
"""CPU seconds that no script may take."""


def changed(text: str, rng: random.Random) -> str:
    """The text with a few random changes."""
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        place, other = rng.randrange(len(text) + 1), rng.randrange(len(text) + 1)
        first, last = min(place, other), max(place, other)
        kind = rng.randrange(6)
        if kind == 0:
            text = text[:place] + rng.choice(PIECES) + text[place:]
        elif kind == 1:
            text = text[:first] + text[min(last, first + rng.randrange(1, 40)) :]
        elif kind == 2:
            text = text[:place] + text[first : min(last, first + 200)] + text[place:]
        elif kind == 3:
            lines = text.split("\n")
            lines.insert(rng.randrange(len(lines) + 1), lines.pop(rng.randrange(len(lines))))
            text = "\n".join(lines)
        elif kind == 4:
            text = text[:place] + rng.choice(PIECES) * rng.choice((1, 3, 50)) + text[place:]
        else:
            text = text[:place]
        if not text:
            return "x"
    return text


def attempt(text: str) -> tuple[float, str]:
    """The CPU seconds that reading takes, and the traceback where it fails."""
    start = time.process_time()
    try:
        settings_of(read_text(text))
    except InputError:
        pass
    except Exception:  # noqa: BLE001 - any other error is what this looks for
        return time.process_time() - start, traceback.format_exc()
    return time.process_time() - start, ""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("minutes", type=float, nargs="?", default=1.0, help="how long to go on (default 1)")
    parser.add_argument("--seed", type=int, default=None, help="of the changes (default: another every time)")
    options = parser.parse_args(argv)
    minutes, seed = options.minutes, time.time_ns() if options.seed is None else options.seed
    texts = [path.read_text() for path in sorted(SCRIPTS.rglob("*.sh"))]
    rng, tried, slowest, bad = random.Random(seed), 0, 0.0, 0
    end = time.monotonic() + minutes * 60
    while time.monotonic() < end:
        text = changed(rng.choice(texts), rng)
        if rng.random() < 0.1:
            text = changed(text + "\n" + rng.choice(texts), rng)
        seconds, problem = attempt(text)
        tried += 1
        if problem or seconds > SLOW:
            bad += 1
            print(f"--- {seconds:.1f} s\n{text!r}\n{problem}")
        slowest = max(slowest, seconds)
    print(f"seed {seed}: {tried} scripts, slowest {slowest:.2f} s, {bad} failed or took over {SLOW:g} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
