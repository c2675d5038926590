"""The engine's share holds no cache."""

from headway.diagnose.case import Case
from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Claim, Rule


def _find(case: Case) -> Claim | None:
    found = case.first("engine-no-room")
    if found is None or case.mechanism not in {"engine-exit", "python-exception"} or case.has("engine-other-tenant"):
        return None
    return Claim(
        "supported", "the engine says at its start that its share leaves no room for the cache", (found.place,)
    )


RULE = Rule(
    name="engine-start-budget",
    level="cause",
    sees="'Not enough memory. Please try to increase --mem-fraction-static', 'No available memory for the cache "
    "blocks', 'To serve at least one request'.",
    why="Weights and the profiled activations take the share; what is left holds not even one request.",
    sure="Supported by the engine's own words; a device that was not free at the start shows the same.",
    look_alikes="'Decode out of memory' during a run is a full pool.",
    example="ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
    "initializing the engine.",
    near_miss="Decode out of memory. Try to lower your batch size. Try to allocate 148 tokens.",
    advice=(
        Advice(
            "raise the engine's share at start (--mem-fraction-static, gpu_memory_utilization), or lower its "
            "longest length",
            "the cache fits",
            "less for a colocated trainer",
        ),
        Advice("more tensor parallel ranks for the engine", "smaller weights a device", "fewer engines"),
    ),
    settle=(settle.NVIDIA,),
    find=_find,
)
