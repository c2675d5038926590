"""A machine's own process base: kept by machine and versions, used by plans for this machine alone."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from headway.errors import InputError
from headway.facts import calibration, machines, probe, shapes
from headway.facts.calibration import Overhead, ProcessBase
from headway.foreign.presets import workload
from headway.plan import host
from headway.plan.ledger import Phase
from headway.plan.plan import plan
from headway.units import MIB

BASE = ProcessBase("cpu", 300 * MIB, 350 * MIB, "2026-01-31")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "headway/calibration.json"


def test_what_is_kept_is_read_by_the_same_machine_and_versions(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert calibration.read() == ()
    assert calibration.keep(BASE) == cache
    newer = replace(BASE, running=360 * MIB)
    calibration.keep(newer)
    assert calibration.read() == (newer,)
    assert probe.detect().calibrated == (newer,)
    assert machines.by_name("h100-80").calibrated == ()
    monkeypatch.setattr(calibration.platform, "python_version", lambda: "3.99.0")
    assert calibration.read() == ()
    calibration.keep(BASE)
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache.parents[1]))
    assert calibration.read() == (newer,)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": {"cpu": {"loaded": 3}}}', "\x00\xff"])
def test_a_torn_file_holds_nothing_and_is_written_anew(cache: Path, text: str) -> None:
    cache.parent.mkdir()
    cache.write_text(text)
    assert calibration.read() == ()
    calibration.keep(BASE)
    assert calibration.read() == (BASE,)


def test_a_file_of_before_the_allocator_was_measured_holds_the_process_alone(cache: Path) -> None:
    cache.parent.mkdir()
    row = '{"device": "cpu", "loaded": 3, "running": 4, "measured": "2026-01-31"}'
    cache.write_text(f'{{"{calibration.key()}": {{"cpu": {row}}}}}')
    (found,) = calibration.read()
    assert (found.loaded, found.running, found.overhead, found.context) == (3, 4, None, None)


def test_a_cache_that_cannot_be_written_is_bad_input(cache: Path) -> None:
    cache.parent.write_text("a file in the folder's place")
    with pytest.raises(InputError, match="cannot be written"):
        calibration.keep(BASE)


def test_a_plan_takes_it_for_the_process_line_and_says_so() -> None:
    run = workload(shapes.table()["qwen3-0.6b"], "headway", ("device=cpu",))
    machine = probe.detect()
    plain, calibrated = plan(run, machine), plan(run, replace(machine, calibrated=(BASE,)))
    for phase, size, own in ((Phase.LOAD, 300, host.LOADED), (Phase.SAVE, 350, host.RUNNING)):
        (before,) = [line for line in plain.select("node[0].host", phase) if line.item == "process"]
        (after,) = [line for line in calibrated.select("node[0].host", phase) if line.item == "process"]
        assert after.bytes - before.bytes == size * MIB - own
        assert after.source == "calibrated on this machine, 2026-01-31"
    on_device = replace(machine, calibrated=(replace(BASE, device="cuda"),))
    assert plan(run, on_device) == plain


def line(ledger, phase: Phase, item: str):
    (found,) = [line for line in ledger.select("node[0].host", phase) if line.item == item]
    return found


def test_a_plan_takes_the_allocator_s_overhead_in_place_of_its_constants() -> None:
    run = workload(shapes.table()["qwen3-0.6b"], "headway", ("device=cpu",))
    machine = probe.detect()
    held = replace(BASE, overhead=Overhead(2 * MIB, 3 * MIB, 0.05))
    without, with_it = (plan(run, replace(machine, calibrated=(each,))) for each in (BASE, held))
    for phase in (Phase.ROLLOUT, Phase.TRAIN, Phase.STEP):
        before, after = (line(ledger, phase, "fragmentation") for ledger in (without, with_it))
        assert (before.bytes, after.bytes) == (0, 2 * MIB)
        assert before.source == "bound"
        assert after.source == "calibrated on this machine, 2026-01-31"
        assert after.upper - 5 * MIB == pytest.approx(before.upper * 0.05 / host.SLACK, abs=2)
    # the heap's holes are counted once
    process = [line(ledger, Phase.TRAIN, "process").bytes for ledger in (without, with_it)]
    assert process[0] - process[1] == host.HEAP
    assert line(with_it, Phase.TRAIN, "process").bytes == line(with_it, Phase.SAVE, "process").bytes


@pytest.mark.parametrize(("share", "bound"), [(None, host.SLACK), (0.001, host.ROUNDING), (0.2, 0.2)])
def test_no_bound_is_below_what_mapped_blocks_are_rounded_by(share: float | None, bound: float) -> None:
    item = host.fragmentation(1 << 30, replace(BASE, overhead=Overhead(0, 0, share)))
    assert item.upper == round(bound * (1 << 30))


def test_on_a_device_the_context_is_the_measured_one() -> None:
    run = workload(shapes.table()["qwen3-0.6b"], "headway")
    base = replace(BASE, device="cuda", overhead=Overhead(100 * MIB, 0, None), context=500 * MIB)
    ledger = plan(run, replace(machines.by_name("h100-80"), calibrated=(base,)))
    found = {line.item: line for line in ledger.lines if line.phase is Phase.TRAIN}
    assert found["CUDA context"].bytes == 500 * MIB
    assert (found["fragmentation"].bytes, found["fragmentation"].quantity) == (100 * MIB, "reserved")
    assert found["process"].bytes == 350 * MIB - host.TENSORBOARD  # such a run writes none
