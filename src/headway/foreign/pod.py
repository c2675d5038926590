"""Memory limits of a Kubernetes Pod, RayJob, RayCluster or any workload with a pod template: `--pod FILE`.

Field names: the API of Kubernetes 1.33 (core/v1) and KubeRay 1.4 (ray.io/v1). What the cluster adds when it admits a
pod (a LimitRange, a mutating webhook) is in no file, and is not known here.
"""

import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from headway.errors import InputError
from headway.facts.machine import Limit, Machine, Pool, ray_limits
from headway.foreign import manifests
from headway.foreign.documents import RefusedError
from headway.foreign.manifests import head
from headway.units import KIB, LARGEST, MIB, format_bytes

MOST_TEMPLATES = 64
MOST_VARIABLES = 1000
DEFAULT_SHM = 64 * MIB
"""Size of /dev/shm where nothing is mounted there: what containerd and CRI-O give a container."""
OUT_OF_MEMORY = "the kernel kills a process of the container (OOMKilled)"
SHM_FULL = "writing to /dev/shm fails: a bus error, or no space left"

_QUANTITY = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(?:([eE][-+]?\d{1,2})|([KMGTPE]i|[numkMGTPE]))?")
_SCALES = {
    "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "k": 1000, "M": 10**6, "G": 10**9,
    "T": 10**12, "P": 10**15, "E": 10**18,
    **{f"{letter}i": KIB**power for power, letter in enumerate("KMGTPE", 1)},
}  # fmt: skip
_GPU = re.compile(r"[\w.-]+/(gpu|mig-[\w.-]+)(\.shared)?")


class Pod(Struct, frozen=True):
    """What one pod template allows the container that runs the trainer; sizes in bytes.

    `name` says where it stands in the file. `limit` is None where nothing limits its memory but the node. `shm` is
    the size of /dev/shm, None where that is the node's own; `replicas` pods are made of it. `notes` say what follows
    for a run, in words.

    >>> Pod("Pod train", "main", 1 << 40, 8, 64 << 20).gpus
    8
    """

    name: str
    container: str
    limit: int | None
    gpus: int
    shm: int | None
    replicas: int = 1
    notes: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    """The variables of the container that it sets to a text."""


def read_pods(path: Path) -> tuple[Pod, ...]:
    """Every pod template of a YAML or JSON file. InputError where it cannot be read or has none."""
    text = manifests.read(path, "--pod")
    try:
        return pods_of(text)
    except (RefusedError, InputError) as error:
        raise InputError(f"--pod {path}: {error}") from None


def pods_of(text: str) -> tuple[Pod, ...]:
    """The pod templates of a text, `---` between documents. RefusedError or InputError where it has none.

    >>> pods_of("kind: Pod\\nspec: {containers: [{name: main, resources: {limits: {memory: 2Gi}}}]}")[0].limit
    2147483648
    """
    found = [pod for each in manifests.documents(text) for pod in _templates(each, head(each), 1)]
    if not found:
        raise InputError(
            "no pod template is in it (a table with `containers`); give a Pod, RayJob, RayCluster or Job as YAML or "
            "JSON, such as kubectl get pod NAME -o yaml prints"
        )
    return tuple(found[:MOST_TEMPLATES])


def trainer(pods: Sequence[Pod]) -> Pod:
    """The pod that the trainer's devices are in: the one with devices, of several the one with the lowest limit.

    Without devices in any of them, the lowest limit of all. Its notes name what the others allow.
    """
    with_gpus = [pod for pod in pods if pod.gpus] or list(pods)
    lowest = min(with_gpus, key=lambda pod: (pod.limit is None, pod.limit or 0))
    others = [
        f"{pod.name} ({f'{pod.gpus} devices' if pod.gpus else 'no devices'}): {_limit_text(pod)}"
        for pod in pods
        if pod is not lowest
    ]
    return replace(lowest, notes=(*lowest.notes, *others))


def with_pod(machine: Machine, pod: Pod) -> Machine:
    """The machine with a pod's limits on every node: host memory as limit "pod", and /dev/shm as a pool of its own.

    Ray's memory monitor reads the container's limit as its total. InputError on unified memory, where what a device
    allocates is charged to no container.

    >>> from headway.facts.machines import by_name
    >>> limited = with_pod(by_name("8xb200"), Pod("Pod train", "main", 1 << 40, 8, None))
    >>> [limit.name for limit in limited.pool("node[0].host").limits]
    ['Ray 0.95', 'pod']
    """
    if machine.unified:
        raise InputError(
            f"--pod: {machine.name} has one memory for CPU and GPU, and what the GPU allocates there is charged to "
            "no container, so a pod's limit does not bound it; leave --pod out"
        )
    pools: list[Pool] = []
    for pool in machine.pools:
        if pool.kind == "shm" and pod.shm is not None:
            continue
        pools.append(_limited(pool, pod) if pool.kind == "host" and pod.limit is not None else pool)
        if pool.kind == "host" and pod.shm is not None:
            node = pool.name.partition(".")[0]
            limit = Limit("/dev/shm", pod.shm, SHM_FULL, pod.name)
            pools.append(Pool(f"{node}.shm", "shm", pod.shm, (limit,)))
    return replace(machine, pools=tuple(pools))


def _limited(pool: Pool, pod: Pod) -> Pool:
    """A host's memory as the container may use it; the node's own limits stay where they are lower."""
    assert pod.limit is not None
    own = Limit("pod", pod.limit, OUT_OF_MEMORY, f"{pod.name}, container {pod.container}")
    if pool.total_bytes and pool.total_bytes < pod.limit:
        return replace(pool, limits=(*pool.limits, own))
    # the system's own memory is outside of the container, so nothing of it is counted against its limit
    limits = (*ray_limits(pod.limit), own)
    return replace(pool, total_bytes=pod.limit, limits=limits, floor_bytes=0, floor_upper=0)


def quantity(raw: object) -> int | None:
    """A Kubernetes quantity in whole bytes or devices, rounded up; None where there is none.

    >>> quantity("1600Gi"), quantity("1.5G"), quantity(8), quantity("2e9"), quantity("500m")
    (1717986918400, 1500000000, 8, 2000000000, 1)

    InputError for anything else.
    """
    if raw is None:
        return None
    if isinstance(raw, int | float) and not isinstance(raw, bool):
        raw = repr(raw)
    match = _QUANTITY.fullmatch(raw.strip()) if isinstance(raw, str) and len(raw) <= 40 else None
    if match is None:
        raise InputError(f"{str(raw)[:40]!r} is no quantity; write 1600Gi, 1600G or a number of bytes")
    scale = Fraction(f"1{match[2]}" if match[2] else _SCALES.get(match[3] or "", 1))
    found = -(-(Fraction(match[1]) * scale) // 1)
    if found > LARGEST:
        raise InputError(f"{raw!r} is more memory than there is")
    return int(found)


# -- reading a document ----------------------------------------------------------------------------------

Node = dict[str, Any]


def _templates(node: Any, name: str, replicas: int) -> Iterator[Pod]:
    """The pod specs below a node: tables with a list of containers. `name` is of the nearest named table above."""
    if isinstance(node, list):
        for each in node:
            yield from _templates(each, head(each) or name, replicas)
        return
    if not isinstance(node, dict):
        return
    if isinstance(node.get("containers"), list):
        yield _pod(node, name, replicas)
        return
    count = node.get("replicas")
    hosts = node.get("numOfHosts")
    if isinstance(count, int) and not isinstance(count, bool) and count >= 0:
        replicas *= count * (hosts if isinstance(hosts, int) and hosts > 0 else 1)
    group = node.get("groupName")
    for key, value in node.items():
        if key in ("status", "metadata"):
            continue
        inner = f"{name}, head" if key == "headGroupSpec" else f"{name}, {group}" if group else name
        yield from _templates(value, inner, replicas)


def _pod(spec: Node, name: str, replicas: int) -> Pod:
    """The container that has devices, else the first, with what bounds its memory."""
    containers = [each for each in spec["containers"] if isinstance(each, dict)]
    if not containers:
        raise InputError(f"{name or 'a pod'}: its list of containers is empty")
    chosen = max(containers, key=_gpus)
    said = [raw for table in (chosen, spec) if (raw := _resource(table, "memory")) is not None]
    bounds = [size for raw in said if (size := _known(raw)) is not None]
    shm, notes = _shm(spec, chosen, min(bounds, default=None))
    if said and not bounds:
        notes.append(
            f"{name}: the limit on its memory is put in later ({str(said[0])[:40]}), so it is not known here"
        )
    elif not bounds:
        asked = _known(_resource(chosen, "memory", "requests"))
        told = f" (it requests {format_bytes(asked)})" if asked is not None else ""
        notes.append(f"{name}: no limit on its memory{told}, so the node's memory is the limit and others share it")
    beside = [str(each.get("name", "")) for each in containers if each is not chosen]
    if beside:
        notes.append(f"{name}: {', '.join(beside)} run beside {chosen.get('name', '')}, under limits of their own")
    return Pod(
        name, str(chosen.get("name", "")), min(bounds, default=None), _gpus(chosen), shm, replicas, tuple(notes),
        _environment(chosen),
    )  # fmt: skip


def _environment(container: Node) -> dict[str, str]:
    given = container.get("env")
    entries = [each for each in given if isinstance(each, dict)] if isinstance(given, list) else []
    return {
        str(each["name"]): str(each["value"])
        for each in entries[:MOST_VARIABLES]
        if "name" in each and isinstance(each.get("value"), str | int | float)
    }


def _table(node: Node, key: str) -> Node:
    found = node.get(key)
    return found if isinstance(found, dict) else {}


def _resource(node: Node, name: str, kind: str = "limits") -> object:
    return _table(_table(node, "resources"), kind).get(name)


def _known(raw: object) -> int | None:
    """A quantity; None where there is none, or a placeholder stands for it."""
    return None if manifests.is_placeholder(raw) else quantity(raw)


def _gpus(container: Node) -> int:
    """Devices of a container, by any vendor's name of them; 0 where a placeholder stands for their number."""
    found = 0
    for kind in ("requests", "limits"):
        names = [name for name in _table(_table(container, "resources"), kind) if _GPU.fullmatch(str(name))]
        found = max(found, sum(_known(_resource(container, name, kind)) or 0 for name in names))
    return found


def _shm(spec: Node, container: Node, limit: int | None) -> tuple[int | None, list[str]]:
    """The size of the container's /dev/shm, and what there is to say of it."""
    mounts = [each for each in container.get("volumeMounts") or () if isinstance(each, dict)]
    mounted = next((each for each in mounts if str(each.get("mountPath", "")).rstrip("/") == "/dev/shm"), None)
    if mounted is None:
        if spec.get("hostIPC") is True:
            return None, []
        return DEFAULT_SHM, [f"nothing is mounted at /dev/shm, which is then {format_bytes(DEFAULT_SHM)}"]
    volumes = [each for each in spec.get("volumes") or () if isinstance(each, dict)]
    volume = next((each for each in volumes if each.get("name") == mounted.get("name")), {})
    if "emptyDir" not in volume:
        return None, ["/dev/shm is no emptyDir; how large it is, the file does not say"]
    empty = _table(volume, "emptyDir")
    if empty.get("medium") != "Memory":
        return None, ["/dev/shm is an emptyDir on disk, as its medium is not Memory: slow, and no memory"]
    raw = empty.get("sizeLimit")
    if manifests.is_placeholder(raw):
        return None, [f"the size of /dev/shm is put in later ({str(raw)[:40]}), so it is not known here"]
    size = quantity(raw)
    notes = ["what is written to /dev/shm counts against the memory limit of the container too"]
    if size is None:
        # Kubernetes sizes the volume by the pod's limit where there is one
        return limit, notes
    return (size if limit is None else min(size, limit)), notes


def _limit_text(pod: Pod) -> str:
    return "no limit on its memory" if pod.limit is None else f"at most {format_bytes(pod.limit)}"
