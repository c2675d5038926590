"""How many processes a launcher starts: torchrun, `accelerate launch`, `deepspeed`, and what they are told to use."""

import re
from collections.abc import Sequence

from msgspec import Struct, field

from headway.foreign.command import Flag, Line, split
from headway.foreign.gather import Got, flag, named
from headway.foreign.shell.values import Gap, Word

SWITCHES = frozenset({
    "multi_gpu", "use_deepspeed", "use_fsdp", "cpu", "standalone", "no_python", "m", "module", "no_local_rank",
    "no_ssh_check", "debug", "quiet",
})  # fmt: skip
SHELLED = re.compile(r"(python|pypy)[\d.]*|bash|sh|srun|ray|uv|run|nohup|env|exec|time")


class Processes(Struct, frozen=True):
    """What starts a program: `kind` is the launcher's name, empty for plain Python; `line` its own flags.

    `total` processes over `nodes`, or `devices` on each.

    >>> from headway.foreign.shell.values import known
    >>> started = processes([known(text) for text in "torchrun --nproc_per_node=8 --nnodes 2".split()])
    >>> started.kind, started.devices.raw, started.nodes.raw
    ('torchrun', '8', '2')
    """

    kind: str = ""
    nodes: Got = field(default_factory=Got)
    devices: Got = field(default_factory=Got)
    total: Got = field(default_factory=Got)
    config: Flag | None = None
    line: Line = field(default_factory=lambda: Line({}))


def processes(words: Sequence[object]) -> Processes:
    """The launcher among the words before a program, with what it is told."""
    plain = [word for word in words if isinstance(word, Word | Gap)]
    kind, start = "", 0
    for place, word in enumerate(plain):
        name = (word.text or "").rpartition("/")[2] if isinstance(word, Word) else ""
        if name in ("torchrun", "accelerate", "deepspeed", "xtorchrun") or name in (
            "torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch",
        ):  # fmt: skip
            kind, start = (
                {"torch.distributed.run": "torchrun", "torch.distributed.launch": "torchrun"}.get(
                    name, name.partition(".")[0]
                ),
                place + 1,
            )
    if not kind:
        return Processes()
    line = named(split(plain[start:], SWITCHES, single=True))
    if kind == "accelerate":
        return Processes(
            kind, flag(line, "num_machines"), Got(), flag(line, "num_processes"), line.last("config_file"), line
        )
    if kind == "deepspeed":
        return Processes(kind, flag(line, "num_nodes"), _included(line), Got(), None, line)
    return Processes(kind, flag(line, "nnodes"), flag(line, "nproc_per_node"), Got(), None, line)


def _included(line: Line) -> Got:
    """Devices of `deepspeed --num_gpus N` or `--include localhost:0,1`."""
    given = flag(line, "num_gpus")
    listed = flag(line, "include", "i")
    if given.given or not listed.given or listed.why:
        return given if given.given or not listed.why else listed
    match = re.fullmatch(r"localhost:(\d+(?:,\d+)*)", str(listed.raw))
    return Got(match[1].count(",") + 1, given=True, at=listed.at) if match else Got()
