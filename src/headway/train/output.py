"""The output directory of a run: which files there are, and who may write into it.

runspec.toml      the RunSpec as run          plan.json        the ledger, line by line
recording.jsonl   measured memory             metrics.jsonl    one flat record a step
evaluations.jsonl one record an evaluation    rollouts.jsonl   sample rollouts
tensorboard/      events                      checkpoints/     the last few
final/            the model or adapter        summary.json     how it ended
reward.log        what reward code printed
"""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headway.config.load import as_written
from headway.config.sections import RunSpec
from headway.errors import InputError
from headway.guard.lines import append_line

RESERVE = 64 << 10
SHOW_CURSOR = b"\x1b[?25h"


class RunFolder:
    """Paths inside one output directory, and its small files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.runspec = root / "runspec.toml"
        self.plan = root / "plan.json"
        self.recording = root / "recording.jsonl"
        self.metrics = root / "metrics.jsonl"
        self.evaluations = root / "evaluations.jsonl"
        self.rollouts = root / "rollouts.jsonl"
        self.tensorboard = root / "tensorboard"
        self.checkpoints = root / "checkpoints"
        self.final = root / "final"
        self.summary = root / "summary.json"
        self.reward_log = root / "reward.log"
        self.reserve = root / ".reserve"

    def claim(self) -> RunSpec | None:
        """The RunSpec of the run in the directory; None where it is free. Writes nothing.

        InputError where it is a file or holds files of something else.
        """
        if self.root.exists() and not self.root.is_dir():
            raise InputError(f"output.dir = {self.root}: it is a file; set output.dir to a directory")
        if not self.root.exists() or not any(self.root.iterdir()):
            return None
        if not self.runspec.exists():
            raise InputError(
                f"output.dir = {self.root}: the directory holds files but no runspec.toml, so it is not a run of "
                "headway; set output.dir to a new directory"
            )
        return as_written(self.runspec)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Make the directory and hold it for this process; the system lets go of it however the process ends.

        InputError where it cannot be made or written, or another process holds it.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            probe = self.root / f".{os.getpid()}.tmp"
            probe.touch()
            probe.unlink()
            handle = os.open(self.root, os.O_RDONLY)
        except OSError as error:
            raise InputError(
                f"output.dir = {self.root}: cannot be written ({error.strerror}); set output.dir to another directory"
            ) from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise InputError(
                f"output.dir = {self.root}: another headway is running in it; wait for it, or set another output.dir"
            ) from None
        try:
            yield
        finally:
            os.close(handle)

    def finished(self, steps: int) -> dict[str, Any] | None:
        """The summary of a run that has done `steps` steps or more and written its final weights; else None."""
        if not self.final.is_dir():
            return None
        try:
            summary = json.loads(self.summary.read_text())
            done = summary["exit_reason"] == "finished" and summary["steps"] >= steps
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return summary if done else None

    def keep_reserve(self) -> None:
        """Take a little room: who deletes `reserve` can write a summary to a full disk."""
        self.reserve.write_bytes(bytes(RESERVE))

    def leave(self) -> None:
        """Before this process ends at once: take away what it is writing under a temporary name, and give a terminal
        its cursor back, which a live view hides."""
        for path in (*self.root.glob(f".*.{os.getpid()}.tmp"), *self.checkpoints.glob(f".*.{os.getpid()}.tmp")):
            shutil.rmtree(path, ignore_errors=True)
        for stream in (1, 2):
            if os.isatty(stream):
                os.write(stream, SHOW_CURSOR)
                break

    def started(self) -> bool:
        """Whether the run in it has anything that a resume would go on from."""
        records = (self.metrics, self.evaluations)
        return any(path.exists() and path.stat().st_size > 0 for path in records) or (
            self.checkpoints.is_dir() and any(self.checkpoints.iterdir())
        )

    def truncate(self, step: int) -> None:
        """Drop records of steps after `step`: a resumed run writes them again."""
        for path in (self.metrics, self.evaluations, self.rollouts):
            if path.exists():
                kept = [line for line in path.read_text().splitlines() if _step(line) <= step]
                write_text(path, "".join(line + "\n" for line in kept))

    def evaluation(self, step: int) -> dict[str, Any] | None:
        """The evaluation recorded after `step` steps, if there is one."""
        if not self.evaluations.exists():
            return None
        rows = [json.loads(line) for line in self.evaluations.read_text().splitlines() if _step(line) == step]
        return rows[-1] if rows else None

    def attempts(self) -> list[dict[str, Any]]:
        """What the guard did in each process of the run, the first first: when it began (`t`, Unix time), its `pid`,
        and how often each action was done (`guard`). Of a process that was killed too."""
        found: list[dict[str, Any]] = []
        with self.recording.open("rb") as file:
            for line in file:
                row = _row(line) if line.startswith(_ATTEMPT) else {}
                if row.get("kind") == "header":
                    found.append({"t": row["t"], "pid": row["pid"], "guard": {}})
                elif found and row and not row["dry"]:
                    done = found[-1]["guard"]
                    done[row["name"]] = done.get(row["name"], 0) + 1
        return found

    def total(self, metric: str) -> int:
        """A count of metrics.jsonl over all steps recorded."""
        if not self.metrics.exists():
            return 0
        return sum(int(json.loads(line).get(metric, 0)) for line in self.metrics.read_text().splitlines())


def append(path: Path, record: Mapping[str, Any]) -> None:
    """Append one JSON line, or on a full disk nothing of it."""
    with path.open("ab", buffering=0) as file:
        append_line(file.fileno(), json.dumps(record))


def write_text(path: Path, text: str) -> None:
    """Write a file whole: a temporary name, then a rename."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


_ATTEMPT = (b'{"kind": "header"', b'{"kind": "action"')
"""How the lines of a recording begin that tell of its processes; the others are not parsed."""


def _row(line: bytes) -> dict[str, Any]:
    """The record on a line; nothing for a line that a killed process left unfinished."""
    try:
        row: dict[str, Any] = json.loads(line)
    except ValueError:
        return {}
    return row


def _step(line: str) -> float:
    """The step of a record; a torn last line belongs to no step and is dropped."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")
