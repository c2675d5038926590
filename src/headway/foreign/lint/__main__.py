"""docs/lint.md, made from the rules: `python -m headway.foreign.lint > docs/lint.md`."""

import sys
from collections.abc import Iterator
from textwrap import fill

from headway.foreign.lint.rule import Rule
from headway.foreign.lint.table import RULES

_HEAD = """\
# Lint of a launch

`headway plan run.sh` reads a launch script without running it, and tells what in it will cost memory, work or
another's run before anything starts. Each note names the line, what it is, why it matters and what to do instead;
`--json` has them under `lint`. `--at-step N` asks what was due when a run had done N steps.

An **error** ends the run or keeps it from starting. A **warning** costs memory or work. A **note** is worth knowing.

A rule is a file of `src/headway/foreign/lint/`, with its name; a new one is that file and a row in `table.py`.

<!-- Made from src/headway/foreign/lint/ by:
     .venv/bin/python -m headway.foreign.lint > docs/lint.md -->
"""


def render() -> str:
    """The whole page."""
    rows = [f"| [`{rule.name}`](#{rule.name}) | {rule.severity} | {rule.title} |" for rule in RULES]
    table = ["| rule | is | finds |", "|---|---|---|", *rows, ""]
    return "\n".join([_HEAD, *table, *(line for rule in RULES for line in _page(rule))])


def _page(rule: Rule) -> Iterator[str]:
    yield from (f"## {rule.name}", "", _fold(f"**Sees** ({rule.severity}): {rule.sees}"), "")
    yield from (_fold(f"**Why**: {rule.why}."), "")
    yield from ("```bash", rule.example, "```", "")
    yield from (_fold(f"**Instead**: {rule.instead}."), "")
    yield from (_fold(f"**Looks alike but is not**: {rule.not_this}"), "", "```bash", rule.near_miss, "```", "")


def _fold(text: str) -> str:
    return fill(text, 120, break_long_words=False, break_on_hyphens=False)


def main() -> None:
    """Print the page."""
    sys.stdout.write(render())


if __name__ == "__main__":
    main()
