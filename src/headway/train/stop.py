"""A request to stop: a signal or the guard ends the run at the next safe point, a second Ctrl-C at once.

A Python signal handler runs between two bytecodes of the main thread, which a long native call delays. So the
interpreter's own handler writes each signal's number into a pipe (`signal.set_wakeup_fd`), and a thread that reads it
answers at once: torch and safetensors let other threads run meanwhile.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from signal import Signals
from types import FrameType

from headway.plan.ledger import Phase

ASKED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SAME_S = 0.3
"""Signals that come so soon after the first are the same request: a wrapper passes on what the terminal sent too."""


class StopRequested(Exception):  # noqa: N818 (a request, not an error)
    """Raised at a safe point after someone asked to stop; unfinished gradients are dropped above."""


class EndRequested(BaseException):
    """Raised wherever the main thread is after a signal asked to stop while there was nothing to save."""


@dataclass(frozen=True)
class Place:
    """Where a run is: its phase, steps that are done, the step of the last checkpoint (None without one).

    `answers`: the rollout of the step under way is complete, and is saved with it. `last`: every step is done.
    """

    phase: Phase = Phase.LOAD
    done: int = 0
    kept: int | None = None
    answers: bool = False
    last: bool = False


@dataclass
class Stop:
    """Remembers who asked the run to stop, and the signal if it was one.

    `interrupt` is called then: it ends what takes long. `place` tells where the run is. While `at_once`, nothing that
    is done could be saved, and a signal raises EndRequested where it finds the main thread.
    """

    signal: Signals | None = None
    reason: str | None = None
    interrupt: Callable[[], None] | None = None
    place: Place = field(default_factory=Place)
    at_once: bool = False

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

    def signalled(self, number: int) -> None:
        """A signal asked. Its handler and the thread that answers it both say so, in either order."""
        if self.signal is None:
            self.signal = Signals(number)
            self.ask(self.signal.name)


@contextmanager
def on_signals(
    stop: Stop, say: Callable[[str], None] = lambda _: None, leave: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """While inside, SIGINT, SIGTERM or SIGHUP sets `stop` and interrupts, and `say` gets what follows in a moment,
    whatever runs; a second SIGINT or SIGTERM calls `leave` and exits with 128 and its number.

    A checkpoint that is being written is finished before that, unless a third comes. A SIGHUP that is ignored, as
    under nohup, stays so. Only for the main thread.
    """

    def handle(number: int, _frame: FrameType | None) -> None:
        stop.signalled(number)
        if stop.at_once:
            stop.at_once = False
            raise EndRequested(stop.reason)

    asked = [each for each in ASKED if each != signal.SIGHUP or signal.getsignal(each) is not signal.SIG_IGN]
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before_fd = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    before = {number: signal.signal(number, handle) for number in asked}
    thread = threading.Thread(
        target=_answer, args=(reading, frozenset(asked), stop, say, leave), name="headway-stop", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(before_fd)
        os.close(writing)
        thread.join()
        os.close(reading)


def _answer(
    reading: int, asked: frozenset[Signals], stop: Stop, say: Callable[[str], None], leave: Callable[[], None]
) -> None:
    """Read signal numbers from a pipe until it is closed, and answer each request."""
    count, first = 0, 0.0
    while numbers := os.read(reading, 64):
        for number in numbers:
            if number not in asked:
                continue
            now = time.monotonic()
            if count == 0:
                count, first = 1, now
                place = stop.place  # before the run moves on
                stop.signalled(number)
                say(first_words(Signals(number), place))
            elif now - first < SAME_S or number == signal.SIGHUP:
                continue
            elif count == 1 and stop.place.phase == Phase.SAVE:
                count = 2
                say(f"what is being saved is finished first; {_name(number)} again: stop now; {lost(stop.place)}")
            else:
                say(f"{_name(number)}: stopped now; {lost(stop.place)}")
                leave()
                os._exit(128 + number)


def _name(number: int) -> str:
    return "Ctrl-C" if number == signal.SIGINT else Signals(number).name


def first_words(number: signal.Signals, place: Place) -> str:
    """What follows a first signal, and what a second one would do.

    >>> first_words(signal.SIGINT, Place(Phase.TRAIN, done=2, kept=1, answers=True))
    "Ctrl-C: stopping after this micro-batch, saving step 2 and step 3's answers; Ctrl-C again: stop now; \
step 2 is lost, step 1 is kept"
    >>> first_words(signal.SIGTERM, Place(Phase.ROLLOUT, done=2, kept=2))
    'SIGTERM: stopping after this token, saving step 2; Ctrl-C again: stop now; no finished step is lost'
    """
    if place.phase == Phase.LOAD:
        return f"{_name(number)}: stopping now; nothing is lost"
    after = {
        Phase.ROLLOUT: "after this token", Phase.EVAL: "after this token", Phase.SAVE: "once this is saved",
        Phase.STEP: "after this optimizer step",
    }.get(place.phase, "after this micro-batch")  # fmt: skip
    saved = [f"step {place.done}"] if place.done else []
    saved += [f"step {place.done + 1}'s answers"] if place.answers else []
    saving = f", saving {' and '.join(saved)}" if saved and place.phase != Phase.SAVE else ""
    end = "; every step is done" if place.last and place.phase == Phase.SAVE else ""
    return f"{_name(number)}: stopping {after}{saving}{end}; Ctrl-C again: {_second(place)}"


def _second(place: Place) -> str:
    if place.phase == Phase.SAVE:
        return "it is saved all the same"
    return f"stop now; {lost(place)}"


def lost(place: Place) -> str:
    """What is lost if the run ends now.

    >>> lost(Place(done=7, kept=4)), lost(Place(done=1)), lost(Place(done=0))
    ('steps 5 to 7 are lost, step 4 is kept', 'step 1 is lost', 'no finished step is lost')
    """
    kept = place.kept or 0
    if place.done <= kept:
        return "no finished step is lost"
    one = place.done == kept + 1
    steps = f"step {place.done} is lost" if one else f"steps {kept + 1} to {place.done} are lost"
    return f"{steps}, step {kept} is kept" if kept else steps
