"""An item of the ledger before it has a place, and the entry that gives it one."""

from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from headway.plan.ledger import Phase, Quantity

Place = Literal["device", "host", "shm"]
"""A device's memory, a node's host memory, or the part of the latter that files in /dev/shm may take."""


class Item(Struct, frozen=True):
    """What one thing holds. `bytes` is the expected value, `upper` the bound; `independent` as in `Line`.

    >>> Item.exact("weights", 4096, "1,024 x 4 B", "one copy").upper
    4096
    """

    item: str
    bytes: int
    upper: int
    formula: str
    source: str
    independent: bool = False

    @classmethod
    def exact(cls, item: str, size: int, formula: str, source: str) -> "Item":
        """An item without uncertainty."""
        return cls(item, size, size, formula, source)

    def alone(self) -> "Item":
        """The same item with an error of its own, independent of every other's."""
        return replace(self, independent=True)


class Entry(Struct, frozen=True):
    """An item that a role's process holds on its device or in its node's host memory.

    `count` processes of the node hold as much each; it is 1 on a device, whose entries are those of one rank. `node`
    and `device` number both from 0.

    >>> Entry("host", "host", "trainer", Item.exact("process", 10, "constant", ""), count=8).count
    8
    """

    place: Place
    quantity: Quantity
    role: str
    item: Item
    rank: int = 0
    count: int = 1
    node: int = 0
    device: int = 0


Phases = dict[Phase, tuple[int, list[Entry]]]
"""For each phase the step at which it first holds its peak, and what is alive in it."""
