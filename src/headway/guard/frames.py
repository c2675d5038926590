"""Takes frames: where memory is at this moment, by every counter that may end the run, and who holds it."""

import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from headway.errors import InputError
from headway.facts import ray_memory
from headway.facts.found import NodeMemory, as_ray_counts
from headway.facts.machine import Machine
from headway.facts.probe import ROOT
from headway.guard.frame import Frame, Gauge, ProcessUse, seconds_left
from headway.guard.gauges import Devices, Disks, Groups, Level, Node, Usage, tightest
from headway.guard.read import YOUNG_TICKS, ProcessFiles
from headway.guard.tree import Member, Tree

SLOWEST_S, FASTEST_S = 1.0, 0.1
"""The longest and the shortest time between two frames."""
FRAMES_TO_LIMIT = 20
"""How many frames there should be, at the present pace, before a gauge is at its limit."""
THRASHING = 5.0
"""Per cent of time in which all tasks wait for memory (PSI "full"): from there on no process's lock is waited for."""
PSS_EVERY_S, PSS_OF = 30.0, 3
"""Pss and the limits of their own are read of the largest few, Pss of each no more often than that."""
_SLOW_S = 5.0
"""How often the driver is asked what each process holds: it takes a millisecond per device."""
_GROUPS_S = 30.0
"""How often it is looked whether the command is in other control groups than before."""
_SHARE = 1 / 200
"""Of one core, what looking for processes may take: where there are thousands, it is done less often."""


def interval(previous: Frame | None, now: Frame) -> float:
    """In how many seconds the next frame should be taken: 1 s, and less when a gauge moves fast towards its limit.

    >>> before, after = (Frame(t, (Gauge("node[0].shm", "shm", used, 1000),)) for t, used in ((0.0, 100), (1.0, 300)))
    >>> interval(before, after)  # 700 are left and 200 go each second, so it is full in 3.5 s
    0.175
    """
    if previous is None:
        return SLOWEST_S
    return max(FASTEST_S, min(SLOWEST_S, seconds_left(previous, now) / FRAMES_TO_LIMIT))


class Frames:
    """Takes frames of a tree of processes. Close it at the end.

    `machine` says whether memory is unified, where the driver does not; `disks` are folders whose file systems
    matter. `nvml` stands for the module `pynvml`, `usage` for `shutil.disk_usage`. Of a process, `shared` has the
    resident pages of files and shared memory, and `pss` is only in the frame in which it was read.
    """

    def __init__(
        self,
        tree: Tree,
        root: Path = ROOT,
        machine: Machine | None = None,
        *,
        disks: Sequence[Path] = (),
        environment: Mapping[str, str] = os.environ,
        nvml: Any = None,
        usage: Usage = shutil.disk_usage,
    ) -> None:
        self._tree, self._root, self._environment = tree, root, environment
        self._files = ProcessFiles(root)
        self._devices = Devices(environment, nvml) if root == ROOT or nvml is not None else None
        on_nodes = self._devices is not None and self._devices.are_nodes
        unified = machine.unified if machine is not None else self._devices is not None and self._devices.unified
        self._pool = "node[0].unified" if unified else "node[0].host"
        self._node = Node(root, device_nodes=on_nodes)
        self._groups = Groups(tree.root_pid, root)
        self._disks = Disks(disks, root, usage)
        self._disks.gauges(wait_s=0.3)
        self._ray: tuple[tuple[str, ...], ray_memory.RayMemory] = ((), ray_memory.RayMemory())
        self._held: dict[int, dict[str, int]] = {}
        self._due = dict.fromkeys(("groups", "held", "tree", "pss"), 0.0)
        self._due["groups"] = time.monotonic() + _GROUPS_S
        self._pss_read: dict[int, float] = {}

    def take(self, phase: str | None = None, step: int | None = None) -> Frame:
        """What is so now, in `phase` of `step`."""
        pressure = self._node.pressure() | self._groups.pressure()
        calm = max(pressure.get("full", 0.0), pressure.get("cgroup full", 0.0)) < THRASHING
        self._look_for_processes(calm)
        self._look_for_groups()
        memory, levels = self._node.memory(), self._groups.levels()
        gauges = (
            *self._memory_gauges(memory, levels),
            *([] if self._devices is None else self._devices.gauges()),
            *self._disks.gauges(),
        )
        events = self._groups.events()
        kills = self._node.oom_kills()
        if kills is not None:
            events["node oom_kill"] = kills
        swap = None if memory is None else memory.swap_total - memory.swap_free
        return Frame(time.time(), gauges, self._processes(calm), phase, step, pressure, events, swap)

    def close(self) -> None:
        """Let descriptors and the driver go; the tree is the caller's."""
        self._node.close()
        self._groups.close()
        if self._devices is not None:
            self._devices.close()

    # -- gauges

    def _memory_gauges(self, memory: NodeMemory | None, levels: tuple[Level, ...]) -> Iterator[Gauge]:
        if memory is not None:
            yield Gauge(self._pool, "node", memory.used, memory.total, self._node.cache)
        level = tightest(levels)
        if level is not None:
            yield Gauge(self._pool, "cgroup", level.used, level.limit, level.cache)
        if memory is not None and self._tree.sessions:
            total, used = as_ray_counts(memory, self._groups.at_the_root(levels))
            for limit in self._ray_settings().limits(total):
                yield Gauge(self._pool, "Ray", used, limit.bytes)
        shm = self._disks.shm()
        if shm is not None:
            yield shm

    def _ray_settings(self) -> ray_memory.RayMemory:
        """What the raylet was told of memory, or this process where the raylet does not show it."""
        sessions, settings = self._ray
        if sessions != self._tree.sessions:
            raylets = [member.pid for member in self._tree.members if member.name == "raylet"]
            told = self._files.environment(raylets[-1]) if raylets else {}
            try:
                settings = ray_memory.from_environment(told or self._environment)
            except InputError:  # Ray itself would not have started with it
                settings = ray_memory.RayMemory()
            self._ray = (self._tree.sessions, settings)
        return settings

    def _look_for_groups(self) -> None:
        if time.monotonic() >= self._due["groups"]:
            self._due["groups"] = time.monotonic() + _GROUPS_S
            self._groups.find()

    # -- processes

    def _look_for_processes(self, calm: bool) -> None:
        began = time.monotonic()
        if began < self._due["tree"]:
            return
        self._tree.refresh(titles=calm)
        ended = time.monotonic()
        self._due["tree"] = ended + max(0.9 * SLOWEST_S, (ended - began) / _SHARE)

    def _processes(self, calm: bool) -> tuple[ProcessUse, ...]:
        held = self._held_of_devices()
        resident = []
        for member in self._tree.members:
            use = self._files.resident(member.pid)
            if use is not None and use[0] and not (member.forked and self._is_young(member)):
                resident.append((use, member))
        resident.sort(key=lambda each: -each[0][0])
        pss = self._pss([member.pid for _, member in resident[:PSS_OF]]) if calm else {}
        walls = {member.pid: self._files.wall(member.pid) for _, member in resident[:PSS_OF]}
        return tuple(
            ProcessUse(
                pid=member.pid,
                start=member.start,
                name=name_of(member),
                rss=rss,
                shared=shared,
                role=role_of(member),
                pss=pss.get(member.pid),
                device=held.get(member.pid, {}),
                wall=walls.get(member.pid),
            )
            for (rss, shared), member in resident
        )

    def _is_young(self, member: Member) -> bool:
        """A copy that will be another program in a moment: what it seems to hold is its parent's."""
        return self._files.uptime_ticks() - member.start < YOUNG_TICKS

    def _held_of_devices(self) -> dict[int, dict[str, int]]:
        now = time.monotonic()
        if self._devices is not None and now >= self._due["held"]:
            self._due["held"] = now + _SLOW_S
            self._held = self._devices.processes()
        return self._held

    def _pss(self, largest: list[int]) -> dict[int, int]:
        """Pss of one of the largest whose turn it is. Reading takes a thousandth of a core at most, however large."""
        began = time.monotonic()
        turn = [pid for pid in largest if began - self._pss_read.get(pid, -PSS_EVERY_S) >= PSS_EVERY_S]
        if not turn or began < self._due["pss"]:
            return {}
        value = self._files.proportional(turn[0])
        ended = time.monotonic()
        self._pss_read = {pid: self._pss_read[pid] for pid in largest if pid in self._pss_read} | {turn[0]: ended}
        self._due["pss"] = ended + max(SLOWEST_S, 1000 * (ended - began))
        return {} if value is None else {turn[0]: value}


_INTERPRETERS = re.compile(r"^(?:python|pypy|bash|sh|dash|zsh|perl|node)[\d.]*$")


def name_of(member: Member) -> str:
    """What a process calls itself: its title, its program, or for an interpreter what it runs.

    >>> def named(name, command):
    ...     return name_of(Member(7, 1, 1, name, command, "child"))
    >>> named("ray::Trainer.tr", "ray::Trainer.train"), named("python3", "python3 -u /app/train.py --lr 1")
    ('ray::Trainer.train', 'python3 train.py')
    >>> named("python3", "python3 -m torch.distributed.run x.py"), named("raylet", "/ray/raylet --node_id=1")
    ('python3 -m torch.distributed.run', 'raylet')
    """
    words = member.command.split()
    if not words:
        return member.name
    if "::" in words[0]:
        return " ".join(words)[:80]
    program = os.path.basename(words[0])
    if not _INTERPRETERS.match(program):
        return member.name
    for at, word in enumerate(words[1:], start=1):
        if word == "-m" and at + 1 < len(words):
            return f"{program} -m {words[at + 1]}"[:80]
        if word == "-c":
            return f"{program} -c"
        if not word.startswith("-"):
            return f"{program} {os.path.basename(word)}"[:80]
    return program


_ROLES = (
    (re.compile(r"^(?:\S*/)?raylet "), "raylet"),
    (re.compile(r"^(?:\S*/)?gcs_server "), "GCS"),
    (re.compile(r"^ray::IDLE"), "idle worker"),
    (re.compile(r"/ray/dashboard/|^ray-dashboard|^ray::(?:Dashboard|RuntimeEnv)Agent"), "Ray dashboard"),
    (re.compile(r"/ray/_private/log_monitor\.py|/ray/autoscaler/_private/monitor\.py"), "Ray monitor"),
    (re.compile(r"/bin/ray job submit|^ray::\S*JobSupervisor"), "job"),
    (re.compile(r"^(?:ray::)?(?:\w*SGLang\w*|\w*VLLM\w*|\w*EngineCore|sglang|vLLM)", re.IGNORECASE), "engine"),
    (re.compile(r"^ray::\w*Train\w*", re.IGNORECASE), "trainer"),
    (re.compile(r"^ray::\w*(?:RolloutManager|RolloutWorker)"), "rollout"),
    (re.compile(r"^ray::"), "Ray worker"),
)


def role_of(member: Member) -> str | None:
    """What a process is of the run, by its command line or title; None where that says nothing.

    >>> role_of(Member(7, 1, 1, "ray::MegatronTr", "ray::MegatronTrainRayActor.train", "child"))
    'trainer'
    """
    if member.sign == "root":
        return "command"
    return next((role for pattern, role in _ROLES if pattern.search(member.command)), None)
