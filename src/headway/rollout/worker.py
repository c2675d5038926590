"""The trainer's end of the reward process: start it, ask it, end it when it hangs."""

import json
import os
import select
import signal
import subprocess
import sys
import time
import weakref
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Literal

from headway.errors import InputError
from headway.rollout.frames import HEADER, Message, encode
from headway.rollout.reward_log import RewardLog

START_TIMEOUT_S = 180.0
"""For the imports of a slow disk."""

EXIT_S = 2.0
"""For a process to end after it closed its pipes."""

ENVIRONMENT = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Some reasoning-gym datasets iterate over sets of text, so their problems follow the hash seed; thread pools would
take memory for each core."""


class WorkerLostError(Exception):
    """The process hung or died over a request, and is gone."""

    def __init__(self, failure: Literal["timeout", "died"], note: str) -> None:
        super().__init__(note)
        self.failure = failure
        self.note = note


class Worker:
    """One reward process, started when it is needed and again after it was lost.

    Use it from one thread that lives as long: Linux ends the process with the thread that started it.
    """

    def __init__(self, setup: Message, log: Path | None = None, start_timeout_s: float = START_TIMEOUT_S) -> None:
        """`setup` is the first message; what the process prints goes to the end of `log`, up to its bound, else to
        stderr.

        `start_timeout_s` bounds each start, its imports included.
        """
        self._setup = setup
        self._start_timeout_s = start_timeout_s
        self._log = None if log is None else RewardLog(log)
        self._process: subprocess.Popen[bytes] | None = None
        self._finalizer: weakref.finalize[[subprocess.Popen[bytes], RewardLog | None], Worker] | None = None

    def __enter__(self) -> "Worker":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the process unless it runs. InputError where what it is to run cannot be imported."""
        if self._process is not None and _is_dead(self._process):
            self.close()
        if self._process is not None:
            return
        self._spawn()
        try:
            reply = self._exchange(self._setup, self._start_timeout_s)
        except WorkerLostError as lost:
            raise InputError(self._lost_at_start(lost)) from None
        if "problems" in reply:
            self.close()
            raise InputError(*reply["problems"])

    def _lost_at_start(self, lost: WorkerLostError) -> str:
        function = self._setup.get("function")
        setting = f'reward.kind = "{self._setup["kind"]}"' if function is None else f'reward.function = "{function}"'
        problem = f"{setting}: its process {lost.note} while it imported what scores the answers"
        if lost.failure == "died":
            return f"{problem}; mend what is imported, or set reward.memory higher"
        more = "" if function is None else ", or set reward.timeout_s above that where it needs the time"
        return f"{problem}; mend what is imported{more}"

    def ask(self, request: Message, timeout_s: float | None) -> Message:
        """The reply to a request. WorkerLostError when it takes longer, or when the process dies over it."""
        self.start()
        return self._exchange(request, timeout_s)

    def close(self) -> int | None:
        """End the process and whatever it started; returns its exit code if it ran."""
        process, self._process = self._process, None
        if process is None:
            return None
        if self._finalizer is not None:
            self._finalizer.detach()
        return _end(process, self._log)

    def _spawn(self) -> None:
        command = [sys.executable, "-P", "-m", "headway.rollout.reward_process"]
        environment = os.environ | ENVIRONMENT
        self._process = _popen(command, environment, None if self._log is None else subprocess.PIPE)
        if self._process.stderr is not None:
            os.set_blocking(self._process.stderr.fileno(), False)
        self._finalizer = weakref.finalize(self, _end, self._process, self._log)

    def _exchange(self, request: Message, timeout_s: float | None) -> Message:
        """Send and receive. Whatever cuts it short ends the process: its late reply would answer the next request."""
        assert self._process is not None
        try:
            self._keep_prints(self._process)
            _send(self._process, encode(request))
            reply = self._receive(self._process, timeout_s)
            self._keep_prints(self._process)
            return reply
        except BrokenPipeError:
            raise self._died(self._process) from None
        except BaseException:
            self.close()
            raise

    def _receive(self, process: subprocess.Popen[bytes], timeout_s: float | None) -> Message:
        assert process.stdout is not None
        source = process.stdout.fileno()
        poll = select.poll()
        poll.register(source, select.POLLIN)
        prints = None if process.stderr is None else process.stderr.fileno()
        if prints is not None:
            poll.register(prints, select.POLLIN)
        end = None if timeout_s is None else time.monotonic() + timeout_s
        received, needed = bytearray(), HEADER.size
        while len(received) < needed:
            ready = dict(poll.poll(None if end is None else max(0.0, end - time.monotonic()) * 1000))
            if prints in ready and not self._keep_prints(process):
                poll.unregister(prints)
            if source not in ready:
                if end is not None and time.monotonic() >= end:
                    raise WorkerLostError("timeout", f"took longer than {timeout_s:g} s")
                continue
            chunk = os.read(source, 1 << 20)
            if not chunk:
                raise self._died(process)
            received += chunk
            if len(received) >= HEADER.size:
                needed = HEADER.size + HEADER.unpack_from(received)[0]
        return json.loads(received[HEADER.size :])  # type: ignore[no-any-return]

    def _keep_prints(self, process: subprocess.Popen[bytes]) -> bool:
        """Move what it printed to the log; False where it can print no more."""
        if self._log is None or process.stderr is None:
            return False
        return self._log.take(process.stderr.fileno())

    def _died(self, process: subprocess.Popen[bytes]) -> WorkerLostError:
        """Its pipes close a little before it ends: give it time, so that the cause is its own and not our signal."""
        end = time.monotonic() + EXIT_S
        while not _is_dead(process) and time.monotonic() < end:
            self._keep_prints(process)
            time.sleep(0.005)
        return WorkerLostError("died", f"died ({_how(self.close())})")


def _popen(command: list[str], environment: dict[str, str], errors: int | None) -> subprocess.Popen[bytes]:
    """In a session of its own: Ctrl-C reaches only the trainer, and one signal ends it with its children."""
    return subprocess.Popen(
        command,
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        env=environment,
        start_new_session=True,
    )


def _send(process: subprocess.Popen[bytes], frame: bytes) -> None:
    assert process.stdin is not None
    rest = memoryview(frame)
    while rest:
        rest = rest[os.write(process.stdin.fileno(), rest) :]


def _is_dead(process: subprocess.Popen[bytes]) -> bool:
    """Looks without reaping, so that the id stays the process's own until `_end`."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _end(process: subprocess.Popen[bytes], log: RewardLog | None) -> int:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    process.stdout.close()
    with suppress(ProcessLookupError):  # its group exists until it is waited for, so the id is still its own
        os.killpg(process.pid, signal.SIGKILL)
    code = process.wait()
    if process.stderr is not None:
        if log is not None:
            log.take(process.stderr.fileno())
        process.stderr.close()
    return code


def _how(code: int | None) -> str:
    if code is None:
        return "unknown"
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
