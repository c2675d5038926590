"""The page of a black box of `headway watch`, written by the black box itself."""

import os
import signal
import time
from pathlib import Path

import msgspec
import pytest

from headway.cli.watch_plan import Request, planned
from headway.guard.blackbox import BlackBox
from headway.guard.boxplan import plan_of
from headway.guard.boxrecords import (
    MOMENT_LINES,
    Acted,
    Begun,
    Counted,
    Ended,
    Foreseen,
    Mark,
    Note,
    Over,
    PlanMade,
    Sent,
    thin,
)
from headway.guard.frame import Action, Frame, Gauge, ProcessUse
from headway.reports.page.box import OTHERS, TREE
from headway.reports.page.build import build, read_run
from headway.reports.page.html import page_html
from headway.reports.page.records import Page

GIB = 1 << 30
HOST = "node[0].host"
T = 1_700_000_000.0


def frame(t: float, size: int, *, phase: str | None = None, step: int | None = None, processes: int = 3) -> Frame:
    """A node that holds `size`, of which the processes hold an equal part each."""
    gauges = (
        Gauge(HOST, "node", size, 64 * GIB), Gauge(HOST, "Ray", size + GIB, 60 * GIB),
        Gauge("node[0].device[0]", "device", size // 2, 80 * GIB), Gauge("node[0].shm", "shm", 4096, 8 * GIB),
    )  # fmt: skip
    uses = tuple(ProcessUse(100 + at, 1, f"ray::Worker{at}", size // processes) for at in range(processes))
    return Frame(T + t, gauges, uses, phase, step, {"some": 1.5, "full": 0.0})


def begun(t: float = 0.0, ledger: str = "") -> Begun:
    return Begun(T + t, ("bash", "run.sh", "--name", "a <b>"), 7, "0.1.0", policy="observe", ledger=ledger)


@pytest.fixture
def box(tmp_path: Path) -> Path:
    """Two attempts: the first ends by SIGKILL, the second stops without an end."""
    writer = BlackBox(tmp_path / "box", begun())
    writer.add(Counted(T, "before", {"oom_kill": 0}))
    for t in range(60):
        if t % 20 == 0:
            writer.add(Mark(T + t, "rollout", t // 20 + 1))
        if t % 20 == 12:
            writer.add(Mark(T + t, "train"))
        writer.add(frame(t, (10 + t) * GIB // 2))
    warn = Action(T + 30, "warn", "trend", HOST, "node", 20 * GIB, 64 * GIB, 20.0, "node grows", dry=True, step=2)
    writer.add(Acted(warn))
    numbers = {"level": 20.0 * GIB, "per_minute": 30.0 * GIB, "expected_t": T + 60}
    writer.add(Foreseen(T + 40, f"{HOST} node", "node grows 30 GiB a minute", numbers))
    writer.add(Foreseen(T + 40, "ray::Worker1 [101]", "Worker1 grows"))
    writer.add(Sent(T + 60, signal.SIGKILL, 101, "ray::Worker1", 1, "init"))
    writer.add(Ended(T + 60, 101, "ray::Worker1", None, signal.SIGKILL, "waited", 13 * GIB))
    writer.add(Ended(T + 60, 102, "ray::Worker2", 0))
    writer.add(Counted(T + 60, "after", {"oom_kill": 1}))
    writer.add(Over(T + 60, 7, None, signal.SIGKILL))
    writer.log(b"step 3 <script>alert(1)</script>\n")
    writer.close()
    writer = BlackBox(tmp_path / "box", begun(4000))
    for t in range(10):
        writer.add(frame(4000 + t, 12 * GIB, phase="rollout", step=1))
    writer.add(Note(T + 4009, "no PSI here"))
    writer.close()
    return tmp_path / "box"


@pytest.fixture
def page(box: Path) -> Page:
    return build(read_run(box), made=0.0)


def test_each_pool_has_its_counters_and_limits(page):
    pools = {pool.pool: pool for pool in page.history.pools}
    assert [*pools] == [HOST, "node[0].device[0]", "node[0].shm"]
    assert {curve.name for curve in pools[HOST].curves} == {"node", "as Ray counts", TREE}
    assert {(limit.name, limit.curve) for limit in pools[HOST].ceilings} == {
        ("node", "node"),
        ("Ray", "as Ray counts"),
    }
    assert pools[HOST].curves[0].top == 69 * GIB // 2


def test_phases_come_from_marks_and_from_frames(page):
    bands = [(band.phase, band.step, round(band.end - band.start)) for band in page.history.bands]
    assert bands[:3] == [("rollout", 1, 12), ("train", 1, 8), ("rollout", 2, 12)]
    assert bands[-1][:2] == ("rollout", 1)
    assert page.history.passes == {"rollout": 4, "train": 3}


def test_two_attempts_on_one_axis(page):
    assert [round(start.t) for start in page.history.starts] == [0, 60]
    assert page.history.seconds == pytest.approx(69)
    assert ("attempts", "2") in page.history.facts


def test_processes_with_their_names(page):
    assert set(page.history.processes.names) == {"ray::Worker0 100", "ray::Worker1 101", "ray::Worker2 102"}


def test_many_processes_share_a_series(tmp_path):
    writer = BlackBox(tmp_path / "box", begun())
    writer.add(frame(1, 30 * GIB, processes=15))
    writer.close()
    stack = build(read_run(tmp_path / "box")).history.processes
    assert len(stack.names) == 8
    assert stack.names[-1] == OTHERS
    assert sum(stack.parts[0]) == 15 * (30 * GIB // 15)


def test_what_the_guard_said_and_foresaw(page):
    (action,) = page.history.actions
    assert (action.name, action.dry, action.t) == ("warn", True, 30.0)
    (forecast,) = page.history.pools[0].forecasts
    assert (forecast.start, forecast.end) == ((40.0, 20.0 * GIB), (60.0, 30.0 * GIB))
    assert ("forecast", "Worker1 grows") in page.history.facts


def test_ends_signals_and_counters(page):
    facts = dict(page.history.facts)
    assert facts["SIGKILL to ray::Worker1 (101)"] == "from init (1)"
    assert facts["ray::Worker1 (101)"] == "ended by SIGKILL; it held 13.00 GiB"
    assert "ray::Worker2 (102)" not in facts
    assert facts["counter oom_kill"] == "0 before, 1 after"
    assert "no PSI here" in page.missing


def test_how_it_ended(box):
    assert "its end was not recorded" in build(read_run(box)).ending.sentence
    assert read_run(box, running=True).ending().word == "running"
    writer = BlackBox(box, begun(5000))
    writer.add(frame(5001, GIB))
    writer.add(Over(T + 5002, 7, 3))
    writer.close()
    ending = read_run(box).ending()
    assert (ending.word, ending.bad) == ("failed", True)
    assert "exit code 3" in ending.sentence
    writer = BlackBox(box, begun(6000))
    writer.add(frame(6001, GIB))
    writer.add(Over(T + 6002, 7, 0))
    writer.close()
    assert read_run(box).ending().word == "finished"


def test_a_run_that_the_guard_stopped_is_not_finished_where_its_handler_exits_with_0(box):
    stop = Action(T + 5001, "stop", "forecast", HOST, "node", 63 * GIB, 64 * GIB, 9.0, "node is nearly full", step=2)
    writer = BlackBox(box, begun(5000))
    writer.add(frame(5001, GIB))
    writer.add(Acted(stop))
    writer.add(Over(T + 5002, 7, 0))
    writer.close()
    ending = read_run(box).ending()
    assert (ending.word, ending.tone) == ("stopped", "warn")
    assert "Stopped by the guard" in ending.sentence
    assert stop.reason in ending.sentence
    writer = BlackBox(box, begun(6000))  # the stop was of the attempt before
    writer.add(frame(6001, GIB))
    writer.add(Over(T + 6002, 7, 0))
    writer.close()
    assert read_run(box).ending().word == "finished"


def test_torn_records_are_counted(box):
    with (box / "events.jsonl").open("ab") as file:
        file.write(b'{"kind":"ended","t":1}\n{"ki')
    assert any("2 records could not be read" in line for line in build(read_run(box)).missing)


def test_the_command_and_its_output_are_text(page):
    html = page_html(page)
    assert "bash run.sh --name &#x27;a &lt;b&gt;&#x27;" in html
    assert "<script>alert" not in html


def test_a_box_that_is_written_now_can_be_read(tmp_path):
    writer = BlackBox(tmp_path / "box", Begun(time.time(), (), os.getpid(), "0.1.0"))
    writer.add(frame(time.time() - T, GIB))
    assert build(read_run(tmp_path / "box")).history.peak is not None
    writer.close()


def test_thinned_stretches_keep_their_peaks(tmp_path):
    writer = BlackBox(tmp_path / "box", begun())
    for t in range(100):
        writer.add(frame(t, 50 * GIB if t == 55 else GIB))
    writer.close()
    path = tmp_path / "box" / "frames-000001.jsonl"
    moments = [MOMENT_LINES.decode(line) for line in path.read_bytes().splitlines()]
    path.write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in thin(moments, 10.0)))
    history = build(read_run(tmp_path / "box")).history
    assert history.pools[0].curves[0].top == 50 * GIB


@pytest.mark.parametrize("late", [False, True])
def test_the_plan_that_a_box_keeps_stands_beside_what_the_run_held(tmp_path, late):
    script = Path(__file__).parents[2] / "data" / "scripts" / "slime-arrays.sh"
    plan = planned(Request(("bash", str(script)), "8xh100-80", ()))
    writer = BlackBox(tmp_path / "box", begun(ledger="" if late else plan.ledger))
    if late:
        writer.add(PlanMade(T + 0.5, plan.spec, plan.ledger))
    for t, phase in enumerate(("rollout", "train")):
        writer.add(frame(t + 1, (10 + t) * GIB, phase=phase, step=1))
    writer.close()
    page = build(read_run(tmp_path / "box"))
    rows = {each.pool: {row.phase: row for row in each.rows} for each in page.comparisons}
    # the processes, not all that the node holds; of a device what it holds
    assert [rows[HOST][phase].measured for phase in ("rollout", "train")] == [
        10 * GIB // 3 * 3, 11 * GIB // 3 * 3,
    ]  # fmt: skip
    assert rows["node[0].device[0]"]["train"].measured == 11 * GIB // 2
    made = plan_of(plan.ledger)
    assert made is not None
    assert {each.pool: each.upper for each in page.comparisons} == {
        each.pool: each.upper_bytes for each in made.pools
    }
    assert ("plan before the run", "fits, on 8xh100-80") in page.history.facts
    assert sum(part.bytes for part in rows[HOST]["train"].items) == rows[HOST]["train"].predicted
    assert "Predicted against measured" in page_html(page)


def test_a_run_whose_phases_are_not_known_is_measured_as_a_whole(tmp_path):
    script = Path(__file__).parents[2] / "data" / "scripts" / "slime-arrays.sh"
    plan = planned(Request(("bash", str(script)), "8xh100-80", ()))
    writer = BlackBox(tmp_path / "box", begun(ledger=plan.ledger))
    writer.add(frame(1, 12 * GIB))
    writer.add(frame(2, 9 * GIB, phase="train", step=1))
    writer.close()
    host = next(each for each in build(read_run(tmp_path / "box")).comparisons if each.pool == HOST)
    assert host.measured == 12 * GIB
    assert {row.phase: row.measured for row in host.rows if row.measured is not None} == {"train": 9 * GIB}
