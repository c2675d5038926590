"""What `headway watch` shows while a command runs: rows below its output on a terminal, rare lines anywhere else."""

import io
import time
from collections.abc import Callable, Iterator, Mapping

from rich.console import Console, Group
from rich.text import Text

from headway.guard.boxplan import PlannedPool
from headway.guard.frame import NO_HANDLE, Action, Frame, Gauge
from headway.guard.watch import View
from headway.reports.widgets import Bar
from headway.units import format_bytes

ROWS, LEAST_ROWS = 7, 16
"""Rows of the view, and of a terminal that has room for it."""
LINE_S = 600.0
"""Seconds between status lines where there is no terminal."""
PLAN_CELLS = 16
"""Columns that a bar gives to the planned peak beside it."""
PROCESSES = 2
NAME = 44


def gauges_shown(frame: Frame, most: int = 3) -> list[Gauge]:
    """The gauges with a limit that are nearest to it, disks last, as long as nothing else is missing."""
    limited = [gauge for gauge in frame.gauges if gauge.limit]
    return sorted(limited, key=lambda gauge: (gauge.name == "disk", -gauge.used / (gauge.limit or 1)))[:most]


def where(frame: Frame) -> str:
    """Where the run stands, as far as its log tells.

    >>> where(Frame(0.0, (), phase="train", step=3)), where(Frame(0.0, ()))
    ('train of step 3', 'phase not known')
    """
    step = f"step {frame.step}" if frame.step is not None else ""
    if frame.phase is None:
        return step or "phase not known"
    return f"{frame.phase} of {step}" if step else frame.phase


def _gauge_text(gauge: Gauge, planned: Mapping[str, PlannedPool]) -> str:
    of = "" if gauge.limit is None else f" of {format_bytes(gauge.limit)} ({gauge.used / gauge.limit:.0%})"
    return f"{gauge.pool} {gauge.name} {format_bytes(gauge.used)}{of}{plan_text(planned.get(gauge.pool))}"


def plan_text(pool: PlannedPool | None) -> str:
    """The planned peak of a pool in a few characters: what is expected, and at most.

    >>> from headway.guard.boxplan import Worst
    >>> plan_text(PlannedPool("node[0].host", "fits", 41 << 30, 50000000000, Worst("train", 2)))
    ', plan 41-47 GiB'
    >>> plan_text(None)
    ''
    """
    if pool is None:
        return ""
    size, unit = (1 << 30, "GiB") if pool.upper_bytes >= 1 << 30 else (1 << 20, "MiB")
    digits = 1 if pool.upper_bytes < 10 * size else 0
    low, high = (f"{each / size:.{digits}f}" for each in (pool.expected_bytes, pool.upper_bytes))
    return f", plan {low if low == high else f'{low}-{high}'} {unit}"


def _processes(frame: Frame) -> str:
    count = len(frame.processes)
    return "1 process" if count == 1 else f"{count} processes"


def status_line(view: View, now: float | None = None) -> str:
    """One line on how the run stands.

    >>> frame = Frame(0.0, (Gauge("node[0].host", "node", 1 << 30, 4 << 30),), phase="train", step=3)
    >>> status_line(View(frame), now=0.0)
    'headway 00:00 train of step 3; node[0].host node 1.00 GiB of 4.00 GiB (25%)'
    """
    frame = view.frame
    clock = time.strftime("%H:%M", time.localtime(now) if now is None else time.gmtime(now))
    if frame is None:
        return f"headway {clock} {view.trouble or 'nothing seen yet'}"
    parts = [where(frame), *(_gauge_text(gauge, view.planned) for gauge in gauges_shown(frame, 2))]
    if frame.processes:
        first = frame.processes[0]
        parts.append(f"{_processes(frame)}, largest {first.name} {format_bytes(first.rss)}")
    parts += [each.sentence for each in view.forecasts[:1]]
    parts += [view.trouble] if view.trouble else []
    return f"headway {clock} {'; '.join(parts)}"


def action_line(action: Action) -> str:
    """What the guard decided, on a line."""
    dry = action.dry and action.name != "warn" and not action.reason.endswith(NO_HANDLE)
    done = " (not done: dry run)" if dry else ""
    return f"headway {action.name}{done}: {action.reason}"


def render(view: View, width: int) -> Group:
    """The rows of the view: where the run stands, pools against limits and the plan, the largest processes, what is
    foreseen. A mark in a bar is the most that was planned."""
    return Group(*_rows(view, width))


def _rows(view: View, width: int) -> Iterator[Text]:
    frame = view.frame
    yield Text("─" * width, style="dim", no_wrap=True)
    if frame is None:
        yield Text(view.trouble or "headway watches", style="dim")
        return
    yield Text.assemble(
        ("headway ", "bold"), where(frame), (f"  {time.strftime('%H:%M:%S', time.localtime(frame.t))}", "dim")
    )
    for gauge in gauges_shown(frame, 2):
        share = gauge.used / (gauge.limit or 1)
        style = "red" if share > 0.95 else "yellow" if share > 0.85 else "green"
        planned = view.planned.get(gauge.pool)
        mark = None if planned is None else planned.upper_bytes
        cells = max(8, width // 4) if planned is None else max(4, width // 4 - PLAN_CELLS)
        bar = Bar(gauge.used, gauge.used, mark, gauge.limit or 1, style, "bold").text(cells)
        yield Text.assemble(f"{gauge.pool} {gauge.name}"[:24].ljust(25), bar, f" {format_bytes(gauge.used)} of "
                            f"{format_bytes(gauge.limit or 0)} ({share:.0%}){plan_text(planned)}")  # fmt: skip
    held = [f"{use.name[:NAME]} {format_bytes(use.rss)}" for use in frame.processes[:PROCESSES]]
    if held:
        yield Text(f"{_processes(frame)}: {', '.join(held)}", style="dim")
    if view.trouble:
        yield Text(view.trouble, style="bold red")
    elif view.actions and time.time() - view.actions[-1].t < LINE_S:
        yield Text(action_line(view.actions[-1]), style="bold red")
    elif view.forecasts:
        yield Text(view.forecasts[0].sentence, style="yellow")


class StatusArea:
    """Rows at the bottom of a terminal that a command's output does not reach: the part above them scrolls alone.

    `write` writes to the terminal. Where the terminal is too low the area has no rows and shows nothing.
    """

    def __init__(self, write: Callable[[str], None], size: Callable[[], tuple[int, int]]) -> None:
        self._write, self._size = write, size
        self._shown: tuple[int, int] | None = None

    def inner_size(self) -> tuple[int, int]:
        """Rows and columns that are left to the command."""
        rows, columns = self._size()
        return (rows - ROWS if rows >= LEAST_ROWS else rows), columns

    def draw(self, view: View) -> None:
        """Show the view; the cursor stays where the command has it."""
        rows, columns = size = self._size()
        if rows < LEAST_ROWS:
            return
        begin = "" if size == self._shown else self._reserve(rows)
        self._shown = size
        lines = self._lines(view, columns)
        text = "".join(f"\x1b[{rows - ROWS + 1 + index};1H\x1b[2K{line}" for index, line in enumerate(lines))
        self._write(f"{begin}\x1b7{text}\x1b8")

    def close(self) -> None:
        """Give the rows back to the terminal."""
        if self._shown is not None:
            rows = self._shown[0]
            clear = "".join(f"\x1b[{row};1H\x1b[2K" for row in range(rows - ROWS + 1, rows + 1))
            self._write(f"\x1b7\x1b[r{clear}\x1b8")
            self._shown = None

    def _reserve(self, rows: int) -> str:
        """Move what is at the bottom up, and let only the rows above scroll from now on."""
        up = "\n" * ROWS + f"\x1b[{ROWS}A" if self._shown is None else ""
        return f"{up}\x1b7\x1b[1;{rows - ROWS}r\x1b8"

    def _lines(self, view: View, columns: int) -> list[str]:
        target = io.StringIO()
        console = Console(file=target, width=columns, force_terminal=True, color_system="standard", highlight=False)
        for row in _rows(view, columns):
            console.print(row, no_wrap=True, overflow="ellipsis", crop=True)
        lines = target.getvalue().splitlines()[:ROWS]
        return [*lines, *([""] * (ROWS - len(lines)))]
