"""The numbers in messages about memory: torch's refusal, and the kill of Ray's monitor. Bytes are integers."""

import re
from collections.abc import Sequence
from functools import cached_property

from msgspec import Struct

from headway.units import GIB, format_bytes

_UNITS = {
    "bytes": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40, "pib": 2**50,
    "eib": 2**60, "kb": 2**10, "mb": 2**20, "gb": 2**30, "tb": 2**40, "pb": 2**50, "eb": 2**60,
}  # fmt: skip
"""torch and Ray write GB for GiB in their older messages."""
_SIZE = r"(\d[\d.]*) ?([KMGTPE]i?B|bytes)"
_ASKED = re.compile(rf"(?:[Tt]r(?:ied|ying) to|[Uu]nable to) allocate (?:more than )?{_SIZE}")
_TOTAL = re.compile(rf"total capaci?ty of {_SIZE}|{_SIZE} total capacity")
_FREE = re.compile(rf"of which {_SIZE} is free|; {_SIZE} free")
_USED = re.compile(rf"this process has {_SIZE}")
_ALLOCATED = re.compile(rf"{_SIZE} is allocated by PyTorch|{_SIZE} already allocated|allocated memory {_SIZE}")
_RESERVED = re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated|{_SIZE} is reserved by PyTorch")
_RESERVED_ALL = re.compile(rf"{_SIZE} reserved in total")
_ALLOWED = re.compile(rf"{_SIZE} allowed;")
_CACHED = re.compile(rf"{_SIZE} cached\)")
"""torch before 1.4: what is reserved and not allocated."""
_LISTED = re.compile(rf"Process (\d+) has {_SIZE} memory in use")
_KILL = re.compile(r"(\d+(?:\.\d+)?)GB(?: used)? / (\d+(?:\.\d+)?)GB(?: limit)? \(([01]\.\d+)\)")
_THRESHOLD = re.compile(r"memory usage threshold of (\d\.\d+)")
_ROW = re.compile(r"(?:^|\s)(\d{1,9})\s+(\d+\.\d+)\s+(\S.{0,100})$")
_VICTIM = re.compile(r"actual memory used=(\d+\.\d+)GB")
_KILLED = re.compile(r"(?:where the task \(|Selected to kill: \()[^()]*(?:\([^()]*\)[^()]*)?\bpid=(\d{1,9}),")


def _bytes(match: re.Match[str] | None) -> int | None:
    groups = [group for group in match.groups() if group] if match else []
    return _size(groups[-2], groups[-1]) if len(groups) >= 2 else None


def _size(number: str, unit: str) -> int | None:
    try:
        return round(float(number[:20]) * _UNITS[unit.lower()])
    except (ValueError, OverflowError):
        return None


BEYOND = 16 << 40
"""Bytes that no host has: a request for more has a wrong size."""
NEAR = 0.98
"""Share of what is reserved that a process's own line has at least: the numbers are rounded."""
CONTEXT = 2 * GIB
"""Bytes that a process holds at most beside torch's allocator, as a rule: CUDA's context, libraries, NCCL."""
PIECES, MANY_PIECES = 0.05, 0.1
"""Share of what a process reserved that is not allocated: below the first it is the usual rest of a full device."""


class Refusal(Struct, frozen=True, dict=True):
    """torch's account of a refused request, in bytes; None where the text does not say.

    `spare` is reserved by this process and not allocated, `listed` what processes hold that the text names by number:
    (pid, bytes). In a container this process is one of them, because torch knows itself by another number there.
    `allowed` is a limit that the run itself set to torch.

    >>> found = refusal("Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1 GiB is free.")
    >>> found.asked, found.spare
    (2147483648, None)
    """

    asked: int | None = None
    total: int | None = None
    free: int | None = None
    used: int | None = None
    allocated: int | None = None
    spare: int | None = None
    listed: tuple[tuple[int, int], ...] = ()
    allowed: int | None = None

    @property
    def impossible(self) -> bool:
        """Whether the request alone is larger than the device, or than any host."""
        return self.asked is not None and (self.asked >= BEYOND or 0 < (self.total or 0) < self.asked)

    @property
    def reserved(self) -> int | None:
        """What torch's allocator of this process holds."""
        return None if self.allocated is None else self.allocated + (self.spare or 0)

    @cached_property
    def itself(self) -> tuple[int, int] | None:
        """This process among the listed ones: where it is no other one, all together would be more than is in use; or
        the text names no process as its own, and this one holds as much.

        >>> refusal("GPU 2 has a total capacity of 39.39 GiB of which 10.00 MiB is free. Process 4242 has 39.36 GiB "
        ...     "memory in use. Of the allocated memory 38.40 GiB is allocated by PyTorch").itself
        (4242, 42262478193)
        """
        own = self.reserved if self.used is None else self.used
        if own is None:
            return self.listed[0] if len(self.listed) == 1 else None
        alike = [each for each in self.listed if each[1] >= NEAR * own]
        nearest = min(alike, key=lambda each: each[1], default=None)
        if nearest is None or self.total is None:
            return None
        together = sum(size for _, size in self.listed) + own
        if together > self.total - (self.free or 0) + self.total // 100:
            return nearest
        return nearest if self.used is None and nearest[1] <= own + CONTEXT else None

    @property
    def held(self) -> int | None:
        """What this process holds of the device."""
        if self.used is not None:
            return self.used
        return self.reserved if self.itself is None else self.itself[1]

    @property
    def others(self) -> int:
        """What the other listed processes hold."""
        return sum(size for each in self.listed if each != self.itself for size in each[1:])

    @property
    def unlisted(self) -> int:
        """What is in use and neither this process's nor a listed one's: 0 where the text does not tell."""
        if self.held is None or self.total is None or self.free is None:
            return 0
        return max(0, self.total - self.free - self.held - self.others)

    @property
    def in_pieces(self) -> float | None:
        """Share of what is reserved that is free and in pieces; None where the request would not fit into them, or
        where they are the usual rest of a full device."""
        if self.asked is None or self.spare is None or self.spare < self.asked or not self.reserved:
            return None
        share = self.spare / self.reserved
        return share if share >= PIECES else None

    def tokens(self, vocab: int, itemsize: int = 4) -> float | None:
        """Rows of `vocab` numbers that the request is large enough for."""
        return None if self.asked is None or vocab <= 0 else self.asked / (vocab * itemsize)


def _known(size: int | None) -> int | None:
    """What a process holds; None where the driver does not know it, as in WSL, and torch prints 2^64 bytes."""
    return None if size is None or size >= BEYOND else size


def refusal(text: str) -> Refusal:
    """Read the message, of any version."""
    allocated, spare = _bytes(_ALLOCATED.search(text)), _bytes(_RESERVED.search(text) or _CACHED.search(text))
    reserved = _bytes(_RESERVED_ALL.search(text))
    if spare is None and reserved is not None and allocated is not None:
        spare = max(0, reserved - allocated)
    listed = {int(m[1][:12]): _size(m[2], m[3]) or 0 for m in _LISTED.finditer(text)}
    used = _bytes(_USED.search(text))
    return Refusal(
        _bytes(_ASKED.search(text)), _bytes(_TOTAL.search(text)), _bytes(_FREE.search(text)),
        _known(used), allocated, spare, tuple((pid, size) for pid, size in listed.items() if _known(size)),
        _bytes(_ALLOWED.search(text)),
    )  # fmt: skip


def format_request(asked: int) -> str:
    """A size that was asked for; torch gives up counting at 2^60.

    >>> format_request(1 << 60), format_request(70368744177664)
    ('more than 1 EB', '64.00 TiB')
    """
    if asked >= 1 << 60:
        return "more than 1 EB"
    return f"{asked / 2**40:.2f} TiB" if asked >= 2**40 else format_bytes(asked)


class MonitorKill(Struct, frozen=True):
    """What Ray's monitor says at a kill. Sizes in bytes; `top` are (pid, bytes, command) of the largest processes.
    `pids` are the processes that were killed; none where the text does not say.

    >>> kill = monitor_kill(["was 115.86GB / 121.69GB (0.952127)", "2657\\t36.77\\tray::FSDPTrainRayActor.train"])
    >>> kill.share, round((kill.used - kill.listed) / GIB, 2)
    (0.952127, 79.09)
    """

    used: int
    total: int
    share: float
    threshold: float | None
    top: tuple[tuple[int, int, str], ...]
    victim: int | None
    pids: tuple[int, ...] = ()

    @property
    def killed(self) -> str:
        """The command of the largest process that was killed, or of the largest where nothing says which were; empty
        where none of them is in the list."""
        return next((command for pid, _, command in self.top if not self.pids or pid in self.pids), "")

    @property
    def listed(self) -> int:
        return sum(size for _, size, _ in self.top)

    @property
    def gap(self) -> int:
        """What is in no process of the list: other processes, shared memory, and devices where memory is unified."""
        return max(0, self.used - self.listed)


def monitor_kill(lines: Sequence[str]) -> MonitorKill | None:
    """Read a kill from the lines of its message; None without the two sizes."""
    kill = next((match for line in lines if (match := _KILL.search(line))), None)
    if kill is None:
        return None
    top: dict[int, tuple[int, int, str]] = {}
    for line in lines:
        row = _ROW.search(line.replace("\t", " "))
        if row is not None and len(top) < 10:
            top.setdefault(int(row[1]), (int(row[1]), round(float(row[2]) * GIB), row[3].strip()))
    threshold = next((float(m[1]) for line in lines if (m := _THRESHOLD.search(line))), None)
    victim = next((round(float(m[1]) * GIB) for line in lines if (m := _VICTIM.search(line))), None)
    pids = tuple(int(m[1]) for line in lines if (m := _KILLED.search(line)))
    used, total = round(float(kill[1]) * GIB), round(float(kill[2]) * GIB)
    return MonitorKill(used, total, float(kill[3]), threshold, tuple(top.values()), victim, pids)


_FIELD = re.compile(
    r"['\"]?(host_used_GB|host_available_GB|used_GB|free_GB|allocated_GB|cpu_memory)['\"]?\s*[:=]\s*['\"]?([\d.]+)"
)
_HOST_FIELD = re.compile(
    r"(?<![\w.])((?:\w+/)?(?:host_used_GB|cpu_memory(?:_used)?(?:_gb)?|rss\w*|ram[_ ]us(?:ed|age)\w*))['\"]?"
    r"\s*[:=]\s*['\"]?(\d[\d.]*)[ ]?([KMGT]i?B\b)?",
    re.IGNORECASE,
)
"""Readings of host memory: slime's and Miles's, verl's `perf/cpu_memory_used_gb`, what people print of psutil's."""
_TO_GB = {"K": 1e-6, "M": 1e-3, "G": 1.0, "T": 1e3}
_ALLOCATED_GB = re.compile(r"memory allocated \(GB\)[: ]+([\d.]+)")


class Slope(Struct, frozen=True):
    """A straight line through a series: `first` and `last` in GB, `per` GB a point, `points`, and how much of the
    spread it explains (`fit`, from 0 to 1)."""

    first: float
    last: float
    per: float
    points: int
    fit: float

    @property
    def grows(self) -> bool:
        """At least five points, a rise of a fifth of the first value, and a line that explains most of it."""
        return self.points >= 5 and self.last > 1.2 * self.first and self.fit > 0.8


def series(lines: Sequence[tuple[int, str]], name: str) -> list[float]:
    """The values of one field through lines of measured memory.

    >>> series([(1, "Memory-Usage after train: {'used_GB': 40.5, 'host_used_GB': 200}")], "host_used_GB")
    [200.0]
    """
    found = []
    for _, text in lines:
        for key, value in _FIELD.findall(text):
            if key == name:
                found.append(_float(value))
        if name == "allocated_GB" and (match := _ALLOCATED_GB.search(text)):
            found.append(_float(match[1]))
    return [value for value in found if value is not None]


def host_series(lines: Sequence[tuple[int, str]]) -> list[float]:
    """The values in GB of the host memory that the most lines tell, under one name and in one unit.

    >>> host_series([(1, "step:7 - perf/cpu_memory_used_gb:301.2"), (2, "step:8 - perf/cpu_memory_used_gb:302.2")])
    [301.2, 302.2]
    >>> host_series([(1, "rss=1024MB"), (2, "RAM usage: 7"), (3, "rss=2048MB")])
    [1.024, 2.048]
    """
    found: dict[tuple[str, str], list[float]] = {}
    for _, text in lines:
        for key, value, unit in _HOST_FIELD.findall(text):
            size = _float(value.rstrip("."))
            if size is not None:
                found.setdefault((key.lower(), unit.lower()), []).append(size * _TO_GB[(unit or "G")[0].upper()])
    return max(found.values(), key=len, default=[])


def _float(text: str) -> float | None:
    try:
        return float(text[:20])
    except ValueError:
        return None


def slope(values: Sequence[float]) -> Slope | None:
    """The line of least squares through values at equal distances.

    >>> slope([10, 12, 14, 16, 18]).grows, slope([10, 18, 10, 18, 10, 18]).grows
    (True, False)
    """
    count = len(values)
    if count < 2:
        return None
    middle, mean = (count - 1) / 2, sum(values) / count
    spread = sum((index - middle) ** 2 for index in range(count))
    per = sum((index - middle) * (value - mean) for index, value in enumerate(values)) / spread
    total = sum((value - mean) ** 2 for value in values)
    left = sum((value - mean - per * (index - middle)) ** 2 for index, value in enumerate(values))
    return Slope(values[0], values[-1], per, count, 1 - left / total if total > 0 else 0.0)
