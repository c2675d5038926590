"""How many nodes and devices a launch runs on where the training command does not say it in numbers.

In this order: what `--set` says, the command, the job that the script is (`#SBATCH`), the machine that is asked for.
A count that none of them tells stays unknown, and the plan cannot tell then.
"""

import re
from collections.abc import Sequence

from msgspec.structs import replace

from headway.errors import InputError
from headway.facts.machine import Limit, Machine
from headway.facts.machines import table
from headway.facts.workload import Layout
from headway.foreign.found import Found, Setting
from headway.foreign.jobs import DEVICES, NODES, TOTALS, Counts, Job
from headway.foreign.shell import Script
from headway.foreign.shell.values import Origin, Word
from headway.units import format_bytes

KEYS = {"nodes": "layout.nodes", "gpus_per_node": "layout.devices"}
"""Key of Found -> key of the Workload."""
SET = KEYS | {"tp": "layout.tensor", "pp": "layout.pipeline", "cp": "layout.context", "ep": "layout.expert_parallel"}
"""Keys by which the other parallel sizes follow: `--set` of one of them stands for the command's own."""
FOLLOWS = ("global_batch", "rollout_batch")
"""Keys that TRL's reader works out from the devices."""


def from_job(found: Found, job: Job | None, path: str) -> Found:
    """The launch with the counts that its job asks for, where its command has none. `path` is the script's."""
    if job is None:
        return found
    missing = _missing(found)
    told = {key: count for key, count in (("nodes", job.nodes), ("gpus_per_node", _devices(job))) if count}
    taken = {key: count for key, count in told.items() if key in missing}
    if not taken:
        return found
    at = Origin(found.at.file if found.at is not None else path, job.line)
    return replace(
        _with(found, taken), places={**found.places, **dict.fromkeys(taken, at)},
        notes=(*found.notes, *(f"{key} = {count}, as {job.said} says" for key, count in taken.items())),
    )  # fmt: skip


def visible(script: Script, found: Found) -> Job | None:
    """The devices that a launch is shown: `CUDA_VISIBLE_DEVICES=0,1,2,3` before its command, or exported."""
    command = next((each for each in script.commands if each.at == found.at), None)
    name = "CUDA_VISIBLE_DEVICES"
    word = dict(command.environment).get(name) if command is not None else None
    if word is None and name in script.exports:
        held = script.variables.get(name)
        word = held if isinstance(held, Word) else None
    text = (word.text or "").strip().strip(",") if word is not None else ""
    if not re.fullmatch(r"\d{1,3}(,\d{1,3})*", text):
        return None
    return Job(devices=text.count(",") + 1, said=f"{name}={text}", line=found.at.line if found.at else 1)


def _devices(job: Job) -> int | None:
    """Devices of a node: what is asked for, else one for each of several tasks."""
    return job.devices or (job.tasks_per_node if job.tasks_per_node and job.tasks_per_node > 1 else None)


def _missing(found: Found) -> dict[str, str]:
    """The counts that the command does not tell -> why."""
    return {
        key: found.unknown.get(key, "the launch does not say")
        for key in KEYS
        if key in found.unknown or found.value(key) is None
    }


def _with(found: Found, told: dict[str, int]) -> Found:
    """The launch with these counts; what its reader worked out from others goes."""
    unknown = {key: why for key, why in found.unknown.items() if key not in told}
    settings: dict[str, Setting] = {**found.settings, **told}
    gone = {*told, *(FOLLOWS if found.system == "trl" else ())}
    derived = {key: value for key, value in found.derived.items() if key not in gone}
    return replace(found, settings=settings, derived=derived, unknown=unknown)


def of_machine(script: Script, machine: Machine, pod: Job | None = None) -> Counts | None:
    """What a script is told of the machine when it is read for it, and of the pod that it runs in; None where it asks
    nothing or there is nothing to tell."""
    names = script.asked & (NODES | DEVICES | TOTALS)
    if not machine.device_count or not (names or script.asked & {"nodes", "devices"}):
        return None
    known = [each for each in (script.job, pod) if each is not None]
    nodes = next((each.nodes for each in known if each.nodes), machine.nodes)
    devices = next((each.devices for each in known if each.devices), machine.device_count // machine.nodes)
    return Counts(nodes, devices, machine.name if pod is None else pod.said, names)


def assumed(counts: Counts | None, found: Found) -> tuple[str, ...]:
    """What a script was told of the machine, in words."""
    if counts is None:
        return ()
    names = [f"${name} = {value}" for name, value in counts.variables.items()]
    if not names and found.value("nodes") and found.value("gpus_per_node"):
        names = [f"{found.value('nodes')} x {found.value('gpus_per_node')} devices"]
    if not names:
        return ()
    return f"{', '.join(names)} (assumed: as {counts.of} has, which the script asks)", *_one(
        counts.of, counts.devices
    )


def _one(machine: str, devices: int) -> tuple[str, ...]:
    """What to say where a count is taken of a machine that was named by its device alone."""
    more = f"{machine} is one device: where the run has 8 on a node, the machine is 8x{machine}"
    return (more,) if devices == 1 and machine in table() and not table()[machine].unified else ()


def under_job(machine: Machine, job: Job | None) -> tuple[Machine, tuple[str, ...]]:
    """The machine with the host memory that a job asks for as a limit of every node, and what there is to say of it.

    Ray's monitor does not see it: it reads the limit of the mount's root, or the node's memory.
    """
    if job is None or job.memory is None:
        return machine, ()
    asked = f"{job.said} gives the job {format_bytes(job.memory)} of each node's memory"
    if machine.unified:
        return machine, (f"{asked}, which does not bound what the device takes of unified memory",)
    limit = Limit("job", job.memory, "the scheduler's cgroup kills a process of the job (oom_kill)", job.said)
    pools = tuple(
        replace(pool, total_bytes=pool.total_bytes or job.memory, limits=(*pool.limits, limit))
        if pool.kind == "host"
        else pool
        for pool in machine.pools
    )
    return replace(machine, pools=pools), ()


def settled(found: Found, machine: Machine | None, overrides: Sequence[str] = ()) -> tuple[Found, tuple[str, ...]]:
    """The launch with every count that `--set` or the machine tells, and what was assumed.

    >>> from headway.facts.machines import by_name
    >>> found = Found("trl", {"nodes": 1}, unknown={"gpus_per_node": "asks the machine: nvidia-smi -L"})
    >>> found, notes = settled(found, by_name("8xh100-80"))
    >>> found.value("gpus_per_node"), notes
    (8, ('gpus_per_node = 8 (assumed: as 8xh100-80 has; asks the machine: nvidia-smi -L)',))
    """
    values = {key.strip(): value for key, _, value in (each.partition("=") for each in overrides)}
    given = {key: _count(values.get(path, "")) for key, path in SET.items()}
    if any(given.values()):
        found = _with(found, {key: count for key, count in given.items() if count})
    missing = _missing(found)
    if not missing or machine is None or not machine.device_count:
        return found, ()
    each = machine.device_count // machine.nodes
    told = {"nodes": machine.nodes, "gpus_per_node": each}
    total = _count(found.flags.get("num_processes", (None,))[-1] or "")
    nodes = machine.nodes if "nodes" in missing else found.value("nodes")
    if isinstance(nodes, int) and total >= nodes > 0:
        told["gpus_per_node"] = total // nodes
    taken = {key: told[key] for key in missing}
    notes = [f"{key} = {count} (assumed: as {machine.name} has; {missing[key]})" for key, count in taken.items()]
    return _with(found, taken), (*notes, *(_one(machine.name, each) if "gpus_per_node" in taken else ()))


def _count(text: str) -> int:
    """A whole number of at most seven digits; 0 for anything else."""
    return int(text) if re.fullmatch(r"\s*[0-9]{1,7}\s*", text) else 0


def open_counts(found: Found) -> tuple[str, ...]:
    """Why a plan cannot tell, where a count is not known."""
    missing = _missing(found)
    if not missing:
        return ()
    return (
        f"how many devices the run has is not known ({'; '.join(dict.fromkeys(missing.values()))}); name the machine "
        "with its devices, such as --machine 8xh100-80, or --set layout.devices=8",
    )


def check_assumed(layout: Layout, machine: Machine | None) -> None:
    """InputError where the launch divides the model over more devices than the machine has whose count was taken."""
    least = layout.tensor * layout.pipeline * (1 if layout.shards > 1 else layout.context)
    if machine is not None and least > layout.ranks:
        kind = machine.name if machine.name in table() else "h100-80"
        raise InputError(
            f"the launch divides the model over {least} devices and does not say in numbers how many it has, and "
            f"{machine.name} has {layout.ranks}; name the machine with its devices, such as --machine {least}x{kind}"
        )
