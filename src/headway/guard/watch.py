"""Watches a run: takes frames, lets the guard see them, and writes all of it to the black box, in a thread."""

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Self

from msgspec import Struct, field
from msgspec.structs import replace

from headway.guard import boxrecords as records
from headway.guard import senders
from headway.guard.blackbox import BlackBox
from headway.guard.boxplan import PlannedPool
from headway.guard.forecast import Forecast
from headway.guard.frame import NO_HANDLE, Action, Frame, seconds_left
from headway.guard.frames import Frames, interval
from headway.guard.loglines import LogReader
from headway.guard.policies import Guard
from headway.guard.raylogs import SessionLogs
from headway.guard.stop import SMALLEST, Stopper
from headway.guard.tree import Ended, Member, Tree

STOPPING_S = 0.2
"""The longest time between two looks while a run is being stopped."""
FORECAST_S = 30.0
"""Seconds between forecasts of one pool that are written down."""
MOST_NAMES = 20_000
"""Processes whose names are remembered."""
MOST_LEFT = 10
"""Processes that are named of those that a stop could not end."""


class View(Struct):
    """What somebody who looks at a run sees: the last frame, what was foreseen, what the guard decided last, how
    often it decided each, and what was planned, by pool."""

    frame: Frame | None = None
    forecasts: tuple[Forecast, ...] = ()
    actions: list[Action] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    trouble: str = ""
    planned: dict[str, PlannedPool] = field(default_factory=dict)


class _Looks(Tree):
    """A tree that knows when it was looked at last and the time before, in Unix time."""

    looked = before = 0.0

    def refresh(self, *, titles: bool = True) -> tuple[Member, ...]:
        """Look at all processes again."""
        self.before, self.looked = self.looked, time.time()
        return super().refresh(titles=titles)


class Watch:
    """Watches the tree of a process from `start` to `stop`. `every` is the longest time between two frames.

    `on_frame` is called in the watching thread after each frame, with what the guard decided. A stop that the guard
    decides is that of `guard.stop`; what needs a handle that a foreign command has not is written down, not done.
    """

    def __init__(
        self,
        root_pid: int,
        box: BlackBox,
        guard: Guard,
        every: float = 1.0,
        marker: str | None = None,
        on_frame: Callable[[View, tuple[Action, ...]], None] | None = None,
    ) -> None:
        self.tree = _Looks(root_pid, marker=marker)
        self.view, self.reader = View(), LogReader()
        self.stopper = Stopper(self.tree, self._told_to_go)
        self._box, self._guard, self._every, self._on_frame = box, guard, every, on_frame
        self._frames = Frames(self.tree, disks=[box.folder])
        self._session_logs, self._ended_badly = SessionLogs(box.folder), list[int]()
        self._trace = senders.SignalTrace.open()
        self._names: dict[int, str] = {}
        self._held: dict[int, int] = {}
        self._killed: set[int] = set()
        self._told: dict[tuple[str, str], float] = {}
        self._status: int | None = None
        self._at_stop: Frame | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headway-watch", daemon=True)

    @property
    def pids(self) -> frozenset[int]:
        """All processes of the run that were seen."""
        return frozenset(self._names)

    @property
    def killed(self) -> frozenset[int]:
        """The processes of the run to which SIGKILL was sent, where the kernel's trace tells."""
        return frozenset(self._killed)

    def start(self) -> Self:
        """Take the first frame, write the counters as they stand, and begin."""
        if self._trace.why_not is not None:
            text = f"who sends signals to other processes is not recorded: {self._trace.why_not}"
            self._box.add(records.Note(time.time(), text))
        frame = self._look()
        self._box.add(records.Counted(frame.t, "before", frame.events))
        self._thread.start()
        return self

    def output(self, data: bytes, stream: int) -> None:
        """A piece of the command's output."""
        self._box.log(data, stream)
        if self.reader.feed(data):
            self._box.add(records.Mark(time.time(), self.reader.phase, self.reader.step))

    def received(self, sent: senders.Sent) -> None:
        """A signal that headway itself received."""
        self._box.add(self._sent(sent))

    def stop(self, status: int | None) -> None:
        """End the watching: how the command ended (as `os.wait` gives it), a last frame, the counters after it.

        Where the guard has stopped the run, what is left of it is ended first, except what even SIGKILL does not end.
        """
        if self.stopper.begun and status is not None:
            self._status = status
            while self.tree.members and self._thread.is_alive() and not self.stopper.given_up:
                self._thread.join(STOPPING_S)
            for member in self.tree.members[:MOST_LEFT] if self.stopper.given_up else ():
                text = f"process {member.pid} ({member.name}) could not be ended, not even by SIGKILL"
                self._box.add(records.Note(time.time(), text))
        self._over.set()
        self._thread.join()
        if status is not None:
            self.tree.note_end(self.tree.root_pid, status)
        try:
            self.tree.refresh()
            frame = self._look()
            self._box.add(records.Counted(frame.t, "after", frame.events))
            if status or self._killed or self.stopper.begun:
                self._session_logs.look(self.tree.sessions, self._ended_badly, now=True)
        except Exception as error:  # noqa: BLE001 - how the command ended is passed on whatever this is
            self._box.add(records.Note(time.time(), f"the last look failed: {type(error).__name__}: {error}"))
        finally:
            self._frames.close()
            self._trace.close()

    def close(self) -> None:
        """Let the tree go; it is needed as long as what is left of the run is to be stopped."""
        self.tree.close()

    def _run(self) -> None:
        before: Frame | None = None
        pause = self._every
        while not self._over.wait(pause):
            try:
                frame = self._look()
            except Exception as error:  # noqa: BLE001 - the run goes on, and the recording says what it lacks
                self.view.trouble = f"the watching stopped: {type(error).__name__}: {error}"
                self._box.add(records.Note(time.time(), self.view.trouble))
                return
            pause = min(self._every, interval(before, frame), STOPPING_S if self.stopper.begun else self._every)
            before = frame

    def _look(self) -> Frame:
        if self._status is not None:
            self.tree.note_end(self.tree.root_pid, self._status)
        frame = self._frames.take(self.reader.phase, self.reader.step)
        self._box.add(frame)
        self._note_processes(frame)
        actions = tuple(self._act(action) for action in self._guard.see(frame))
        for action in actions:
            self._box.add(records.Acted(action))
            self.view.counts[action.name] = self.view.counts.get(action.name, 0) + 1
        self._session_logs.look(self.tree.sessions, self._ended_badly)
        self._note_forecasts(frame.t)
        if self.stopper.begun:
            self._at_stop = self._at_stop or frame
            self.stopper.go_on(seconds_left(self._at_stop, frame, SMALLEST))
        self.view.frame, self.view.actions = frame, [*self.view.actions, *actions][-20:]
        if self._on_frame is not None:
            self._on_frame(self.view, actions)
        return frame

    def _act(self, action: Action) -> Action:
        if action.name in ("free", "checkpoint", "shrink") and not action.dry:
            return replace(action, dry=True, reason=action.reason + NO_HANDLE)
        if action.name == "stop" and not action.dry:
            self.stopper.begin()
        return action

    def _told_to_go(self, member: Member, number: int) -> None:
        """A signal of headway's own, to stop the run."""
        name = self._names.get(member.pid, member.name)
        sent = records.Sent(time.time(), number, member.pid, name, sender=os.getpid(), sender_name="headway")
        self._box.add(sent)

    def _note_processes(self, frame: Frame) -> None:
        for sent in self._trace.read():
            if sent.target in self._names and sent.sender != os.getpid():
                self._box.add(self._sent(sent))
                self._killed |= {sent.target} if sent.signal == signal.SIGKILL else set()
        for each in self.tree.ended():
            self._box.add(self._ended(each))
            if each.code != 0 and len(self._ended_badly) < MOST_NAMES:
                self._ended_badly.append(each.pid)
        for use in frame.processes:
            self._names[use.pid] = use.name
        self._held = {use.pid: use.rss for use in frame.processes}
        while len(self._names) > MOST_NAMES:
            del self._names[next(iter(self._names))]

    def _ended(self, each: Ended) -> records.Ended:
        """How a process ended. Where its parent alone was told, a SIGKILL that was sent to it tells it too."""
        killed = each.code is None and each.signal is None and each.pid in self._killed
        known = each.code is not None or each.signal is not None
        return records.Ended(
            each.t, each.pid, self._names.get(each.pid, each.name), each.code,
            int(signal.SIGKILL) if killed else each.signal, rss=self._held.get(each.pid),
            since=self.tree.before,
            why="SIGKILL was sent to it" if killed else "" if known else "only its parent was told how it ended",
        )  # fmt: skip

    def _note_forecasts(self, t: float) -> None:
        self.view.forecasts = tuple(each for each in self._guard.forecasts if each.told)
        for each in self.view.forecasts:
            key = each.pool, each.gauge
            if t - self._told.get(key, 0.0) >= FORECAST_S:
                self._told[key] = t
                numbers = {"level": float(each.level), "per_minute": float(each.per_minute)}
                numbers |= {} if each.per_step is None else {"per_step": float(each.per_step)}
                numbers |= {} if each.expected is None else {"expected_t": each.expected.t}
                self._box.add(records.Foreseen(t, f"{each.pool} {each.gauge}", each.sentence, numbers))

    def _sent(self, sent: senders.Sent) -> records.Sent:
        own = sent.target == os.getpid()
        return records.Sent(
            t=sent.t, signal=sent.signal, pid=None if own else sent.target,
            name=self._names.get(sent.target, sent.target_name or ""),
            sender=0 if sent.sender is None and not sent.by_kernel else sent.sender,
            sender_name=sent.sender_name or "", sender_command=sent.sender_command or "", kernel=sent.by_kernel,
            inside=sent.sender in self._names,
        )  # fmt: skip
