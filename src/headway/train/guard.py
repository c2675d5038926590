"""The guard beside a run: a thread shows it frames; what it decides waits for the next safe point of the loop."""

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from msgspec.structs import replace

from headway.config.sections import GuardSection
from headway.facts.machine import Machine
from headway.guard.forecast import Forecast
from headway.guard.frame import Action, Frame, Gauge
from headway.guard.frames import FASTEST_S, Frames, interval
from headway.guard.policies import Guard
from headway.guard.tree import Tree
from headway.plan.ledger import Phase

STOPPED = "guard"
"""What a run that the guard stopped gives as its reason."""


@dataclass(frozen=True)
class Guarded:
    """What a run is held against beside the machine's own counters, in bytes.

    `limit` is the RunSpec's `memory.limit` for the process tree, None where there is none; `planned` the plan's upper
    bound by pool.

    >>> Guarded(None, {"node[0].host": 2 << 30}).limit
    """

    limit: int | None
    planned: dict[str, int]


def action_line(action: Action) -> str:
    """What is shown of an action."""
    would = "would " if action.dry else ""
    return f"guard: {would}{action.name}: {action.reason}"


class Watch:
    """Guards this process and its descendants between `__enter__` and `__exit__`.

    `decided` is called in the watching thread with each action, dry ones included, `foreseen` with each
    confident forecast of a limit, once a step, and `stop` with each stop. Processes whose pids `rewards` gives are
    told apart as such. A frame is taken every second, and at each new step.
    """

    def __init__(
        self,
        section: GuardSection,
        machine: Machine,
        guarded: Guarded,
        decided: Callable[[Action], None],
        foreseen: Callable[[Forecast], None],
        stop: Callable[[str], None],
    ) -> None:
        self._guard = Guard(section.policy, section.dry, guarded.planned)
        self._machine, self._limit = machine, guarded.limit
        self._decided, self._foreseen, self._stop = decided, foreseen, stop
        self.rewards: Callable[[], tuple[int, ...]] = tuple
        self.where: tuple[str | None, int | None] = (None, None)
        self._waiting: list[Action] = []
        self._told: int | None = None
        self._lock, self._wake, self._ended = threading.Lock(), threading.Event(), False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="headway-guard", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the thread. What ended it early is raised, unless something else is on its way."""
        self._ended = True
        self._wake.set()
        self._thread.join()
        if self._error is not None and error is None:
            raise self._error

    def at(self, phase: Phase, step: int) -> None:
        """A phase begins; what follows it counts to it until the next begins."""
        new, self.where = step != self.where[1], (str(phase), step)
        if new:
            self._wake.set()

    def take(self) -> list[Action]:
        """The actions that wait to be done, the mildest first. A frozen guard must not pass for a calm one: raises
        what ended its thread."""
        if self._error is not None:
            raise self._error
        with self._lock:
            waiting, self._waiting = self._waiting, []
        return waiting

    def _run(self) -> None:
        try:
            tree = Tree(os.getpid())
            frames = Frames(tree, machine=self._machine)
            try:
                before: Frame | None = None
                while True:
                    self._wake.clear()
                    if self._ended:
                        break
                    wait = FASTEST_S
                    with suppress(MemoryError):  # the process stands at its wall for a moment
                        frame = self._with_own(frames.take(*self.where))
                        self._see(frame)
                        wait, before = interval(before, frame), frame
                    time.sleep(FASTEST_S)
                    self._wake.wait(wait - FASTEST_S)
            finally:
                frames.close()
                tree.close()
        except BaseException as error:  # noqa: BLE001 - kept for the loop, which raises it
            self._error = error

    def _see(self, frame: Frame) -> None:
        self._act(frame)
        if frame.step != self._told:
            self._told = frame.step
            for forecast in self._guard.forecasts:
                if forecast.told and forecast.expected is not None:
                    self._foreseen(forecast)

    def _act(self, frame: Frame) -> None:
        for action in self._guard.see(frame):
            self._decided(action)
            if action.dry or action.name == "warn":
                continue
            if action.name == "stop":
                self._stop(STOPPED)
                continue
            with self._lock:
                self._waiting.append(action)

    def _with_own(self, frame: Frame) -> Frame:
        """The frame with the gauge of `memory.limit` first, and with the reward's processes named."""
        rewards = set(self.rewards())
        processes = tuple(
            replace(process, role="reward") if process.pid in rewards else process for process in frame.processes
        )
        if self._limit is None:
            return replace(frame, processes=processes)
        used = sum(process.rss for process in processes)
        own = Gauge(self._machine.pools[0].name, "memory.limit", used, self._limit)
        return replace(frame, gauges=(own, *frame.gauges), processes=processes)
