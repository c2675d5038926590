"""The one pool of CPU and GPU ran out."""

from headway.diagnose.case import Case
from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Claim, Rule, of_growth, of_stop
from headway.diagnose.settings import UNIFIED
from headway.units import format_bytes

STORE = 0.3
"""Share of memory that Ray's object store takes at most by default: shared memory, which is in no process either."""


def unified_machine(total: int, tolerance: float) -> str:
    """The machine of the table whose one memory is about that large; empty where there is none."""
    from headway.facts import machines  # here, because few diagnoses need the table

    rows = (row for row in machines.table().values() if row.unified)
    return next((row.name for row in rows if abs(total - row.bytes) <= tolerance * row.bytes), "")


def _find(case: Case) -> Claim | None:
    stopped = of_stop(case, ".unified", "forecast", "fast rise", "steady rise", "near the limit", "memory pressure")
    if stopped is not None:
        return stopped
    kills = {"ray-memory-monitor", "kernel-oom-kill", "cgroup-oom-kill", "device-allocation-failure"}
    if case.mechanism in kills and (growth := of_growth(case, ".unified")) is not None:
        return growth
    refused = case.first("nv-no-memory")
    if refused is not None and case.mechanism == "device-allocation-failure":
        known = case.settings.unified or case.near(UNIFIED.pattern) is not None
        return Claim(
            "supported" if known else "open",
            "the driver got no pages, and on unified memory they are the node's",
            (refused.place,),
        )
    total = case.refusal.total
    if case.mechanism == "device-allocation-failure" and total is not None and case.event is not None:
        name = unified_machine(total, 0.03)
        if case.settings.unified or name:
            because = f"the device's {format_bytes(total)} are the memory of CPU and GPU together"
            return Claim("supported" if case.settings.unified else "open", because, (case.event.place,))
    kill = case.kill
    if (
        case.mechanism not in {"ray-memory-monitor", "kernel-oom-kill", "cgroup-oom-kill"}
        or kill is None
        or case.event is None
    ):
        return None
    machine = unified_machine(kill.total, 0.004)
    if not (case.settings.unified or machine or case.near(UNIFIED.pattern)):
        return None
    held = kill.gap if kill.top else kill.used - (kill.victim or kill.used)
    if held <= STORE * kill.total:
        return None
    what = (
        f"{format_bytes(kill.gap)} of {format_bytes(kill.used)} are in no process of Ray's list"
        if kill.top
        else (f"the victim held {format_bytes(kill.victim or 0)} of {format_bytes(kill.used)}")
    )
    where = (
        f"; the node's {format_bytes(kill.total)} are those of {machine}, whose memory is unified" if machine else ""
    )
    because = f"{what}, more than an object store takes: device memory counts as the node's{where}"
    return Claim("supported", because, (case.event.place,))


RULE = Rule(
    name="unified-memory-full",
    level="cause",
    sees="A kill for memory on a GB10 or its like, where much of the use is in no process; NV_ERR_NO_MEMORY.",
    why="CPU and GPU share one memory: weights, optimizer states and KV cache on the device count as the node's, "
    "and the list of processes (memory that is theirs alone) shows none of it.",
    sure="Supported by the gap between use and processes on a machine whose memory is unified.",
    look_alikes="On a machine with devices of their own a gap is /dev/shm, the object store or processes below "
    "the top "
    "ten.",
    example="ray.exceptions.OutOfMemoryError: 1 worker(s) were killed due to the node running low on memory. Memory "
    "on "
    "the node was 115.86GB / 121.69GB (0.952127)\nTop 10 memory users: PID\tMEM(GB)\tCOMMAND\n2657\t36.77\t"
    "ray::FSDPTrainRayActor.train\n3402\t2.73\tsglang::scheduler",
    near_miss="ray.exceptions.OutOfMemoryError: 1 worker(s) were killed due to the node running low on memory. "
    "Memory "
    "on "
    "the node was 239.00GB / 251.54GB (0.950147)\nTop 10 memory users: PID\tMEM(GB)\tCOMMAND\n2657\t36.77\t"
    "ray::FSDPTrainRayActor.train\n3402\t2.73\tsglang::scheduler",
    advice=(
        Advice(
            "a smaller model, or LoRA; shorter answers; a smaller engine share with a smaller cap",
            "less in the one pool",
            "a smaller model learns less; the share alone may not be enough",
        ),
        Advice(
            "do not raise RAY_memory_usage_threshold, nor switch the monitor off",
            "at 100 % the system stops any process, without a message of Ray",
            "the machine can hang",
        ),
        Advice("offloading to the host frees nothing here", "both are the same memory", "time lost"),
    ),
    settle=(settle.MEMORY,),
    find=_find,
)
