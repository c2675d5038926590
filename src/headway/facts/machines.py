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
from headway.units import GIB, format_bytes

LARGEST_COUNT = 10_000
"""No name asks for more nodes or devices than this: a slip of the keyboard would fill the memory with pools."""

_SHAPE = re.compile(r"(?:(?:(\d+)x)?(\d+)x)?([a-z0-9].*)")
_BEHIND = re.compile(r"([a-z0-9].*?)[x:](\d{1,4})")
_CPU = re.compile(r"cpu(\d+)(?:gib|g)")
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
        return (self.name, full, f"{full}gb", f"{full}g", *_ALIASES.get(self.name, ()))


_ALIASES = {
    "gb10": ("dgx-spark", "spark"), "rtx3090": ("3090",), "rtx4090": ("4090",), "rtx5090": ("5090",),
    "rtx6000-ada": ("rtx-ada-6000", "6000-ada"), "rtx-pro-6000": ("pro-6000", "rtx-pro-6000-blackwell"),
    "a6000": ("rtx-a6000",), "h100-94": ("h100-nvl",), "mi300x": ("mi300",), "mi250x": ("mi250",),
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


def names() -> tuple[str, ...]:
    """The names of the table, by size; beside them, `cpu-<N>gib` names a machine without devices."""
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
    match = _SHAPE.fullmatch(plain)
    row = _by_spelling().get(match[3]) if match else None
    if match is not None and row is not None:
        nodes, devices = int(match[1] or 1), int(match[2] or 1)
        _check_counts(name, nodes, devices)
        return _unified(row, nodes, devices, name) if row.unified else _discrete(row, nodes, devices)
    cpu = _CPU.fullmatch(plain)
    if cpu is not None and int(cpu[1]) > 0:
        return _cpu(int(cpu[1]) * GIB, f"cpu-{int(cpu[1])}gib")
    raise InputError(f"machine {name!r}: is not in the table; {_nearest(match[3] if match else plain)}")


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
    match = _SHAPE.fullmatch(_plain(name))
    kind = match[3] if match else ""
    if kind in _PLAIN:
        row = table()[_PLAIN[kind]]
        return (f"machine {name}: {kind} is taken to be the one of {row.size} GB, {row.name}",)
    row_of = _by_spelling().get(kind)
    if row_of is not None and row_of.name == "mi250x":
        return (f"machine {name}: a device is one of the two dies of a card, with {row_of.size} GB",)
    return ()


def _check_counts(name: str, nodes: int, devices: int) -> None:
    if not (nodes >= 1 and devices >= 1 and nodes * devices <= LARGEST_COUNT):
        raise InputError(f"machine {name!r}: {nodes} nodes of {devices} devices; give 1 to {LARGEST_COUNT} devices")


def _nearest(name: str) -> str:
    found = get_close_matches(name, list(_by_spelling()), n=6, cutoff=0.5)
    close = list(dict.fromkeys(_by_spelling()[spelling].name for spelling in found))[:4]
    known = f"nearest are {', '.join(close)}" if close else f"known are {', '.join(names())}"
    return f"{known}; a machine without devices is cpu-<N>gib, and 8x<device> or 2x8x<device> are nodes of several"


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
