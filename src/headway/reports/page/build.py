"""From a folder to the records of its page."""

import time
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from headway.errors import InputError
from headway.plan.ledger import Ledger
from headway.reports.page.box import is_blackbox, read_box
from headway.reports.page.compare import comparisons, ledger_of, plan_in
from headway.reports.page.curves import Metrics, read_metrics, samples
from headway.reports.page.ending import tiles, train_ending, watch_ending
from headway.reports.page.files import both_ends, document, listing, rows
from headway.reports.page.recording import read_recording
from headway.reports.page.records import Doctor, Ending, FileRow, History, Page, Sample

OF_TRAIN = ("recording.jsonl", "metrics.jsonl", "plan.json", "summary.json", "runspec.toml")
"""A folder with one of these is an output directory of `headway train`."""
NEEDED = {
    "recording.jsonl": "memory over time",
    "plan.json": "the plan beside what was measured",
    "metrics.jsonl": "reward, answer length and throughput",
    "summary.json": "how the run ended; a run that was killed leaves none",
}
"""What a folder of `headway train` lacks is told with what the page lacks for it."""
CLOCKS = 2.0
"""Seconds by which the time of a file and that in a recording may differ."""


class Run(Struct, frozen=True):
    """What was read of a folder. `summary` is None where there is none, or only that of an earlier process."""

    folder: Path
    watched: bool
    history: History | None
    ledger: Ledger | None
    summary: dict[str, Any] | None
    metrics: Metrics
    samples: tuple[Sample, ...]
    files: tuple[FileRow, ...]
    missing: tuple[str, ...]
    running: bool = False

    def ending(self, doctor: Doctor | None = None) -> Ending:
        """How it ended, with what the doctor says of it, where it was asked."""
        if self.watched:
            assert self.history is not None
            return watch_ending(self.history, doctor, running=self.running)
        return train_ending(self.history, self.summary, self.metrics, doctor, running=self.running)


def read_run(folder: Path, *, running: bool = False) -> Run:
    """Read a folder of `headway train` or `headway watch`.

    InputError for anything else. What is missing or damaged in a folder of one of them is told on the page.
    """
    if not folder.is_dir():
        problem = "it is a file" if folder.exists() else "there is no such directory"
        raise InputError(f"{folder}: {problem}; name the output directory of a run")
    try:
        files = listing(folder)
        if is_blackbox(folder):
            return _watched(folder, files, running=running)
    except OSError as error:
        raise InputError(f"{folder}: cannot be read ({error.strerror})") from None
    if not any((folder / name).is_file() for name in OF_TRAIN):
        raise InputError(
            f"{folder}: no output directory of headway train or headway watch: it holds none of "
            f"{', '.join(OF_TRAIN)}, events.jsonl"
        )
    return _trained(folder, files, running=running)


def _watched(folder: Path, files: tuple[FileRow, ...], *, running: bool) -> Run:
    history = read_box(folder)
    missing = [] if history.pools else ["frames-*.jsonl: no memory over time"]
    return Run(
        folder, True, history, ledger_of(plan_in(history.ledger)), None, Metrics(), (), files, tuple(missing), running
    )


def _trained(folder: Path, files: tuple[FileRow, ...], *, running: bool) -> Run:
    missing: list[str] = []
    plan, summary = (_document(folder / name, missing) for name in ("plan.json", "summary.json"))
    ledger = ledger_of(plan)
    if plan is not None and ledger is None:
        missing.append("plan.json: it has no lines that this version of headway reads")
    history = _history(folder / "recording.jsonl", ledger, missing)
    metrics = _metrics(folder, missing)
    if summary is not None and _older(folder / "summary.json", summary, history, metrics):
        summary = None
        missing.append("summary.json: it is of an earlier process of this run, so it does not say how the run ended")
    return Run(
        folder, False, history, ledger, summary, metrics, _samples(folder, missing), files, tuple(missing), running
    )


def _lacks(name: str, missing: list[str], why: str = "missing") -> None:
    missing.append(f"{name}: {why}" + (f" ({NEEDED[name]})" if name in NEEDED else ""))


def _document(path: Path, missing: list[str]) -> dict[str, Any] | None:
    try:
        found = document(path)
    except OSError as error:
        _lacks(path.name, missing, f"cannot be read, {error.strerror}")
        return None
    if found is None:
        _lacks(path.name, missing, "no JSON object, or too large" if path.is_file() else "missing")
    return found


def _history(path: Path, ledger: Ledger | None, missing: list[str]) -> History | None:
    upper: dict[str, int] = {}
    if ledger is not None:
        pool = ledger.pools()[0]
        upper = {str(phase): ledger.peak_of(pool, phase).upper for phase in ledger.phases(pool)}
    try:
        found = read_recording(path, upper)
    except OSError as error:
        _lacks(path.name, missing, "missing" if not path.exists() else f"cannot be read, {error.strerror}")
        return None
    missing += found.notes
    if not found.starts:
        _lacks(path.name, missing, "it holds no recording")
        return None
    return found


def _metrics(folder: Path, missing: list[str]) -> Metrics:
    found = {}
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        path = folder / name
        try:
            path.open("rb").close()
            found[name] = rows(path)
        except OSError as error:
            if name in NEEDED or path.exists():
                _lacks(name, missing, "missing" if not path.exists() else f"cannot be read, {error.strerror}")
            found[name] = iter(())
    metrics = read_metrics(found["metrics.jsonl"], found["evaluations.jsonl"])
    if metrics.bad:
        missing.append(f"metrics.jsonl, evaluations.jsonl: {metrics.bad} lines could not be read")
    return metrics


def _samples(folder: Path, missing: list[str]) -> tuple[Sample, ...]:
    path = folder / "rollouts.jsonl"
    try:
        return samples(both_ends(path)) if path.exists() else ()
    except OSError as error:
        _lacks(path.name, missing, f"cannot be read, {error.strerror}")
        return ()


def _older(path: Path, summary: dict[str, Any], history: History | None, metrics: Metrics) -> bool:
    """Whether a summary was written before the last process of the run began."""
    steps = summary.get("steps")
    if isinstance(steps, int) and metrics.steps > steps:
        return True
    return history is not None and path.stat().st_mtime + CLOCKS < history.starts[-1].unix


def build(run: Run, doctor: Doctor | None = None, made: float | None = None) -> Page:
    """The records of the page. `made` is when, in Unix time."""
    history = run.history or History()
    compared = () if run.ledger is None else comparisons(run.ledger, history.held)
    return Page(
        title=run.folder.resolve().name or str(run.folder),
        kind="watch" if run.watched else "train",
        made=time.time() if made is None else made,
        ending=run.ending(doctor),
        tiles=tiles(run.history, run.metrics, compared),
        history=replace(history, ledger=""),
        comparisons=compared,
        metrics=run.metrics.charts,
        doctor=doctor,
        samples=run.samples,
        files=run.files,
        missing=run.missing + (history.notes if run.watched else ()),
    )
