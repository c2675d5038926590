"""From a line to evidence: one file per origin, and the table of all of them."""

import re
from collections.abc import Iterator

from headway.diagnose.evidence import Evidence, Line
from headway.diagnose.readers import (
    blackbox,
    cgroups,
    ends_well,
    engines,
    nccl,
    numerics,
    own_growth,
    platforms,
    ray,
    system,
    torch,
    tracebacks,
)
from headway.diagnose.sign import Sign
from headway.diagnose.text import without_prefix

SIGNS: tuple[Sign, ...] = (
    *ray.SIGNS, *torch.SIGNS, *nccl.SIGNS, *engines.SIGNS, *system.SIGNS, *platforms.SIGNS, *cgroups.SIGNS,
    *blackbox.SIGNS, *ends_well.SIGNS, *numerics.SIGNS, *own_growth.SIGNS,
)  # fmt: skip
SERIES = (
    b"Memory-Usage", b"cpu_memory", b"memory allocated (GB)", b"rss=", b"rss_gb", b"rss_mb", b"RSS: ", b"RAM usage",
    b"ram_used",
)  # fmt: skip
"""Lines of measured memory, which are kept as series."""
NEEDLES: tuple[str, ...] = tuple(
    sorted({needle for sign in SIGNS for needle in sign.needles} | set(tracebacks.NEEDLES)
           | {mark.decode().lower() for mark in SERIES})
)  # fmt: skip


CONSTANT = re.compile(
    r"(?:This can happen if|There are some potential root causes|Some common causes include|"
    r"Possible reasons include|It might be caused by|This may be caused by)\b(?:.*?\(3\)[^.]*\.?|.*)|"
    r"\(\d\) (?:the process (?:is|was) killed by|ray stop --force|the worker (?:is )?crashed|SIGKILL by the user|"
    r"invalid memory access from raylet|other errors).*?(?=\(\d\)|$)",
    re.IGNORECASE,
)
"""Lists of what may have happened, which a program prints whatever happened: no evidence for any of it."""


REFUSALS = ("cuda-oom", "host-refused", "host-refused-torch")
"""Texts of allocators, which are none where the user's own code wrote them."""


def read_line(line: Line) -> Iterator[Evidence]:
    """Everything that a line says."""
    plain = CONSTANT.sub("", without_prefix(line.text))
    lowered = plain.lower()
    item = tracebacks.read_traceback(line) or tracebacks.read_error(line)
    told = item is not None and tracebacks.raised_by_user(item)
    for sign in SIGNS:
        found = sign.read(line, plain, lowered)
        if found is not None and not (told and sign.kind in REFUSALS):
            yield found
    if item is not None:
        yield item


def says(kind: str) -> str:
    """What a kind of evidence proves, and what it does not."""
    if kind.startswith("python-"):
        return "an exception of Python; its text carries the reason"
    return next((sign.says for sign in SIGNS if sign.kind == kind), kind)
