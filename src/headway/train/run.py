"""One run from plan to summary: what `headway train` calls once the plan is made."""

import json
import shutil
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from headway.config.accept import Accept
from headway.config.load import dump
from headway.config.sections import RunSpec
from headway.config.source import ModelSource
from headway.errors import DiskFullError, HeadwayError, InputError, RewardsFailedError, StoppedError
from headway.facts.machine import Machine
from headway.guard.recorder import PhasePeak
from headway.plan.ledger import Ledger, Phase
from headway.train import disk_full, loop, memory
from headway.train.guard import Guarded
from headway.train.job import Job, View, final_folder, open_job
from headway.train.model import prepare, save_model
from headway.train.output import RunFolder, write_text
from headway.train.record import record_of
from headway.train.resume import claim
from headway.train.stop import EndRequested, Stop, on_signals


def run(
    spec: RunSpec,
    source: ModelSource,
    machine: Machine,
    ledger: Ledger,
    longest_allowed: int,
    plan_json: str,
    view: View,
    accepted: Collection[Accept] = (),
) -> dict[str, Any]:
    """Claim the output directory, train or resume, write the final model, and return the summary that was written.

    InputError for an output directory of another run, a refused checkpoint, or data and models that cannot be read.
    """
    assert spec.output.dir is not None
    memory.configure()
    folder = RunFolder(spec.output.dir)
    claim(folder, spec, accepted)
    stop = Stop()
    with opened(folder), on_signals(stop, view.notice, folder.leave), nothing_to_save(stop), room_at_end(folder):
        if not folder.started():
            write_text(folder.runspec, dump(spec))
        folder.keep_reserve()
        source = prepare(source, view.message)
        with open_job(
            spec, source, machine, expected_peaks(ledger), guarded(spec, ledger), longest_allowed, folder, view, stop,
            accepted,
        ) as job:  # fmt: skip
            stop.at_once = False  # the loop saves what is done
            problem = None
            try:
                write_text(folder.runspec, dump(spec))
                write_text(folder.plan, plan_json)
                reason = loop.train(job)
                if reason == "finished":
                    final_folder(job, partial(_save, source, spec, job))
                else:
                    view.message(f"{reason}: saved after step {job.progress.step}; the same command resumes the run")
            except RewardsFailedError as error:
                reason, problem = error.exit_reason, str(error)
            except (OSError, HeadwayError) as error:
                problem = disk_full.words(error, folder.root, job)
                if problem is None:
                    raise
                reason = DiskFullError.exit_reason
                folder.reserve.unlink(missing_ok=True)
            summary = summarise(job, reason, ledger) | {"problem": problem}
            if reason == RewardsFailedError.exit_reason and not job.progress.step:
                folder.evaluations.unlink(missing_ok=True)  # the mended reward's is the one to compare with
            write_text(folder.summary, json.dumps(summary, indent=1) + "\n")
    return summary


def _save(source: ModelSource, spec: RunSpec, job: Job, model: Any, tokenizer: Any, to: Path) -> None:
    """Write the final model, or adapter, with the record of where it comes from."""
    record = record_of(source, job.mark["content"]["model"], job.progress.step, to, adapter=spec.lora is not None)
    save_model(model, tokenizer, to, record)


@contextmanager
def room_at_end(folder: RunFolder) -> Iterator[None]:
    """Keep a little room, for the summary of a run that fills its disk. DiskFullError where there is none left for
    what a run begins or ends with."""
    try:
        try:
            yield
        finally:
            folder.reserve.unlink(missing_ok=True)
    except OSError as error:
        problem = disk_full.words(error, folder.root)
        if problem is None:
            raise
        raise DiskFullError(problem) from error


@contextmanager
def nothing_to_save(stop: Stop) -> Iterator[None]:
    """While a run loads, a signal ends it where it is. StoppedError then."""
    stop.at_once = True
    try:
        yield
    except EndRequested as request:
        assert stop.signal is not None, "only a signal asks so"
        raise StoppedError(
            f"stopped by {request} while loading: nothing was changed; the same command starts or resumes the run",
            stop.signal,
        ) from None


@contextmanager
def opened(folder: RunFolder) -> Iterator[None]:
    """Make the directory and keep other processes out of it while inside.

    Bad input found while loading, or a stop there, takes the directory away again if it was not there or empty
    before. InputError where it cannot be written or another process is in it.
    """
    fresh = not folder.root.exists() or not any(folder.root.iterdir())
    with folder.lock():
        try:
            yield
        except (InputError, StoppedError):
            if fresh and not folder.started():
                shutil.rmtree(folder.root)
            raise


def summarise(job: Job, reason: str, ledger: Ledger) -> dict[str, Any]:
    """The contents of summary.json. Bytes are of the whole process tree, predicted and measured alike."""
    pool = ledger.pools()[0]
    peaks, attempts = job.recorder.peaks(), job.folder.attempts()
    return {
        "steps": job.progress.step,
        "seconds": round(job.elapsed(), 3),
        "exit_reason": reason,
        "signal": None if job.stop.signal is None else int(job.stop.signal),
        "eval_before": job.folder.evaluation(0),
        "eval_after": job.folder.evaluation(job.progress.step),
        "guard": dict(sum((Counter(each["guard"]) for each in attempts), Counter())),
        "attempts": attempts,
        "dropped_samples": job.folder.total("dropped"),
        "dropped_long_prompts": job.problems.dropped_long,
        "reward_failures": dict(job.scorer.failures),
        "first_reward_failure": job.scorer.first_failure,
        "peak_predicted_bytes": ledger.peak(pool).bytes,
        "peak_upper_bytes": ledger.upper(pool),
        "peak_measured_bytes": job.recorder.peak,
        "phases": phase_rows(ledger, pool, peaks),
        "changes": list(job.progress.changes),
        "output": str(job.folder.root),
    }


def guarded(spec: RunSpec, ledger: Ledger) -> Guarded:
    """What the guard holds the run against. A plan that is over `memory.limit` waives nothing: who starts such a run
    has all the more need of the stop before the limit."""
    return Guarded(spec.memory.limit, {pool: ledger.upper(pool) for pool in ledger.pools()})


def expected_peaks(ledger: Ledger) -> dict[Phase, int]:
    """The expected peak of each phase in the first pool, for the recording's header."""
    pool = ledger.pools()[0]
    return {phase: ledger.peak_of(pool, phase).bytes for phase in ledger.phases(pool)}


def phase_rows(ledger: Ledger, pool: str, peaks: Mapping[Phase, PhasePeak]) -> dict[str, dict[str, int | None]]:
    """Predicted, upper and measured bytes of each phase; measured is None for a phase that did not come."""
    return {
        str(phase): {
            "predicted_bytes": ledger.peak_of(pool, phase).bytes,
            "upper_bytes": ledger.peak_of(pool, phase).upper,
            "measured_bytes": peaks[phase].tree_peak if phase in peaks else None,
        }
        for phase in ledger.phases(pool)
    }
