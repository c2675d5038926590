"""Allocations that fail: how they are told from other errors, and what they asked for."""

import re

import torch

SIGNS = (
    "DefaultCPUAllocator", "CUDA out of memory", "CUDA error: out of memory", "std::bad_alloc",
    "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED",
)  # fmt: skip
"""How the text of a plain RuntimeError says that memory ran out."""

_ASKED = re.compile(r"(?:[Tt]ried to|Unable to) allocate ([\d.]+) ?(bytes|[KMGTPE]iB)\b")


def out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed: Python and numpy have a type for it, CUDA one of its own, torch's CPU none.

    >>> out_of_memory(MemoryError()), out_of_memory(RuntimeError("shape mismatch"))
    (True, False)
    """
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in SIGNS)


def asked_bytes(error: BaseException) -> int | None:
    """The bytes that a failed allocation asked for; None where its text does not say.

    >>> asked_bytes(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes."))
    4096
    >>> asked_bytes(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has ...")) >> 20
    20
    """
    found = _ASKED.search(str(error))
    return None if found is None else round(float(found[1]) * 1024 ** "bKMGTPE".index(found[2][0]))


def first_line(error: BaseException) -> str:
    """What an error says, in one line."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__
