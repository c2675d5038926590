"""Devices as the real `pynvml` asks a real shared library about them, which a C compiler makes for the tests."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
pytest.importorskip("pynvml")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")
GB = 10**9
H100 = "NVIDIA_H100_80GB_HBM3"
TWO = f"D GPU-aa-1 {H100} 0 {80 * GB} {60 * GB}\nD GPU-bb-2 {H100} 0 {80 * GB} {79 * GB}\n"
ASKS = """
import json, os, sys
from headway.facts.probe import nvml_devices
from headway.guard.gauges import Devices

devices = Devices()
def say():
    print(json.dumps({
        "gauges": [(gauge.pool, gauge.used, gauge.limit) for gauge in devices.gauges()],
        "processes": devices.processes(), "unified": devices.unified, "found": len(nvml_devices()),
    }))
say()
for state in sys.argv[1:]:
    open(os.environ["NVML_STATE"], "w").write(state)
    say()
devices.close()
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nvml")
    source = Path(__file__).with_name("nvml.c")
    subprocess.run([COMPILER or "cc", "-shared", "-fPIC", "-o", folder / "libnvidia-ml.so.1", source], check=True)
    return folder


def ask(library: Path, *states: str, visible: str | None = None) -> list[Any]:
    """What is said of each state of the driver, one after the other in one process."""
    state = library / "state"
    state.write_text(states[0])
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library), "NVML_STATE": str(state)}
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    environment |= {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    done = subprocess.run(
        [sys.executable, "-c", ASKS, *states[1:]], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_two_devices_with_their_processes(library):
    (found,) = ask(library, f"{TWO}P 0 41 {19 * GB}\nP 0 42 -1\nP 1 41 {GB}\n")
    assert found["gauges"] == [["node[0].device[0]", 20 * GB, 80 * GB], ["node[0].device[1]", GB, 80 * GB]]
    assert found["processes"] == {"41": {"node[0].device[0]": 19 * GB, "node[0].device[1]": GB}}
    assert (found["unified"], found["found"]) == (False, 2)


@pytest.mark.parametrize("visible", ["1", "GPU-bb", "1,5,0"])
def test_the_visible_ones_are_numbered_as_cuda_does(library, visible):
    (found,) = ask(library, f"{TWO}P 1 41 {GB}\n", visible=visible)
    assert found["gauges"] == [["node[0].device[0]", GB, 80 * GB]]
    assert found["processes"] == {"41": {"node[0].device[0]": GB}}


def test_of_unified_memory_the_driver_knows_only_what_processes_hold(library):
    (found,) = ask(library, f"D GPU-cc-3 NVIDIA_GB10 3 0 0\nP 0 41 {5 * GB}\n")
    assert found == {
        "gauges": [], "processes": {"41": {"node[0].unified": 5 * GB}}, "unified": True, "found": 1,
    }  # fmt: skip


def test_a_device_that_is_lost_on_the_way_is_absent_and_the_others_stay(library):
    lost = TWO.replace("HBM3 0", "HBM3 15", 1)
    before, after, back = ask(library, f"{TWO}P 0 41 {GB}\n", f"{lost}P 0 41 {GB}\n", TWO)
    assert [pool for pool, _, _ in before["gauges"]] == ["node[0].device[0]", "node[0].device[1]"]
    assert after["gauges"] == [["node[0].device[1]", GB, 80 * GB]]
    assert (after["processes"], after["found"]) == ({}, 1)
    assert back["gauges"] == before["gauges"]


def test_a_device_that_is_lost_at_the_start_hides_no_other(library):
    (found,) = ask(library, TWO.replace("HBM3 0", "HBM3 15", 1))
    assert found["gauges"] == [["node[0].device[0]", GB, 80 * GB]]


@pytest.mark.parametrize("code", [9, 12, 18])
def test_without_a_driver_there_are_no_devices(library, code):
    (found,) = ask(library, f"I {code}\n{TWO}")
    assert found == {"gauges": [], "processes": {}, "unified": False, "found": 0}


def test_a_driver_that_goes_away_ends_nothing(library):
    assert ask(library, TWO, f"I 999\n{TWO}")[1]["found"] == 0
