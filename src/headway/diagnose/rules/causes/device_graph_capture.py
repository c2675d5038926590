"""Capturing graphs does not fit."""

from headway.diagnose.case import Case
from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Claim, Rule


def _find(case: Case) -> Claim | None:
    if case.mechanism not in ("device-allocation-failure", "engine-exit"):
        return None
    found = case.first("graph-capture")
    if found is None or not (case.has("cuda-oom", "cumem") or "out of memory" in case.text.lower()):
        return None
    if found.place not in case.around:
        return None
    return Claim("supported", "CUDA graphs were being captured when the request was refused", (found.place,))


RULE = Rule(
    name="device-graph-capture",
    level="cause",
    sees="A refused request while CUDA graphs are captured.",
    why="Each captured batch size keeps buffers in a pool of its own, beside weights and KV cache.",
    sure="Supported by the line beside it.",
    look_alikes="A capture that finished before is no reason.",
    example="Capture cuda graph failed: CUDA out of memory. Tried to allocate 512.00 MiB.",
    near_miss="Capturing cuda graphs: 100% finished in 9 s\nstep 9\ntorch.OutOfMemoryError: CUDA out of memory. "
    "Tried "
    "to "
    "allocate 2.00 GiB.\n    loss.backward()",
    advice=(
        Advice(
            "fewer CUDA graphs, or none",
            "less memory at start",
            "slower decoding",
            "engine-graphs",
        ),
        Advice(
            "lower the engine's share of the device",
            "room for the other process on the device",
            "fewer requests at once",
            "engine-share",
        ),
    ),
    settle=(settle.MEMORY,),
    find=_find,
)
