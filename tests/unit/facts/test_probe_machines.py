"""Whole machines, each a tree of files that stands for /proc, /sys and /dev: a pod, a GB10, a nested group ..."""

from collections import namedtuple
from pathlib import Path

import pytest

from headway.errors import InputError
from headway.facts.machine import Machine
from headway.facts.probe import SharedMemory, detect, pod_sign, ray_object_store, shared_memory

from .test_probe import (
    GIB,
    NO_LIMIT_V1,
    TOLD,
    V1_MOUNTS,
    V2_MOUNTS,
    FakeNvml,
    NotSupportedError,
    v1_group,
    v2_group,
    write,
)

KIB = 1024
Usage = namedtuple("Usage", "total used free")
SHM_MOUNT = "26 23 0:24 / /dev/shm rw,nosuid,nodev - tmpfs tmpfs rw,size=67108864k\n"
POD_MOUNTS = """\
895 882 0:29 / /sys/fs/cgroup ro,nosuid,nodev,noexec,relatime - cgroup2 cgroup rw
899 896 259:1 /var/lib/kubelet/pods/0a1b2c3d-0000/containers/train/9f0e /dev/termination-log rw - ext4 /dev/sda9 rw
900 829 259:1 /var/lib/kubelet/pods/0a1b2c3d-0000/etc-hosts /etc/hosts rw,relatime - ext4 /dev/sda9 rw
"""
"""As runtimes write them for a container of a pod on a node with cgroup v2."""


def meminfo(total: int, available: int, free: int | None = None) -> dict[str, str]:
    lines = {"MemTotal": total, "MemFree": available if free is None else free, "MemAvailable": available}
    return {"proc/meminfo": "".join(f"{name}: {size // KIB} kB\n" for name, size in lines.items())}


def limits(machine: Machine, pool: str = "node[0].host") -> dict[str, int]:
    return {limit.name: limit.bytes for limit in machine.pool(pool).limits}


def bare(root: Path, *, ray: bool = False, environment: dict[str, str] | None = None, nvml: object = None) -> Machine:
    """Detected with nothing of the environment that the test itself runs in."""
    return detect(root=root, ray=ray, environment=environment or {}, nvml=nvml)


def test_v1(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "4:memory:/box\n", "proc/self/mountinfo": V1_MOUNTS}
    groups = v1_group("box", 3 * GIB, f"{8 * GIB}\n") | v1_group("", 9 * GIB, NO_LIMIT_V1)
    root = write(tmp_path, files | groups | meminfo(32 * GIB, 20 * GIB))
    assert limits(bare(root)) == {"MemAvailable": 20 * GIB, "cgroup": 5 * GIB}
    # Ray looks at the mount's root alone, which has no limit, and so takes the node's memory: 12 GiB are in use
    assert limits(bare(root, ray=True))["Ray 0.95"] == int(0.95 * 32 * GIB) - 12 * GIB


def test_v2_limit_on_the_parent(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/job/step\n", "proc/self/mountinfo": V2_MOUNTS}
    groups = v2_group("job/step", GIB, "max\n") | v2_group("job", 3 * GIB, f"{10 * GIB}\n", cache=GIB)
    machine = bare(write(tmp_path, files | groups | meminfo(64 * GIB, 50 * GIB)))
    assert limits(machine) == {"MemAvailable": 50 * GIB, "cgroup": 9 * GIB}
    (source,) = [limit.source for limit in machine.pool("node[0].host").limits if limit.name == "cgroup"]
    assert source.endswith("sys/fs/cgroup/job/memory.max")


def test_v2_pod(tmp_path: Path) -> None:
    """A container sees its own group as the root of the mount, so the pod's limit is Ray's memory too."""
    files = {"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": POD_MOUNTS}
    root = write(tmp_path, files | v2_group("", 6 * GIB, f"{40 * GIB}\n", cache=GIB) | meminfo(1024 * GIB, 900 * GIB))
    machine = bare(root, ray=True)
    assert limits(machine) == {
        "MemAvailable": 900 * GIB, "pod": 36 * GIB, "Ray 0.95": 38 * GIB - 4 * GIB,
    }  # fmt: skip
    pod = next(limit for limit in machine.pool("node[0].host").limits if limit.name == "pod")
    assert "memory.max" in pod.source
    assert "/dev/termination-log" in pod.source
    assert "OOMKilled" in pod.consequence
    assert machine.pool("node[0].host").floor_upper == 0


def test_ray_counts_the_whole_container_and_not_the_group_of_the_process(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/worker\n", "proc/self/mountinfo": V2_MOUNTS}
    groups = v2_group("", 9 * GIB, f"{40 * GIB}\n") | v2_group("worker", GIB, "max\n")
    root = write(tmp_path, files | groups | meminfo(64 * GIB, 50 * GIB))
    assert limits(bare(root, ray=True))["Ray 0.95"] == 38 * GIB - 9 * GIB


def test_a_limit_above_the_node_s_memory_is_not_ray_s(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": V2_MOUNTS}
    root = write(tmp_path, files | v2_group("", GIB, f"{400 * GIB}\n") | meminfo(100 * GIB, 60 * GIB))
    assert limits(bare(root, ray=True))["Ray 0.95"] == 95 * GIB - 40 * GIB


@pytest.mark.parametrize(
    ("files", "environment", "said"),
    [
        ({"proc/self/cgroup": "0::/kubepods.slice/kubepods-burstable.slice/cri-1.scope\n"}, {}, "kubepods"),
        (
            {"proc/self/mountinfo": "35 31 0:32 /kubepods/pod1/c1 /sys/fs/cgroup/memory ro - cgroup c rw\n"},
            {},
            "kubepods",
        ),
        ({"proc/self/mountinfo": POD_MOUNTS}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "/dev/termination-log"),
        ({}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "KUBERNETES_SERVICE_HOST"),
        ({"proc/self/cgroup": "0::/user.slice\n", "proc/self/mountinfo": V2_MOUNTS}, {}, None),
        # a node of a cluster, not a pod: the kubelet's own mounts of volumes
        (
            {"proc/self/mountinfo": "9 8 8:9 /var/lib/kubelet/pods/1/a /var/lib/kubelet/pods/1/b rw - ext4 d rw\n"},
            {},
            None,
        ),
    ],
)
def test_what_tells_a_pod(
    tmp_path: Path, files: dict[str, str], environment: dict[str, str], said: str | None
) -> None:
    sign = pod_sign(write(tmp_path, files), environment)
    assert sign is None if said is None else said in (sign or "")


def test_gb10(tmp_path: Path) -> None:
    """Cached files fill the free memory, as after a download: they are no use, so MemFree says nothing."""
    total = 127598656 * KIB
    root = write(tmp_path, meminfo(total, 115 * GIB, free=42 * GIB))
    machine = bare(root, ray=True, nvml=FakeNvml({"NVIDIA GB10": NotSupportedError()}))
    assert [(pool.name, pool.kind, pool.total_bytes) for pool in machine.pools] == [
        ("node[0].unified", "unified", total),
    ]  # fmt: skip
    assert limits(machine, "node[0].unified") == {
        "MemAvailable": 115 * GIB, "Ray 0.95": int(0.95 * total) - (total - 115 * GIB),
    }  # fmt: skip
    assert machine.unified


def test_a_unified_device_that_tells_its_free_memory_is_not_believed(tmp_path: Path) -> None:
    root = write(tmp_path, meminfo(16 * GIB, 9 * GIB, free=GIB))
    machine = bare(root, nvml=FakeNvml({"NVIDIA Jetson AGX Orin": TOLD}))
    assert {pool.name: limits(machine, pool.name) for pool in machine.pools} == {
        "node[0].unified": {"MemAvailable": 9 * GIB},
    }  # fmt: skip


def test_memory_of_a_superchip_s_gpu_is_not_the_host_s(tmp_path: Path) -> None:
    """The kernel shows the HBM of a GH200 as a node without CPUs, and counts it in MemTotal."""
    nodes = {
        "sys/devices/system/node/node0/cpulist": "0-71\n",
        "sys/devices/system/node/node0/meminfo": "Node 0 MemTotal: 480 kB\nNode 0 MemFree: 400 kB\n",
        "sys/devices/system/node/node1/cpulist": "\n",
        "sys/devices/system/node/node1/meminfo": "Node 1 MemTotal:   96 kB\nNode 1 MemFree:   90 kB\n",
    }
    root = write(tmp_path, nodes | meminfo(576 * KIB, 500 * KIB))
    machine = bare(root, nvml=FakeNvml({"NVIDIA GH200 480GB": TOLD}))
    assert machine.pool("node[0].host").total_bytes == 480 * KIB
    assert limits(machine) == {"MemAvailable": 410 * KIB}
    assert limits(machine, "node[0].device[0]") == {"device free": GIB}
    # without such a device, a node without CPUs is an extension of the host's memory
    extended = bare(root, nvml=FakeNvml({"NVIDIA H100 80GB HBM3": TOLD}))
    assert extended.pool("node[0].host").total_bytes == 576 * KIB


def test_a_machine_without_proc(tmp_path: Path) -> None:
    machine = bare(tmp_path, ray=True)
    assert (machine.pools, machine.nodes) == ((), 1)
    assert machine.cores >= 1
    assert ray_object_store(tmp_path, {}) is None


def test_shared_memory_is_a_small_pool(tmp_path: Path) -> None:
    root = write(tmp_path, {"proc/self/mountinfo": SHM_MOUNT, "dev/shm/file": ""})
    asked = []

    def usage(path: Path) -> Usage:
        asked.append(path)
        return Usage(64 * GIB, 4 * GIB, 60 * GIB)

    assert shared_memory(root, usage) == SharedMemory(64 * GIB, 60 * GIB)
    assert asked == [root / "dev/shm"]
    pool = bare(root).pool("node[0].shm")
    assert pool.kind == "shm"
    assert 0 < pool.lowest.bytes <= pool.total_bytes


def test_no_memory_at_dev_shm(tmp_path: Path) -> None:
    assert shared_memory(tmp_path) is None
    assert shared_memory(write(tmp_path, {"proc/self/mountinfo": SHM_MOUNT})) is None, "the folder is not there"


def test_ray_s_settings_are_read_from_the_environment(tmp_path: Path) -> None:
    root = write(tmp_path, meminfo(100 * GIB, 60 * GIB))

    def ray(**environment: str) -> dict[str, int]:
        found = limits(bare(root, ray=True, environment=environment))
        return {name: size for name, size in found.items() if name != "MemAvailable"}

    assert ray(RAY_memory_usage_threshold="0.8") == {"Ray 0.8": 40 * GIB}
    assert ray(RAY_memory_monitor_refresh_ms="0") == {}
    assert ray(RAY_min_memory_free_bytes=str(GIB)) == {"Ray 0.95": 59 * GIB}
    assert ray(RAY_memory_usage_threshold="0.3") == {"Ray 0.3": 0}, "more is in use than the threshold allows"
    with pytest.raises(InputError, match="RAY_memory_usage_threshold") as error:
        ray(RAY_memory_usage_threshold="95", RAY_memory_monitor_refresh_ms="off")
    assert len(error.value.problems) == 2
    assert "MemAvailable" in limits(bare(root, environment={"RAY_memory_usage_threshold": "95"})), "no Ray, not read"


def test_ray_s_default_object_store(tmp_path: Path) -> None:
    """30 % of what the container has left, here of 33 GiB."""
    files = {"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": POD_MOUNTS}
    groups = v2_group("", 9 * GIB, f"{40 * GIB}\n", cache=GIB)
    root = write(tmp_path, files | groups | meminfo(1024 * GIB, 900 * GIB))
    assert ray_object_store(root, {}) == int(33 * GIB * 0.3)
    assert ray_object_store(root, {"RAY_DEFAULT_OBJECT_STORE_MEMORY_PROPORTION": "0.5"}) == int(33 * GIB * 0.5)
