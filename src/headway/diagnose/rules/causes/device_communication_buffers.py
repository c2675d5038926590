"""Communication finds no room."""

from headway.diagnose.case import Case
from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Claim, Rule


def _find(case: Case) -> Claim | None:
    if case.mechanism != "device-allocation-failure":
        return None
    found = case.first("nccl-oom")
    if found is not None:
        return Claim("supported", "NCCL's own allocation was refused", (found.place,))
    return None


RULE = Rule(
    name="device-communication-buffers",
    level="cause",
    sees="'Failed to CUDA malloc' (or calloc), or 'Cuda failure out of memory' from NCCL.",
    why="NCCL allocates its buffers outside the training allocator, some hundred MiB for each communicator, at its "
    "first use.",
    sure="Supported: the refused request is NCCL's; that the allocator's cache left no room is the usual reason.",
    look_alikes="A NCCL error without the words out of memory is another.",
    example="NCCL WARN Failed to CUDA calloc async 4194304 bytes",
    near_miss="NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate",
    advice=(
        Advice(
            "leave room beside torch's allocator: empty its cache before new groups, and lower the engine's share",
            "buffers fit",
            "less cache",
            "engine-share",
        ),
        Advice("NCCL_BUFFSIZE smaller, fewer communicators", "smaller buffers", "slower collectives"),
    ),
    settle=(settle.MEMORY,),
    find=_find,
)
