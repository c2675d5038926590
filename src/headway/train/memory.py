"""Process-wide settings of the C allocator, so that resident memory is what the live tensors hold, and no more.

torch asks the C library for blocks aligned to 64 bytes. glibc before 2.38 serves such a request from a hole that is
up to 96 bytes larger and gives the rest to small objects, so that a hole that a tensor left never again holds a
tensor of the same size (glibc bug 14581): the heap grows with every block of the model and from one micro-batch to
the next.
"""

import ctypes
import sys

_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8  # from malloc.h
MMAP_THRESHOLD = 1 << 17
"""Blocks of at least this size are mapped on their own and go back to the system when they are freed.

It is where glibc starts, but glibc raises it up to 32 MiB as blocks are freed, unless it is set. SmolLM2-135M with
LoRA in micro-batches of 512 tokens: peak 1,644 MiB and rising from batch to batch by glibc's rule, 1,090 MiB and
rising with 1 MiB, 1,019 MiB and flat with 256, 128 and 64 KiB. The price is page faults: 9 CPU seconds a batch
instead of 6 on a virtual machine where they are slow. Turning glibc's caches of small pieces off costs no time, but
still peaks 7 % above the live tensors without gradient checkpointing, and needs the process to start anew.
"""


def configure() -> None:
    """Map large blocks on their own, and keep one heap for all threads. Call it before tensors exist; glibc only."""
    libc = _glibc()
    if libc is not None:
        libc.mallopt(_M_MMAP_THRESHOLD, MMAP_THRESHOLD)
        libc.mallopt(_M_ARENA_MAX, 1)


def trim() -> None:
    """Give freed memory of the heap back to the system; glibc only."""
    libc = _glibc()
    if libc is not None:
        libc.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "malloc_trim") and hasattr(libc, "mallopt") else None
