"""Who sent a signal, where the kernel permits to know; where not, a sentence that says why.

A process that is sent a signal is told by whom (siginfo), and it alone: `OwnSignals` is for this process. For others
the kernel traces each signal as it is sent (`signal:signal_generate` of tracefs); `SignalTrace` reads that.
"""

import ctypes
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from types import TracebackType
from typing import Any, Self

from msgspec import Struct
from msgspec.structs import replace

from headway.guard.read import ProcessFiles

SI_KERNEL = 128
"""The code of a signal that the kernel sends by itself: SIGKILL of the OOM killer is one. Sent by `kill` it has 0."""
SIGNALS = tuple(
    getattr(signal, name).value
    for name in (
        "SIGHUP", "SIGINT", "SIGQUIT", "SIGABRT", "SIGBUS", "SIGKILL", "SIGSEGV", "SIGTERM", "SIGSTOP", "SIGXCPU",
    )
    if hasattr(signal, name)
)  # fmt: skip
"""Signals that end or stop a process; others, such as SIGCHLD, come in thousands and end nothing."""


class Sent(Struct, frozen=True):
    """One signal: `t` in Unix time, who sent it to whom; `sender_command` only where the sender was still at it.

    `code` is siginfo's: 0 from `kill`, 128 from the kernel itself, positive others from a fault of the target's own.

    >>> Sent(t=0.0, signal=9, target=7, sender=1, sender_name="bash", code=0).sentence
    'SIGKILL to process 7, sent by process 1 (bash)'
    """

    t: float
    signal: int
    target: int
    sender: int | None
    sender_name: str | None = None
    target_name: str | None = None
    code: int | None = None
    sender_command: str | None = None

    @property
    def by_kernel(self) -> bool:
        """Whether the kernel decided by itself to send it, as its OOM killer does."""
        return self.code == SI_KERNEL

    @property
    def sentence(self) -> str:
        """All of it in words."""
        target = f"process {self.target}" + (f" ({self.target_name})" if self.target_name else "")
        what = f"{signal_name(self.signal)} to {target}"
        if self.by_kernel:
            during = f", while process {self.sender} ({self.sender_name}) ran" if self.sender_name else ""
            return f"{what}, sent by the kernel itself{during}"
        if self.sender == self.target:
            return f"{what}, " + ("for a fault of its own" if (self.code or 0) > 0 else "sent by itself")
        if self.sender is None:
            return f"{what}, sender not known"
        name = ": ".join(filter(None, (self.sender_name, self.sender_command)))
        return f"{what}, sent by process {self.sender}" + (f" ({name})" if name else "")


def signal_name(number: int) -> str:
    """The name of a signal; a number without one stays a number.

    >>> signal_name(15), signal_name(200)
    ('SIGTERM', 'signal 200')
    """
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


_LINE = re.compile(
    r"^ *(?P<name>.*)-(?P<tid>\d+) +(?:\(.{7}\) +)?\[\d+\] +\S+ +(?P<t>\d+\.\d+): signal_generate:"
    r" sig=(?P<signal>\d+) errno=-?\d+ code=(?P<code>-?\d+) comm=(?P<target_name>.*)"
    r" pid=(?P<target>\d+) grp=\d+ res=\d+\s*$"
)


def parse_trace(text: str, offset: float = 0.0) -> Iterator[Sent]:
    """The signals in the text of trace_pipe; `offset` is added to its clock. Lines of other kinds are passed over.

    >>> line = "  bash-11  [001] d..1.  5.250000: signal_generate: sig=15 errno=0 code=0 comm=a b pid=7 grp=1 res=0"
    >>> (sent,) = parse_trace(line, offset=100.0)
    >>> sent.t, sent.sender, sent.sender_name, sent.target, sent.target_name
    (105.25, 11, 'bash', 7, 'a b')
    """
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is not None:
            name = match["name"]
            yield Sent(
                t=float(match["t"]) + offset,
                signal=int(match["signal"]),
                target=int(match["target"]),
                sender=int(match["tid"]),
                sender_name=None if name == "<...>" else name,
                target_name=match["target_name"],
                code=int(match["code"]),
            )


# -- other processes: the kernel's trace

_TRACING = ("/sys/kernel/tracing", "/sys/kernel/debug/tracing")
_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432
"""The same numbers on all architectures that Linux 5.2 knows (include/uapi/asm-generic/unistd.h)."""
_CMD_CREATE = 6
_FIRST_PID_NAMESPACE = "pid:[4026531836]"
"""PROC_PID_INIT_INO of the kernel's include/linux/proc_ns.h."""
_PREFIX = "headway-"


class SignalTrace:
    """The kernel's record of signals that end or stop processes, in a tracing instance of our own.

    An instance has its own buffer and switches, so nobody else's tracing is disturbed; it is removed at the end, and
    one that a killed headway left behind at the next start. Where `open` gave no trace, `why_not` says why.
    """

    def __init__(self, folder: int, why_not: str | None = None) -> None:
        self._folder, self.why_not = folder, why_not
        self._name = f"{_PREFIX}{os.getpid()}"
        self._pipe = -1
        self._rest = ""
        self._files = ProcessFiles()

    @classmethod
    def open(cls) -> "SignalTrace":
        """Begin to trace. Needs root (CAP_SYS_ADMIN) in the machine's own namespace of processes."""
        why_not = _why_not()
        if why_not is not None:
            return cls(-1, why_not)
        try:
            trace = cls(_tracefs())
        except OSError as error:
            return cls(-1, f"the kernel's tracing could not be opened ({error.strerror})")
        try:
            trace._begin()
        except OSError as error:
            trace.close()
            return cls(-1, f"the kernel does not trace signals here ({error.strerror})")
        return trace

    def read(self) -> tuple[Sent, ...]:
        """Signals that were sent since the last call, to any process of the machine; it does not wait."""
        if self._pipe < 0:
            return ()
        text = self._rest
        while True:
            try:
                part = os.read(self._pipe, 1 << 16)
            except BlockingIOError:
                break
            if not part:
                break
            text += part.decode(errors="replace")
        whole, newline, self._rest = text.rpartition("\n")
        offset = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        return tuple(self._known(sent) for sent in parse_trace(whole + newline, offset))

    def close(self) -> None:
        """Stop tracing and remove the instance."""
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
        if self._folder >= 0:
            _remove(self._folder, self._name)
            os.close(self._folder)
            self._folder = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _begin(self) -> None:
        for left in _listdir(self._folder, "instances"):
            pid = left.removeprefix(_PREFIX)
            if left.startswith(_PREFIX) and pid.isdigit() and self._files.stat(int(pid)) is None:
                _remove(self._folder, left)
        instance = f"instances/{self._name}"
        os.mkdir(instance, dir_fd=self._folder)
        chosen = "||".join(f"sig=={number}" for number in SIGNALS)
        for name, text in (
            ("trace_clock", "boot"),
            ("buffer_size_kb", "64"),
            ("events/signal/signal_generate/filter", chosen),
            ("events/signal/signal_generate/enable", "1"),
        ):
            _write(self._folder, f"{instance}/{name}", text)
        self._pipe = os.open(
            f"{instance}/trace_pipe", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._folder
        )

    def _known(self, sent: Sent) -> Sent:
        """With the sender's process in place of its thread, and its command line, while it lives."""
        assert sent.sender is not None, "the kernel's line names who was running"
        stat = self._files.stat(sent.sender)
        same = stat is not None and stat.name == sent.sender_name  # it may have become another program since
        process = self._files.process_of(sent.sender) or sent.sender
        return replace(sent, sender=process, sender_command=_command(self._files, process) if same else None)


def _command(files: ProcessFiles, pid: int) -> str | None:
    """A command line on one line, as much of it as a message bears."""
    return " ".join(files.command(pid).split())[:160] or None


def _why_not() -> str | None:
    if not sys.platform.startswith("linux"):
        return "only Linux traces signals"
    if os.geteuid() != 0:
        return "only root may read the kernel's trace of signals, and headway does not run as root"
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError as error:
        return f"this process's namespace is not known ({error.strerror})"
    if namespace != _FIRST_PID_NAMESPACE:
        return "the kernel's trace names the host's process numbers, which this container does not see"
    return None


def _tracefs() -> int:
    """A descriptor of the tracing file system: as it is mounted, else through a mount that nobody else sees."""
    for path in _TRACING:
        if os.path.isdir(f"{path}/instances"):
            return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    kernel = ctypes.CDLL(None, use_errno=True)
    system = _check(kernel.syscall(_FSOPEN, b"tracefs", 1))
    try:
        _check(kernel.syscall(_FSCONFIG, system, _CMD_CREATE, None, None, 0))
        mount = _check(kernel.syscall(_FSMOUNT, system, 1, 0))
    finally:
        os.close(system)
    try:
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=mount)
    finally:
        os.close(mount)


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def _write(folder: int, name: str, text: str) -> None:
    descriptor = os.open(name, os.O_WRONLY | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _listdir(folder: int, name: str) -> list[str]:
    descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        return os.listdir(descriptor)
    finally:
        os.close(descriptor)


def _remove(folder: int, name: str) -> None:
    try:
        _write(folder, f"instances/{name}/events/signal/signal_generate/enable", "0")
        os.rmdir(f"instances/{name}", dir_fd=folder)
    except OSError:  # it is gone, or another process reads it
        return


# -- this process: siginfo


class OwnSignals:
    """Signals to this process, each with its sender, as a context manager. Enter it before other threads run.

    The signals are blocked and fetched by a thread, which calls `on_signal`: they do nothing else any more, and
    Python's own handlers for them do not run. A child inherits the block, so start it with `preexec_fn=unblock` of
    this object, or with `posix_spawn` and an empty `setsigmask`. Where the system has no such call (macOS), `why_not`
    says so and nothing is blocked.
    """

    def __init__(
        self,
        on_signal: Callable[[Sent], Any],
        signals: Collection[int] = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT),
    ) -> None:
        self._on_signal, self._signals = on_signal, frozenset(signals)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headway-signals", daemon=True)
        self._before: set[int] = set()
        can = hasattr(signal, "sigtimedwait")
        self.why_not = None if can else "this system does not tell a process who sent it a signal"

    def __enter__(self) -> Self:
        if self.why_not is None:
            self._before = set(signal.pthread_sigmask(signal.SIG_BLOCK, self._signals))
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.why_not is None:
            self._ended.set()
            self._thread.join()
            signal.pthread_sigmask(signal.SIG_SETMASK, self._before)

    def unblock(self) -> None:
        """In a child, before it becomes its own program: the signals work there as they did before."""
        signal.pthread_sigmask(signal.SIG_SETMASK, self._before)

    def _run(self) -> None:
        files = ProcessFiles()
        while not self._ended.is_set():
            info = signal.sigtimedwait(self._signals, 0.2)
            if info is not None:
                self._on_signal(_from_siginfo(info, files))


def _from_siginfo(info: Any, files: ProcessFiles) -> Sent:
    sender = info.si_pid or None  # 0: the kernel, or a process of another namespace
    stat = files.stat(sender) if sender else None
    return Sent(
        t=time.time(),
        signal=info.si_signo,
        target=os.getpid(),
        sender=sender,
        sender_name=None if stat is None else stat.name,
        code=info.si_code,
        sender_command=_command(files, sender) if sender else None,
    )
