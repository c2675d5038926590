"""How many processes a launcher starts: torchrun, `accelerate launch`, `deepspeed`, and what they are told to use."""

import re
from collections.abc import Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from headway.foreign.command import Flag, Line, split
from headway.foreign.gather import Got, flag, named
from headway.foreign.jobs import slurm
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
        return _srun(plain) or _mpi(plain) or Processes()
    line = named(split(plain[start:], SWITCHES, single=True))
    if kind == "accelerate":
        return Processes(
            kind, flag(line, "num_machines"), Got(), flag(line, "num_processes"), line.last("config_file"), line
        )
    if kind == "deepspeed":
        return Processes(kind, _hosts(line), _included(line), Got(), None, line)
    return Processes(kind, _elastic(flag(line, "nnodes")), _each(flag(line, "nproc_per_node")), Got(), None, line)


def _elastic(got: Got) -> Got:
    """torchrun's `--nnodes 2`, or the fewest and the most nodes, `2:4`; only two of the same are a count."""
    low, colon, high = str(got.raw).partition(":")
    if not colon or got.why:
        return got
    if low == high:
        return replace(got, raw=low)
    return replace(got, raw=None, why=f"--nnodes {got.raw} is from {low} to {high} nodes")


def _each(got: Got) -> Got:
    """`--nproc_per_node`: a number, or one process for each device of the node."""
    if got.raw in ("gpu", "auto", "xpu", "npu"):
        return replace(got, raw=None, why=f"--nproc_per_node {got.raw}: as many as the node has devices")
    return got


def _srun(words: Sequence[Word | Gap]) -> Processes | None:
    """srun that starts the program itself: one process a task."""
    texts = [word.text if isinstance(word, Word) else None for word in words]
    names = [(text or "").rpartition("/")[2] for text in texts]
    if "srun" not in names:
        return None
    place = names.index("srun")
    job = slurm([text if text is not None else "$" for text in texts[place + 1 :]], "srun", 1)

    def got(value: int | None) -> Got:
        return Got(value, given=value is not None)

    return Processes("srun", got(job.nodes), got(job.tasks_per_node or job.devices))


_ON_A_NODE = 8
"""Processes of mpirun that are on one node where nothing says how many are on each."""


def _mpi(words: Sequence[Word | Gap]) -> Processes | None:
    """`mpirun -np 16 -npernode 8`: one process a slot; more than a node has, on nobody knows how many nodes."""
    texts = [word.text or "" if isinstance(word, Word) else "" for word in words]
    place = next((at for at, text in enumerate(texts) if text.rpartition("/")[2] in ("mpirun", "mpiexec")), None)
    if place is None:
        return None
    told = dict(zip(texts[place + 1 :], texts[place + 2 :], strict=False))
    total = _number(*(told.get(name) for name in ("-np", "-n", "--np")))
    mapped = re.fullmatch(r"ppr:(\d{1,3}):node.*", told.get("--map-by", ""))
    each = _number(*(told.get(name) for name in ("-npernode", "--npernode", "-ppn")), mapped[1] if mapped else None)
    if each:
        return Processes("mpirun", Got(total // each, given=True) if total else Got(), Got(each, given=True))
    if total and total <= _ON_A_NODE:
        return Processes("mpirun", Got(1, given=True), Got(total, given=True))
    why = f"mpirun starts {total or 'nobody knows how many'} processes, and not said on how many nodes"
    return Processes("mpirun", Got(given=True, why=why), Got(given=True, why=why))


def _number(*texts: str | None) -> int:
    """The first of these texts that is a number; 0 where none is."""
    return next((int(text) for text in texts if text and re.fullmatch(r"\d{1,6}", text)), 0)


def _hosts(line: Line) -> Got:
    """Nodes of deepspeed: as it is told, else those of its hostfile."""
    given, file = flag(line, "num_nodes"), flag(line, "hostfile", "H")
    if given.given or not file.given:
        return given
    return Got(given=True, why=f"the hostfile {str(file.raw)[-60:]} says how many nodes there are", at=file.at)


def _included(line: Line) -> Got:
    """Devices of `deepspeed --num_gpus N` or `--include localhost:0,1`."""
    given = flag(line, "num_gpus")
    listed = flag(line, "include", "i")
    if given.given or not listed.given or listed.why:
        return given if given.given or not listed.why else listed
    match = re.fullmatch(r"localhost:(\d+(?:,\d+)*)", str(listed.raw))
    return Got(match[1].count(",") + 1, given=True, at=listed.at) if match else Got()
