"""What the allocator held beyond live tensors, from a recording's lines."""

import json
from pathlib import Path

from headway.guard.overhead import device_overhead, overhead, read_passes
from headway.plan.ledger import Phase
from headway.units import MIB


def recording(path: Path, *rows: dict) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in ({"kind": "header"}, *rows)))
    return path


def measured(phase: str, step: int, held: int, **device: int) -> dict:
    return {"kind": "phase", "phase": phase, "step": step, "rss_start": 7, "rss_peak": 7 + held, "device": device}


def test_a_phase_counts_once_code_is_touched_and_tensors_were_counted(tmp_path: Path) -> None:
    path = recording(
        tmp_path / "recording.jsonl",
        measured("train", 1, 900), measured("train", 2, 90), measured("train", 2, 120), measured("rollout", 2, 60),
        measured("save", 2, 5), {"kind": "tensors", "phase": "train", "step": 3, "peak": 100},
        {"kind": "tensors", "phase": "rollout", "step": 3, "peak": 40},
    )  # fmt: skip
    passes = read_passes(path, {Phase.ROLLOUT: 15})
    assert [(each.phase, each.held, each.tensors, each.beyond) for each in passes] == [
        (Phase.TRAIN, 120, 100, 20), (Phase.ROLLOUT, 45, 40, 5)
    ]  # fmt: skip
    found = overhead(passes)
    assert found is not None
    assert (found.holes, found.spread, found.share) == (12, 8, None)  # too few tensors to tell a share of them


def test_what_was_never_written_is_no_overhead(tmp_path: Path) -> None:
    path = recording(
        tmp_path / "recording.jsonl", measured("train", 2, 90 * MIB),
        {"kind": "tensors", "phase": "train", "step": 3, "peak": 100 * MIB},
    )  # fmt: skip
    found = overhead(read_passes(path, {}))
    assert found is not None
    assert (found.holes, found.spread, found.share) == (0, 10 * MIB, 0.0)


def test_one_step_tells_nothing(tmp_path: Path) -> None:
    assert overhead(read_passes(recording(tmp_path / "recording.jsonl", measured("train", 1, 90)), {})) is None


def test_on_a_device_the_fullest_phase_tells(tmp_path: Path) -> None:
    path = recording(
        tmp_path / "recording.jsonl",
        measured("rollout", 1, 0, allocated=50, reserved=200, device_used=230),
        measured("train", 1, 0, allocated=150, reserved=210, device_used=260),
    )
    found, context = device_overhead(path)
    assert found is not None
    assert (found.holes, found.share, context) == (60, None, 50)
    assert device_overhead(recording(tmp_path / "cpu.jsonl", measured("train", 2, 9))) == (None, None)
