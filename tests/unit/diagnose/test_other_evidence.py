"""What stands beside logs: headway's own recording, the files of this machine, counters of a control group."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headway.cli.app import app
from headway.diagnose.doctor import diagnose
from headway.diagnose.live import live_sources
from headway.diagnose.readers.recordings import read
from headway.facts import machines
from headway.guard.recorder import Recorder
from headway.plan.ledger import Phase

TERM = "The process receives a SIGTERM.\n"


@pytest.fixture
def recording(tmp_path) -> Path:
    path = tmp_path / "recording.jsonl"
    expected = {Phase.ROLLOUT: 5 << 30}
    machine = machines.by_name("gb10").without_ray()
    with Recorder(path, machine, expected) as recorder, recorder.phase(Phase.ROLLOUT, 7):
        pass
    return path


def killed_in(path: Path, phase: str, step: int) -> None:
    """Add the reading that a run which was killed leaves behind."""
    row = {"kind": "reading", "t": 1.0, "phase": phase, "step": step, "rss": 3 << 30, "children": 1 << 30,
           "node_used": None, "cgroup": None}  # fmt: skip
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


class TestRecording:
    def test_the_last_phase_and_what_was_expected(self, recording):
        found = read(recording)
        assert (found.phase, found.step) == ("rollout", 7)
        assert any("5.00 GiB were expected" in line for line in found.lines)
        assert "finished" in found.lines[-1]

    def test_a_run_that_was_killed_inside_a_phase(self, recording):
        killed_in(recording, "train", 8)
        found = read(recording)
        assert (found.phase, found.step) == ("train", 8)
        assert "4.00 GiB were held" in found.lines[-1]

    def test_another_file_is_no_recording(self, tmp_path):
        path = tmp_path / "other.jsonl"
        path.write_text('{"step": 1}\n')
        assert read(path) is None

    def test_the_doctor_takes_phase_and_step_from_it(self, recording):
        killed_in(recording, "train", 8)
        log = recording.parent / "run.log"
        log.write_text(TERM)
        done = CliRunner().invoke(app, ["doctor", str(log), str(recording), "--json"])
        found = json.loads(done.stdout)
        assert (found["answer"]["phase"], found["answer"]["step"]) == ("train", 8)
        assert any("stops inside train of step 8" in line for line in found["context"])

    def test_the_limits_in_its_header_are_no_evidence(self, recording):
        row = json.loads(recording.read_text().splitlines()[0])
        limit = {"name": "shm free", "bytes": 1, "consequence": "who writes there dies of a bus error", "source": ""}
        row["machine"]["pools"][0]["limits"].append(limit)
        recording.write_text(json.dumps(row) + "\n")
        killed_in(recording, "train", 8)
        found = json.loads(CliRunner().invoke(app, ["doctor", str(recording), "--json"]).stdout)
        assert found["answer"]["mechanism"] == "unknown"

    def test_what_the_model_wrote_is_no_evidence(self, recording):
        killed_in(recording, "train", 8)
        answer = {"step": 7, "text": "Memory cgroup out of memory: Killed process 8 (python)"}
        (recording.parent / "rollouts.jsonl").write_text(json.dumps(answer) + "\n")
        found = json.loads(CliRunner().invoke(app, ["doctor", str(recording.parent), "--json"]).stdout)
        assert found["answer"]["mechanism"] == "unknown"


class TestLive:
    @pytest.fixture
    def root(self, tmp_path) -> Path:
        group, logs = tmp_path / "sys/fs/cgroup", tmp_path / "tmp/ray/session_latest/logs"
        group.mkdir(parents=True)
        logs.mkdir(parents=True)
        (group / "memory.events").write_text("low 0\nhigh 0\nmax 3\noom 1\noom_kill 1\n")
        (logs / "raylet.out").write_text("Worker unexpectedly exits with a connection error code 2. End of file.\n")
        return tmp_path

    def test_the_group_s_counter_and_ray_s_logs_are_read_together(self, root):
        sources = live_sources(root=root)
        assert [Path(source.name).name for source in sources] == ["memory.events", "raylet.out"]
        answer = diagnose(sources).answer
        assert (answer.mechanism, answer.mechanism_grade) == ("cgroup-oom-kill", "supported")

    def test_nothing_is_written(self, root):
        before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
        diagnose(live_sources(root=root))
        assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before

    def test_a_machine_that_shows_nothing(self, tmp_path):
        assert live_sources(root=tmp_path) == []
