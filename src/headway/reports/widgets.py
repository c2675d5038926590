"""Pieces that several reports on a terminal are made of: bars, units, layouts for two widths, hanging lines."""

from collections.abc import Iterable, Sequence
from typing import Literal

from msgspec import Struct
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from headway.units import GIB, MIB

NARROW = 70
"""Columns under which tables become lines, so that no number is cut."""

VERDICT_STYLES = {"fits": "bold green", "tight": "bold yellow", "does not fit": "bold red", "cannot tell": "bold"}


class Bar(Struct, frozen=True):
    """A bar that fills the width it gets: solid to `solid`, shaded to `shaded`, a mark at `mark`.

    The full width stands for `scale`, in the same unit.
    """

    solid: int
    shaded: int
    mark: int | None
    scale: int
    style: str = "green"
    mark_style: str = "bold red"

    def text(self, width: int) -> Text:
        """The bar in `width` cells."""
        solid, shaded = (min(width, self._cells(size, width)) for size in (self.solid, self.shaded))
        bar = Text(no_wrap=True).append("█" * solid, style=self.style)
        bar.append("▒" * (shaded - solid), style=self.style)
        bar.append("·" * (width - max(solid, shaded)), style="dim")
        if self.mark is not None and self.mark < self.scale:
            at = min(width - 1, self._cells(self.mark, width))
            bar = Text.assemble(bar[:at], ("│", self.mark_style), bar[at + 1 :])
        return bar

    def _cells(self, size: int, width: int) -> int:
        """Cells that a size covers; what is there at all covers one."""
        return max(1, round(size / self.scale * width)) if size > 0 and self.scale > 0 else 0

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.text(options.max_width)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(8, options.max_width)


class Layouts(Struct, frozen=True):
    """One content for two widths: `wide` where it gets `least` cells, otherwise `narrow`."""

    wide: RenderableType
    narrow: RenderableType
    least: int = NARROW

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.wide if options.max_width >= self.least else self.narrow


class Unit(Struct, frozen=True):
    """One unit for all numbers of a table.

    >>> Unit.for_size(3 << 30).text(1610612736), Unit.for_size(64 << 30).text(1610612736)
    ('1,536', '1.50')
    """

    name: str
    size: int
    digits: int

    @classmethod
    def for_size(cls, largest: int) -> "Unit":
        """Whole MiB up to 16 GiB, and two digits of GiB up to 16 TiB, of TiB up to 16 PiB and so on above."""
        if largest < 16 * GIB:
            return cls("MiB", MIB, 0)
        size, names = GIB, iter(("GiB", "TiB", "PiB", "EiB", "ZiB"))
        name = next(names)
        for larger in names:
            if largest < 16 * 1024 * size:
                break
            name, size = larger, size * 1024
        return cls(name, size, 2)

    def text(self, count: int) -> str:
        """A size without the unit's name; a dot for nothing."""
        if count == 0:
            return "·"
        text = f"{count / self.size:,.{self.digits}f}"
        return {"0": "<1", "0.00": "<0.01"}.get(text, text)


def aligned(rows: Sequence[Sequence[str]], bold: str) -> list[Text]:
    """Aligned lines of text, names left and numbers right; unlike a table they fold where the width ends."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for name, *numbers in rows:
        cells = [name.ljust(widths[0]), *(text.rjust(size) for text, size in zip(numbers, widths[1:], strict=True))]
        lines.append(Text(" ".join(cells).rstrip(), style="bold" if name == bold else ""))
    return lines


def share_of(size: int, limit: int) -> str:
    """A size as a share of a limit."""
    share = size / max(1, limit)
    return f"{share:.0%}" if share < 100 else ">9999%"


def since(step: int) -> str:
    """Since when a phase holds its peak."""
    return f"from step {step}" if step else "at the start"


def duration(seconds: float) -> str:
    """A time that a person reads.

    >>> duration(8.25), duration(312), duration(7384)
    ('8.2 s', '5 min 12 s', '2 h 3 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def hanging(
    rows: Iterable[tuple[str | Text, Text]], indent: int = 2, justify: Literal["left", "right"] = "right"
) -> Table:
    """Lines that wrap beside their first words."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), show_header=False)
    table.add_column(no_wrap=True, justify=justify)
    table.add_column(overflow="fold")
    for start, text in rows:
        table.add_row(Text(" " * indent).append(start), text)
    return table
