"""A request for device memory was refused."""

from headway.diagnose.evidence import Evidence, Grade
from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Rule


def _request(evidence: Evidence) -> Grade:
    """Refused page-locked host memory is reported with the runtime's bare text too."""
    bare = "CUDA error: out of memory" in evidence.place.text and "to allocate" not in evidence.place.text
    return "supported" if bare else "proven"


def _saver(evidence: Evidence) -> Grade | None:
    text = evidence.place.text.lower()
    if "out of memory" in text or evidence.fields.get("code") == "2":
        return "proven"
    return None if "code" in evidence.fields else "open"


def _mapping(evidence: Evidence) -> Grade:
    return "proven" if "out of memory" in evidence.place.text.lower() else "supported"


RULE = Rule(
    name="device-allocation-failure",
    level="mechanism",
    tier=1,
    sees="'CUDA out of memory. Tried to allocate ...', CUresult error 2 of torch_memory_saver, cumem_allocator, "
        "NV_ERR_NO_MEMORY.",
    why="The allocator, the driver or a mapping found no pages for a request. The numbers in the text say which "
        "of: one "
    "request too large, the budget full, memory in pieces, or another process there.",
    sure="Proven by torch's text; torch_memory_saver and vLLM's cumem end the process right there without a "
        "traceback.",
    look_alikes="'cuMemCreate CUDA_ERROR_OUT_OF_MEMORY (may not be an issue' alone is benign. Ray's "
        "OutOfMemoryError is "
        "host "
    "memory. An engine's 'Decode out of memory' is its own pool. The hint about expandable_segments is constant.",
    example="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
        "79.11 GiB",
    near_miss="[torch_memory_saver.cpp] cuMemCreate CUDA_ERROR_OUT_OF_MEMORY (may not be an issue, will retry)",
    refuters=("training went on after the line",),
    advice=(
        Advice(
            "lower the tokens of a micro-batch", "less memory in forward, backward and loss",
            "more micro-batches, slower", "fewer-tokens",
        ),
        Advice(
            "lower the engine's share where it is colocated", "room for the trainer", "fewer requests at once",
            "engine-share",
        ),
    ),
    settle=(settle.MEMORY,),
    ends={
        "cuda-oom": _request, "tms-margin": "supported", "tms-fatal": _saver, "cumem": _mapping,
        "nv-no-memory": "supported", "nccl-oom": "proven",
    },
)  # fmt: skip
