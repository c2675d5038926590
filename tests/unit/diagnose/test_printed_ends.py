"""Ends as launchers, log collectors and cut tails print them: torchrun's codes, nested prefixes, Ray's tail."""

import pytest

from headway.units import GIB

from .told import told

ELASTIC = """W0325 20:57:27.62 2606 torch/distributed/elastic/multiprocessing/api.py:897] Sending process 2629 \
closing signal SIGTERM
E0325 20:57:27.62 2606 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: {code}) local_rank: 5 \
(pid: 2630) of binary: /usr/bin/python3
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
Root Cause (first observed failure):
  rank      : 5 (local_rank: 5)
  exitcode  : {code} (pid: 2630)
"""


@pytest.mark.parametrize(
    ("code", "mechanism", "name"),
    [
        (-9, "sigkill-class", "SIGKILL"), (-11, "native-crash", "SIGSEGV"), (-6, "native-crash", "SIGABRT"),
        (-7, "native-crash", "SIGBUS"), (-15, "sigterm", "SIGTERM"),
    ],
)  # fmt: skip
def test_torchrun_s_code_of_the_first_rank_is_its_signal(code, mechanism, name):
    found = told(ELASTIC.format(code=code))
    assert (found.mechanism, found.mechanism_grade) == (mechanism, "proven")
    assert found.sentence.startswith(f"{name} ended local rank 5 pid 2630 (exit code {code})")


def test_the_signal_to_the_other_ranks_is_no_end():
    found = told(ELASTIC.format(code=1))
    assert (found.mechanism, "SIG" in found.sentence) == ("unknown", False)
    assert told("process 2629: received SIGTERM").mechanism == "sigterm"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("process exited with code 143", "SIGTERM ended the process (exit code 143)"),
        ("container exited with exit code 137", "SIGKILL ended the process (exit code 137)"),
        ("worker exited with exit code 139", "SIGSEGV ended the process (exit code 139)"),
        ("Killed", "SIGKILL ended the process"),
    ],
)
def test_a_code_above_128_is_a_signal_too(text, said):
    assert told(text).sentence.startswith(said)


@pytest.mark.parametrize("code", [1, 2, 128])
def test_an_exit_code_of_the_program_s_own_is_no_signal(code):
    assert "SIG" not in told(f"container exited with exit code {code}").sentence


TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "/app/reward.py", line 3, in score',
    "ValueError: bad label 7",
)
PREFIXES = (
    "\x1b[36m(pid=123)\x1b[0m \x1b[36m(WorkerDict pid=456)\x1b[0m [rank3]: ERROR 01-01 12:00:00 [a.py:12] ",
    "[pod/trainer-0/main] 2026-01-01T12:00:00.123456789Z ",
    "2026-01-01T12:00:00.123456789Z stderr F ",
    "Jan 01 12:00:00 node7 python3[4711]: ",
    "trainer-1  | ",
    "trainer_1 | (WorkerDict pid=456) ",
    "3: ",
    "[default3]:[rank3]: ",
)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_traceback_is_read_behind_any_prefix(prefix):
    found = told("\n".join(prefix + line for line in TRACEBACK))
    assert (found.mechanism, found.mechanism_grade, found.cause) == (
        "python-exception", "proven", "user-code-error",
    )  # fmt: skip
    assert "(ValueError: bad label 7)" in found.sentence


def test_a_program_s_pid_is_no_rank():
    assert "4711" not in told(f"{PREFIXES[3]}ValueError: bad label 7").sentence
    assert "rank 3" in told("[rank3]: ValueError: bad label 7").sentence


def test_a_message_that_begins_with_a_number_keeps_it():
    assert "(ValueError: 12: no such row)" in told("ValueError: 12: no such row").sentence


TAIL = (
    "ession/logs, where the task (task ID: ff, name=WorkerDict.update_actor, pid=4711, memory used=3.10GB) was "
    "running was 95.3GB / 100GB (0.953), which exceeds the memory usage threshold of 0.95. "
)
KILLED = (
    "Ray killed this worker (ID: 9c) because it was the most recently scheduled task; to see more, use `ray logs`. "
)
ADVICE = (
    "Set max_retries to enable retry when the task crashes due to OOM. To adjust the kill threshold, set the "
    "environment variable `RAY_memory_usage_threshold` when starting Ray."
)


@pytest.mark.parametrize("text", [TAIL + KILLED + ADVICE, KILLED + ADVICE, ADVICE])
def test_ray_s_kill_whose_start_is_cut_off_is_its_monitor_s(text):
    assert told(text).mechanism == "ray-memory-monitor"


def test_whole_gigabytes_are_numbers_too():
    kill = told(TAIL).kill
    assert kill is not None
    assert (round(kill.used / GIB, 1), kill.total) == (95.3, 100 * GIB)


def test_the_threshold_s_advice_alone_is_no_kill():
    text = (
        "To adjust the kill threshold, set the environment variable `RAY_memory_usage_threshold` when starting Ray."
    )
    assert told(text).mechanism == "unknown"


@pytest.mark.parametrize(
    ("text", "there", "absent"),
    [
        ("process exited with code 143", "outside-signal", ("pod-eviction", "a raylet that was told to go")),
        (
            "pod trainer-0 was deleted\nprocess exited with code 143",
            "pod-eviction",
            ("a raylet that was told to go",),
        ),
        ("The process receives a SIGTERM.\n(raylet) x", "a raylet that was told to go", ("pod-eviction",)),
    ],
)
def test_senders_are_those_of_the_platform(text, there, absent):
    names = {each.name for each in told(text).candidates}
    assert there in names
    assert not names & set(absent)
