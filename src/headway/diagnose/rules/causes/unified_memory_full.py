"""The one pool of CPU and GPU ran out."""

from headway.diagnose.case import Case
from headway.diagnose.engines import PAGE_CACHE, share_advice
from headway.diagnose.evidence import Evidence, Grade
from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Claim, Rule, of_growth, of_stop
from headway.diagnose.settings import UNIFIED
from headway.units import GIB, format_bytes

STORE = 0.3
"""Share of memory that Ray's object store takes at most by default: shared memory, which is in no process either."""


ONE_POOL = (118 * GIB, 128 * GIB)
"""Sizes that devices report on machines of 128 GB for CPU and GPU (GB10 119.7 to 121.7 GiB, Thor 122.8): no CUDA
device with a memory of its own has one of them."""


ALIKE = 0.004
"""Share by which a node's size may differ from that of a machine of the table."""


def unified_machine(total: int) -> str:
    """The machine of the table whose one memory is about that large; empty where there is none."""
    from headway.facts import machines  # here, because few diagnoses need the table

    rows = (row for row in machines.table().values() if row.unified)
    return next((row.name for row in rows if abs(total - row.bytes) <= ALIKE * row.bytes), "")


def is_unified(case: Case, total: int | None) -> bool:
    """Whether a device is one pool with the CPU: the run says so, or its size is such a machine's."""
    return case.settings.unified or (total is not None and ONE_POOL[0] <= total <= ONE_POOL[1])


def _find(case: Case) -> Claim | None:
    stopped = of_stop(case, ".unified", "forecast", "fast rise", "steady rise", "near the limit", "memory pressure")
    if stopped is not None:
        return stopped
    tenant = case.first("engine-other-tenant")
    if tenant is not None and case.mechanism == "engine-exit":
        return _at_start(case, tenant)
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
    if case.mechanism == "device-allocation-failure" and total is not None:
        return _refused(case, total)
    kill = case.kill
    if kill is None and case.event is not None and case.event.kind == "kernel-oom" and case.settings.unified:
        because = "the machine that ran out is the one pool of CPU and GPU, and device memory is in no process's size"
        return Claim("supported", because, (case.event.place,))
    if (
        case.mechanism not in {"ray-memory-monitor", "kernel-oom-kill", "cgroup-oom-kill"}
        or kill is None
        or case.event is None
    ):
        return None
    machine = unified_machine(kill.total)
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


def _refused(case: Case, total: int) -> Claim | None:
    """A refused request for device memory of such a machine."""
    if case.event is None or not is_unified(case, total):
        return None
    because = f"the device's {format_bytes(total)} are the memory of CPU and GPU together"
    grade: Grade = "supported" if case.settings.unified else "open"
    return Claim(grade, because, (case.event.place,), (PAGE_CACHE,))


def _at_start(case: Case, tenant: Evidence) -> Claim | None:
    """An engine that found too little free at its start, on a machine whose page cache counts as used."""
    free, total = tenant.number("free"), tenant.number("total")
    if not is_unified(case, None if total is None else round(total * GIB)):
        return None
    numbers = (
        "" if free is None or total is None else f"{free:g} of {total:g} GiB of CPU and GPU together were free; "
    )
    because = f"{numbers}what a device of unified memory calls free leaves out the page cache"
    return Claim("supported", because, (tenant.place,), (PAGE_CACHE, *share_advice(tenant, case.seen)))


RULE = Rule(
    name="unified-memory-full",
    level="cause",
    sees="A kill for memory on a GB10 or its like, where much of the use is in no process; NV_ERR_NO_MEMORY; an "
    "engine that finds too little free at its start on such a machine.",
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
        Advice("a smaller model, or LoRA", "less in the one pool", "a smaller model learns less"),
        Advice(
            "a smaller share of the engine",
            "a smaller cache in the one pool",
            "alone it may not be enough",
            "engine-share",
        ),
        Advice("shorter answers", "smaller activations in the one pool", "long ones are cut", "shorter-sequences"),
        Advice(
            "do not raise RAY_memory_usage_threshold, nor switch the monitor off",
            "at 100 % the system stops any process, without a message of Ray",
            "the machine can hang",
            on="ray",
        ),
        Advice("offloading to the host frees nothing here", "both are the same memory", "time lost"),
    ),
    settle=(settle.MEMORY,),
    find=_find,
)
