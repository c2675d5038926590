"""Runs a command as if headway were not there: its terminal or pipes, its input, its signals, its exit status."""

import contextlib
import errno
import fcntl
import os
import pty
import selectors
import signal
import subprocess
import termios
import threading
import time
import tty
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from headway.errors import HeadwayError

FORWARDED = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH,
)  # fmt: skip
"""Signals that headway passes on."""
PIECE = 1 << 16
DRAINED_S, DRAIN_S = 0.1, 2.0
"""After the command's end its output is read until there is none for so long, and at most so long: what it left
behind may hold the other end open for ever."""
NOT_FOUND, NOT_EXECUTABLE = 127, 126


class StartError(HeadwayError):
    """A command that cannot be started. Exit code 127 where it is not there, 126 where it may not be run, as a shell
    has it."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Exit(Struct, frozen=True):
    """How a command ended: with a code, or by a signal.

    >>> Exit(3).status, Exit(None, 9).status
    (3, 137)
    """

    code: int | None
    signal: int | None = None

    @property
    def status(self) -> int:
        """The exit code to pass on, as a shell has it: 128 + n for signal n."""
        return 128 + self.signal if self.signal is not None else self.code or 0

    @classmethod
    def from_wait(cls, status: int) -> "Exit":
        """From what `os.wait` gives."""
        return cls(None, os.WTERMSIG(status)) if os.WIFSIGNALED(status) else cls(os.WEXITSTATUS(status))


class Child:
    """A command with its output copied to headway's own and to `on_output` (the bytes, and 1 or 2 for the stream).

    Where headway's standard output is a terminal the command gets one too, of `size` (rows, columns); else pipes.
    `unblock` is called in the new process before its program.
    """

    def __init__(
        self,
        command: Sequence[str],
        on_output: Callable[[bytes, int], None],
        environment: Mapping[str, str] | None = None,
        size: Callable[[], tuple[int, int]] | None = None,
        unblock: Callable[[], None] = lambda: None,
    ) -> None:
        self._command, self._on_output = list(command), on_output
        self._environment = {**os.environ, **(environment or {})}
        self._size, self._unblock = size or terminal_size, unblock
        self._lock = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._outputs: dict[int, int] = {}
        self._terminal: int | None = None
        self._typed: list[Any] | None = None
        self._exit: Exit | None = None
        self._pidfd: int | None = None
        self.pid = 0

    def start(self) -> None:
        """Start it. StartError where that is not possible."""
        try:
            if os.isatty(1):
                self._start_in_terminal()
            else:
                self._start_with_pipes()
        except OSError as error:
            self.close()
            name = self._command[0]
            if error.errno in (errno.EACCES, errno.ENOEXEC):
                raise StartError(f"{name}: cannot be run ({error.strerror})", NOT_EXECUTABLE) from None
            raise StartError(f"{name}: cannot be started ({error.strerror})", NOT_FOUND) from None
        with contextlib.suppress(OSError, AttributeError):
            self._pidfd = os.pidfd_open(self.pid)
            self._selector.register(self._pidfd, selectors.EVENT_READ)

    def pump(self, timeout: float) -> Exit | None:
        """Copy what there is, waiting at most `timeout` seconds for something; how it ended, once it has."""
        if self._exit is None:
            self._copy(timeout if self._pidfd is not None else min(timeout, 0.05))
            self._reap()
            if self._exit is not None:
                self._drain()
        return self._exit

    def send(self, number: int, *, key: bool = False) -> None:
        """Pass on a signal that headway received. `key`: from the terminal, for a key, so for a whole process group;
        where the command is in headway's own group it has had that already."""
        with self._lock:
            if self._exit is not None or not self.pid:
                return
            if number == signal.SIGWINCH and self._terminal is not None:
                self._pass_size()
            elif key and number != signal.SIGWINCH:
                self._send_to_group(number)
            else:
                os.kill(self.pid, number)

    def resize(self) -> None:
        """Tell the command's terminal its size again."""
        with self._lock:
            if self._terminal is not None and self._exit is None:
                self._pass_size()

    def close(self) -> None:
        """Give the terminal back and close all descriptors but the pipes that are still held by what the command left
        behind, whom `leave` serves. The command is left as it is."""
        if self._typed is not None:
            termios.tcsetattr(0, termios.TCSADRAIN, self._typed)
            self._typed = None
        self._selector.close()
        for descriptor in {self._terminal, self._pidfd} - {None}:
            os.close(descriptor)  # type: ignore[arg-type]
        self._outputs.pop(self._terminal or -1, None)
        self._terminal = self._pidfd = None

    def leave(self, *, copying: bool) -> None:
        """Close those pipes; with `copying` a `cat` for each copies on, and ends with the last who prints."""
        for descriptor, stream in self._outputs.items():
            if copying:
                with contextlib.suppress(OSError):
                    subprocess.Popen(
                        ["cat"],
                        stdin=descriptor,
                        stdout=stream,
                        stderr=subprocess.DEVNULL,
                        start_new_session=True,
                        preexec_fn=self._unblock,
                    ).returncode = 0  # nobody waits for it
            os.close(descriptor)
        self._outputs = {}

    # -- starting

    def _start_with_pipes(self) -> None:
        self._shares_group = os.isatty(0)  # another group could not read from the terminal
        process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self._environment,
            process_group=None if self._shares_group else 0, preexec_fn=self._unblock,
        )  # fmt: skip
        self._take(process)
        for pipe, stream in ((process.stdout, 1), (process.stderr, 2)):
            assert pipe is not None
            self._watch(os.dup(pipe.fileno()), stream)
            pipe.close()

    def _start_in_terminal(self) -> None:
        self._shares_group = False
        master, slave = pty.openpty()
        self._terminal = master
        errors = None if os.isatty(2) else subprocess.PIPE
        if os.isatty(0):
            self._typed = termios.tcgetattr(0)
            termios.tcsetattr(slave, termios.TCSANOW, self._typed)
        self._pass_size()
        try:
            process = subprocess.Popen(
                self._command, stdin=slave if os.isatty(0) else None, stdout=slave,
                stderr=slave if errors is None else errors, env=self._environment, start_new_session=True,
                preexec_fn=self._before_program,
            )  # fmt: skip
        finally:
            os.close(slave)
        self._take(process)
        self._watch(master, 1)
        if process.stderr is not None:
            self._watch(os.dup(process.stderr.fileno()), 2)
            process.stderr.close()
        if self._typed is not None:
            tty.setraw(0)
            self._selector.register(0, selectors.EVENT_READ)

    def _before_program(self) -> None:
        """In the new process: its terminal is its controlling one, so that keys reach it."""
        self._unblock()
        fcntl.ioctl(1, termios.TIOCSCTTY, 0)

    def _take(self, process: "subprocess.Popen[bytes]") -> None:
        self.pid = process.pid
        process.returncode = 0  # its status is fetched here, not by the object

    def _watch(self, descriptor: int, stream: int) -> None:
        self._outputs[descriptor] = stream
        self._selector.register(descriptor, selectors.EVENT_READ)

    def _pass_size(self) -> None:
        assert self._terminal is not None
        with contextlib.suppress(OSError):
            termios.tcsetwinsize(self._terminal, self._size())

    # -- copying

    def _copy(self, timeout: float) -> bool:
        """Copy a piece from each that has one; whether there was any."""
        copied = False
        for key, _ in self._selector.select(timeout):
            descriptor = key.fd
            if descriptor in self._outputs:
                copied = self._copy_output(descriptor) or copied
            elif descriptor == 0:
                self._copy_input()
        return copied

    def _copy_output(self, descriptor: int) -> bool:
        stream = self._outputs[descriptor]
        try:
            data = os.read(descriptor, PIECE)
        except OSError:  # a terminal that nobody holds any more
            data = b""
        if not data:
            self._drop(descriptor)
            return False
        try:
            _write_all(stream, data)
        except BrokenPipeError:
            self._drop(descriptor)  # the command learns of it by its own next write
        self._on_output(data, stream)
        return True

    def _copy_input(self) -> None:
        data = os.read(0, PIECE)
        if not data or self._terminal is None:
            self._selector.unregister(0)
            return
        with contextlib.suppress(OSError):
            _write_all(self._terminal, data)

    def _drop(self, descriptor: int) -> None:
        self._selector.unregister(descriptor)
        del self._outputs[descriptor]
        if descriptor != self._terminal:
            os.close(descriptor)

    def _drain(self) -> None:
        until = time.monotonic() + DRAIN_S
        while self._outputs and time.monotonic() < until and self._copy(DRAINED_S):
            pass

    # -- the end

    def _reap(self) -> None:
        with self._lock:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = status
                self._exit = Exit.from_wait(status)
                if self._pidfd is not None:
                    self._selector.unregister(self._pidfd)

    def _send_to_group(self, number: int) -> None:
        """To the group that the terminal would have sent it to."""
        if self._shares_group:
            return
        group = self.pid
        if self._terminal is not None:
            with contextlib.suppress(OSError):
                group = os.tcgetpgrp(self._terminal)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, number)


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:  # somebody else made the descriptor so
            time.sleep(0.01)


def terminal_size() -> tuple[int, int]:
    """Rows and columns of the terminal that standard output is; 24 and 80 where none is."""
    try:
        columns, rows = os.get_terminal_size(1)
    except OSError:
        return 24, 80
    return rows, columns
