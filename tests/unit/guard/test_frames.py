"""Frames, from trees of files that stand for /proc and /sys, and one of this machine."""

import os
import subprocess
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.facts.machine import Machine, Pool
from headway.guard import frames as module
from headway.guard.frame import Frame, Gauge
from headway.guard.frames import FASTEST_S, SLOWEST_S, Frames, interval, name_of, role_of
from headway.guard.tree import Member, Tree

MIB, GIB = 1 << 20, 1 << 30
PAGE = os.sysconf("SC_PAGE_SIZE")
MEMINFO = """\
MemTotal:       16777216 kB
MemFree:         1000000 kB
MemAvailable:    4194304 kB
Active(file):    1048576 kB
Inactive(file):  2097152 kB
SwapTotal:       2097152 kB
SwapFree:        1048576 kB
"""
PSI = "some avg10=12.50 avg60=1.00 avg300=0.10 total=99\nfull avg10=3.25 avg60=0.00 avg300=0.00 total=9\n"
V1_MOUNTS = """\
24 22 0:25 / /dev/shm rw - tmpfs tmpfs rw
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
V2_MOUNTS = "30 23 0:27 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
FOLDER = "/tmp/ray/session_2026-11-30_02-12-37_050466_60"


class Fake:
    """A machine of files: 16 GiB with 4 GiB available, and a run whose first process is 50."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("proc/meminfo", MEMINFO)
        self.write("proc/uptime", "1000.00 1.0\n")
        self.write("proc/self/mountinfo", V2_MOUNTS)
        self.process(1, 0, "init", start=1)
        self.process(50, 1, "bash", "bash run.sh", rss=MIB)

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def process(
        self, pid: int, parent: int, name: str, command: str = "", rss: int = 0, *, start: int = 200,
        shared: int = 0, environment: str = "", flags: int = 0,
    ) -> None:  # fmt: skip
        folder = f"proc/{pid}"
        fields = f"{pid} ({name}) S {parent} {pid} {pid} 0 -1 {flags} " + "0 " * 12 + f"{start} " + "0 " * 29 + "0"
        self.write(f"{folder}/stat", fields)
        self.write(f"{folder}/statm", f"9 {rss // PAGE} {shared // PAGE} 0 0 0 0\n")
        self.write(f"{folder}/cmdline", command.replace(" ", "\0") + "\0")
        self.write(f"{folder}/environ", environment.replace(" ", "\0"))

    def v1(self, path: str, current: int, limit: int | None, cache: int = 0) -> None:
        folder = f"sys/fs/cgroup/memory/{path}".rstrip("/")
        self.write(f"{folder}/memory.usage_in_bytes", f"{current}\n")
        self.write(f"{folder}/memory.limit_in_bytes", f"{limit or 9223372036854771712}\n")
        self.write(
            f"{folder}/memory.stat", f"active_file 1\ntotal_inactive_file {cache}\ntotal_active_file {cache}\n"
        )
        self.write(f"{folder}/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
        self.write(f"{folder}/memory.failcnt", "17\n")

    def v2(self, path: str, current: int, limit: int | None, cache: int = 0) -> None:
        folder = f"sys/fs/cgroup/{path}".rstrip("/")
        self.write(f"{folder}/memory.current", f"{current}\n")
        self.write(f"{folder}/memory.max", f"{limit or 'max'}\n")
        self.write(f"{folder}/memory.stat", f"anon 5\ninactive_file {cache}\nactive_file {cache}\n")
        self.write(f"{folder}/memory.events", "low 0\nhigh 2\nmax 4\noom 1\noom_kill 1\noom_group_kill 0\n")
        self.write(f"{folder}/memory.pressure", "some avg10=9.00 avg60=0\nfull avg10=8.00 avg60=0\n")

    def frames(self, **options) -> Frames:
        return Frames(Tree(50, self.root), self.root, environment={}, **options)

    def take(self, **options) -> Frame:
        frames = self.frames(**options)
        frame = frames.take()
        frames.close()
        return frame


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    return Fake(tmp_path)


def gauges(frame: Frame) -> dict[str, Gauge]:
    found = {gauge.name: gauge for gauge in frame.gauges}
    assert len(found) == len(frame.gauges)
    return found


def test_the_node(fake: Fake) -> None:
    fake.write("proc/pressure/memory", PSI)
    fake.write("proc/vmstat", "pgfree 1\noom_kill 7\noom_kill_other 9\n")
    frame = fake.frames().take(phase="train", step=3)
    assert frame.gauges == (Gauge("node[0].host", "node", 12 * GIB, 16 * GIB, 3 * GIB),)
    assert frame.swap_used == GIB
    assert frame.pressure == {"some": 12.5, "full": 3.25}
    assert frame.events == {"node oom_kill": 7}
    assert (frame.phase, frame.step) == ("train", 3)
    assert abs(frame.t - time.time()) < 5


def test_values_are_read_anew_each_time(fake: Fake) -> None:
    frames = fake.frames()
    frames.take()
    fake.write("proc/meminfo", MEMINFO.replace("4194304", "2097152"))
    assert frames.take().gauges[0].used == 14 * GIB


def test_what_cannot_be_read_is_absent_and_not_zero(fake: Fake) -> None:
    fake.write("proc/meminfo", "MemTotal: 16777216 kB\nMemFree: 1 kB\n")
    frame = fake.take()
    assert frame.gauges == ()
    assert frame.swap_used is None
    assert (frame.pressure, frame.events) == ({}, {})


def test_v2_nested_groups_the_one_that_leaves_least_is_the_gauge(fake: Fake) -> None:
    fake.write("proc/50/cgroup", "0::/pod/box\n")
    fake.v2("pod/box", 3 * GIB, 5 * GIB, cache=GIB // 2)
    fake.v2("pod", 7 * GIB, 8 * GIB, cache=GIB // 4)
    frame = fake.take()
    assert gauges(frame)["cgroup"] == Gauge("node[0].host", "cgroup", 13 * GIB // 2, 8 * GIB, GIB // 2)
    assert frame.events == {"low": 0, "high": 2, "max": 4, "oom": 1, "oom_kill": 1, "oom_group_kill": 0}
    assert frame.pressure == {"cgroup some": 9.0, "cgroup full": 8.0}


def test_v2_container_that_sees_its_group_as_the_root(fake: Fake) -> None:
    fake.write("proc/50/cgroup", "0::/\n")
    fake.v2("", 3 * GIB, 4 * GIB)
    assert gauges(fake.take())["cgroup"] == Gauge("node[0].host", "cgroup", 3 * GIB, 4 * GIB, 0)


def test_v1_without_a_limit_shows_its_use_and_no_limit(fake: Fake) -> None:
    fake.write("proc/self/mountinfo", V1_MOUNTS)
    fake.write("proc/50/cgroup", "4:memory:/job\n0::/\n")
    fake.v1("job", 3 * GIB, None, cache=GIB)
    fake.v1("", 9 * GIB, None)
    frame = fake.take(usage=lambda path: (64 * GIB, 0, 60 * GIB))
    assert gauges(frame)["cgroup"] == Gauge("node[0].host", "cgroup", GIB, None, 2 * GIB)
    assert gauges(frame)["shm"] == Gauge("node[0].shm", "shm", 4 * GIB, 64 * GIB)
    assert frame.events == {"oom_kill": 3, "failcnt": 17}


def test_hybrid_takes_the_hierarchy_that_counts_memory(fake: Fake) -> None:
    fake.write("proc/self/mountinfo", V1_MOUNTS)
    fake.write("proc/50/cgroup", "4:memory:/a\n0::/b\n")
    fake.v1("a", GIB, 2 * GIB)
    fake.write("sys/fs/cgroup/unified/b/memory.current", "5\n")
    assert gauges(fake.take(usage=lambda path: (1, 1, 0)))["cgroup"].limit == 2 * GIB


def test_the_groups_are_those_of_the_command_and_follow_it(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.write("proc/self/cgroup", "0::/watcher\n")
    fake.write("proc/50/cgroup", "0::/one\n")
    for name, limit in (("watcher", 1), ("one", 2), ("two", 3)):
        fake.v2(name, 1, limit * GIB)
    monkeypatch.setattr(module, "_GROUPS_S", 0.0)
    frames = fake.frames()
    assert gauges(frames.take())["cgroup"].limit == 2 * GIB
    fake.write("proc/50/cgroup", "0::/two\n")
    assert gauges(frames.take())["cgroup"].limit == 3 * GIB
    (fake.root / "proc/50/cgroup").unlink()
    assert gauges(frames.take())["cgroup"].limit == 3 * GIB, "those it was in when it ended"
    frames.close()


class TestRay:
    """Ray's own count appears where a session is the run's, and sees the root of the mount alone."""

    @staticmethod
    def start_ray(fake: Fake, environment: str = "") -> None:
        fake.process(60, 50, "ray", "ray start --head", MIB, start=210)
        command = f"/x/raylet --raylet_socket_name={FOLDER}/sockets/raylet --node_id=1"
        fake.process(61, 60, "raylet", command, MIB, start=220, environment=environment)

    def test_no_session_no_gauge(self, fake: Fake) -> None:
        fake.process(61, 1, "raylet", f"/x/raylet --raylet_socket_name={FOLDER}0/sockets/raylet", start=220)
        assert "Ray" not in gauges(fake.take())

    def test_a_nested_limit_is_not_seen_by_ray(self, fake: Fake) -> None:
        fake.write("proc/50/cgroup", "0::/pod\n")
        fake.v2("pod", 7 * GIB, 8 * GIB)
        self.start_ray(fake)
        found = gauges(fake.take())
        assert found["Ray"] == Gauge("node[0].host", "Ray", 12 * GIB, int(16 * GIB * 0.95))
        assert found["cgroup"].limit == 8 * GIB

    def test_a_limit_at_the_root_of_the_mount_is(self, fake: Fake) -> None:
        fake.write("proc/50/cgroup", "0::/\n")
        fake.v2("", 7 * GIB, 8 * GIB, cache=GIB)
        self.start_ray(fake, "A=b RAY_memory_usage_threshold=0.9")
        assert gauges(fake.take())["Ray"] == Gauge("node[0].host", "Ray", 5 * GIB, int(8 * GIB * 0.9))

    def test_a_monitor_that_is_off_has_no_limit(self, fake: Fake) -> None:
        self.start_ray(fake, "RAY_memory_monitor_refresh_ms=0")
        assert "Ray" not in gauges(fake.take())

    def test_settings_that_are_no_numbers_do_not_end_the_sampler(self, fake: Fake) -> None:
        self.start_ray(fake, "RAY_memory_usage_threshold=most")
        assert gauges(fake.take())["Ray"].limit == int(16 * GIB * 0.95)

    def test_actors_are_named_and_have_roles(self, fake: Fake) -> None:
        self.start_ray(fake)
        fake.process(62, 61, "ray::Megatron", "ray::MegatronTrainRayActor.train", 2 * GIB, start=230, shared=GIB)
        fake.process(63, 61, "ray::IDLE", "ray::IDLE", 3 * MIB, start=230)
        processes = fake.take().processes
        assert [(each.name, each.role) for each in processes] == [
            ("ray::MegatronTrainRayActor.train", "trainer"),
            ("ray::IDLE", "idle worker"),
            *[(each.name, each.role) for each in processes[2:]],
        ]
        assert {(each.name, each.role) for each in processes[2:]} == {
            ("bash run.sh", "command"), ("ray", None), ("raylet", "raylet"),
        }  # fmt: skip
        assert (processes[0].rss, processes[0].shared, processes[0].start) == (2 * GIB, GIB, 230)


@pytest.mark.parametrize(
    ("command", "role"),
    [
        ("ray::SGLangEngine.generate", "engine"),
        ("sglang::scheduler_TP0", "engine"),
        ("VLLM::EngineCore", "engine"),
        ("ray::RolloutManager.generate", "rollout"),
        ("ray::_ray_internal_job_actor_raysubmit_1:JobSupervisor.run", "job"),
        ("ray::DashboardAgent", "Ray dashboard"),
        ("/x/gcs_server --log_dir=/y", "GCS"),
        ("python3 /x/ray/_private/log_monitor.py --session-dir=/y", "Ray monitor"),
        ("ray::reward", "Ray worker"),
        ("vim raylet.out", None),
        ("python train.py --engine sglang", None),
    ],
)
def test_roles(command: str, role: str | None) -> None:
    assert role_of(Member(7, 1, 1, "x", command, "child")) == role


@pytest.mark.parametrize(
    ("name", "command", "shown"),
    [
        ("python", "", "python"),
        ("bash", "bash -c sleep 1", "bash -c"),
        ("python3.11", "/usr/bin/python3.11", "python3.11"),
        ("pt_main_thread", "python train.py", "python train.py"),
        ("ray-dashboard-J", "ray-dashboard-JobHead-0 (/x)", "ray-dashboard-J"),
    ],
)
def test_names(name: str, command: str, shown: str) -> None:
    assert name_of(Member(7, 1, 1, name, command, "child")) == shown


def test_the_largest_come_first_and_ended_ones_not_at_all(fake: Fake) -> None:
    for pid, rss in ((51, 2 * MIB), (52, 9 * MIB), (53, 0)):
        fake.process(pid, 50, "python", "python x.py", rss)
    assert [(each.pid, each.rss) for each in fake.take().processes] == [(52, 9 * MIB), (51, 2 * MIB), (50, MIB)]


@pytest.mark.parametrize(("start", "counted"), [(99_950, False), (99_000, True)])
def test_a_copy_that_is_about_to_become_another_program_does_not_count(fake: Fake, start: int, counted: bool) -> None:
    """Uptime is 1000 s, which is 100,000 ticks; a copy that stays one, as a data loader does, counts."""
    fake.process(51, 50, "bash", "bash run.sh", GIB, start=start, flags=0x40)
    assert (51 in {each.pid for each in fake.take().processes}) == counted


class TestPss:
    """Reading it walks every page of a process: of the largest few, one a frame, each rarely."""

    @pytest.fixture
    def sized(self, fake: Fake) -> Fake:
        for pid in range(51, 57):
            fake.process(pid, 50, "python", "python x.py", pid * MIB)
            fake.write(
                f"proc/{pid}/smaps_rollup", f"0-1 [rollup]\nRss: {pid} kB\nPss:     {pid} kB\nPss_Anon: 1 kB\n"
            )
        return fake

    @staticmethod
    def read(frames: Frames) -> dict[int, int]:
        return {each.pid: each.pss for each in frames.take().processes if each.pss is not None}

    def test_only_the_largest_and_only_once(self, sized: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
        clock = SimpleNamespace(monotonic=lambda: self.now, time=time.time)
        self.now = 1000.0
        monkeypatch.setattr(module, "time", clock)
        frames, found = sized.frames(), []
        for _ in range(29):
            found.append(self.read(frames))
            self.now += 1.0
        assert [each for each in found if each] == [{56: 56 << 10}, {55: 55 << 10}, {54: 54 << 10}]
        self.now += 2.0
        assert self.read(frames) == {56: 56 << 10}

    def test_not_while_all_wait_for_memory(self, sized: Fake) -> None:
        sized.write("proc/pressure/memory", PSI.replace("3.25", "60.00"))
        assert self.read(sized.frames()) == {}


def test_disks_and_one_that_never_answers(fake: Fake) -> None:
    """A file system behind a network may hang; the frame must not."""
    hang = threading.Event()

    def usage(path: Path) -> tuple[int, int, int]:
        if path == Path("/nfs"):
            hang.wait(30)
            raise OSError("stale")
        return 100, 60, 30  # ten are kept for root

    frames = fake.frames(disks=(Path("/runs"), Path("/nfs")), usage=usage)
    began = time.monotonic()
    frame = frames.take()
    assert time.monotonic() - began < 0.5
    assert gauges(frame)["disk"] == Gauge("disk:/runs", "disk", 70, 100)
    hang.set()


class NvmlError(Exception):
    pass


class NotSupportedError(NvmlError):
    pass


class FakeNvml:
    """Stands for the module `pynvml`: devices by name with their memory, and what processes hold."""

    NVMLError, NVMLError_NotSupported = NvmlError, NotSupportedError

    def __init__(self, devices: list[tuple[str, object]], held: dict[int, list[tuple[int, int | None]]]) -> None:
        self.devices, self.held, self.open = devices, held, 0

    def __getattr__(self, name: str):
        answers = {
            "nvmlInit": lambda: setattr(self, "open", self.open + 1),
            "nvmlShutdown": lambda: setattr(self, "open", self.open - 1),
            "nvmlDeviceGetCount": lambda: len(self.devices),
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}",
            "nvmlDeviceGetName": lambda handle: self.devices[handle][0],
            "nvmlDeviceGetMemoryInfo": self.memory,
            "nvmlDeviceGetComputeRunningProcesses": self.processes,
            "nvmlDeviceGetGraphicsRunningProcesses": self.graphics,
        }
        return answers[name]

    def memory(self, handle: int) -> object:
        memory = self.devices[handle][1]
        if isinstance(memory, Exception):
            raise memory
        return memory

    def processes(self, handle: int) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in self.held.get(handle, [])]

    def graphics(self, handle: int) -> list[SimpleNamespace]:
        raise NotSupportedError


def memory(total: int, free: int) -> SimpleNamespace:
    return SimpleNamespace(total=total, free=free, used=0)


def test_devices_and_what_each_process_holds(fake: Fake) -> None:
    fake.process(51, 50, "python", "python x.py", MIB)
    nvml = FakeNvml(
        [("NVIDIA H100", memory(80 * GIB, 20 * GIB)), ("NVIDIA H100", NvmlError("lost"))],
        {0: [(51, 50 * GIB), (999, GIB)], 1: [(51, None)]},
    )
    frames = fake.frames(nvml=nvml)
    frame = frames.take()
    assert [gauge for gauge in frame.gauges if gauge.name == "device"] == [
        Gauge("node[0].device[0]", "device", 60 * GIB, 80 * GIB)
    ]
    held = {each.pid: each.device for each in frame.processes}
    assert held == {50: {}, 51: {"node[0].device[0]": 50 * GIB}}
    assert nvml.open == 1
    frames.close()
    assert nvml.open == 0


def test_unified_memory_has_one_pool_and_no_device_of_0_bytes(fake: Fake) -> None:
    """On a GB10, NVML answers "not supported" for the memory, but says what each process holds."""
    fake.process(51, 50, "python", "python x.py", MIB)
    frame = fake.take(nvml=FakeNvml([("NVIDIA GB10", NotSupportedError())], {0: [(51, 7 * GIB)]}))
    assert frame.gauges == (Gauge("node[0].unified", "node", 12 * GIB, 16 * GIB, 3 * GIB),)
    assert {each.pid: each.device for each in frame.processes}[51] == {"node[0].unified": 7 * GIB}


def test_a_machine_from_the_table_says_that_memory_is_unified(fake: Fake) -> None:
    machine = Machine("gb10", (Pool("node[0].unified", "unified", 16 * GIB, ()),), 20)
    assert fake.take(machine=machine).gauges[0].pool == "node[0].unified"


def test_devices_are_numbered_as_the_command_sees_them(fake: Fake) -> None:
    nvml = FakeNvml([(f"NVIDIA {n}", memory(10 * (n + 1), 1)) for n in range(3)], {})
    frames = Frames(Tree(50, fake.root), fake.root, environment={"CUDA_VISIBLE_DEVICES": "2,0"}, nvml=nvml)
    found = [(gauge.pool, gauge.limit) for gauge in frames.take().gauges if gauge.name == "device"]
    assert found == [("node[0].device[0]", 30), ("node[0].device[1]", 10)]


class TestInterval:
    """How soon the next frame comes."""

    @staticmethod
    def frame(t: float, used: int, limit: int | None = 1000) -> Frame:
        return Frame(t, (Gauge("node[0].host", "node", used, limit), Gauge("node[0].shm", "shm", 1, 10**9)))

    @pytest.mark.parametrize(
        ("before", "after", "limit", "seconds"),
        [
            (500, 500, 1000, 1.0),
            (500, 400, 1000, 1.0),
            (500, 501, 1000, 1.0),
            (500, 600, 1000, 0.2),
            (500, 900, 1000, 0.1),
            (990, 1010, 1000, 0.1),
            (1010, 1010, 1000, 1.0),
            (500, 900, None, 1.0),
        ],
    )
    def test_it_is_shorter_when_a_limit_is_near(
        self, before: int, after: int, limit: int | None, seconds: float
    ) -> None:
        assert interval(self.frame(0, before, limit), self.frame(1, after, limit)) == pytest.approx(seconds)

    def test_the_first_frame_and_a_clock_that_went_back(self) -> None:
        assert interval(None, self.frame(0, 999)) == SLOWEST_S
        assert interval(self.frame(5, 0), self.frame(4, 999)) == SLOWEST_S

    def test_a_gauge_that_is_new_has_not_moved(self) -> None:
        assert interval(Frame(0.0, ()), self.frame(1, 999)) == SLOWEST_S

    @given(st.integers(0, 10**13), st.integers(0, 10**13), st.integers(0, 10**13), st.floats(1e-3, 1e4))
    def test_it_is_always_between_its_borders(self, before: int, after: int, limit: int, seconds: float) -> None:
        found = interval(self.frame(0, before, limit), self.frame(seconds, after, limit))
        assert FASTEST_S <= found <= SLOWEST_S


def test_this_machine_and_a_process_that_grows() -> None:
    """Memory that a child takes is in its own line, in its gauge, and gone after it."""
    code = "import sys; print('a', flush=True); sys.stdin.readline(); held = bytearray(b'1') * (96 << 20);"
    code += "print('b', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        ["python3", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as child:
        tree = Tree(child.pid)
        frames = Frames(tree, disks=(Path.cwd(),))
        child.stdout.readline()
        before = frames.take()
        child.stdin.write("\n")
        child.stdin.flush()
        child.stdout.readline()
        after = frames.take()
        child.communicate()
        frames.close()
        tree.close()
    (small,), (large,) = before.processes, after.processes
    assert (small.pid, small.role, large.start) == (child.pid, "command", small.start)
    assert 90 * MIB < large.rss - small.rss < 120 * MIB
    assert {gauge.name for gauge in after.gauges} >= {"node", "disk"}
    assert all(gauge.used > 0 for gauge in after.gauges if gauge.name in ("node", "cgroup", "disk"))
