"""The ends of a Ray session's logs are kept beside a recording: bounded, and only what is the session's own."""

import errno
import os
from pathlib import Path

import pytest

from headway.cli.doctor import diagnosed
from headway.guard import raylogs
from headway.guard.blackbox import BlackBox
from headway.guard.boxrecords import Begun, Ended, Over
from headway.guard.raylogs import SessionLogs, kept

SESSION = "session_2026-11-30_07-00-00_123456_77"
MONITOR = (
    "[2026-11-30 07:01:00,000 I 7 7] (raylet) node_manager.cc:3056: 1 Workers (tasks / actors) killed due to memory "
    "pressure (OOM), 0 Workers crashed due to other reasons\n"
)


@pytest.fixture
def session(tmp_path: Path) -> Path:
    logs = tmp_path / "tmp" / SESSION / "logs"
    logs.mkdir(parents=True)
    for name in ("raylet.out", "gcs_server.out", "dashboard_agent.log", "worker-0a-01-7.err", "worker-0a-01-8.err"):
        (logs / name).write_text(f"of {name}\n")
    (logs / "raylet.err").write_text("")
    return logs.parent


def names(box: Path) -> list[str]:
    return [path.name for path in kept(box)]


def test_the_node_s_own_and_those_of_workers_that_ended_are_kept(tmp_path, session):
    logs = SessionLogs(tmp_path / "box")
    assert logs.look([str(session)], []) == 0
    assert logs.look([str(session)], [8], now=True) == 3
    assert names(tmp_path / "box") == ["gcs_server.out", "raylet.out", "worker-0a-01-8.err"]
    assert kept(tmp_path / "box")[0].read_text() == "of gcs_server.out\n"
    (session / "logs/raylet.out").write_text("of raylet.out\nmore\n")
    assert logs.look([str(session)], [8], now=True) == 1
    SessionLogs(tmp_path / "box")
    assert names(tmp_path / "box") == []


def test_while_a_run_goes_on_it_is_due_now_and_then_and_soon_after_an_end(tmp_path, session, monkeypatch):
    now = 100.0
    monkeypatch.setattr(raylogs.time, "monotonic", lambda: now)
    logs = SessionLogs(tmp_path / "box")
    assert logs.look([str(session)], []) == 0
    now += 31
    assert logs.look([str(session)], []) == 2
    assert logs.look([str(session)], [7]) == 0
    now += 2.1
    assert logs.look([str(session)], [7]) == 1


def test_of_a_large_file_the_last_whole_lines_are_kept_and_no_more_than_the_size(tmp_path, session):
    for name in ("raylet.out", "gcs_server.out"):
        (session / "logs" / name).write_text("".join(f"line {number}\n" for number in range(100_000)))
    SessionLogs(tmp_path / "box", size=raylogs.LARGEST + 2000).look([str(session)], [7, 8], now=True)
    found = kept(tmp_path / "box")
    assert sum(path.stat().st_size for path in found) <= raylogs.LARGEST + 2000
    for path in found:
        lines = path.read_text().splitlines()
        assert lines[-1] == "line 99999"
        assert lines[0].startswith("line ")
    assert len(found) == 2


def test_what_comes_first_later_takes_the_room_of_what_was_kept(tmp_path, session):
    logs, box = SessionLogs(tmp_path / "box", size=3000), tmp_path / "box"
    (session / "logs/worker-0a-01-8.err").write_text("x\n" * 1000)
    assert logs.look([str(session)], [8], now=True) == 3
    (session / "logs/raylet.out").write_text("y\n" * 1200)
    logs.look([str(session)], [8], now=True)
    assert names(box) == ["gcs_server.out", "raylet.out"]


def test_the_latest_session_stays_where_both_are_too_much(tmp_path, session):
    logs, box = SessionLogs(tmp_path / "box", size=3000), tmp_path / "box"
    (session / "logs/raylet.out").write_text("x\n" * 1000)
    logs.look([str(session)], [], now=True)
    later = session.parent / "session_2026-11-30_08-00-00_123456_99"
    (later / "logs").mkdir(parents=True)
    (later / "logs/raylet.out").write_text("y\n" * 1000)
    logs.look([str(session), str(later)], [], now=True)
    assert (later.name, "raylet.out") in [(path.parent.name, path.name) for path in kept(box)]
    assert sum(path.stat().st_size for path in kept(box)) <= 3000


def test_what_cannot_be_removed_stops_nothing(tmp_path, session, monkeypatch):
    """As on a volume that has become read-only."""
    box = tmp_path / "box"
    SessionLogs(box).look([str(session)], [], now=True)

    def refused(*_, **__) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "unlink", refused)
    assert SessionLogs(box, size=10).look([str(session)], [], now=True) == 0
    assert len(names(box)) == 2


def test_links_pipes_and_other_folders_are_left_alone(tmp_path, session):
    secret = tmp_path / "secret"
    secret.write_text("secret\n")
    logs = session / "logs"
    (logs / "raylet.out").unlink()
    (logs / "raylet.out").symlink_to(secret)
    os.mkfifo(logs / "monitor.log")
    (logs / "job-driver-x.log").mkdir()
    other = tmp_path / "tmp" / "session_latest_1"
    (other).mkdir()
    (other / "logs").symlink_to(logs)
    box = tmp_path / "box"
    SessionLogs(box).look([str(session), str(other), "/etc", str(tmp_path / "gone" / SESSION)], [], now=True)
    assert names(box) == ["gcs_server.out"]
    assert "secret" not in "".join(path.read_text() for path in box.rglob("*") if path.is_file())


def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path, session):
    box = tmp_path / "box"
    box.write_text("no folder")
    assert SessionLogs(box).look([str(session)], [], now=True) == 0


@pytest.mark.parametrize(("code", "mechanism"), [(1, "ray-memory-monitor"), (0, "finished")])
def test_the_doctor_reads_what_the_console_never_showed(tmp_path, session, code, mechanism):
    (session / "logs/raylet.out").write_text(MONITOR)
    folder = tmp_path / "box"
    box = BlackBox(folder, Begun(1796022000.0, ("bash", "run.sh"), 1, "0.1.0"))
    SessionLogs(folder).look([str(session)], [], now=True)
    box.log(b"step 3: {'loss': 1}\n")
    box.add(Ended(1796022061.0, 8, "ray::Trainer.train", code=0))
    box.add(Over(1796022062.0, 2, code))
    box.close()
    assert diagnosed([str(folder)], [], None, None, live=False).answer.mechanism == mechanism
