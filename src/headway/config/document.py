"""docs/runspec.md, made from the sections: `python -m headway.config.document > docs/runspec.md`."""

import sys

from headway.config.keys import NOT_SET, REQUIRED, Key, sections, table

_HEAD = """\
# RunSpec

A RunSpec is the TOML file that `headway train` takes. `configs/` has runnable ones, smallest first. A key that is not
listed here is an error that names the nearest one; every problem of a file is reported at once.

<!-- Made from src/headway/config/sections.py by: .venv/bin/python -m headway.config.document > docs/runspec.md -->

- **The smallest RunSpec** sets `model.path` and one of `data.task` and `data.file`, and `reward.kind` with a file.
  Every other key has a default.
- **`--set section.key=value`** goes over the file. The value is read as TOML, else as text: `--set train.lr=2e-5`,
  `--set data.task=gcd`, `--set data.params.max_value=30`, `--set 'rollout.stop=["\\n"]'`. A bare `none` takes a key
  or a section away, so that its default holds: `--set lora=none` trains all parameters; `--set lora.rank=8` makes
  the section.
- **Sizes** are bytes, or text: `"512MiB"`, `"1.5GiB"` (GiB = 2^30), `"2GB"` (GB = 10^9).
- **Paths** are relative to the folder of the RunSpec; `output.dir` and a `model.path` that is a folder, to the
  current directory, and so is a file of `--set` that is there.
- `--dry-run` prints the RunSpec as it would run, every key with its value. The output directory keeps it; it is a
  RunSpec itself.
"""


def render() -> str:
    """The whole page."""
    return "\n".join([_HEAD, *(_section(name) for name in sections())])


def _section(name: str) -> str:
    lines = [f"## [{name}]", "", sections()[name].__doc__ or "", ""]
    lines += ["| key | default | accepts | meaning |", "|---|---|---|---|"]
    lines += [_row(key) for key in table()[name].values()]
    return "\n".join(lines) + "\n"


def _row(key: Key) -> str:
    default = key.default if key.default in (REQUIRED, NOT_SET) else f"`{key.default}`"
    cells = [cell.replace("|", "\\|") for cell in (f"`{key.name}`", default, key.accepts, key.meaning)]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.stdout.write(render())
