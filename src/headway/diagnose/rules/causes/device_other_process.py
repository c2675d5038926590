"""Another process holds the device's memory."""

from headway.diagnose.case import Case
from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Claim, Rule
from headway.units import GIB, format_bytes


def _find(case: Case) -> Claim | None:
    tenant = case.first("engine-other-tenant")
    if tenant is not None and case.mechanism == "engine-exit":
        return Claim("supported", "at its start the engine found the device in use already", (tenant.place,))
    if case.mechanism != "device-allocation-failure":
        return None
    found = case.refusal
    held = sum(size for _, size in found.others)
    if held < 2 * GIB or case.event is None:
        return None
    own = found.used or found.allocated or 0
    most = held > own if own else held > (found.total or 1 << 60) / 2
    because = f"other processes hold {format_bytes(held)} of the device, this one {format_bytes(own)}"
    return Claim("supported" if most else "open", because, (case.event.place,)) if most or held > own / 3 else None


RULE = Rule(
    name="device-other-process",
    level="cause",
    sees="torch's 'Process P has X memory in use' with large numbers, or 'Free memory on device ... less than "
    "desired'.",
    why="A colocated engine, a run that did not end, or another user is on the same device.",
    sure="Supported where the others hold more than this process.",
    look_alikes="The context of an idle colocated process is about half a GiB.",
    example="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
    "79.11 GiB of which 1.00 GiB is free. Process 811 has 52.00 GiB memory in use. Including non-PyTorch "
    "memory, this process has 26.00 GiB memory in use.",
    near_miss="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. Process 811 has 520.00 MiB "
    "memory "
    "in use. Including non-PyTorch memory, this process has 76.00 GiB memory in use.",
    advice=(
        Advice(
            "nvidia-smi: end what should not be there; for a colocated engine lower its share or let it sleep",
            "its memory is free",
            "fewer requests at once",
        ),
    ),
    settle=(settle.NVIDIA,),
    find=_find,
)
