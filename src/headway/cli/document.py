"""The outputs in the pages, from the product itself: `python -m headway.cli.document README.md docs/*.md`.

A block of a page that stands below `<!-- headway ... -->` is what that command prints, 80 columns wide, or as wide as
`<!-- COLUMNS=100 headway ... -->` says.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

_BLOCK = re.compile(r"(<!-- (?:COLUMNS=(\d+) )?headway ([^\n]+) -->\n```(?:text|json)\n).*?(```\n)", re.DOTALL)
WIDTH = 80


def render(page: str) -> str:
    """The page with every such block as the command prints it now."""
    return _BLOCK.sub(lambda block: f"{block[1]}{output(block[3], int(block[2] or WIDTH))}{block[4]}", page)


def output(words: str, width: int = WIDTH) -> str:
    """What `headway` prints with these words in so many columns, without trailing spaces. A traceback raises."""
    environment = {**os.environ, "COLUMNS": str(width), "NO_COLOR": "1", "TERM": "dumb"}
    done = subprocess.run(
        [sys.executable, "-m", "headway", *shlex.split(words)],
        env=environment, capture_output=True, text=True, encoding="utf-8", check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return "".join(f"{line.rstrip()}\n" for line in (done.stdout or done.stderr).splitlines())


def main() -> None:
    """Refresh the pages that are named."""
    for name in sys.argv[1:]:
        page = Path(name)
        page.write_text(render(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
