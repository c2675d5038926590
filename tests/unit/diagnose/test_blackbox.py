"""What the doctor makes of a black box: only what it recorded, and teardown is never a cause."""

import json
from pathlib import Path

import pytest

from headway.cli.doctor import diagnosed
from headway.cli.watch_plan import Request, planned
from headway.diagnose.finding import Diagnosis
from headway.guard.blackbox import BlackBox
from headway.guard.boxrecords import Acted, Begun, Counted, Ended, Event, Mark, Note, Over, Sent
from headway.guard.frame import NO_HANDLE, Action, Frame, Gauge

T = 1_700_000_000.0
KERNEL = (
    "kernel: [Tue Nov 14 22:14:20 2023] Memory cgroup out of memory: Killed process 7 (python) total-vm:1kB, "
    "anon-rss:900kB, file-rss:0kB, shmem-rss:0kB"
)


def told(
    folder: Path, *events: Event, log: bytes = b"step 41: {'loss': 1}\n", over: Over | None = None,
    plan: tuple[str, str] = ("", ""),
) -> Diagnosis:  # fmt: skip
    box = BlackBox(folder, Begun(T, ("bash", "run.sh"), 1, "0.1.0", spec=plan[0], ledger=plan[1]))
    box.add(
        Frame(T + 50, (Gauge("node[0].host", "cgroup", 99, 100),), phase="train", step=41, events={"oom_kill": 3})
    )
    box.log(log)
    for event in events:
        box.add(event)
    if over is not None:
        box.add(over)
    box.close()
    return diagnosed([str(folder)], [], None, None, live=False)


def killed(pid: int = 7, signal: int = 9, t: float = T + 60) -> Ended:
    return Ended(t, pid, "ray::Trainer.train", signal=signal, since=t - 1)


OVER = Over(T + 61, 2, 1)


def names(found: Diagnosis) -> tuple[str, str, str]:
    return found.answer.mechanism, found.answer.mechanism_grade, found.answer.cause


def test_the_kernel_s_word_on_a_process_proves_it(tmp_path):
    found = told(tmp_path, killed(), Sent(T + 60, 9, 7, "x", kernel=True), over=OVER)
    assert names(found) == ("sigkill-class", "proven", "not-established")
    assert found.answer.process == "ray::Trainer.train pid 7"
    assert (found.answer.phase, found.answer.step) == ("train", 41)
    assert any("99 B of 100 B" in line for line in found.context)


def test_a_line_of_the_kernel_s_log_about_a_process_of_the_run_is_proof(tmp_path):
    found = told(tmp_path, killed(), Note(T + 61, KERNEL), over=OVER)
    assert names(found)[:2] == ("cgroup-oom-kill", "proven")


def test_the_group_s_count_makes_a_kill_one_for_memory_or_rules_it_out(tmp_path):
    counts = [Counted(T, "before", {"oom_kill": 3}), Counted(T + 61, "after", {"oom_kill": 4})]
    assert names(told(tmp_path / "a", killed(), *counts, over=OVER))[:2] == ("cgroup-oom-kill", "supported")
    counts[1] = Counted(T + 61, "after", {"oom_kill": 3})
    found = told(tmp_path / "b", killed(), *counts, over=OVER)
    assert found.answer.mechanism == "sigkill-class"
    assert "cgroup-oom-kill" in [each.name for each in found.answer.ruled_out]


def test_a_count_from_before_the_end_rules_nothing_out(tmp_path):
    found = told(tmp_path, Counted(T, "before", {"oom_kill": 3}))
    assert names(found)[:2] == ("sigkill-class", "supported")
    assert "cgroup-oom-kill" not in [each.name for each in found.answer.ruled_out]
    assert "Everything ended without a word" in found.sentence


@pytest.mark.parametrize(
    ("sent", "cause", "because"),
    [
        (Sent(T + 60, 9, 7, "x", sender=77, sender_name="bash"), "outside-signal", "process 77 (bash) sent it"),
        (Sent(T + 60, 9, 7, "x", sender=0), "outside-signal", "a process outside of the container sent it"),
        (Sent(T + 60, 9, 7, "x", sender=78, sender_name="raylet", inside=True), "not-established", ""),
        (Sent(T + 60, 9, 7, "x", 7, "x", inside=True), "user-exit", "process 7 (x) sent it to itself"),
        (Sent(T + 60, 9, 7, "x", 6, "sh", inside=True), "user-exit", "process 6 (sh) of the run sent it"),
        (Sent(T + 60, 9, 8, "y", sender=6, sender_name="sh", inside=True), "not-established", ""),
        (Sent(T + 60, 9, 7, "x", sender=6, sender_name="ray::JobSupervisor", inside=True), "not-established", ""),
        (Sent(T + 60, 15, 7, "x", sender=77, sender_name="bash"), "not-established", ""),
        (Sent(T + 60, 9, 7, "x", why="only root may read it"), "not-established", ""),
    ],
)
def test_a_sender_is_named_unless_it_is_ray(tmp_path, sent, cause, because):
    found = told(tmp_path, killed(), sent, over=OVER)
    assert (found.answer.mechanism, found.answer.cause, found.answer.because) == ("sigkill-class", cause, because)


@pytest.mark.parametrize(("number", "mechanism"), [(1, "sigkill-class"), (15, "sigterm")])
def test_a_run_that_signals_itself_has_no_sender_outside(tmp_path, number, mechanism):
    sent = Sent(T + 60, number, 7, "x", sender=7, sender_name="python3", inside=True)
    found = told(tmp_path, killed(signal=number), sent, over=Over(T + 60.2, 7, None, number)).answer
    assert (found.mechanism, found.cause, found.cause_grade) == (mechanism, "user-exit", "proven")
    assert "process 7 (python3) sent it to itself" in found.sentence
    assert "outside-signal" not in [each.name for each in found.candidates]


def test_growth_that_the_guard_warned_of_is_why_a_kill_for_memory_came(tmp_path):
    why = "node[0].host (cgroup) grows 12.0 MiB a step, reaches 600.0 MiB at step 39-44; seen for 40 s"
    warned = Acted(Action(T + 55, "warn", "forecast", "node[0].host", "cgroup", 9, 10, 5.0, why))
    found = told(tmp_path / "killed", warned, killed(), Note(T + 61, KERNEL), over=OVER).answer
    assert (found.mechanism, found.mechanism_grade) == ("cgroup-oom-kill", "proven")
    assert (found.cause, found.cause_grade) == ("host-memory-growth", "supported")
    assert why.partition(";")[0] in found.sentence
    by_hand = Sent(T + 60, 9, 7, "x", sender=77, sender_name="bash")
    other = told(tmp_path / "by-hand", warned, killed(), by_hand, over=OVER).answer
    assert other.cause != "host-memory-growth", "a kill by hand is none for memory"


def test_steps_of_the_guard_for_one_reason_are_told_once(tmp_path):
    why = "node[0].host (cgroup) grows 1.0 MiB a step, reaches 320.0 MiB at step 71-74"
    steps = [
        Acted(Action(T + 59, name, "forecast", "node[0].host", "cgroup", 9, 10, 5.0, why + end, dry=bool(end)))
        for name, end in (("warn", ""), ("free", NO_HANDLE), ("checkpoint", NO_HANDLE), ("stop", ""))
    ]
    found = told(tmp_path, *steps, Sent(T + 60, 15, 7, "x", sender=1), killed(signal=15), over=OVER)
    about = [line for line in found.context if why in line]
    assert about == [f"{tmp_path.name}: the guard (warn, free (not done), checkpoint (not done), stop): {why}"]


def test_a_guard_of_the_machine_is_named_as_one(tmp_path):
    found = told(tmp_path, killed(signal=15), Sent(T + 60, 15, 7, "x", sender=5, sender_name="earlyoom"), over=OVER)
    assert found.answer.mechanism == "oom-daemon"


def test_what_is_killed_after_somebody_ended_badly_is_teardown(tmp_path):
    first = Ended(T + 55, 8, "python3 train.py", code=1, rss=1 << 30)
    found = told(tmp_path, first, killed(), Sent(T + 60, 9, 7, "x", sender=77, sender_name="bash"), over=OVER)
    assert names(found) == ("unknown", "open", "not-established")


def test_where_the_order_cannot_be_told_nothing_is_claimed(tmp_path):
    found = told(tmp_path, Ended(T + 60.05, 8, "python3 train.py", code=1, rss=1 << 30), killed(), over=OVER)
    assert found.answer.mechanism == "unknown"


def test_what_an_earlier_look_noticed_came_first(tmp_path):
    later = Ended(T + 60.9, 8, "ray::Trainer.train", code=1, rss=1 << 30, since=T + 60)
    found = told(tmp_path, Ended(T + 60, 9, "raylet", signal=9), later, over=Over(T + 61, 2, 0))
    assert found.answer.mechanism == "raylet-lost"


def test_a_small_helper_that_found_nothing_is_no_failing(tmp_path):
    found = told(tmp_path, Ended(T + 55, 8, "grep", code=1, rss=1 << 20), killed(), over=OVER)
    assert found.answer.mechanism == "sigkill-class"


def test_a_kill_long_before_the_end_did_not_end_the_run(tmp_path):
    found = told(tmp_path, killed(t=T + 60), Mark(T + 400, "train", 90), over=Over(T + 900, 2, 1))
    assert found.answer.mechanism == "unknown"


@pytest.mark.parametrize(("name", "mechanism"), [("raylet", "raylet-lost"), ("gcs_server", "gcs-lost")])
def test_ray_s_own_processes_are_told_apart(tmp_path, name, mechanism):
    found = told(tmp_path, Ended(T + 60, 9, name, signal=9), over=Over(T + 61, 2, 0))
    assert names(found)[:2] == (mechanism, "proven")


@pytest.mark.parametrize(("number", "mechanism"), [(15, "sigterm"), (11, "native-crash"), (6, "native-crash")])
def test_other_signals_have_their_mechanism(tmp_path, number, mechanism):
    assert names(told(tmp_path, killed(signal=number), over=OVER))[:2] == (mechanism, "proven")


def test_an_exception_in_the_output_is_read_with_it(tmp_path):
    log = b"step 41: {}\nTraceback (most recent call last):\n  File \"a.py\", line 3, in step\nKeyError: 'x'\n"
    found = told(tmp_path, Ended(T + 60, 8, "python3 a.py", code=1), log=log, over=OVER)
    assert found.answer.mechanism == "python-exception"


def test_a_folder_above_and_one_that_is_still_written(tmp_path):
    told(tmp_path / "runs" / "one", killed(), over=OVER)
    assert diagnosed([str(tmp_path / "runs")], [], None, None, live=False).answer.mechanism == "sigkill-class"
    box = BlackBox(tmp_path / "now", Begun(T, ("bash",), 1, "0.1.0"))
    box.add(Frame(T + 1, ()))
    answer = diagnosed([str(tmp_path / "now")], [], None, None, live=False).answer
    box.close()
    assert answer.mechanism == "unknown"


@pytest.fixture(scope="module")
def plan() -> tuple[str, str]:
    """The settings and the plan of a launch that does not fit, as `headway watch` keeps them."""
    script = str(Path(__file__).parents[2] / "data" / "scripts" / "slime-step-75.sh")
    made = planned(Request(("bash", script), "2x8xh100-80", ("qwen3-30B-A3B", "host.bytes=1600e9")))
    assert made.ledger
    return made.spec, made.ledger


def test_the_plan_and_the_settings_that_a_box_keeps_are_used(tmp_path, plan):
    found = told(tmp_path, killed(), over=OVER, plan=plan)
    assert "the plan before the run, on 2x8xh100-80: does not fit" in found.context
    assert any(line.startswith("node[0].device[0]: 132.70 GiB expected, ") for line in found.context)
    assert "a save (every 50) was not due at step 41: none had been yet" in found.context
    assert any(line.startswith("lint: slime-step-75.sh:83 a reference model is loaded") for line in found.context)
    assert found.remedies
    assert found.remedies[0]["before_bytes"] > found.remedies[0]["after_bytes"]  # type: ignore[operator]
    assert not any("what was planned at most" in line for line in found.context)


def test_a_pool_that_held_more_than_was_planned_at_most_is_named(tmp_path, plan):
    made = json.loads(plan[1])
    host = next(pool for pool in made["pools"] if pool["pool"] == "node[0].host")
    host["upper_bytes"] = 52
    found = told(tmp_path, killed(), over=OVER, plan=(plan[0], json.dumps(made)))
    line = f"{tmp_path.name}: node[0].host held 1.9x what was planned at most: 99 B in train of step 41, planned 52 B"
    assert line in found.context


@pytest.mark.parametrize("text", ["[]", "{", '{"settings": 7}', "[model]\npath = 'x'\n", "\x00", "[" * 100_000])
def test_a_plan_that_cannot_be_read_changes_nothing(tmp_path, text):
    plain = told(tmp_path / "a" / "box", killed(), over=OVER)
    damaged = told(tmp_path / "b" / "box", killed(), over=OVER, plan=(text, text))
    assert (names(damaged), damaged.context, damaged.remedies) == (names(plain), plain.context, ())


def test_a_plan_that_is_asked_for_takes_the_kept_one_s_place(tmp_path, plan):
    told(tmp_path, killed(), over=OVER, plan=plan)
    script = Path(__file__).parents[2] / "data" / "scripts" / "slime-step-75.sh"
    found = diagnosed([str(tmp_path)], [], script, "8xh200", live=False)
    assert any(line.startswith("the plan on 8xh200: ") for line in found.context)
    assert not any("plan before the run" in line for line in found.context)
