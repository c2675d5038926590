"""Commands that answer Ctrl-C at once while they plan and load; a run itself then saves what is done."""

import functools
import os
import threading
from collections.abc import Callable

from headway.errors import StoppedError


def answering(command: Callable[..., None]) -> Callable[..., None]:
    """The command, which SIGINT, SIGTERM or SIGHUP ends where it is, with a line on standard error before that.

    What it calls may handle signals in its own way meanwhile, as a run does.
    """

    @functools.wraps(command)
    def answered(*args: object, **options: object) -> None:
        if threading.current_thread() is not threading.main_thread():
            command(*args, **options)
            return
        from headway.train.stop import EndRequested, Stop, on_signals

        stop = Stop(at_once=True)
        try:
            with on_signals(stop, lambda text: _write(f"{text}\n")):
                command(*args, **options)
        except EndRequested:
            assert stop.signal is not None, "only a signal asks so"
            raise StoppedError(f"stopped by {stop.signal.name}", stop.signal) from None

    return answered


def _write(text: str) -> None:
    os.write(2, text.encode())
