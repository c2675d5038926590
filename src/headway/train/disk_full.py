"""A disk that is full while a run writes: which, how much was to be written, what to do."""

import errno
import re
from pathlib import Path

from headway.facts.filesystem import file_system
from headway.plan.ledger import Phase
from headway.train.job import Job
from headway.units import format_bytes

REASONS = {
    errno.ENOSPC: "No space left on device",
    errno.EDQUOT: "Disk quota exceeded",
    errno.EFBIG: "File too large: a limit on the size of a file (ulimit -f) is reached",
}


def reason_of(error: BaseException | None) -> str | None:
    """The system's words where want of room is behind an exception; None where something else is.

    >>> reason_of(OSError(28, "No space left on device")), reason_of(OSError(5, "Input/output error"))
    ('No space left on device', None)
    """
    while error is not None:
        number = error.errno if isinstance(error, OSError) else None
        told = re.search(r"\(os error (\d+)\)", str(error))  # of Rust, which writes safetensors
        number = int(told[1]) if told else number
        if number in REASONS:
            return REASONS[number]
        error = error.__cause__ or error.__context__
    return None


def words(error: BaseException, root: Path, job: Job | None = None) -> str | None:
    """What a user reads: what could not be written, how much room there is, what is kept and what to set. None where
    something else than want of room is behind `error`."""
    reason = reason_of(error)
    if reason is None:
        return None
    what, kept, fewer = f"what the run writes to {root}", "", ""
    if job is not None:
        keep = job.spec.output.keep
        if job.stop.place.phase == Phase.SAVE:
            tensors = (*job.parameters().values(), *job.optimizer.state_dict().values())
            size = format_bytes(sum(each.numel() * each.element_size() for each in tensors))
            final = job.stop.place.last and job.kept == job.progress.step
            what = f"{job.folder.final}" if final else f"the checkpoint of step {job.progress.step} ({size})"
        kept = " No checkpoint is there yet." if job.kept is None else f" The checkpoint of step {job.kept} is kept."
        fewer = f" or set output.keep lower (it is {keep})," if keep > 1 else ""
    system = file_system(root)
    room = "" if system is None else f"; {system.room()}"
    return (
        f"disk full: {what} could not be written: {reason}{room}.{kept} Make room there,{fewer} or move the folder "
        "to another file system and set output.dir; then the same command goes on"
    )
