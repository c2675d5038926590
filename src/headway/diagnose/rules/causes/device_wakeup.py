"""A paused part cannot take its memory back."""

from headway.diagnose.case import Case
from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Claim, Rule

CALLS = r"func=resume|wake_?up|\bresume(?:_memory|_kv|_weights)?\b|cumem_?allocator|onload|reload_weights"


def _find(case: Case) -> Claim | None:
    if case.mechanism != "device-allocation-failure":
        return None
    place = case.near(CALLS)
    if place is None:
        maker = case.near(r"cu_mem_create")
        return (
            Claim("open", "torch_memory_saver could not map memory, at a start or at a wake-up", (maker,))
            if maker
            else None
        )
    return Claim("supported", "the request came while a paused engine or trainer took its memory back", (place,))


RULE = Rule(
    name="device-wakeup",
    level="cause",
    sees="A refused mapping in resume, wake_up, onload or vLLM's cumem allocator.",
    why="At the switch between trainer and engine one must give back before the other takes; what stays behind "
    "(cache, contexts, fragments, late release) is missing.",
    sure="Supported by the function's name; torch_memory_saver's and cumem's maps exist for sleeping and waking "
    "alone.",
    look_alikes="cu_mem_create without resume may be the first allocation.",
    example="[torch_memory_saver.cpp] cudaError error: 2 (out of memory) file=core.cpp func=resume line=200",
    near_miss="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n    loss.backward()",
    refuters=("the engine's start fails in the same way: then it is the start's budget",),
    advice=(
        Advice(
            "lower the engine's share of the device",
            "room for the other process on the device",
            "fewer requests at once",
            "engine-share",
        ),
        Advice(
            "empty the trainer's cache before the engine wakes, and wake weights before the KV cache",
            "less lies side by side",
            "none",
        ),
    ),
    settle=(settle.MEMORY,),
    find=_find,
)
