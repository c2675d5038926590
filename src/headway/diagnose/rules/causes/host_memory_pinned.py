"""Page-locked memory is used up."""

from headway.diagnose.case import Case
from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Claim, Rule


def _find(case: Case) -> Claim | None:
    found = case.first("pinned")
    if found is None or case.mechanism not in {
        "device-allocation-failure",
        "host-allocation-failure",
        "python-exception",
    }:
        return None
    failed = case.has("cuda-oom", "host-refused") or "out of memory" in case.text.lower()
    if not failed or found.place not in case.around:
        return None
    return Claim("supported", "the refused request was for page-locked host memory", (found.place,))


RULE = Rule(
    name="host-memory-pinned",
    level="cause",
    sees="'CUDA error: out of memory' or a refusal in pin_memory, cudaHostAlloc or the caching host allocator.",
    why="Pinned pages cannot be swapped and torch's cache of them is never given back by itself; the error has a "
    "CUDA name.",
    sure="Supported by the call.",
    look_alikes="A CUDA out-of-memory text with 'Tried to allocate' is the device.",
    example='RuntimeError: CUDA error: out of memory\n  File "/app/offload.py", line 3, in offload\n    buffer = '
    "tensor.cpu().pin_memory()",
    near_miss="DataLoader(pin_memory=True)\nstep 9\nThe process receives a SIGTERM.",
    advice=(
        Advice(
            "empty the host cache after saves and before sleep (torch._C._host_emptyCache())",
            "pinned buffers are given back",
            "slower next copies",
        ),
        Advice("fewer pinned copies (no pin_memory in offload)", "less locked memory", "slower transfers"),
    ),
    settle=(settle.MEMORY,),
    find=_find,
)
