"""Free memory lies in pieces."""

from headway.diagnose.case import Case
from headway.diagnose.numbers import MANY_PIECES
from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Claim, Rule
from headway.units import format_bytes


def _find(case: Case) -> Claim | None:
    found = case.refusal
    share = found.in_pieces
    if case.mechanism != "device-allocation-failure" or share is None or case.event is None:
        return None
    spare, asked = format_bytes(found.spare or 0), format_bytes(found.asked or 0)
    because = (
        f"{spare} are reserved and not allocated, {100 * share:.0f} % of what this process holds and more than the "
        f"{asked} that were asked for"
    )
    return Claim("supported" if share >= MANY_PIECES else "open", because, (case.event.place,))


RULE = Rule(
    name="device-fragmentation",
    level="cause",
    sees="Reserved and unallocated memory that is larger than the request and a real share of what is reserved.",
    why="Blocks of changing sizes cut the cache in pieces that no request fits; torch_memory_saver forbids the "
    "segments that would help.",
    sure="Supported by the message's own numbers. torch's hint about fragmentation stands in every message and is no"
    " evidence.",
    look_alikes="A small unallocated rest is a full device: every run has some per cent of it, and a request of "
    "some MiB "
    "is smaller than it.",
    example="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
    "79.11 GiB of which 1.00 GiB is free. Of the allocated memory 60.00 GiB is allocated by PyTorch, and 14.20 "
    "GiB is reserved by PyTorch but unallocated.",
    near_miss="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. Of the allocated memory 76.00 "
    "GiB "
    "is allocated by PyTorch, and 312.00 MiB is reserved by PyTorch but unallocated. If reserved but "
    "unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True",
    advice=(
        Advice(
            "expandable_segments:True in torch's allocator settings, where neither torch_memory_saver nor unified "
            "memory is in use",
            "pieces grow together",
            "not allowed under torch_memory_saver; hurts on GB10",
            "allocator",
        ),
        Advice("max_split_size_mb, or empty_cache at phase borders", "fewer pieces", "some time"),
    ),
    settle=(settle.MEMORY,),
    find=_find,
)
