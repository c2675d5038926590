"""The engine's share holds no cache."""

from headway.diagnose.case import Case
from headway.diagnose.engines import PAGE_CACHE, at_start, share_advice
from headway.diagnose.rules import settle
from headway.diagnose.rules.causes.unified_memory_full import is_unified
from headway.diagnose.rules.rule import Advice, Claim, Rule

TIGHT = 0.9
"""Share of a device that is free where nobody else is on it: the driver and other contexts take the rest."""


def _find(case: Case) -> Claim | None:
    if case.mechanism == "device-allocation-failure" and case.event is not None and at_start(case):
        because = "the engine was making itself ready: beside weights and cache its share leaves no room for that"
        cache = (PAGE_CACHE,) if is_unified(case, case.refusal.total) else ()
        return Claim("supported", because, (case.event.place,), cache)
    if case.mechanism not in {"engine-exit", "python-exception"}:
        return None
    tenant = case.first("engine-other-tenant")
    if tenant is not None:
        free, total = tenant.number("free"), tenant.number("total")
        if free is None or total is None or free < TIGHT * total:
            return None
        because = f"{free:g} of {total:g} GiB were free, so that nobody else held the device: the share is too large"
        return Claim("supported", because, (tenant.place,), share_advice(tenant, case.seen))
    found = case.first("engine-no-room")
    if found is None:
        return None
    cache = (PAGE_CACHE,) if case.settings.unified else ()
    return Claim(
        "supported", "the engine says at its start that its share leaves no room for the cache", (found.place,), cache
    )


RULE = Rule(
    name="engine-start-budget",
    level="cause",
    sees="'Not enough memory. Please try to increase --mem-fraction-static', 'No available memory for the cache "
    "blocks', 'To serve at least one request'; a refused request while the engine makes itself ready, as in 'out of "
    "memory occurred when warming up sampler'.",
    why="Weights and the profiled activations take the share; what is left holds not even one request. Or the share "
    "leaves too little beside it for the first samples, graphs and kernels.",
    sure="Supported by the engine's own words; a device that was not free at the start shows the same.",
    look_alikes="'Decode out of memory' during a run is a full pool.",
    example="ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
    "initializing the engine.",
    near_miss="Decode out of memory. Try to lower your batch size. Try to allocate 148 tokens.",
    advice=(
        Advice(
            "raise the engine's share at start",
            "the cache fits",
            "less for a colocated trainer",
            "raise-engine-share",
        ),
        Advice(
            "a shorter longest length of the engine",
            "one request needs less of the cache",
            "long ones are refused",
            "engine-length",
        ),
        Advice(
            "more tensor parallel ranks for the engine", "smaller weights a device", "fewer engines", "engine-ranks"
        ),
    ),
    settle=settle.DEVICE_PROCESSES,
    find=_find,
)
