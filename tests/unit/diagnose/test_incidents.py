"""Order: what came first by the clock, what follows from what, what a run survived, and two deaths in one log."""

import pytest

from .told import diagnosis, told

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
EOF = "ray.exceptions.ActorDiedError: Worker unexpectedly exits with a connection error code 2. End of file."
TIMEOUT = (
    "[rank3]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8, OpType=ALLREDUCE, Timeout(ms)=600000)"
)
TERM = "The process receives a SIGTERM."
ERROR = "Traceback (most recent call last):\n  File \"/home/me/reward.py\", line 9, in score\nKeyError: 'answer'"
AT = "[2026-03-01 {}] {}"


@pytest.mark.parametrize("later", [EOF, TIMEOUT, TERM])
@pytest.mark.parametrize("swapped", [False, True])
def test_a_refused_request_is_the_root_of_what_follows_it_in_either_order(later, swapped):
    texts = [OOM, later][:: -1 if swapped else 1]
    assert told("\n".join(texts)).mechanism == "device-allocation-failure"


@pytest.mark.parametrize("swapped", [False, True])
def test_clocks_decide_over_the_order_in_the_file(swapped):
    lines = [AT.format("10:00:00", TERM), AT.format("10:09:00", OOM)][:: -1 if swapped else 1]
    assert told("\n".join(lines)).mechanism == "sigterm"


@pytest.mark.parametrize("swapped", [False, True])
def test_clocks_decide_between_files(swapped):
    lines = [AT.format("10:00:00", TIMEOUT), AT.format("10:01:00", ERROR.replace("\n", "\n"))]
    texts = lines[:: -1 if swapped else 1]
    assert diagnosis(*texts).answer.mechanism == "collective-timeout"


def test_an_exception_before_a_signal_is_the_root_and_after_it_is_not():
    quiet = "\n".join(f"request {n} finished" for n in range(100))
    assert told(f"{ERROR}\n{quiet}\n{TERM}").mechanism == "python-exception"
    assert told(f"{TERM}\n{quiet}\n{ERROR}").mechanism == "sigterm"


def test_the_kernel_s_line_in_another_file_explains_an_end_of_file():
    kernel = "[1234.567890] Memory cgroup out of memory: Killed process 4242 (ray::Trainer) anon-rss:88000000kB"
    found = diagnosis(EOF, kernel).answer
    assert (found.mechanism, found.mechanism_grade) == ("cgroup-oom-kill", "proven")


def test_counters_of_the_group_weigh():
    events = "low 0\nhigh 0\nmax 12\noom {0}\noom_kill {0}\n"
    supported = diagnosis(EOF, events.format(1)).answer
    assert (supported.mechanism, supported.mechanism_grade) == ("cgroup-oom-kill", "supported")
    refuted = diagnosis(EOF, events.format(0)).answer
    assert refuted.mechanism == "sigkill-class"
    assert "cgroup-oom-kill" in {each.name for each in refuted.ruled_out}


def test_a_watchdog_s_abort_is_no_crash():
    crash = "*** SIGABRT received at time=1739701763 on cpu 167 ***"
    assert told(f"{TIMEOUT}\n{crash}\n{EOF}").mechanism == "collective-timeout"
    assert told(f"{crash}\n{EOF}").mechanism == "native-crash"


def test_wrappers_of_another_process_s_end_are_no_exceptions():
    wrapped = 'Traceback (most recent call last):\n  File "/a.py", line 1, in f\n' + EOF
    assert told(wrapped).mechanism == "sigkill-class"


def test_a_line_that_the_run_survived_is_not_the_answer():
    log = "\n".join(
        [f"step {n}: loss" for n in range(5)] + [OOM] + [f"step {n}: loss" for n in range(5, 30)] + [TERM]
    )
    found = diagnosis(log)
    assert found.answer.mechanism == "sigterm"
    assert [(each.mechanism, each.survived) for each in found.findings] == [
        ("device-allocation-failure", True), ("sigterm", False),
    ]  # fmt: skip


def test_two_deaths_in_one_log_are_both_named():
    first = "\n".join([f"step {n}: loss" for n in range(30)] + [OOM])
    second = "\n".join([f"step {n}: loss" for n in range(9)] + [EOF])
    found = diagnosis(f"{first}\n{second}")
    assert [each.mechanism for each in found.findings] == ["device-allocation-failure", "sigkill-class"]
    assert [each.step for each in found.findings] == [29, 8]


def test_deaths_hours_apart_are_two():
    found = diagnosis(f"{AT.format('10:00:00', OOM)}\n{AT.format('18:00:00', TERM)}")
    assert [each.mechanism for each in found.findings] == ["device-allocation-failure", "sigterm"]


def test_dates_of_different_forms_are_compared():
    glog = "E0301 10:30:00.123456 77 node.cc:12] " + TERM
    assert told(f"{glog}\n{AT.format('10:00:00', ERROR)}").mechanism == "python-exception"


WATCHDOG = (
    "[rank3]:[E1128 03:14:22.101 ProcessGroupNCCL.cpp:629] [Rank 3] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=812, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600081 milliseconds "
    "before timing out.\n"
)
ROOT_CAUSE = (
    "Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-28_{0}\n  host      : node1\n  rank      : 1 "
    "(local_rank: 1)\n  exitcode  : -9 (pid: 1001)\n  traceback : Signal 9 (SIGKILL) received by PID 1001\n"
)


@pytest.mark.parametrize(("time", "mechanism"), [("03:04:20", "sigkill-class"), ("03:14:38", "collective-timeout")])
def test_torchruns_block_is_as_early_as_its_own_time_says(time: str, mechanism: str):
    """It is printed last. A rank that was gone before the others began to wait is why they waited."""
    for text in (WATCHDOG + ROOT_CAUSE.format(time), ROOT_CAUSE.format(time) + WATCHDOG):
        assert told(text).mechanism == mechanism
