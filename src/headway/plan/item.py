"""An item of the ledger before it has a place: bytes, their bound and where they come from."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Item:
    """What one thing holds. `bytes` is the expected value, `upper` the bound.

    >>> Item.exact("weights", 4096, "1,024 x 4 B", "one copy").upper
    4096
    """

    item: str
    bytes: int
    upper: int
    formula: str
    source: str

    @classmethod
    def exact(cls, item: str, size: int, formula: str, source: str) -> "Item":
        """An item without uncertainty."""
        return cls(item, size, size, formula, source)

    def at_most(self, upper: int) -> "Item":
        """The same item with a higher bound."""
        return replace(self, upper=max(self.upper, upper))
