"""The black box: what was written is read, whatever was killed while it was written, and the folder stays small."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from headway.errors import InputError
from headway.guard import blackbox as module
from headway.guard import boxlog
from headway.guard.blackbox import BlackBox, is_blackbox, is_written, moments, read_blackbox
from headway.guard.boxrecords import (
    EVENTS,
    Acted,
    Begun,
    Counted,
    Ended,
    Foreseen,
    Mark,
    Note,
    Over,
    PlanMade,
    Seen,
    Sent,
    Span,
    segments,
    thin,
)
from headway.guard.frame import Action, Frame, Gauge, ProcessUse

GIB = 1 << 30


def begun(t: float = 1000.0) -> Begun:
    return Begun(t, ("python3", "train.py"), 7, "0.1.0")


def frame(t: float, used: int = GIB, phase: str | None = "train", step: int | None = 3) -> Frame:
    gauges = (Gauge("node[0].host", "cgroup", used, 4 * GIB), Gauge("node[0].host", "node", 2 * used, None))
    return Frame(t, gauges, (ProcessUse(9, 5, "python3 train.py", used),), phase, step)


def written(folder: Path, *things: object) -> Path:
    box = BlackBox(folder, begun())
    for thing in things:
        box.add(thing)
    box.close()
    return folder


def test_everything_that_was_written_is_read(tmp_path):
    action = Action(1002.0, "warn", "forecast", "node[0].host", "cgroup", 1, 2, 3.0, "it grows")
    ended = Ended(1004.0, 9, "python3 train.py", signal=9, rss=GIB)
    sent = Sent(1004.0, 9, 9, "python3 train.py", sender=77, sender_name="bash")
    box = read_blackbox(
        written(
            tmp_path / "box", Counted(1000.5, "before", {"oom_kill": 0}), Mark(1000.6, "train", 3), frame(1001.0),
            frame(1002.0, 3 * GIB, "save", 4), frame(1003.0, GIB, "save", 4), Acted(action),
            Foreseen(1002.5, "node[0].host cgroup", "it reaches the limit"), ended, sent, Note(1004.0, "a note"),
            Counted(1004.5, "after", {"oom_kill": 1}), Over(1005.0, 8, None, 9),
        )
    )  # fmt: skip
    assert (box.begun.command, box.attempts, box.frames, box.torn) == (("python3", "train.py"), 1, 3, 0)
    assert box.last == frame(1003.0, GIB, "save", 4)
    top = box.peaks["node[0].host cgroup"]
    assert (top.bytes, top.t, top.phase, top.step) == (3 * GIB, 1002.0, "save", 4)
    assert box.phases["train"]["node[0].host node"] == 2 * GIB
    assert (box.actions, box.ended, box.sent, box.notes) == ((action,), (ended,), (sent,), ("a note",))
    assert box.counters["after"]["oom_kill"] - box.counters["before"]["oom_kill"] == 1
    assert box.over is not None
    assert (box.over.signal, box.forecasts[0].text) == (9, "it reaches the limit")


def test_a_folder_of_other_things_is_left_alone(tmp_path):
    (tmp_path / "summary.json").write_text("{}")
    (tmp_path / ".bashrc").write_text("")
    with pytest.raises(InputError, match=r"holds other things \(.bashrc, summary.json\) and no black box"):
        BlackBox(tmp_path, begun())
    assert sorted(path.name for path in tmp_path.iterdir()) == [".bashrc", "summary.json"]


def test_a_black_box_goes_on_whatever_was_put_into_it_and_so_does_one_that_never_began(tmp_path):
    box = written(tmp_path / "box", frame(1001.0))
    (box / "report.html").write_text("")
    (box / "notes.md").write_text("what I think of it")
    assert read_blackbox(written(box, frame(1001.0))).attempts == 2
    (tmp_path / "full").mkdir()
    for name in (".lock", "events.jsonl", "log.0.txt", "frames-000001.jsonl", "lost+found"):
        (tmp_path / "full" / name).write_text("")
    assert read_blackbox(written(tmp_path / "full", frame(1001.0))).attempts == 1


def test_a_plan_that_came_late_is_the_attempt_s_and_what_the_run_held_of_each_pool_is_kept(tmp_path):
    small = Frame(1002.0, frame(1002.0).gauges, (ProcessUse(9, 5, "python3", 3 * GIB // 4),), "save", 4)
    box = read_blackbox(written(tmp_path, PlanMade(1000.5, "read", "{}"), frame(1001.0, GIB // 2), small))
    assert (box.begun.spec, box.begun.ledger) == ("read", "{}")
    top = box.uses["node[0].host"]
    assert (top.bytes, top.phase, top.step) == (3 * GIB // 4, "save", 4)


def test_it_is_read_while_it_is_written_and_by_one_writer_alone(tmp_path):
    box = BlackBox(tmp_path, begun())
    box.add(frame(1001.0))
    assert is_blackbox(tmp_path)
    assert is_written(tmp_path)
    assert read_blackbox(tmp_path).last == frame(1001.0)
    with pytest.raises(InputError, match="another headway writes"):
        BlackBox(tmp_path, begun())
    box.close()
    assert not is_written(tmp_path)


def test_a_killed_writer_leaves_all_but_a_torn_line(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; sys.path.insert(0, sys.argv[2]);"
        "from test_blackbox_writer import write; write(Path(sys.argv[1]))"
    )
    (tmp_path / "test_blackbox_writer.py").write_text(
        "import time\nfrom headway.guard.blackbox import BlackBox\nfrom headway.guard.boxrecords import Begun\n"
        "from headway.guard.frame import Frame, Gauge\n"
        "def write(folder):\n    box = BlackBox(folder, Begun(time.time(), ('x',), 1, '0'))\n"
        "    while True:\n        box.add(Frame(time.time(), (Gauge('p', 'node', 1, 2),) * 50))\n"
        "        box.log(b'a line\\n')\n"
    )
    folder = tmp_path / "box"
    with subprocess.Popen([sys.executable, "-c", code, str(folder), str(tmp_path)]) as writer:
        while not (folder / "frames-000001.jsonl").exists():
            time.sleep(0.01)
        time.sleep(0.3)
        writer.send_signal(signal.SIGKILL)
        killed = time.time()
    box = read_blackbox(folder)
    assert box.frames > 50
    assert box.last is not None
    assert 0 <= killed - box.last.t < 0.5
    assert box.torn <= 1
    assert set(box.log) == {"a line"}
    assert not is_written(folder)


@pytest.mark.parametrize("cut", [1, 20, 40])
def test_a_torn_last_line_is_accepted_and_the_next_attempt_goes_on(tmp_path, cut):
    written(tmp_path, frame(1001.0), frame(1002.0), Note(1002.0, "before"))
    for name in ("frames-000001.jsonl", EVENTS):
        data = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(data[:-cut])
    box = read_blackbox(tmp_path)
    assert (box.torn, box.frames, box.notes) == (2 if cut > 1 else 0, 2 if cut == 1 else 1, ("before",) * (cut == 1))
    again = BlackBox(tmp_path, begun(2000.0))
    again.add(frame(2001.0))
    again.close()
    second = read_blackbox(tmp_path)
    assert (second.attempts, second.begun.attempt, second.frames) == (2, 2, 1)


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        (EVENTS, "", "has no beginning"),
        (EVENTS, '{"kind":"note","t":1,"text":"x"}\n', "has no beginning"),
        (EVENTS, '{"kind":"begun","t":"soon"}\n', "not a record"),
        (EVENTS, "garbage\n" + '{"kind":"over","t":1,"pid":2,"code":3}\n', "not a line"),
        ("frames-000001.jsonl", '{"kind":"frame","frame":{"t":1}}\n', "not a record"),
        ("frames-000001.jsonl", "\x00\xff\n" + '{"kind":"mark","t":1e9}\n', "not a line"),
    ],
)
def test_what_is_no_black_box_is_bad_input(tmp_path, name, text, told):
    written(tmp_path, frame(1001.0))
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=told):
        read_blackbox(tmp_path)


def test_a_folder_without_one_and_a_format_of_another_time_are_bad_input(tmp_path):
    with pytest.raises(InputError, match="no black box can be read"):
        read_blackbox(tmp_path)
    assert not is_blackbox(tmp_path)
    BlackBox(tmp_path, msgspec.structs.replace(begun(), format=99)).close()
    with pytest.raises(InputError, match="format is 99"):
        read_blackbox(tmp_path)


def test_a_kind_of_a_later_version_is_passed_over(tmp_path):
    written(tmp_path, frame(1001.0))
    with (tmp_path / EVENTS).open("a") as file:
        file.write('{"kind":"weather","t":1}\n{"kind":"note","t":1,"text":"after"}\n')
    assert read_blackbox(tmp_path).notes == ("after",)


def test_thinning_keeps_the_tightest_frame_and_every_peak():
    frames = [Seen(frame(float(t), (1 + t % 7) * GIB // 4)) for t in range(100, 160)]
    kept = list(thin(frames, 10.0))
    spans = [each for each in kept if isinstance(each, Span)]
    assert [each.frames for each in spans] == [10] * 6
    assert {each.peaks["node[0].host cgroup"] for each in spans} == {7 * GIB // 4}
    assert sum(isinstance(each, Seen) for each in kept) == 6
    again = list(thin(kept, 60.0))
    assert sum(each.frames for each in again if isinstance(each, Span)) == 60


def test_what_is_old_is_thinned_and_the_folder_stays_within_its_size(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SEGMENT_BYTES", 20_000)
    size = 150_000
    box = BlackBox(tmp_path, begun(0.0), size=size, tiers=((0.05, 10.0), (0.15, 60.0), (0.4, 600.0)))
    peak = 0
    for index in range(6000):
        used = GIB + index if index != 700 else 3 * GIB
        peak = max(peak, used)
        box.add(frame(1e9 + index, used))
    box.close()
    held = sum(path.stat().st_size for path in tmp_path.glob("frames-*"))
    assert held <= size + 2 * 20_000
    assert any(".600s." in path.name for path in segments(tmp_path))
    read = read_blackbox(tmp_path)
    assert read.frames == 6000
    assert read.peaks["node[0].host cgroup"].bytes == peak
    times = [each.frame.t for each in moments(tmp_path) if isinstance(each, Seen)]
    assert times == sorted(times)
    assert times[-100:] == [1e9 + index for index in range(5900, 6000)]


def test_a_file_that_was_thinned_but_not_yet_removed_counts_once(tmp_path):
    written(tmp_path, *(frame(1e9 + t) for t in range(30)))
    first = tmp_path / "frames-000001.jsonl"
    kept = [msgspec.json.encode(each) for each in thin(list(moments(tmp_path)), 10.0)]
    (tmp_path / "frames-000001.10s.jsonl").write_bytes(b"\n".join(kept) + b"\n")
    assert first.exists()
    assert read_blackbox(tmp_path).frames == 30


def test_events_stay_bounded_and_keep_beginnings_and_bad_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "EVENT_BYTES", 40_000)
    box = BlackBox(tmp_path, begun())
    box.add(Ended(1001.0, 1, "bad", signal=9))
    for index in range(3000):
        box.add(Ended(1002.0 + index, index, "good", code=0))
    box.add(Over(9000.0, 5, 0))
    box.close()
    assert (tmp_path / EVENTS).stat().st_size < 45_000
    read = read_blackbox(tmp_path)
    assert read.ended[0].name == "bad"
    assert read.over is not None


def test_a_late_plan_stays_where_the_middle_of_the_events_goes(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "EVENT_BYTES", 40_000)
    box = BlackBox(tmp_path, begun())
    for index in range(3000):
        box.add(PlanMade(1002.0, "read", "{}") if index == 300 else Note(1002.0 + index, f"note {index}"))
    box.close()
    assert read_blackbox(tmp_path).begun.ledger == "{}"


def test_a_full_disk_stops_the_recording_not_the_run(tmp_path):
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    box = BlackBox(tmp_path, begun())
    kept, box._events = box._events, full.open("wb", buffering=0)
    box.add(Note(1.0, "lost"))
    box._events.close()
    box._events = kept
    assert (box.lost, box.trouble) == (1, "No space left on device")
    box.add(Note(2.0, "kept"))
    box.close()
    assert read_blackbox(tmp_path).notes == (
        "1 records could not be written so far (No space left on device)", "kept",
    )  # fmt: skip


def test_a_folder_that_cannot_be_written_is_bad_input(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="no recording can be written"):
        BlackBox(tmp_path / "file", begun())


class TestLog:
    def test_the_last_lines_are_kept_in_bounded_files(self, tmp_path):
        box = BlackBox(tmp_path, begun())
        for index in range(60_000):
            box.log(b"line %d of a run that says quite a lot in each of its lines, again and again\n" % index)
        box.close()
        read = read_blackbox(tmp_path)
        assert read.log[-1].startswith("line 59999")
        assert len(read.log) == 500
        assert (tmp_path / boxlog.HEAD).read_text().startswith("line 0 of")
        assert sum(path.stat().st_size for path in boxlog.logs_of(tmp_path)) < 3 << 20

    def test_a_line_without_end_is_cut_and_a_progress_bar_says_its_last(self, tmp_path):
        box = BlackBox(tmp_path, begun())
        box.log(b"x" * 9000)
        box.log(b"y" * 9000 + b"\n10%\r20%\r30%")
        box.close()
        long, bar = read_blackbox(tmp_path).log
        assert long == "x" * 4096 + " ... (cut)"
        assert bar == "30%"

    def test_two_streams_do_not_share_a_line(self, tmp_path):
        box = BlackBox(tmp_path, begun())
        box.log(b"begun ", 1)
        box.log(b"an error\n", 2)
        box.close()
        assert read_blackbox(tmp_path).log == ("begun ", "an error")

    def test_a_new_attempt_keeps_the_last_lines_of_the_one_before(self, tmp_path):
        for attempt in range(8):
            box = BlackBox(tmp_path, begun())
            box.log(f"attempt {attempt + 1}\n".encode())
            box.close()
        assert read_blackbox(tmp_path).log == ("attempt 8",)
        old = sorted(path.name for path in tmp_path.glob("attempt-*.log"))
        assert old == [f"attempt-{number}.log" for number in range(3, 8)]
        assert (tmp_path / "attempt-7.log").read_text() == "attempt 7\n"


def test_reading_takes_bounded_memory(tmp_path):
    box = BlackBox(tmp_path, begun(0.0), size=64 << 20)
    processes = tuple(ProcessUse(pid, 1, f"ray::Worker.{pid}", GIB) for pid in range(40))
    for index in range(6000):
        box.add(Frame(1e9 + index, (Gauge("p", "node", index, 10_000),), processes))
    box.close()
    assert sum(path.stat().st_size for path in tmp_path.glob("frames-*")) > 20 << 20
    code = (
        "import resource, sys; from pathlib import Path; from headway.guard.blackbox import read_blackbox;"
        "base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; box = read_blackbox(Path(sys.argv[1]));"
        "print(box.frames, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    frames, grown = map(int, done.stdout.split())
    assert frames == 6000
    assert grown < 20_000  # KiB: the last 600 frames of 40 processes
