"""docs/workload.md, made from the records: `python -m headway.foreign.document > docs/workload.md`."""

import sys
from inspect import cleandoc
from typing import Any, get_type_hints

from headway.facts.machines import names
from headway.facts.shapes import table as shapes
from headway.facts.workload import ROLES, OtherModel, Workload
from headway.foreign.presets import PRESETS, value
from headway.foreign.settings import SIZES, Setting, record_in, table
from headway.units import format_bytes

SHOWN = ("headway", "miles-fsdp", "fsdp2")
"""Trainers with a column of their own."""
OF_THE_MODEL = {"weights_file_bytes": "2 bytes a parameter"}
"""Values that follow from the model."""

_HEAD = """\
# Workload

What `headway plan MODEL` plans: a model under a trainer, on a machine. Every value has a default by the trainer;
those that a run usually chooses itself are listed in the plan as assumed until `--set key=value` says them.

<!-- Made from src/headway/facts/workload.py and src/headway/foreign/presets.py by:
     .venv/bin/python -m headway.foreign.document > docs/workload.md -->

    headway plan qwen3-4B --trainer miles-fsdp --machine gb10 --set rollout.max_answer=256

- A **section** that may be absent (`trainer.lora`, `trainer.quant`, `engine`, `engine.quant`, `critic`) is made by
  setting one of its keys, and taken away by `none`: `--set trainer.lora.rank=16`, `--set engine=none`.
- **Sizes** are bytes, or text: `512MiB`, `1.5GiB` (GiB = 2^30), `2GB` (GB = 10^9).
- `machine.host` is the one key that is the machine's: how much host memory each node has.
- A key that is not listed here is an error that names the nearest one.
"""


def render() -> str:
    """The whole page."""
    parts = [_HEAD, _trainers(), _machines()]
    parts += [_section(path, record) for path, record in _sections(Workload, "")]
    return "\n".join(parts)


def _trainers() -> str:
    rows = [
        f"| `{each.name}` | {each.title} | {', '.join(f'`{key}`' for key in each.assumes)} |"
        for each in PRESETS.values()
    ]
    head = ["## Trainers", "", "| `--trainer` | is | assumed until set |", "|---|---|---|"]
    return "\n".join([*head, *rows]) + "\n"


def _machines() -> str:
    known = ", ".join(f"`{name}`" for name in names())
    more = (
        "`8x<device>` is a node of eight, `2x8x<device>` two of them. `12GiB` is a device by its memory alone, "
        "`2x24GiB` two; `mac-64gib` or `m4-max-64gib` a Mac; `cpu-64gib` a machine without devices."
    )
    return f"## Machines\n\n{known}; {more}\n"


def _sections(record: type[Any], path: str) -> list[tuple[str, type[Any]]]:
    """Each record with the path of its section, the outermost first."""
    found = [(path, record)]
    for name, kind in get_type_hints(record).items():
        inner = record_in(kind)
        if inner is OtherModel:
            found += [] if any(each is OtherModel for _, each in found) else [(f"{name}.", inner)]
        elif inner is not None and name != "model":
            found += _sections(inner, f"{path}{name}.")
    return found


def _section(path: str, record: type[Any]) -> str:
    """The record's own words and a row for each of its keys."""
    about = cleandoc((record.__doc__ or "").partition(">>>")[0]).strip()
    title = path.removesuffix(".") or "The run itself"
    lines = [f"## {title}", "", about, "", f"| key | accepts | {' | '.join(f'`{name}`' for name in SHOWN)} |"]
    lines.append("|---|---|" + "---|" * len(SHOWN))
    if record is OtherModel:
        *names, last = (f"`{name}`" for name in ROLES if f"{name}." != path)
        lines[3:3] = [
            "",
            f"{', '.join(names)} and {last} have the same keys. The first one that is set makes the model, "
            "like the actor in everything else, and `none` takes it away.",
        ]
    lines += [_row(each) for key, each in table().items() if _section_of(key) == path.removesuffix(".")]
    return "\n".join(lines) + "\n"


def _section_of(key: str) -> str:
    """The section that a key is shown in: all keys of another model are in its own."""
    first = key.partition(".")[0]
    return first if first in ROLES else key.rpartition(".")[0]


def _row(setting: Setting) -> str:
    cells = [
        f"`{setting.path}`",
        setting.accepts.replace("|", "\\|"),
        *(_default(setting.path, name) for name in SHOWN),
    ]
    return f"| {' | '.join(cells)} |"


def _default(path: str, trainer: str) -> str:
    """A trainer's own value; a dash where its section is absent."""
    if path in OF_THE_MODEL:
        return OF_THE_MODEL[path]
    workload = PRESETS[trainer].build(shapes()["qwen3-4b"])
    parts = path.split(".")
    sections = (".".join(parts[:depth]) for depth in range(1, len(parts)))
    if any(value(workload, section) is None for section in sections):
        return "-"
    found = value(workload, path)
    if found is None or found == "":
        return "none"
    if path in SIZES and isinstance(found, int) and found:
        return f"`{format_bytes(found)}`"
    return f"`{str(found).lower() if isinstance(found, bool) else found}`"


if __name__ == "__main__":
    sys.stdout.write(render())
