"""The recorder, measured in processes of its own whose sizes are known."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from headway.errors import InputError
from headway.facts.machine import Limit, Machine, Pool
from headway.guard.recorder import PhaseRecord, Recorder, raise_peak, read_recording
from headway.plan.ledger import Phase

MIB = 1 << 20
MACHINE = Machine(
    "a", (Pool("node[0].host", "host", 16 << 30, (Limit("cgroup", 8 << 30, "killed", "memory.max"),)),), 2
)

PREAMBLE = """
import json, mmap, subprocess, sys, time
from pathlib import Path
from headway.facts.machine import Machine
from headway.guard.recorder import Recorder, DeviceMeter
from headway.plan.ledger import Phase

MIB = 1 << 20

def hold(mib):
    # anonymous memory from the system itself, so that closing it gives it back at once
    held = mmap.mmap(-1, mib * MIB)
    for at in range(0, mib * MIB, 4096):
        held[at] = 1
    return held

path = Path(sys.argv[1])
"""


def record(path: Path, body: str, *, expect: int = 0) -> list[dict[str, Any]]:
    """Run a body in a process of its own; the lines of its recording."""
    run = subprocess.run(
        [sys.executable, "-c", PREAMBLE + body, str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == expect, run.stderr
    return [json.loads(line) for line in path.read_text().splitlines()]


def phases(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["kind"] == "phase"]


def test_peak_of_a_phase_is_measured_and_does_not_linger(tmp_path: Path) -> None:
    """200 MiB held for a moment in one phase are in its peak, and in no other phase's."""
    rows = record(
        tmp_path / "recording.jsonl",
        """
with Recorder(path, Machine("a", (), 1)) as recorder:
    with recorder.phase(Phase.ROLLOUT, 1):
        pass
    with recorder.phase(Phase.TRAIN, 1):
        hold(200).close()
    with recorder.phase(Phase.STEP, 1):
        pass
    hold(120).close()
    with recorder.phase(Phase.SAVE, 1):
        pass
    assert recorder.latest()[Phase.TRAIN] == recorder.peaks()[Phase.TRAIN].tree_peak == recorder.peak
""",
    )
    rollout, train, step, save = phases(rows)
    assert train["rss_peak"] - train["rss_start"] == pytest.approx(200 * MIB, abs=5 * MIB)
    for calm in (rollout, step, save):
        assert calm["rss_peak"] - calm["rss_start"] < 5 * MIB
    assert train["rss_end"] - train["rss_start"] < 5 * MIB
    assert save["outside_peak"] - step["rss_end"] == pytest.approx(120 * MIB, abs=5 * MIB)
    assert rows[1]["outside_peak"] >= rows[1]["rss_start"]
    assert not any(row["sampled"] for row in phases(rows))


def test_children_count_in_the_phase_where_they_live(tmp_path: Path) -> None:
    rows = record(
        tmp_path / "recording.jsonl",
        """
code = "import sys; held = bytearray(100 << 20); print('ready', flush=True); sys.stdin.read()"
with Recorder(path, Machine("a", (), 1)) as recorder:
    with recorder.phase(Phase.ROLLOUT, 1):
        child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        child.stdout.readline()
        time.sleep(0.6)
        child.communicate()
    with recorder.phase(Phase.TRAIN, 1):
        time.sleep(0.3)
""",
    )
    rollout, train = phases(rows)
    assert 100 * MIB < rollout["children_peak"] < 150 * MIB
    assert rollout["tree_peak"] == rollout["rss_peak"] + rollout["children_peak"]
    assert train["children_peak"] == 0
    assert train["node_used_peak"] > train["rss_peak"]


def test_killed_run_leaves_a_reading_and_its_resume_appends(tmp_path: Path) -> None:
    path = tmp_path / "recording.jsonl"
    body = """
with Recorder(path, Machine("a", (), 1), expected={Phase.TRAIN: 7}) as recorder:
    with recorder.phase(Phase.LOAD, 0):
        held = hold(100)
    with recorder.phase(Phase.TRAIN, 4):
        while b'"phase": "train", "step": 4' not in path.read_bytes():
            time.sleep(0.05)
        %s
"""
    rows = record(path, body % "import os; os.kill(os.getpid(), 9)", expect=-9)
    assert (rows[0]["kind"], rows[-1]["kind"]) == ("header", "reading")

    with path.open("a") as file:
        file.write('{"kind": "phase", "t": 17')
    record_again = subprocess.run(
        [sys.executable, "-c", PREAMBLE + body % "pass", str(path)], capture_output=True, text=True, check=False
    )
    assert record_again.returncode == 0, record_again.stderr

    recording = read_recording(path)
    killed, resumed = recording.segments
    assert recording.torn == 1
    assert killed.last is not None
    assert killed.last.phase is Phase.LOAD
    assert killed.last_reading is not None
    assert (killed.last_reading["phase"], killed.last_reading["step"]) == ("train", 4)
    assert killed.last_reading["rss"] > 100 * MIB
    assert resumed.header.pid != killed.header.pid
    assert resumed.header.expected == {Phase.TRAIN: 7}
    assert resumed.last_reading is None
    assert resumed.peaks[Phase.TRAIN].step == 4
    assert resumed.peak >= resumed.peaks[Phase.TRAIN].tree_peak > 100 * MIB


def test_device_meter_is_reset_and_read_in_each_phase(tmp_path: Path) -> None:
    class Meter:
        """A device on which each phase allocates ten more bytes than the phase before."""

        def __init__(self) -> None:
            self.passes = 0

        def reset(self) -> None:
            self.passes += 1

        def read(self) -> dict[str, int]:
            return {"allocated": 10 * self.passes, "device_used": 50}

    with Recorder(tmp_path / "r.jsonl", MACHINE, meter=Meter()) as recorder:
        for step in (1, 2):
            with recorder.phase(Phase.TRAIN, step):
                pass
    assert recorder.peaks()[Phase.TRAIN].device == {"allocated": 20, "device_used": 50}
    assert read_recording(tmp_path / "r.jsonl").segments[0].peaks == recorder.peaks()


def test_a_phase_that_fails_is_recorded_with_what_ended_it(tmp_path: Path) -> None:
    with Recorder(tmp_path / "r.jsonl", MACHINE) as recorder:
        with pytest.raises(MemoryError), recorder.phase(Phase.TRAIN, 3):
            raise MemoryError
        with recorder.phase(Phase.SAVE, 3):
            pass
    last = json.loads((tmp_path / "r.jsonl").read_text().splitlines()[1])
    assert (last["phase"], last["step"], last["ended"]) == ("train", 3, "MemoryError")


def test_phases_do_not_nest(tmp_path: Path) -> None:
    with (
        Recorder(tmp_path / "r.jsonl", MACHINE) as recorder,
        recorder.phase(Phase.TRAIN, 1),
        pytest.raises(AssertionError, match="step begins inside phase"),
        recorder.phase(Phase.STEP, 1),
    ):
        pass


def test_without_a_peak_to_reset_the_process_is_sampled(tmp_path: Path) -> None:
    """Containers may forbid clear_refs: then the highest reading counts, and the record says so."""
    status = tmp_path / f"proc/{os.getpid()}/status"
    status.parent.mkdir(parents=True)

    def show(rss_kib: int) -> None:
        fresh = status.with_name("fresh")
        fresh.write_text(f"VmHWM:\t 900000 kB\nVmRSS:\t {rss_kib} kB\n")
        fresh.replace(status)

    seen: list[int] = []
    show(1000)
    with Recorder(tmp_path / "r.jsonl", MACHINE, on_reading=seen.append, root=tmp_path) as recorder:
        with recorder.phase(Phase.TRAIN, 1):
            show(5000)
            while 5000 << 10 not in seen:
                time.sleep(0.01)
            show(1000)
        with recorder.phase(Phase.STEP, 1):
            pass
    peaks = recorder.peaks()
    assert (peaks[Phase.TRAIN].rss_peak, peaks[Phase.TRAIN].sampled) == (5000 << 10, True)
    assert peaks[Phase.STEP].rss_peak == 1000 << 10
    assert peaks[Phase.STEP].node_used_peak is None


def a_pass(step: int, rss: int, children: int, node: int | None) -> PhaseRecord:
    return PhaseRecord(
        t=0.0, phase=Phase.TRAIN, step=step, seconds=2.0, rss_start=1, rss_peak=rss, rss_end=1,
        children_peak=children, tree_peak=rss + children, node_used_peak=node, cgroup_current_peak=None,
        outside_peak=0,
    )  # fmt: skip


def test_peaks_keep_the_first_step_of_the_highest_tree() -> None:
    peak = None
    for each in (a_pass(1, 10, 5, None), a_pass(2, 20, 1, 90), a_pass(3, 15, 6, 80)):
        peak = raise_peak(peak, each)
    assert peak is not None
    assert (peak.step, peak.passes, peak.seconds) == (2, 3, 6.0)
    assert (peak.rss_peak, peak.children_peak, peak.tree_peak) == (20, 6, 21)
    assert (peak.node_used_peak, peak.cgroup_current_peak) == (90, None)


def a_recording(path: Path) -> list[str]:
    with Recorder(path, MACHINE) as recorder:
        for step in (1, 2):
            with recorder.phase(Phase.TRAIN, step):
                pass
    return path.read_text().splitlines(keepends=True)


def test_header_comes_back_as_it_was(tmp_path: Path) -> None:
    a_recording(tmp_path / "r.jsonl")
    header = read_recording(tmp_path / "r.jsonl").segments[0].header
    assert header.machine == MACHINE
    assert header.pid == os.getpid()


def test_torn_last_line_is_accepted_anywhere_else_it_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    header, first, second = a_recording(path)
    path.write_text(header + first + second[: len(second) // 2])
    recording = read_recording(path)
    assert recording.torn == 1
    assert recording.segments[0].peaks[Phase.TRAIN].passes == 1

    path.write_text(header + first[:40] + "\n" + second)
    with pytest.raises(InputError, match=r"r\.jsonl:2: not a line of a recording"):
        read_recording(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it has no header"),
        ('{"step": 1}\n', "it has no header"),
        ('{"step": 1}\n{"step": 2}\n', ":1: not a line of a recording"),
        ('{"kind": "phase", "phase": "train"}\n', ":1: not a line of a recording"),
        ('{"kind": "header", "format": 99}\n', "format 99"),
    ],
)
def test_other_files_are_no_recording(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "r.jsonl").write_text(text)
    with pytest.raises(InputError, match=message):
        read_recording(tmp_path / "r.jsonl")


def test_missing_recording_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent\.jsonl: no recording can be read"):
        read_recording(tmp_path / "absent.jsonl")
