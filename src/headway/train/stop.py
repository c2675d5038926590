"""A request to stop: Ctrl-C or SIGTERM ends the run at the next safe point, a second Ctrl-C at once."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class StopRequested(Exception):  # noqa: N818 (a request, not an error)
    """Raised at a safe point after a signal came; unfinished gradients are dropped above."""


class Stop:
    """Remembers the signal that asked the run to stop. `interrupt` is called then: it ends what takes long."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self.interrupt: Callable[[], None] | None = None

    def check(self) -> None:
        """Raise StopRequested if a signal came."""
        if self.signal is not None:
            raise StopRequested(self.signal.name)


@contextmanager
def on_signals(stop: Stop) -> Iterator[None]:
    """While inside, the first SIGINT or SIGTERM sets `stop` and interrupts; a second SIGINT exits with 130."""

    def handle(number: int, _frame: FrameType | None) -> None:
        if stop.signal is None:
            stop.signal = signal.Signals(number)
            if stop.interrupt is not None:
                stop.interrupt()
        elif number == signal.SIGINT:
            os._exit(130)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
