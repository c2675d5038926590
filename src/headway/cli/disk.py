"""What a RunSpec's run writes, against the file system of its output directory."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.facts.filesystem import file_system
from headway.plan.disk import DiskVerdict, disk

if TYPE_CHECKING:
    from headway.config.sections import RunSpec
    from headway.facts.workload import Workload


def disk_verdict(spec: "RunSpec", workload: "Workload", *, here: bool = True) -> DiskVerdict:
    """The run's disk; `here`: on this machine, so that its free space counts."""
    output = spec.output
    assert output.dir is not None, "the loader sets it"
    found = disk(workload, keep=output.keep, save_every=output.save_every, rollouts=output.rollouts)
    system, held = (file_system(output.dir), _held(output.dir)) if here else (None, 0)
    return DiskVerdict(str(output.dir), found, system, held)


def disk_document(found: DiskVerdict) -> dict[str, Any]:
    """The key `disk` of `--json` and plan.json; docs/plan.md describes it."""
    system = found.system
    return {
        "verdict": found.kind,
        "expected_bytes": found.disk.bytes,
        "held_bytes": found.held,
        "checkpoint_bytes": found.disk.checkpoint,
        "checkpoints": found.disk.checkpoints,
        "final_bytes": found.disk.final,
        "logs_bytes": found.disk.logs,
        "file_system": None if system is None else system.mount,
        "free_bytes": None if system is None else system.free,
    }


def _held(folder: Path) -> int:
    """Bytes of the files in a run's folder. Nothing of a folder that is no run's."""
    if not (folder / "runspec.toml").is_file():
        return 0
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
