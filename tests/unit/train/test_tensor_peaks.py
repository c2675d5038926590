"""The most bytes of tensors of a phase, counted while torch makes them."""

import json
from pathlib import Path

import pytest
import torch

from headway.facts import machines
from headway.guard.recorder import Recorder, read_recording
from headway.plan.ledger import Phase
from headway.train.tensor_peaks import TensorPeaks
from headway.units import MIB


def test_the_highest_sum_of_what_is_alive_is_noted_and_nothing_is_measured(tmp_path: Path) -> None:
    path = tmp_path / "recording.jsonl"
    with Recorder(path, machines.by_name("cpu-16gib")) as recorder:
        counted = TensorPeaks(recorder)
        with counted.phase(Phase.TRAIN, 3):
            for _ in range(3):
                first = torch.ones(2 * MIB, dtype=torch.uint8)
                second = first + 1
                del first, second
            kept = torch.ones(3 * MIB, dtype=torch.uint8)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    (row,) = (row for row in rows if row["kind"] != "header")
    assert (row["kind"], row["phase"], row["step"]) == ("tensors", "train", 3)
    assert row["peak"] == pytest.approx(4 * MIB, abs=1024)  # numbers that torch wraps are tensors too
    assert read_recording(path).segments[-1].peaks == {}
    assert kept.sum() == 3 * MIB


def test_what_a_kernel_needs_for_itself_counts(tmp_path: Path) -> None:
    path = tmp_path / "recording.jsonl"
    values = torch.rand(1 << 18)
    with Recorder(path, machines.by_name("cpu-16gib")) as recorder, TensorPeaks(recorder).phase(Phase.STEP, 1):
        total = values.sort().values.sum()
    row = json.loads(path.read_text().splitlines()[-1])
    assert row["peak"] > 3 * values.nbytes  # values and indices, and what sorting them takes
    assert total > 0
