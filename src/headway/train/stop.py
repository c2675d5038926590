"""A request to stop: a signal or the guard ends the run at the next safe point, a second Ctrl-C at once."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

ASKED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopRequested(Exception):  # noqa: N818 (a request, not an error)
    """Raised at a safe point after someone asked to stop; unfinished gradients are dropped above."""


class Stop:
    """Remembers who asked the run to stop, and the signal if it was one.

    `interrupt` is called then: it ends what takes long.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self.reason: str | None = None
        self.interrupt: Callable[[], None] | None = None

    def ask(self, reason: str) -> None:
        """Stop at the next safe point, for `reason`: the first that is given counts. Safe from another thread."""
        if self.reason is None:
            self.reason = reason
            if self.interrupt is not None:
                self.interrupt()

    def check(self) -> None:
        """Raise StopRequested if someone asked."""
        if self.reason is not None:
            raise StopRequested(self.reason)


@contextmanager
def on_signals(stop: Stop) -> Iterator[None]:
    """While inside, the first SIGINT, SIGTERM or SIGHUP sets `stop` and interrupts; a second SIGINT exits with 130.

    A SIGHUP that is ignored, as under nohup, stays so.
    """

    def handle(number: int, _frame: FrameType | None) -> None:
        if stop.signal is None:
            stop.signal = signal.Signals(number)
            stop.ask(stop.signal.name)
        elif number == signal.SIGINT:
            os._exit(130)

    asked = [each for each in ASKED if each != signal.SIGHUP or signal.getsignal(each) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handle) for number in asked}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
