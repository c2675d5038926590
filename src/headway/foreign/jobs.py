"""What a job asks its scheduler for: nodes, devices, tasks, memory, by `#SBATCH`, `#PBS` and `#BSUB` lines or by the
words of `sbatch`, `salloc` and `srun`; and the variables that schedulers set where the job runs.

Options and variables: Slurm 25.05 (`man sbatch`), OpenPBS 23 (`qsub -l select=`), LSF 10.1 (`bsub -nnodes`, `-gpu`).
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from headway.units import KIB, LARGEST

MOST = 1_000_000
"""No job has more nodes, devices or tasks than this: a larger number is a slip, or no count."""


class Job(Struct, frozen=True):
    """What a job has on each node, as far as it says so. `devices` and `memory` (bytes) are of one node, `tasks` of
    all. `said` is how it says it, `line` where it begins to; `variables` are what the scheduler then sets.

    >>> job = of_script("#!/bin/bash\\n#SBATCH -N 4 --gres=gpu:h100:8 --mem=1T\\nsrun python3 train.py")
    >>> job.nodes, job.devices, job.memory == 1 << 40, job.variables["SLURM_NNODES"]
    (4, 8, True, '4')
    """

    nodes: int | None = None
    devices: int | None = None
    tasks: int | None = None
    tasks_per_node: int | None = None
    memory: int | None = None
    said: str = ""
    line: int = 1
    variables: dict[str, str] = field(default_factory=dict)
    given: dict[str, str] = field(default_factory=dict)
    """Slurm's options as they are written."""


class Counts(Struct, frozen=True):
    """What a machine has, for what a script asks of the machine that it runs on: nodes, and devices on each.

    `of` is the machine's name, `names` are the variables that nothing in the script sets: those among them that count
    are taken to be as the machine is.

    >>> Counts(2, 8, "2x8xh100-80", frozenset({"SLURM_NNODES", "DATA"})).variables
    {'SLURM_NNODES': '2'}
    """

    nodes: int
    devices: int
    of: str
    names: frozenset[str] = frozenset()

    @property
    def variables(self) -> dict[str, str]:
        """The variables with their values."""
        found = {name: counted(name, self.nodes, self.devices) for name in sorted(self.names)}
        return {name: value for name, value in found.items() if value is not None}


# -- directives ---------------------------------------------------------------------------------------------

_LINE = re.compile(r"#(SBATCH|PBS|BSUB)[ \t]+(\S.*)")
_SHORT = {"N": "nodes", "n": "ntasks", "c": "cpus-per-task", "G": "gpus", "m": "distribution"}
_COUNTED = ("nodes", "ntasks", "ntasks-per-node", "gpus", "gpus-per-node", "gpus-per-task", "gres", "mem",
            "mem-per-gpu", "mem-per-cpu", "cpus-per-task", "tasks-per-node", "tres-per-node")  # fmt: skip


def of_script(text: str) -> Job | None:
    """What the lines of a batch script ask for; None where it has none.

    A scheduler reads them up to the first command. A script that makes another one (`sbatch <<EOF`) has them behind.
    """
    lines = list(_directives(text.split("\n"))) or list(_inner(text))
    if not lines:
        return None
    kind = lines[0][1]
    words = [(number, rest) for number, its, rest in lines if its == kind]
    return {"SBATCH": _slurm_script, "PBS": _pbs, "BSUB": _lsf}[kind](words)


def _directives(lines: Iterable[str], start: int = 1) -> Iterator[tuple[int, str, str]]:
    for number, line in enumerate(lines, start):
        if match := _LINE.match(line):
            yield number, match[1], re.split(r"\s#", match[2])[0].strip()
        elif line.strip() and not line.lstrip().startswith("#"):
            return


def _inner(text: str) -> Iterator[tuple[int, str, str]]:
    """The lines of a script that stands in a here-document for `sbatch`."""
    lines = text.split("\n")
    for place, line in enumerate(lines):
        if re.search(r"\b(sbatch|qsub|bsub)\b.*<<|<<.*\.(sh|slurm|sbatch)\b|cat\s.*<<", line):
            found = list(_directives(lines[place + 1 :], place + 2))
            if found:
                yield from found
                return


def _slurm_script(lines: Sequence[tuple[int, str]]) -> Job:
    """Of the components of a heterogeneous job, the first that has devices trains; the first one's variables hold."""
    groups: list[list[tuple[int, str]]] = [[]]
    for number, rest in lines:
        if rest in ("hetjob", "packjob"):
            groups.append([])
        else:
            groups[-1].append((number, rest))
    jobs = [_of_lines(group) for group in groups if group]
    if not jobs:
        return Job(said="#SBATCH")
    chosen = next((job for job in jobs if job.devices), jobs[0])
    if len(jobs) == 1:
        return chosen
    variables = dict(jobs[0].variables)
    for number, job in enumerate(jobs):
        variables |= {f"{name}_HET_GROUP_{number}": value for name, value in job.variables.items()}
    return replace(chosen, variables=variables, said=f"{chosen.said} (of a heterogeneous job)")


def _of_lines(lines: Sequence[tuple[int, str]]) -> Job:
    """One component of a job; each line is read by itself, as a text with blanks in it ends the words of one."""
    given: dict[str, str] = {}
    for _, rest in lines:
        given |= options(rest.split())
    return _slurm(given, "#SBATCH", lines[0][0])


def of_words(words: Sequence[str | None]) -> Job | None:
    """What the words of `sbatch`, `salloc` or `srun` ask for, up to the program; None where it is none of them.

    >>> of_words("sbatch -N2 --gpus-per-node 8 run.sh".split()).devices
    8
    """
    names = [(word or "").rpartition("/")[2] for word in words]
    place = next((index for index, name in enumerate(names) if name in ("sbatch", "salloc", "srun")), None)
    if place is None:
        return None
    return slurm([word if word is not None else "$" for word in words[place + 1 :]], names[place], 1)


def over(own: Job | None, told: Job | None) -> Job | None:
    """A script's own lines under the words that it was submitted with, which win.

    >>> job = over(of_script("#SBATCH -N 2 --gres=gpu:8"), of_words(["sbatch", "--nodes=4", "run.sh"]))
    >>> job.nodes, job.devices, job.variables["SLURM_NNODES"]
    (4, 8, '4')
    """
    if own is None or told is None:
        return own or told
    if not own.given or not told.given:
        return told if told.given else own
    return _slurm(own.given | told.given, "sbatch", own.line)


def options(words: Sequence[str]) -> dict[str, str]:
    """Slurm's options that count something, by their long names; the last of each holds.

    >>> options("-N4 --ntasks-per-node 8 --gres=gpu:8 --time=1:00 python -n 3".split())
    {'nodes': '4', 'ntasks-per-node': '8', 'gres': 'gpu:8'}
    """
    found: dict[str, str] = {}
    place = 0
    while place < len(words):
        word = words[place]
        place += 1
        long, equals, value = word.removeprefix("--").partition("=")
        if word.startswith("--"):
            if not equals and place < len(words) and long not in _ALONE:
                value, place = words[place], place + 1
            if long in _COUNTED:
                found["ntasks-per-node" if long == "tasks-per-node" else long] = value.strip("\"'")
        elif match := re.fullmatch(r"-([A-Za-z])(.*)", word):
            value = match[2].removeprefix("=")
            if not value and place < len(words) and match[1] not in "lHkKOsXQvhVWuEZ":
                value, place = words[place], place + 1
            if match[1] in _SHORT:
                found[_SHORT[match[1]]] = value.strip("\"'")
        else:
            break
    return found


_ALONE = frozenset({
    "exclusive", "requeue", "no-requeue", "overcommit", "oversubscribe", "parsable", "wait", "hold", "contiguous",
    "spread-job", "use-min-nodes", "get-user-env", "no-kill", "reboot", "test-only", "verbose", "quiet", "label",
    "overlap", "unbuffered", "pty", "exact", "wait-all-nodes", "kill-on-bad-exit", "ignore-pbs", "preserve-env",
    "no-shell", "container-mount-home", "no-container-mount-home", "container-writable", "container-remap-root",
    "no-container-remap-root", "container-readonly",
})  # fmt: skip
"""Long options that take no word."""


def slurm(words: Sequence[str], by: str, line: int) -> Job:
    """A job by the words of one of Slurm's commands."""
    return _slurm(options(words), by, line)


def _slurm(given: dict[str, str], by: str, line: int) -> Job:
    """A job by Slurm's options. Without `--nodes` and tasks, Slurm gives one node; a range of nodes is no count."""
    tasks, each = _count(given.get("ntasks")), _count(given.get("ntasks-per-node"))
    nodes = _nodes(given.get("nodes"))
    if nodes is None and "nodes" not in given and by != "srun":
        if tasks and each:
            nodes = -(-tasks // each)
        elif tasks in (None, 1):
            nodes = 1
    if tasks is None and nodes and each:
        tasks = nodes * each
    per_node = each or (tasks // nodes if tasks and nodes and not tasks % nodes else None)
    devices = _devices(given, nodes, tasks, per_node)
    cpus = _count(given.get("cpus-per-task"))
    memory = _memory(given, devices, (cpus or 1) * (per_node or 1))
    shown = " ".join((by, *(f"--{name}={value}" for name, value in given.items())))
    job = Job(nodes, devices, tasks, per_node, memory, shown[:200], line, given=given)
    return replace(job, variables={name: value for name, value in _variables(job, given) if value})


def _variables(job: Job, given: dict[str, str]) -> Iterator[tuple[str, str]]:
    def text(value: int | None) -> str:
        return "" if value is None else str(value)

    for name in ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"):
        yield name, text(job.nodes)
    for name in ("SLURM_NTASKS", "SLURM_NPROCS"):
        yield name, text(job.tasks)
    yield "SLURM_GPUS_ON_NODE", text(job.devices)
    for option, name in (
        ("ntasks-per-node", "SLURM_NTASKS_PER_NODE"), ("gpus-per-node", "SLURM_GPUS_PER_NODE"),
        ("gpus", "SLURM_GPUS"), ("gpus-per-task", "SLURM_GPUS_PER_TASK"), ("cpus-per-task", "SLURM_CPUS_PER_TASK"),
    ):  # fmt: skip
        yield name, "" if "$" in given.get(option, "") else given.get(option, "")
    if job.nodes and job.tasks_per_node:
        yield "SLURM_TASKS_PER_NODE", f"{job.tasks_per_node}{f'(x{job.nodes})' if job.nodes > 1 else ''}"


def _count(text: str | None) -> int | None:
    """A number above 0 that a count may be; None for anything else.

    >>> _count("8"), _count("0"), _count("$N"), _count("9" * 50)
    (8, None, None, None)
    """
    if text is None or not re.fullmatch(r"\d{1,7}", text.strip()):
        return None
    value = int(text)
    return value if 0 < value <= MOST else None


def _nodes(text: str | None) -> int | None:
    """`4`, and `4-4`; a range is no count."""
    low, dash, high = (text or "").partition("-")
    return _count(low) if not dash or low == high else None


def _of_type(text: str) -> int | None:
    """`8`, `h100:8`, `a100:4,v100:4`: how many of all types."""
    counts = [_count(part.rpartition(":")[2].partition("(")[0]) for part in text.split(",")]
    return sum(each or 0 for each in counts) if all(counts) else None


def _gres(text: str) -> int | None:
    """The devices among `gpu:h100:8,nvme:1`; `gpu` alone is one.

    >>> _gres("gpu:8"), _gres("gpu:h100:4(S:0-1),shard:2"), _gres("gpu"), _gres("gres/gpu:2"), _gres("none")
    (8, 4, 1, 2, None)
    """
    found = 0
    for part in text.split(","):
        name, colon, rest = part.partition("(")[0].removeprefix("gres/").replace("=", ":").partition(":")
        if name != "gpu":
            continue
        count = _count(rest.rpartition(":")[2]) if colon else 1
        # `gpu:h100` names a type, and is one of it
        if count is None:
            if not re.fullmatch(r"[A-Za-z][\w.\-]*", rest):
                return None
            count = 1
        found += count
    return found or None


def _devices(given: dict[str, str], nodes: int | None, tasks: int | None, per_node: int | None) -> int | None:
    """Devices on each node."""
    if "gpus-per-node" in given:
        return _of_type(given["gpus-per-node"])
    for name in ("gres", "tres-per-node"):
        if name in given:
            return _gres(given[name])
    if "gpus" in given:
        total = _of_type(given["gpus"])
        return total // nodes if total and nodes and not total % nodes else None
    if "gpus-per-task" in given:
        each = _of_type(given["gpus-per-task"])
        count = per_node or (1 if tasks is None else None)
        return each * count if each and count else None
    return None


_SIZE = re.compile(r"(\d{1,9})([KMGT]?)B?", re.IGNORECASE)


def _bytes(text: str | None) -> int | None:
    """Slurm's sizes are in MiB where they have no letter; 0 is all that the node has."""
    match = _SIZE.fullmatch((text or "").strip())
    if match is None:
        return None
    found = int(match[1]) * KIB ** " KMGT".index(match[2].upper() or "M")
    return found if 0 < found <= LARGEST else None


def _memory(given: dict[str, str], devices: int | None, cpus: int) -> int | None:
    """Bytes of host memory on a node."""
    if "mem" in given:
        return _bytes(given["mem"])
    for name, times in (("mem-per-gpu", devices), ("mem-per-cpu", cpus)):
        each = _bytes(given.get(name))
        if each and times:
            return each * times
    return None


def _pbs(lines: Sequence[tuple[int, str]]) -> Job:
    """`-l select=4:ngpus=8:mem=512gb`, and Torque's `-l nodes=4:ppn=8:gpus=8`."""
    text = " ".join(rest for _, rest in lines)
    said = f"#PBS {text}"[:200]
    match = re.search(r"\b(?:select|nodes)=(\d{1,6})((?::[\w=.\-]+)*)", text)
    if match is None:
        return Job(said=said, line=lines[0][0])
    parts = dict(part.partition("=")[::2] for part in match[2].split(":") if part)
    nodes, devices = _count(match[1]), _count(parts.get("ngpus") or parts.get("gpus"))
    return Job(
        nodes, devices, memory=_bytes(parts.get("mem")), said=said, line=lines[0][0],
        variables={"PBS_NUM_NODES": str(nodes)} if nodes and match[0].startswith("nodes") else {},
    )  # fmt: skip


def _lsf(lines: Sequence[tuple[int, str]]) -> Job:
    """`-nnodes 4`, `-gpu "num=8"`: devices are of each node."""
    text = " ".join(rest for _, rest in lines)
    nodes = re.search(r"-nnodes\s+(\d+)", text)
    devices = re.search(r"-gpu\s+[\"']?[^\"']*?\bnum=(\d+)", text)
    return Job(
        _count(nodes[1]) if nodes else None, _count(devices[1]) if devices else None,
        said=f"#BSUB {text}"[:200], line=lines[0][0],
    )  # fmt: skip


# -- variables ----------------------------------------------------------------------------------------------

_SETTERS: tuple[tuple[str, str], ...] = (
    (r"(SLURM|SLURMD|SBATCH|SRUN)_\w+", "Slurm"),
    (
        r"RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|GROUP_RANK|ROLE_RANK|ROLE_WORLD_SIZE|NODE_RANK"
        r"|MASTER_(ADDR|PORT)|(TORCHELASTIC|PET)_\w+",
        "torchrun, or the operator that starts the job",
    ),
    (r"KUBERNETES_\w+|POD_(NAME|NAMESPACE|IP|UID)|NODE_(NAME|IP)|JOB_COMPLETION_INDEX|JOBSET_\w+|VC_\w+|VK_\w+",
     "Kubernetes"),
    (r"RAY_(ADDRESS|JOB_ID|JOB_CONFIG_JSON_ENV_VAR|NODE_\w+|HEAD_\w+|CLUSTER_NAME|PORT|IP)|KUBERAY_\w+|FQ_RAY_IP",
     "Ray"),
    (r"(PBS|MOAB)_\w+|NCPUS", "PBS"),
    (r"(LSB|LSF)_\w+", "LSF"),
    (r"NSLOTS|NHOSTS|PE_HOSTFILE|SGE_\w+|JOB_ID", "Grid Engine"),
    (r"(OMPI|PMI|PMIX|MPI|MV2|HYDRA)_\w+", "MPI"),
    (r"(ARNOLD|MLP|BYTED|METIS|DLC|PAI|SM|AIP|AWS_BATCH|SKYPILOT|DET|FLUX|COBALT|NGC|BEAKER|PJM|AZUREML|MA|VOLC)_\w+",
     "the platform that starts the job"),
)  # fmt: skip
_SETTERS_COMPILED: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), who) for pattern, who in _SETTERS
)


def setter(name: str) -> str:
    """Who sets a variable where the job runs, in words; empty for one that no scheduler sets.

    >>> setter("SLURM_NNODES"), setter("RANK"), setter("REWARD_DIR"), setter("RANKING")
    ('Slurm', 'torchrun, or the operator that starts the job', '', '')
    """
    return next((who for pattern, who in _SETTERS_COMPILED if pattern.fullmatch(name)), "")


NODES = frozenset({
    "SLURM_NNODES", "SLURM_JOB_NUM_NODES", "PET_NNODES", "ARNOLD_WORKER_NUM", "MLP_WORKER_NUM", "PBS_NUM_NODES",
    "NNODES", "NUM_NODES", "N_NODES", "NUM_MACHINES", "SKYPILOT_NUM_NODES", "BEAKER_REPLICA_COUNT", "NHOSTS",
    "WORKER_NUM", "DET_NUM_NODES", "VC_WORKER_NUM", "MA_NUM_HOSTS", "HOST_NUM", "NODE_COUNT",
})  # fmt: skip
DEVICES = frozenset({
    "SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE", "SLURM_NTASKS_PER_NODE", "PET_NPROC_PER_NODE", "ARNOLD_WORKER_GPU",
    "MLP_WORKER_GPU", "SKYPILOT_NUM_GPUS_PER_NODE", "BEAKER_ASSIGNED_GPU_COUNT", "SM_NUM_GPUS", "LOCAL_WORLD_SIZE",
    "GPUS_PER_NODE", "NUM_GPUS", "N_GPUS", "NGPUS", "GPU_COUNT", "NUM_GPU", "N_GPU", "GPU_NUM", "GPUS", "NPROC",
    "N_GPUS_PER_NODE", "NUM_GPUS_PER_NODE", "NPROC_PER_NODE", "NGPUS_PER_NODE", "GPU_PER_NODE", "MA_NUM_GPUS",
    "KUBERNETES_CONTAINER_RESOURCE_GPU",
})  # fmt: skip
TOTALS = frozenset({"SLURM_NTASKS", "SLURM_NPROCS", "SLURM_GPUS"})
"""Variables that count nodes, devices of a node, or all devices, by their names; WORLD_SIZE is nodes to some systems
and processes to others, and is none of them."""


def counted(name: str, nodes: int, devices: int) -> str | None:
    """The value of a variable that counts, on a machine of `nodes` with `devices` each; None where it counts nothing.

    >>> counted("SLURM_NNODES", 2, 8), counted("SLURM_NTASKS", 2, 8), counted("WORLD_SIZE", 2, 8)
    ('2', '16', None)
    """
    if name in NODES:
        return str(nodes)
    if name in DEVICES:
        return str(devices)
    return str(nodes * devices) if name in TOTALS else None


# -- what a script asks of the machine ----------------------------------------------------------------------

_OF_DEVICES = re.compile(
    r"nvidia-smi\s+(?:-L|--list-gpus)\b[^|;&]*\|\s*(?:grep[^|]*\|\s*)?(?:wc\s+-l|grep\s+-c\b[^|]*)"
    r"|nvidia-smi\s+[^|;&]*--query-gpu[= ][\w.,]+[^|;&]*noheader[^|;&]*\|\s*(?:grep[^|]*\|\s*)?wc\s+-l"
    r"|nvidia-smi\s+[^|;&]*--query-gpu[= ]count\b[^|;&]*noheader[^|;&]*(?:\|\s*(?:head\s+-n?\s*1|uniq|sort\s+-u))?"
    r"|(?:rocm-smi|amd-smi)\b[^|;&]*\|\s*(?:grep[^|]*\|\s*)*(?:wc\s+-l|grep\s+-c\b[^|]*)"
    r"|ls\s+[^|;&]*/dev/nvidia\S*[^|;&]*\|\s*(?:grep[^|]*\|\s*)?wc\s+-l"
    r"|(?:\S*/)?python[\d.]*\s+-c\s+.*\bimport\s+torch\b.*\bprint\s*\(\s*torch\.cuda\.device_count\(\)\s*\)\W*",
    re.DOTALL,
)
_OF_NODES = re.compile(r"scontrol\s+show\s+hostnames?\b[^|;&]*\|\s*(?:sort[^|]*\|\s*(?:uniq[^|]*\|\s*)?)?wc\s+-[lw]")


def asks(text: str) -> str:
    """What a command substitution counts: "devices" of this node, "nodes" of the job, or nothing that is known here.

    >>> asks("nvidia-smi -L | wc -l"), asks("nvidia-smi --query-gpu=memory.total --format=csv,noheader | head -1")
    ('devices', '')
    """
    plain = re.sub(r"\s2>\s*(?:/dev/null|&1)", "", text).strip()[:400]
    plain = re.sub(r"\s*\|\s*(?:xargs|tr\s+-d\s+'[^']*'|awk\s+'\{print \$1\}')\s*$", "", plain)
    if _OF_DEVICES.fullmatch(plain):
        return "devices"
    return "nodes" if _OF_NODES.fullmatch(plain) else ""
