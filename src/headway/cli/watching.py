"""Runs a command under the watch of `headway watch`: its attempts, what is shown meanwhile, the answer at the end."""

import os
import signal
import sys
import threading
import time
import uuid
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from headway import __version__
from headway.cli.watch_plan import WAIT_S, Plan, Planner, as_utf8
from headway.errors import InputError
from headway.guard.blackbox import BlackBox, read_blackbox
from headway.guard.boxlog import ErrorTail
from headway.guard.boxplan import PlannedPool, plan_of
from headway.guard.boxrecords import Begun, Note, Over, PlanMade
from headway.guard.child import FORWARDED, Child, Exit, terminal_size
from headway.guard.frame import Action
from headway.guard.policies import Guard
from headway.guard.senders import OwnSignals, Sent
from headway.guard.stop import stop_rest
from headway.guard.tree import MARKER, Tree, become_subreaper
from headway.guard.watch import View, Watch
from headway.reports.watch import LINE_S, StatusArea, action_line, status_line

if TYPE_CHECKING:
    from headway.cli.resuming import Resumer
    from headway.diagnose.finding import Finding

TERMINATION_LOG = Path("/dev/termination-log")
"""Where Kubernetes reads a container's last words."""
ASKED_TO_GO = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
ERRORS = 2
"""The stream of standard error, where the command has one apart from its output."""
PUMP_S = 0.25
CALM_S = 0.2
"""The view is drawn behind a whole line, or when nothing was written for so long: no sequence of a program is cut."""


class Asked(Struct, frozen=True):
    """The options of `headway watch`."""

    command: tuple[str, ...]
    out: Path | None
    policy: str
    dry_run: bool
    serve: int | None
    restart: int
    interval: float
    quiet: bool

    @property
    def folder(self) -> Path:
        """The black box's folder."""
        return self.out or Path("runs") / f"watch-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"

    def guard(self) -> Guard:
        """Of a foreign command only `strict` does what it decides; `protect` writes down what it would do."""
        return Guard(self.policy, dry=self.dry_run or self.policy == "protect")


def run(asked: Asked, planner: Planner | None = None) -> int:
    """Run the command, again where it may be; the exit code to pass on. `planner` plans it meanwhile."""
    asked.guard()  # a wrong policy is told before anything starts
    resumer = _resumer(asked)
    folder = asked.folder
    become_subreaper()
    with ExitStack() as stack:
        session = _Session(asked, folder, planner)
        session.signals = stack.enter_context(OwnSignals(session.on_signal, FORWARDED))
        session.serve(stack)
        command, made = list(asked.command), 0
        while True:
            ended = session.attempt(command, last=made == asked.restart)
            bad = ended.status != 0 or session.ended_early()
            if not bad or resumer is None or made == asked.restart or session.asked_to_go:
                break
            try:
                command, told = resumer.again(session.finding(), folder, made + 1)
            except Exception as error:  # noqa: BLE001 - the exit code is the command's own all the same
                name = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
                session.tell(f"not restarted: {name}{error}")
                break
            left = stop_rest(session.watch.tree)
            made += 1
            session.tell(f"restart {made} of {asked.restart}: {told}" + (f"; {left} processes ended" if left else ""))
        session.close()
    try:
        if session.interrupted is not None and ended.status in (130, 1, 0):
            session.tell(f"interrupted by {session.interrupted}; black box: {folder}")
        elif ended.status != 0 or session.ended_early():
            _answer(session, asked)
    except Exception as error:  # noqa: BLE001 - whatever the answer is, the exit code is the command's own
        session.tell(f"no answer of the doctor: {type(error).__name__}: {error}; black box: {folder}")
    session.leave(copying=True)
    return ended.status


def _resumer(asked: Asked) -> "Resumer | None":
    """What knows where the run goes on from; None where it is not to be restarted."""
    if not asked.restart:
        return None
    from headway.cli.resuming import Resumer

    return Resumer(asked.command, Path.cwd())


def attach(asked: Asked, pid: int) -> int:
    """Watch a process that runs already, until it is gone or headway is told to go; 0."""
    over = threading.Event()
    with ExitStack() as stack:
        stack.enter_context(OwnSignals(lambda _: over.set(), ASKED_TO_GO))
        session = _Session(asked, asked.folder)
        session.serve(stack)
        tree = Tree(pid)
        box = session.open(())
        guard = Guard(asked.policy, dry=True)  # nothing is sent to what was not started here
        session.watch = watch = Watch(tree.root_pid, box, guard, asked.interval, on_frame=session.on_frame)
        tree.close()
        watch.start()
        while not over.wait(PUMP_S) and any(each.pid == pid for each in watch.tree.members):
            session.show()
        gone = not over.is_set()
        watch.stop(None)
        if gone:
            box.add(Over(time.time(), pid, None))
        session.tell(f"process {pid} {'is gone' if gone else 'is no longer watched'}; black box: {box.folder}")
        session.close()
    return 0


class _Session:
    """One call of the command: its attempts share the folder, the view, the metrics and the signals."""

    def __init__(self, asked: Asked, folder: Path, planner: Planner | None = None) -> None:
        self._asked, self.folder = asked, folder
        self._planner, self._plan = planner, Plan() if planner is None else planner.result(WAIT_S)
        self._told_plan, self._planned = False, dict[str, PlannedPool]()
        self.signals: OwnSignals | None = None
        self.view, self.asked_to_go = View(), False
        self.interrupted: str | None = None
        """Who sent SIGINT to headway, which passed it on; None where nobody did."""
        self._child: Child | None = None
        self._left: Child | None = None
        self._errors = ErrorTail()
        self.watch: Watch
        self._box: BlackBox | None = None
        self._shown = time.monotonic() if asked.quiet else time.monotonic() - LINE_S + 30.0
        self._written, self._line_ended = 0.0, True
        self._lock = threading.Lock()
        self._news: list[str] = []
        self._area: StatusArea | None = None
        if os.isatty(1) and not asked.quiet and os.environ.get("TERM", "dumb") != "dumb":
            self._area = StatusArea(lambda text: _write(1, text), terminal_size)

    def serve(self, stack: ExitStack) -> None:
        """Serve metrics, where that is asked for."""
        if self._asked.serve is not None:
            from headway.cli.metrics import serve

            stack.callback(serve(self._asked.serve, lambda: self.view))

    def open(self, command: tuple[str, ...]) -> BlackBox:
        """Begin an attempt in the black box."""
        plan = self._plan or Plan()
        self._box = BlackBox(
            self.folder,
            Begun(
                time.time(), tuple(map(as_utf8, command)), os.getpid(), __version__, interval=self._asked.interval,
                cwd=as_utf8(os.getcwd()),
                spec=plan.spec, ledger=plan.ledger, policy=self._asked.policy, zone=time.localtime().tm_gmtoff,
            ),
        )  # fmt: skip
        if plan.why_not:
            self._box.add(Note(time.time(), plan.why_not))
        return self._box

    def attempt(self, command: list[str], *, last: bool) -> Exit:
        """Run the command once, to its end."""
        self.asked_to_go = False
        box = self.open(tuple(command))
        self._tell_plan()
        marker = uuid.uuid4().hex
        self._errors = ErrorTail()
        self.leave(copying=False)
        self._child = child = Child(
            command, self._output, {MARKER: marker}, self._area.inner_size if self._area else None,
            self.signals.unblock if self.signals else lambda: None,
        )  # fmt: skip
        try:
            child.start()
            self.watch = Watch(child.pid, box, self._asked.guard(), self._asked.interval, marker, self.on_frame)
            self.watch.view.planned = self._planned
            self.watch.start()
            while (ended := child.pump(PUMP_S)) is None:
                self._look_for_plan(box)
                self.show()
        finally:
            self._child, self._left = None, child
            child.close()
            if self._area is not None:
                self._area.close()
        box.add(Over(time.time(), child.pid, ended.code, ended.signal, self._errors.text if ended.status else ""))
        self.watch.stop(child.status)
        self.view = self.watch.view
        if ended.status != 0:
            self._look_for_plan(box, WAIT_S)
            self._keep_kernel_lines(box)
        box.close()
        self._box = None
        if last:
            self.watch.close()
        return ended

    def _look_for_plan(self, box: BlackBox, wait_s: float = 0.0) -> None:
        """Take the plan that was not ready when the run began, as soon as it is."""
        if self._plan is not None or self._planner is None:
            return
        self._plan = self._planner.result(wait_s)
        if self._plan is None:
            return
        if self._plan.spec or self._plan.ledger:
            box.add(PlanMade(time.time(), self._plan.spec, self._plan.ledger))
        if self._plan.why_not:
            box.add(Note(time.time(), self._plan.why_not))
        self._tell_plan()
        self.watch.view.planned = self._planned

    def _tell_plan(self) -> None:
        """Say once what was planned, or why a launch was not, and remember it for the view."""
        plan = self._plan
        if plan is None or self._told_plan:
            return
        self._told_plan = True
        text = plan.says or (plan.why_not if plan.launch else "")
        if text and not self._asked.quiet:
            self.tell(text)
        found = plan_of(plan.ledger)
        self._planned = {} if found is None else {pool.pool: pool for pool in found.pools}

    def finding(self) -> "Finding":
        """What the doctor says of the last attempt."""
        from headway.cli.doctor import diagnosed

        return diagnosed([str(self.folder)], [], None, None, live=False).answer

    def ended_early(self) -> bool:
        """Whether the guard stopped the run, or the recording shows a death that the command's exit code hides, as
        `ray job submit` may."""
        if self.watch.stopper.begun:
            return True
        if not self.watch.killed:
            return False
        from headway.diagnose.readers.blackbox import killed_from_outside

        return killed_from_outside(read_blackbox(self.folder))

    def on_signal(self, sent: Sent) -> None:
        """A signal to headway: written down, and passed on."""
        if sent.signal != signal.SIGWINCH:
            if hasattr(self, "watch"):
                self.watch.received(sent)
            self.asked_to_go = self.asked_to_go or sent.signal in ASKED_TO_GO
            if sent.signal == signal.SIGINT:
                self.interrupted = "Ctrl-C" if sent.by_kernel else f"process {sent.sender} (SIGINT)"
        child = self._child
        if child is not None:
            child.send(sent.signal, key=sent.by_kernel)
        elif sent.signal in ASKED_TO_GO and hasattr(self, "watch"):
            self.watch.stopper.hurry()  # the command has ended, and what is left of it is being stopped

    def on_frame(self, view: View, actions: tuple[Action, ...]) -> None:
        """After each frame, in the watching thread."""
        self.view = view
        with self._lock:
            self._news += [action_line(action) for action in actions]

    def show(self) -> None:
        """Draw the view, or print a line where one is due."""
        now = time.monotonic()
        if self._area is not None:
            if now - self._shown >= 1.0 and (self._line_ended or now - self._written >= CALM_S):
                self._shown = now
                self._area.draw(self.view)
                if self._child is not None:
                    self._child.resize()
            return
        if self._asked.quiet:
            return
        with self._lock:
            news, self._news = self._news, []
        if not news and now - self._shown >= LINE_S:
            news, self._shown = [status_line(self.view)], now
        for line in news:
            self.tell(line.removeprefix("headway "))

    def tell(self, text: str) -> None:
        """A line of headway's own, on standard error: while the command runs a terminal is in raw mode."""
        raw = self._child is not None and os.isatty(2)
        end = "\r\n" if raw else "\n"
        begin = end if raw and not self._line_ended else ""
        self._line_ended = True
        _write(2, f"{begin}headway: {text}{end}")

    def close(self) -> None:
        """Give everything back."""
        if self._area is not None:
            self._area.close()
        if self._box is not None:
            self._box.close()

    def leave(self, *, copying: bool) -> None:
        """What the last attempt left behind is printed on, or no longer."""
        if self._left is not None:
            self._left.leave(copying=copying)
            self._left = None

    def _output(self, data: bytes, stream: int) -> None:
        self._written, self._line_ended = time.monotonic(), data.endswith(b"\n")
        if stream == ERRORS:
            self._errors.write(data)
        if hasattr(self, "watch"):
            self.watch.output(data, stream)

    def _keep_kernel_lines(self, box: BlackBox) -> None:
        from headway.diagnose.live import kernel_lines
        from headway.diagnose.readers.blackbox import KERNEL

        for line in kernel_lines(self.watch.pids):
            box.add(Note(time.time(), KERNEL + line))


def _answer(session: _Session, asked: Asked) -> None:
    """Print what the doctor finds in the black box, and leave its sentence where Kubernetes looks."""
    from headway.cli.doctor import diagnosed, write_termination
    from headway.reports.doctor import doctor_report

    found = diagnosed([str(session.folder)], [], _script(asked.command), None, live=False)
    text = found.sentence if asked.quiet else f"\n{doctor_report(found)}\n\nblack box: {session.folder}"
    _write(2, f"{text}\n")
    if TERMINATION_LOG.is_file() and os.access(TERMINATION_LOG, os.W_OK):
        write_termination(TERMINATION_LOG, found.sentence)


def _script(command: tuple[str, ...]) -> Path | None:
    """The launch script in a command."""
    from headway.cli.inputs import is_shell_script

    return next((path for word in command if (path := Path(word)).is_file() and is_shell_script(path)), None)


def _write(descriptor: int, text: str) -> None:
    stream = sys.stdout if descriptor == 1 else sys.stderr
    stream.write(text)
    stream.flush()
