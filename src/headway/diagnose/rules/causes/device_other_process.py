"""Another process holds the device's memory."""

import re

from headway.diagnose.case import Case
from headway.diagnose.engines import share_advice
from headway.diagnose.evidence import Evidence
from headway.diagnose.rules import settle
from headway.diagnose.rules.causes.engine_start_budget import TIGHT
from headway.diagnose.rules.causes.unified_memory_full import is_unified
from headway.diagnose.rules.rule import Advice, Claim, Rule
from headway.diagnose.text import process_of
from headway.units import GIB, format_bytes

OWN_POOLS = r"cumem|torch_memory_saver|sleep|wake"
"""Allocators of this process that torch's numbers leave out."""

MOST_NAMED, LONGEST = 4, 60
"""Processes that are named, and characters of a name."""


def _find(case: Case) -> Claim | None:
    tenant = case.first("engine-other-tenant")
    if tenant is not None and case.mechanism == "engine-exit":
        return _at_start(case, tenant)
    found = case.refusal
    if case.mechanism != "device-allocation-failure" or found.impossible:
        return None
    unlisted = 0 if is_unified(case, found.total) or found.unlisted < 2 * GIB else found.unlisted
    held, own = found.others + unlisted, found.held or 0
    if held < 2 * GIB or case.event is None:
        return None
    most = held > own if own else held > (found.total or 1 << 60) / 2
    fits = found.asked is not None and found.free is not None and found.free + held >= found.asked
    if not most and held <= own / 3 and not fits:
        return None
    because = f"{_holders(case)} {format_bytes(held)} of the device, this one {format_bytes(own)}"
    if unlisted > held / 2:
        because = (
            f"{format_bytes(held)} of the device are in use and not this process's, which holds {format_bytes(own)}"
        )
    if fits and not most:
        because += ", and without theirs the request had fitted"
    sure = most and not (unlisted > held / 2 and found.used is None and case.near(OWN_POOLS))
    return Claim("supported" if sure else "open", because, (case.event.place,))


def _holders(case: Case) -> str:
    """Who else holds memory of the device, the largest first, by number, and by name where the log has one."""
    found = case.refusal
    others = sorted((each for each in found.listed if each != found.itself), key=lambda each: -each[1])
    if len(others) == 1 and others[0][1] == found.others:
        return f"{_name(case, others[0][0])} holds"
    told = [f"{_name(case, pid)} {format_bytes(size)}" for pid, size in others[:MOST_NAMED]]
    told += [f"{len(others) - MOST_NAMED} more"] if len(others) > MOST_NAMED else []
    return f"other processes ({', '.join(told)}) hold" if told else "other processes hold"


def _name(case: Case, pid: int) -> str:
    """A process by its number, with the name that a row of nvidia-smi or a line's prefix gives it."""
    row = re.compile(rf"^\W*\d+ .*\s{pid}\s+(?:C|G|C\+G|M\+C)\s+(?P<name>\S.*?)\s+\d+ ?MiB")
    texts = (place.text for place in (*case.around, *(each.place for each in case.evidence)))
    name = next((match["name"] for text in texts if (match := row.search(text))), "")
    lines = (process_of(place.text) for place in (*case.around, *(each.place for each in case.evidence)))
    name = name or next((each.name for each in lines if each.pid == pid), "")
    return f"process {pid} ({name[-LONGEST:]})" if name else f"process {pid}"


def _at_start(case: Case, tenant: Evidence) -> Claim | None:
    """An engine that found too little free at its start."""
    free, total = tenant.number("free"), tenant.number("total")
    if free is not None and total is not None and free >= TIGHT * total:
        return None
    because = "at its start the engine found the device in use already"
    if "profiling" in tenant.place.text:
        because = "memory that is not the engine's changed while it measured: another process came, went or freed"
    unified = is_unified(case, None if total is None else round(total * GIB))
    return Claim("open" if unified else "supported", because, (tenant.place,), share_advice(tenant, case.seen))


RULE = Rule(
    name="device-other-process",
    level="cause",
    sees="torch's 'Process P has X memory in use' with large numbers, or 'Free memory on device ... less than "
    "desired'.",
    why="A colocated engine, a run that did not end, or another user is on the same device.",
    sure="Supported where the others hold more than this process. What is in use and in no listed process counts as "
    "theirs.",
    look_alikes="In a container torch knows itself by another number, so that 'Process P has ...' is this "
    "process where "
    "both together would be more than is in use. The context of an idle colocated process is about half a GiB.",
    example="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
    "79.11 GiB of which 1.00 GiB is free. Process 811 has 52.00 GiB memory in use. Including non-PyTorch "
    "memory, this process has 26.00 GiB memory in use.",
    near_miss="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. Process 811 has 520.00 MiB "
    "memory "
    "in use. Including non-PyTorch memory, this process has 76.00 GiB memory in use.",
    advice=(
        Advice(
            "end what should not be on the device; where it is a colocated engine, lower its share or let it sleep",
            "its memory is free",
            "fewer requests at once",
            "engine-share",
        ),
    ),
    settle=settle.DEVICE_PROCESSES,
    find=_find,
)
