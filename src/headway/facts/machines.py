"""Machines by name, from the built-in table: `gb10`, `8xh100-80`, `2x8xh200`, `cpu-64gib`."""

import csv
import re
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from importlib import resources

from msgspec import Struct
from msgspec.structs import replace

from headway.errors import InputError
from headway.facts.machine import Limit, Machine, Pool, ray_limits
from headway.units import GIB, format_bytes, parse_bytes

LARGEST_COUNT = 10_000
"""No name asks for more nodes or devices than this: a slip of the keyboard would fill the memory with pools."""
LARGEST_SIZE = 1 << 50
"""No device or host has more memory than this, in bytes."""

_SHAPE = re.compile(r"(?:(?:(\d+)x)?(\d+)x)?([a-z0-9].*)")
_ALONE = re.compile(r"()()(.*)")
_BEHIND = re.compile(r"([a-z0-9].*?)[x:](\d{1,4})")
_CPU = re.compile(r"cpu(\d+)(?:gib|gb|g)")
_SIZED = re.compile(r"\d+(?:\.\d+)?(?:gib|gb|g)")
"""A device known by nothing but its memory."""
_APPLE = re.compile(r"(?:apple|mac(?:book|studio|mini)?(?:pro|air)?)?(m[1-9](?:pro|max|ultra)?)?(\d+(?:gib|gb|g))?")
_AROUND = re.compile(r"(?:nvidia|geforce|tesla|amd|instinct)[-_\s]*|[-_\s]*(?:sxm\d?|pcie|hbm\d?e?)(?=$|[-_\s])")
"""Words around a name that tell of its maker and its form, and nothing of its memory."""
_SEPARATORS = re.compile(r"[-_\s]")
"""What spellings of one name differ in: RTX 4090, rtx-4090, rtx4090."""


class Row(Struct, frozen=True):
    """One device of the table, or one machine that is a single pool.

    `bytes` is what CUDA reports as the device's memory, or MemTotal of a unified machine. `size` is the number on
    the box in GB. `host_bytes` is the host memory that the product fixes for each `host_devices` devices, else 0.
    `floor_bytes` and `floor_upper` are of the unified memory, or of the host's.

    >>> row = table()["h100-80"]
    >>> row.product, f"{row.bytes / 2**30:.2f} GiB"
    ('NVIDIA H100 80GB', '79.11 GiB')
    """

    name: str
    size: int
    product: str
    bytes: int
    unified: bool
    cores: int
    host_bytes: int
    host_devices: int
    floor_bytes: int
    floor_upper: int
    source: str

    def spellings(self) -> tuple[str, ...]:
        """The names that mean this row, the table's own first: with or without the size on the box, and its unit."""
        base = self.name.removesuffix(f"-{self.size}")
        full = f"{base}-{self.size}"
        long = (self.name, full, f"{full}gb", f"{full}g")
        short = [name.removeprefix("rtx") for name in long if re.match(r"rtx\d{4}", name)]
        return (*long, *short, *_ALIASES.get(self.name, ()))


_ALIASES = {
    "gb10": ("dgx-spark", "spark"), "rtx6000-ada": ("rtx-ada-6000", "6000-ada"),
    "rtx-pro-6000": ("pro-6000", "rtx-pro-6000-blackwell"),
    "a6000": ("rtx-a6000",), "h100-94": ("h100-nvl",), "mi300x": ("mi300",), "mi250x": ("mi250",),
    "a4000": ("rtx-a4000",), "a5000": ("rtx-a5000",), "rtx4060-ti-16": ("rtx4060-ti", "4060-ti"),
    "rtx5060-ti-16": ("rtx5060-ti", "5060-ti"), "jetson-thor": ("agx-thor", "jetson-agx-thor", "thor"),
    "jetson-orin-64": ("agx-orin", "jetson-agx-orin", "jetson-orin"), "rx7900xtx": ("7900xtx", "radeon-rx7900xtx"),
    "rx9070xt": ("9070xt",), "strix-halo": ("ryzen-ai-max", "ryzen-ai-max-395", "ai-max-395", "ryzen-ai-max+-395"),
}  # fmt: skip
_PLAIN = {"h100": "h100-80", "a100": "a100-80", "h800": "h800-80", "a800": "a800-80", "v100": "v100-16",
          "gh200": "gh200-96"}  # fmt: skip
"""Devices that are made in several sizes, as people call them, and the one that is meant: of V100 the smaller one."""


@cache
def table() -> dict[str, Row]:
    """The rows by name."""
    text = resources.files("headway.facts").joinpath("tables/machines.csv").read_text()
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return {row["name"]: _from_row(row) for row in rows}


def _from_row(row: Mapping[str, str]) -> Row:
    def number(key: str) -> int:
        return int(row[key] or 0)

    return Row(
        name=row["name"], size=number("size"), product=row["product"], bytes=number("bytes"),
        unified=row["unified"] == "yes", cores=number("cores"), host_bytes=number("host_bytes"),
        host_devices=number("host_devices"), floor_bytes=number("floor_bytes"), floor_upper=number("floor_upper"),
        source=row["source"],
    )  # fmt: skip


@cache
def _by_spelling() -> dict[str, Row]:
    rows = table()
    found = {_SEPARATORS.sub("", spelling): row for row in rows.values() for spelling in row.spellings()}
    return {**{plain: rows[name] for plain, name in _PLAIN.items()}, **found}


def _row(kind: str) -> Row | None:
    """The row of a device's plain name: of the table, of a bare size, or of a Mac with its memory."""
    return _by_spelling().get(kind) or _sized(kind) or _apple(kind)


def _sized(kind: str) -> Row | None:
    """A device that is known by its memory alone."""
    if not _SIZED.fullmatch(kind) or not 0 < (size := parse_bytes(kind)) <= LARGEST_SIZE:
        return None
    name = f"{size // GIB}gib" if size % GIB == 0 else kind
    return _made(name, f"a device of {format_bytes(size)}", size, source="given as the machine")


def _apple(kind: str) -> Row | None:
    """A Mac, whose CPU and GPU share one memory; its size on the box is what the system reports.

    The floor is what macOS was taken to hold with a few programs open, not measured.
    """
    found = _APPLE.fullmatch(kind)
    if found is None or found[2] is None or kind[0].isdigit():
        return None
    size = parse_bytes(re.sub("g[ib]*$", "gib", found[2]))
    if not 0 < size <= LARGEST_SIZE:
        return None
    about = f"Apple {found[1].upper() if found[1] else 'silicon'} with {format_bytes(size)}"
    chip = re.sub(r"^(m\d)(?=[a-z])", r"\1-", found[1] or "mac")
    name = f"{chip}-{size // GIB}gib"
    return _made(name, about, size, floor=(size // 16, size // 4), source="the memory on the box")


def _made(name: str, product: str, size: int, *, floor: tuple[int, int] = (0, 0), source: str) -> Row:
    return Row(
        name=name, size=size // GIB, product=product, bytes=size, unified=bool(floor[1]), cores=0, host_bytes=0,
        host_devices=0, floor_bytes=floor[0], floor_upper=floor[1], source=source,
    )  # fmt: skip


def names() -> tuple[str, ...]:
    """The names of the table, by size; beside them, `12gib` is a device by its memory alone, `mac-64gib` or
    `m4-max-64gib` a Mac, and `cpu-64gib` a machine without devices."""
    return tuple(sorted(table(), key=lambda name: (table()[name].bytes, name)))


def by_name(name: str) -> Machine:
    """The machine of a name in any case. InputError with the nearest names where there is none.

    `<devices>x` and `<nodes>x<devices>x` before a device's name make a node, or nodes, of several; `x<devices>`
    behind it too. A host pool has
    limits only where the product fixes the host's memory; `with_host` sets it. A unified machine has Ray's limit
    beside its own; `Machine.without_ray` takes it off.

    >>> by_name("GB10").pool("node[0].unified").lowest.name
    'Ray 0.95'
    >>> by_name("2x8xH100-80").device_count, by_name("2x8xh100-80").nodes
    (16, 2)
    >>> by_name("b200x8").device_count
    8
    """
    plain = _plain(name)
    if (why := _no_name(name.strip(), plain)) is not None:
        raise InputError(f"machine {name!r}: {why}")
    match = _parts(plain)
    row = _row(match[3]) if match else None
    if match is not None and row is not None:
        nodes, devices = int(match[1] or 1), int(match[2] or 1)
        _check_counts(name, nodes, devices)
        return _unified(row, nodes, devices, name) if row.unified else _discrete(row, nodes, devices)
    cpu = _CPU.fullmatch(plain)
    if cpu is not None and 0 < int(cpu[1]) <= LARGEST_SIZE // GIB:
        return _cpu(int(cpu[1]) * GIB, f"cpu-{int(cpu[1])}gib")
    raise InputError(f"machine {name!r}: is not in the table; {_nearest(match[3] if match else plain)}")


def _no_name(name: str, plain: str) -> str | None:
    """What is wrong with what stands where a machine's name should."""
    if name.startswith("-"):
        return "begins with a minus; several devices are 8xh100, or 2x8xh100 of two nodes"
    if re.fullmatch(r"\d+(?:\.\d+)?", plain) and plain not in _by_spelling():
        return f"is a number without a unit; a device with so much memory is {plain}GiB, and two of them 2x{plain}GiB"
    if re.fullmatch(r"(?:\d+x)*0+(?:\.0+)?(?:gib|gb|g)", plain):
        return "has no memory; give what a device has, such as 12GiB"
    apple = _APPLE.fullmatch(plain)
    if apple is not None and plain and apple[2] is None and plain not in _by_spelling():
        return f"is a Mac without its memory, which is sold in several sizes; add it, such as {name}-64gib"
    return None


def is_apple(machine: Machine) -> bool:
    """Whether a machine of `by_name` is a Mac, on which nothing of CUDA runs.

    >>> is_apple(by_name("m4-max-64gib")), is_apple(by_name("gb10"))
    (True, False)
    """
    return machine.unified and re.match(r"(?:mac|m[1-9](?:-\w+)?)-\d+gib$", machine.name) is not None


def _parts(plain: str) -> re.Match[str] | None:
    """Nodes, devices and the device of a plain name; 7900xtx is a device, and no 7,900 of something."""
    return (_ALONE if plain in _by_spelling() else _SHAPE).fullmatch(plain)


def _plain(name: str) -> str:
    """A name without what only tells it apart in writing, and with its count in front."""
    plain = _SEPARATORS.sub("", _AROUND.sub("", name.lower().replace("*", "x").replace("\u00d7", "x")))
    behind = _BEHIND.fullmatch(plain)
    return f"{behind[2]}x{behind[1]}" if behind is not None and behind[1] in _by_spelling() else plain


def said(name: str) -> tuple[str, ...]:
    """What to say of a name that is taken for one of several sizes, or for a part of a card.

    >>> said("8xH100"), said("8xh100-80")
    (('machine 8xH100: h100 is taken to be the one of 80 GB, h100-80',), ())
    """
    match = _parts(_plain(name))
    kind = match[3] if match else ""
    if kind in _PLAIN:
        taken = table()[_PLAIN[kind]]
        return (f"machine {name}: {kind} is taken to be the one of {taken.size} GB, {taken.name}",)
    row = _row(kind)
    if row is None:
        return ()
    if row.name == "mi250x":
        return (f"machine {name}: a device is one of the two dies of a card, with {row.size} GB",)
    if row.name == "strix-halo":
        return (f"machine {name}: Linux gives the GPU half of the memory unless ttm.pages_limit is raised",)
    if _APPLE.fullmatch(kind) and row.unified:
        return (f"machine {name}: Metal recommends that a program stays below about three quarters of the memory",)
    if kind.endswith("gb") and _SIZED.fullmatch(kind):
        known = f"{format_bytes(row.bytes)} (GB = 10^9); a card sold as {kind[:-2]} GB is {kind[:-2]}GiB or its name"
        return (f"machine {name}: {known}",)
    return ()


def _check_counts(name: str, nodes: int, devices: int) -> None:
    if not (nodes >= 1 and devices >= 1 and nodes * devices <= LARGEST_COUNT):
        raise InputError(f"machine {name!r}: {nodes} nodes of {devices} devices; give 1 to {LARGEST_COUNT} devices")


def _nearest(name: str) -> str:
    found = get_close_matches(name, list(_by_spelling()), n=6, cutoff=0.5)
    close = list(dict.fromkeys(_by_spelling()[spelling].name for spelling in found))[:4]
    known = f"nearest are {', '.join(close)}" if close else f"known are {', '.join(names())}"
    more = "a device by its memory alone is 12GiB, a Mac is mac-64gib, a machine without devices is cpu-64gib"
    return f"{known}; {more}, and 8x<device> or 2x8x<device> are nodes of several"


def _memory(size: int, source: str) -> Limit:
    return Limit("memory", size, "the kernel swaps, then kills a process; with driver memory it may hang", source)


def _unified(row: Row, nodes: int, devices: int, name: str) -> Machine:
    """One pool a node, on which everything on CPU and GPU draws. A node has one device, so `2x` is two nodes."""
    if nodes > 1 and devices > 1:
        problem = f"machine {name!r}: {row.product} has one device a node"
        raise InputError(f"{problem}; for {nodes * devices} of them write {nodes * devices}x{row.name}")
    nodes *= devices
    limits = (*ray_limits(row.bytes), _memory(row.bytes, row.source))
    pools = (
        Pool(f"node[{node}].unified", "unified", row.bytes, limits, row.floor_bytes, row.floor_upper)
        for node in range(nodes)
    )
    return Machine(row.name if nodes == 1 else f"{nodes}x{row.name}", tuple(pools), row.cores)


def _discrete(row: Row, nodes: int, devices: int) -> Machine:
    limit = Limit("device memory", row.bytes, "CUDA reports out of memory", row.source)
    host = -(-devices // row.host_devices) * row.host_bytes if row.host_devices else 0
    pools: list[Pool] = []
    for node in range(nodes):
        limits = (*ray_limits(host), _memory(host, row.source)) if host else ()
        pools.append(Pool(f"node[{node}].host", "host", host, limits, row.floor_bytes, row.floor_upper))
        pools += [Pool(f"node[{node}].device[{i}]", "device", row.bytes, (limit,)) for i in range(devices)]
    shape = "" if (nodes, devices) == (1, 1) else f"{devices}x" if nodes == 1 else f"{nodes}x{devices}x"
    return Machine(shape + row.name, tuple(pools), row.cores)


_SYSTEM, _DESKTOP = GIB, 4 * GIB
"""What a system asks for itself: the least memory that Ubuntu 24.04 names for a server, and for a desktop. They are
no measurement, so the larger one is the bound; a small machine is taken to run a small system."""


def _cpu(size: int, name: str) -> Machine:
    machine = with_host(Machine(name, (Pool("node[0].host", "host", 0, ()),), 0), size)
    floor, upper = min(_SYSTEM, size // 16), min(_DESKTOP, size // 8)
    return replace(machine, pools=(replace(machine.pools[0], floor_bytes=floor, floor_upper=upper),))


def with_host(machine: Machine, size: int) -> Machine:
    """The machine with `size` bytes of host memory on each node that a run may use: its pod's or group's limit, or
    what is left of its DRAM beside the system.

    InputError on a unified machine, whose memory the table knows.

    >>> [limit.name for limit in with_host(by_name("8xh100-80"), 1 << 40).pool("node[0].host").limits]
    ['Ray 0.95', 'memory']
    """
    if machine.unified:
        raise InputError(
            f"host memory = {format_bytes(size)}: {machine.name} has no host memory apart from its unified memory; "
            "leave it out"
        )
    limits = (*ray_limits(size), Limit("memory", size, "the kernel kills a process", "given with the machine"))
    pools = (
        replace(pool, total_bytes=size, limits=limits, floor_bytes=0, floor_upper=0) if pool.kind == "host" else pool
        for pool in machine.pools
    )
    return replace(machine, pools=tuple(pools))
