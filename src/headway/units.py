"""Bytes as text and text as bytes. Inside, bytes are integers; text exists only at the edge."""

import re
from fractions import Fraction

KIB, MIB, GIB = 2**10, 2**20, 2**30

_SCALES = {
    "": 1, "b": 1,
    "k": KIB, "kib": KIB, "m": MIB, "mib": MIB, "g": GIB, "gib": GIB, "t": 2**40, "tib": 2**40,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
}  # fmt: skip
LARGEST = 2**62
"""No size is above this, so that every one fits in 64 bits."""

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*")


def parse_bytes(text: str | int) -> int:
    """Read a size. `GiB` and `G` are 2**30, `GB` is 10**9, a bare number is bytes.

    >>> parse_bytes("1.5 GiB"), parse_bytes("2GB"), parse_bytes(4096)
    (1610612736, 2000000000, 4096)

    Raises ValueError for anything else, negative numbers and sizes above LARGEST included.
    """
    match = _SIZE.fullmatch(str(text))
    if match is None or match[2].lower() not in _SCALES:
        raise ValueError(f"{text!r} is not a size: write for example 512MiB, 1.5GiB or 2GB (GiB = 2^30, GB = 10^9)")
    # Exact, and only of numbers that Python converts: it refuses integers of more than 4300 digits.
    count = round(Fraction(match[1]) * _SCALES[match[2].lower()]) if len(match[1]) <= 100 else LARGEST + 1
    if count > LARGEST:
        raise ValueError(f"{str(text)[:20]}... is too large for a size")
    return count


def format_bytes(count: int, *, digits: int = 2) -> str:
    """Write a size in the binary unit that reads best.

    >>> format_bytes(1610612736), format_bytes(-3 * MIB), format_bytes(512)
    ('1.50 GiB', '-3.0 MiB', '512 B')
    """
    size = abs(count)
    if size >= GIB:
        return f"{count / GIB:.{digits}f} GiB"
    if size >= MIB:
        return f"{count / MIB:.1f} MiB"
    if size >= KIB:
        return f"{count / KIB:.1f} KiB"
    return f"{count} B"
