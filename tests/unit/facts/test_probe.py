"""What the machine has, from trees of files that stand for /proc and /sys."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from headway.facts.machine import Machine, is_ray
from headway.facts.probe import (
    CgroupMemory,
    Device,
    NodeMemory,
    bf16_arithmetic,
    cgroup_memory,
    cgroup_usage_file,
    cpu_quota,
    describe,
    detect,
    node_memory,
    nvml_device,
    nvml_devices,
    usable_cores,
    visible,
)

GIB = 1 << 30
NO_LIMIT_V1 = "9223372036854771712\n"
V1_MOUNTS = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:1 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
V2_MOUNTS = "30 23 0:27 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"


def write(root: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


def v1_group(path: str, current: int, limit: str, cache: int = 0) -> dict[str, str]:
    folder = f"sys/fs/cgroup/memory/{path}".rstrip("/")
    return {
        f"{folder}/memory.usage_in_bytes": f"{current}\n",
        f"{folder}/memory.limit_in_bytes": limit,
        f"{folder}/memory.max_usage_in_bytes": f"{current + GIB}\n",
        f"{folder}/memory.stat": f"active_file 1\ntotal_active_file {cache}\ntotal_inactive_file {cache}\n",
    }


def v2_group(path: str, current: int, limit: str, cache: int = 0) -> dict[str, str]:
    folder = f"sys/fs/cgroup/{path}".rstrip("/")
    return {
        f"{folder}/memory.current": f"{current}\n",
        f"{folder}/memory.max": limit,
        f"{folder}/memory.stat": f"anon 5\nactive_file {cache}\ninactive_file {cache}\n",
    }


def test_node_memory(tmp_path: Path) -> None:
    text = "MemTotal: 1000 kB\nMemFree: 10 kB\nMemAvailable: 400 kB\nSwapTotal: 50 kB\nSwapFree: 20 kB\n"
    node = node_memory(write(tmp_path, {"proc/meminfo": text}))
    assert node == NodeMemory(1000 << 10, 400 << 10, 50 << 10, 20 << 10)
    assert node.used == 600 << 10


def test_unknown_node_memory_is_none(tmp_path: Path) -> None:
    assert node_memory(tmp_path) is None
    assert node_memory(write(tmp_path, {"proc/meminfo": "MemTotal: 1000 kB\n"})) is None


def test_v1_nested_lowest_limit_on_the_path_wins(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {"proc/self/cgroup": "4:memory:/pod/box\n1:cpu,cpuacct:/\n0::/\n", "proc/self/mountinfo": V1_MOUNTS}
        | v1_group("pod/box", 3 * GIB, NO_LIMIT_V1)
        | v1_group("pod", 5 * GIB, f"{8 * GIB}\n", cache=GIB)
        | v1_group("", 9 * GIB, NO_LIMIT_V1),
    )
    group = cgroup_memory(root)
    assert group is not None
    assert (group.version, group.current, group.peak, group.limit) == (1, 3 * GIB, 4 * GIB, 8 * GIB)
    assert group.left == (8 - (5 - 2)) * GIB
    assert group.source.endswith("sys/fs/cgroup/memory/pod/memory.limit_in_bytes")


def test_v1_without_a_limit_is_none_and_not_a_huge_number(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {"proc/self/cgroup": "4:memory:/\n", "proc/self/mountinfo": V1_MOUNTS} | v1_group("", GIB, NO_LIMIT_V1),
    )
    group = cgroup_memory(root)
    assert group is not None
    assert (group.current, group.limit, group.left) == (GIB, None, None)


def test_v1_container_that_sees_only_its_own_group(tmp_path: Path) -> None:
    """Docker without a cgroup namespace: the path is the host's, and the mount shows that group at its root."""
    mounts = "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro,relatime - cgroup cgroup rw,memory\n"
    root = write(
        tmp_path,
        {"proc/self/cgroup": "4:memory:/docker/abc\n", "proc/self/mountinfo": mounts}
        | v1_group("", GIB, f"{2 * GIB}\n"),
    )
    group = cgroup_memory(root)
    assert group is not None
    assert (group.limit, group.left) == (2 * GIB, GIB)


def test_v2_nested_the_fuller_group_leaves_less(tmp_path: Path) -> None:
    """The lowest limit and the limit that leaves the least need not be the same."""
    root = write(
        tmp_path,
        {"proc/self/cgroup": "0::/slice/unit\n", "proc/self/mountinfo": V2_MOUNTS}
        | v2_group("slice/unit", GIB, f"{4 * GIB}\n")
        | v2_group("slice", 15 * GIB, f"{16 * GIB}\n"),
    )
    group = cgroup_memory(root)
    assert group is not None
    assert (group.version, group.current, group.peak) == (2, GIB, None)
    assert (group.limit, group.left) == (4 * GIB, GIB)
    assert group.source.endswith("sys/fs/cgroup/slice/memory.max")


def test_v2_leaf_without_the_memory_controller(tmp_path: Path) -> None:
    """A controller may stop at an ancestor; its numbers are then the closest that hold for this process."""
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/slice/unit\n",
            "proc/self/mountinfo": V2_MOUNTS,
            "sys/fs/cgroup/slice/unit/cgroup.procs": "1\n",
        }
        | v2_group("slice", 2 * GIB, "max\n"),
    )
    group = cgroup_memory(root)
    assert group is not None
    assert (group.current, group.limit, group.left) == (2 * GIB, None, None)
    assert cgroup_usage_file(root) == root / "sys/fs/cgroup/slice/memory.current"


def test_hybrid_asks_the_hierarchy_that_has_the_controller(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {"proc/self/cgroup": "4:memory:/a\n0::/b\n", "proc/self/mountinfo": V1_MOUNTS}
        | v1_group("a", GIB, f"{3 * GIB}\n"),
    )
    group = cgroup_memory(root)
    assert group is not None
    assert (group.version, group.limit) == (1, 3 * GIB)


def test_no_control_groups(tmp_path: Path) -> None:
    assert cgroup_memory(tmp_path) is None
    assert cgroup_usage_file(tmp_path) is None
    real_root = {"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": V2_MOUNTS}
    assert cgroup_memory(write(tmp_path, real_root)) is None


def test_cpu_quota_v1_and_v2(tmp_path: Path) -> None:
    v1 = write(
        tmp_path / "v1",
        {
            "proc/self/cgroup": "1:cpu,cpuacct:/a\n",
            "proc/self/mountinfo": V1_MOUNTS,
            "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "150000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        },
    )
    v2 = write(
        tmp_path / "v2",
        {
            "proc/self/cgroup": "0::/a\n",
            "proc/self/mountinfo": V2_MOUNTS,
            "sys/fs/cgroup/a/cpu.max": "max 100000\n",
        },
    )
    assert cpu_quota(v1) == 1.5
    assert usable_cores(v1) == 1
    assert cpu_quota(v2) is None
    assert usable_cores(v2) >= 1


NODE = NodeMemory(total=16 * GIB, available=10 * GIB, swap_total=0, swap_free=0)


def limits(machine: Machine, pool: str) -> dict[str, int]:
    return {limit.name: limit.bytes for limit in machine.pool(pool).limits}


def test_host_pool_has_every_limit_and_knows_the_lowest() -> None:
    group = CgroupMemory(2, current=GIB, peak=None, limit=8 * GIB, left=7 * GIB, source="memory.max")
    machine = describe(NODE, group, (), 9 * GIB, cores=2, name="a")
    assert limits(machine, "node[0].host") == {
        "MemAvailable": 10 * GIB, "cgroup": 7 * GIB, "memory.limit": 9 * GIB,
    }  # fmt: skip
    assert machine.pool("node[0].host").lowest.name == "cgroup"


def test_group_without_a_limit_adds_none() -> None:
    group = CgroupMemory(1, current=GIB, peak=None, limit=None, left=None, source="")
    assert limits(describe(NODE, group, (), None, 2, "a"), "node[0].host") == {"MemAvailable": 10 * GIB}


def test_devices_are_pools_of_their_own() -> None:
    devices = (Device("GPU-1", "H200", 140 * GIB, 139 * GIB), Device("GPU-2", "H200", 140 * GIB, 70 * GIB))
    machine = describe(NODE, None, devices, 100 * GIB, 2, "a")
    assert [pool.name for pool in machine.pools] == ["node[0].host", "node[0].device[0]", "node[0].device[1]"]
    assert limits(machine, "node[0].device[1]") == {"device free": 70 * GIB, "memory.limit": 100 * GIB}


class NvmlError(Exception):
    pass


class NotSupportedError(NvmlError):
    pass


class FakeNvml:
    """Stands for the module `pynvml`: devices by name, each with its memory or the error of asking for it."""

    NVMLError = NvmlError
    NVMLError_NotSupported = NotSupportedError

    def __init__(self, devices: dict[str, SimpleNamespace | NvmlError], *, driver: bool = True) -> None:
        self.devices, self.driver, self.open = list(devices.items()), driver, False

    def nvmlInit(self) -> None:  # noqa: N802
        if not self.driver:
            raise NvmlError("driver not loaded")
        self.open = True

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open = False

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:  # noqa: N802
        return f"GPU-{handle}"

    def nvmlDeviceGetName(self, handle: int) -> str:  # noqa: N802
        return self.devices[handle][0]

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:  # noqa: N802
        memory = self.devices[handle][1]
        if isinstance(memory, NvmlError):
            raise memory
        return memory


TOLD = SimpleNamespace(total=2 * GIB, free=GIB, used=GIB)


@pytest.mark.parametrize(
    ("name", "memory", "found"),
    [
        ("NVIDIA H200", TOLD, Device("GPU-0", "NVIDIA H200", 2 * GIB, GIB)),
        ("NVIDIA GB200", TOLD, Device("GPU-0", "NVIDIA GB200", 2 * GIB, GIB)),
        ("NVIDIA GB10", NotSupportedError(), Device("GPU-0", "NVIDIA GB10", None, None, unified=True)),
        ("Some new chip", NotSupportedError(), Device("GPU-0", "Some new chip", None, None, unified=True)),
        ("NVIDIA GB10", TOLD, Device("GPU-0", "NVIDIA GB10", 2 * GIB, GIB, unified=True)),
        # an N1X tells 8 GiB, a part of what it shares with the CPU (unslothai/unsloth pull request 10283)
        ("NVIDIA N1X", TOLD, Device("GPU-0", "NVIDIA N1X", 2 * GIB, GIB, unified=True)),
        ("NVIDIA Thor", NvmlError("unknown"), Device("GPU-0", "NVIDIA Thor", None, None, unified=True)),
        ("NVIDIA H200", NvmlError("no permission"), Device("GPU-0", "NVIDIA H200", None, None)),
    ],
)
def test_what_a_device_says_of_its_memory(name: str, memory: SimpleNamespace | NvmlError, found: Device) -> None:
    """On a GB10, NVML answers "not supported" to the question for memory; its name tells as well."""
    assert nvml_device(FakeNvml({name: memory}), 0) == found


def test_nvml_is_closed_again_and_absent_without_a_driver() -> None:
    nvml = FakeNvml({"NVIDIA L4": TOLD, "NVIDIA T4": TOLD})
    assert [device.name for device in nvml_devices({"CUDA_VISIBLE_DEVICES": "1"}, nvml)] == ["NVIDIA T4"]
    assert not nvml.open
    assert nvml_devices({}, FakeNvml({"NVIDIA L4": TOLD}, driver=False)) == ()


def test_unified_memory_is_one_pool() -> None:
    machine = describe(NODE, None, (Device("GPU-1", "GB10", None, None, unified=True),), None, 20, "a")
    assert [(pool.name, pool.kind) for pool in machine.pools] == [("node[0].unified", "unified")]
    assert limits(machine, "node[0].unified") == {"MemAvailable": 10 * GIB}


def test_a_size_that_is_not_known_makes_no_pool() -> None:
    assert describe(None, None, (), GIB, 2, "a").pools == ()
    hidden = describe(NODE, None, (Device("GPU-1", "H200", None, None),), None, 2, "a")
    assert [pool.name for pool in hidden.pools] == ["node[0].host"]


@pytest.mark.parametrize(
    ("chosen", "found"),
    [
        (None, ["GPU-aa", "GPU-ab", "GPU-b"]),
        ("2,0", ["GPU-b", "GPU-aa"]),
        ("GPU-ab", ["GPU-ab"]),
        ("GPU-a,1", []),
        ("1,7,0", ["GPU-ab"]),
        ("", []),
        ("-1", []),
    ],
)
def test_cuda_visible_devices(chosen: str | None, found: list[str]) -> None:
    devices = tuple(Device(uuid, "x", GIB, GIB) for uuid in ("GPU-aa", "GPU-ab", "GPU-b"))
    assert [device.uuid for device in visible(devices, chosen)] == found


def test_this_machine_has_memory_and_a_limit_of_the_user() -> None:
    machine = detect(limit=GIB)
    main = next(pool for pool in machine.pools if pool.kind in ("host", "unified"))
    known = limits(machine, main.name)
    assert known["memory.limit"] == GIB
    assert 0 < known["MemAvailable"] < main.total_bytes
    assert machine.cores >= 1
    assert not any(is_ray(limit) for pool in machine.pools for limit in pool.limits)


def test_hidden_devices_make_no_pool() -> None:
    assert nvml_devices({"CUDA_VISIBLE_DEVICES": ""}) == ()


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [
        ("processor : 0\nflags\t\t: fpu avx2 avx512_bf16\n", True),
        ("processor : 0\nflags\t\t: fpu avx2\n", False),
        ("processor : 0\nFeatures\t: fp asimd bf16 i8mm\n", True),
        ("processor : 0\n", None),
        (None, None),
    ],
)
def test_bf16_arithmetic_is_read_from_the_flags(tmp_path: Path, cpuinfo: str | None, expected: bool | None) -> None:
    if cpuinfo is not None:
        (tmp_path / "proc").mkdir()
        (tmp_path / "proc/cpuinfo").write_text(cpuinfo)
    assert bf16_arithmetic(tmp_path) is expected
