"""What a run writes to disk."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from headway.errors import DoesNotFitError
from headway.facts import shapes
from headway.facts.filesystem import FileSystem, file_system
from headway.facts.workload import Lora, Workload
from headway.foreign.presets import workload
from headway.plan.disk import Disk, DiskVerdict, disk, largest_keep

GIB = 1 << 30


def run(name: str = "qwen3-0.6b", *, lora: bool = False, steps: int = 100) -> Workload:
    found = workload(shapes.table()[name], "headway")
    trainer = replace(found.trainer, lora=Lora(16, "all-linear") if lora else None)
    return replace(found, trainer=trainer, steps=steps)


def test_a_full_fine_tune_keeps_weights_moments_and_a_master_copy() -> None:
    found = run()
    count = found.model.parameters()
    full = disk(found, keep=2, save_every=10, rollouts=4)
    size = {"bf16": 2, "fp32": 4}[found.trainer.param_dtype]
    state = 8 + (4 if size == 2 else 0)
    assert count * (size + state) <= full.checkpoint < 1.01 * count * (size + state)
    assert count * size < full.final < 1.05 * count * size
    assert (full.checkpoints, full.kept, full.adapter) == (3, 2, False)
    assert full.bytes > 3 * full.checkpoint


def test_an_adapter_s_files_are_small() -> None:
    found = run(lora=True)
    count = found.model.lora_parameters(16, "all-linear")
    small = disk(found, keep=2, save_every=10, rollouts=4)
    assert count * 12 <= small.checkpoint < count * 12 + (1 << 20)
    assert small.adapter
    assert small.final < found.model.parameters() // 10


@pytest.mark.parametrize(
    ("steps", "every", "keep", "at_once"),
    [(100, 10, 2, 3), (100, 10, 20, 10), (5, 10, 2, 1), (100, 0, 2, 1), (15, 10, 2, 2), (20, 10, 1, 2)],
)
def test_no_more_checkpoints_are_counted_than_are_written(steps: int, every: int, keep: int, at_once: int) -> None:
    assert disk(run(steps=steps), keep=keep, save_every=every, rollouts=0).checkpoints == at_once


SYSTEM = FileSystem("/scratch", "ext4", 100 * GIB, 30 * GIB)
NEEDS_32 = Disk(checkpoint=10 * GIB, checkpoints=3, kept=2, final=4 * GIB, logs=2 * GIB, adapter=False)


def test_what_is_over_the_free_space_is_refused_with_what_to_set() -> None:
    with pytest.raises(DoesNotFitError) as refused:
        DiskVerdict("runs/a", NEEDS_32, SYSTEM, 0).check()
    for part in ("output.dir = runs/a", "32.00 GiB are to be written", "30.00 GiB of 100.00 GiB are free on /scratch "
                 "(ext4)", "set output.keep = 1", "output.dir to another file system"):  # fmt: skip
        assert part in str(refused.value)
    with pytest.raises(DoesNotFitError) as refused:
        DiskVerdict("runs/a", NEEDS_32, replace(SYSTEM, free=20 * GIB), 0).check()
    assert "output.keep" not in str(refused.value), "one checkpoint and its successor are too much too"


@pytest.mark.parametrize(
    "enough",
    [
        DiskVerdict("runs/a", NEEDS_32, replace(SYSTEM, free=32 * GIB), 0),
        DiskVerdict("runs/a", NEEDS_32, SYSTEM, 3 * GIB),  # a resumed run's own files are there already
        DiskVerdict("runs/a", NEEDS_32, None, 0),  # another machine's disk is not known
    ],
)
def test_enough_or_unknown_room_is_not_refused(enough: DiskVerdict) -> None:
    enough.check()


def test_the_most_checkpoints_that_fit() -> None:
    assert [largest_keep(NEEDS_32, room * GIB) for room in (40, 32, 31, 22, 21)] == [2, 2, 1, 1, 0]


def test_a_file_system_without_blocks_has_no_free_space_to_hold_a_run_against() -> None:
    assert file_system(Path("/proc/self")) is None


def test_the_file_system_of_a_path_that_is_not_there_yet(tmp_path: Path) -> None:
    found = file_system(tmp_path / "not" / "yet")
    assert found is not None
    assert 0 < found.free <= found.total
    proc = tmp_path / "proc/self"
    proc.mkdir(parents=True)
    mount = str(tmp_path / "a b").replace(" ", "\\040")
    (proc / "mounts").write_text(f"/dev/a / ext4 rw 0 0\n/dev/b {mount} xfs rw 0 0\n/dev/c {mount}x tmpfs rw 0 0\n")
    (tmp_path / "a b").mkdir()
    inside, outside = file_system(tmp_path / "a b" / "run", tmp_path), file_system(tmp_path / "b", tmp_path)
    assert inside is not None
    assert outside is not None
    assert (inside.mount, inside.kind) == (str(tmp_path / "a b"), "xfs")
    assert (outside.mount, outside.kind) == ("/", "ext4")
