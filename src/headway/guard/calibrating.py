"""From a rehearsal to what later plans for this machine take as its process and its allocator's overhead."""

from headway.errors import InputError
from headway.facts.calibration import ProcessBase
from headway.guard.rehearsed import Rehearsed
from headway.plan import host
from headway.plan.ledger import Phase


def measured_base(found: Rehearsed, day: str) -> ProcessBase:
    """What the trainer's process holds on this machine beside its tensors, from a rehearsal that fitted.

    Of the process it is what its line in the plan missed in loading and in saving, where nothing comes and goes.
    InputError where that was not measured, or where other lines of the plan are the less certain part.
    """
    workload, ledger = found.planned.workload, found.planned.ledger
    pool = next((pool for pool in ledger.pools() if pool.endswith(".host")), None)
    rows = {row.phase: row for row in found.rows if row.pool == pool}
    if pool is None or workload.reward_kind not in ("exact", "regex") or found.ended.notes:
        raise InputError(
            '--calibrate: take a RunSpec with reward.kind = "exact" and a model whose files are here, on a machine '
            "whose host memory is its own, so that no other process and nothing made-up is part of what is measured"
        )
    load, save = rows[Phase.LOAD], rows.get(Phase.SAVE)
    if not found.fits or load.measured is None or save is None or save.measured is None:
        raise InputError("--calibrate: the rehearsal did not go through; calibrate with a run that fits")
    before = next((base for base in found.planned.machine.calibrated if base.device == workload.device), None)
    loaded, running = _built_in(workload.device) if before is None else (before.loaded, before.running)
    return ProcessBase(
        workload.device,
        max(0, loaded + load.measured - load.predicted),
        max(0, running + save.measured - save.predicted),
        day,
        found.overhead,
        found.context,
    )


def _built_in(device: str) -> tuple[int, int]:
    return (host.CUDA_BASE, host.CUDA_BASE) if device == "cuda" else (host.LOADED, host.RUNNING)
