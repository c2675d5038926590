"""A command under `Child`: its output, input, signals and exit status are those that it has without."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from headway.errors import HeadwayError
from headway.guard.child import Child, Exit, StartError
from headway.guard.loglines import LogReader


def ended(child: Child) -> Exit:
    """Run it to its end."""
    child.start()
    try:
        while (end := child.pump(0.1)) is None:
            pass
    finally:
        child.close()
    return end


def output(*command: str) -> tuple[Exit, bytes, bytes]:
    parts: dict[int, bytes] = {1: b"", 2: b""}

    def take(data: bytes, stream: int) -> None:
        parts[stream] += data

    end = ended(Child(command, take))
    return end, parts[1], parts[2]


CODES = [0, 1, 2, 3, 77, 126, 127, 128, 137, 143, 255]
SIGNALS = [
    signal.SIGHUP, signal.SIGINT, signal.SIGABRT, signal.SIGKILL, signal.SIGSEGV, signal.SIGPIPE,
    signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2,
]  # fmt: skip
"""Without SIGQUIT, which bash ignores."""
TABLE = [(f"exit {code}", Exit(code), code) for code in CODES] + [
    (f"ulimit -c 0; kill -{int(number)} $$; sleep 5", Exit(None, int(number)), 128 + int(number))
    for number in SIGNALS
]


@pytest.mark.parametrize(("script", "end", "status"), TABLE, ids=[script for script, _, _ in TABLE])
def test_the_exit_status_is_the_command_s_own(script, end, status, capfd):
    found, _, _ = output("bash", "-c", script)
    assert (found, found.status) == (end, status)
    plain = subprocess.run(["bash", "-c", f"bash -c '{script}' 2>/dev/null; exit $?"], check=False).returncode
    assert found.status == plain


def test_what_cannot_be_started_has_a_shell_s_codes(tmp_path):
    (tmp_path / "text").write_text("no program")
    for command, code in (("no-such-command", 127), (str(tmp_path / "text"), 126), (str(tmp_path), 126)):
        with pytest.raises(StartError) as error:
            Child([command], lambda data, stream: None).start()
        assert isinstance(error.value, HeadwayError)
        assert error.value.exit_code == code


def test_both_streams_are_copied_byte_for_byte(capfdbinary):
    script = "import os; os.write(1, bytes(range(256)) * 4000); os.write(2, b'\\xff error\\n' * 100)"
    end, out, err = output(sys.executable, "-c", script)
    assert end == Exit(0)
    assert out == bytes(range(256)) * 4000
    assert err == b"\xff error\n" * 100
    copied = capfdbinary.readouterr()
    assert (copied.out, copied.err) == (out, err)


def test_standard_input_is_the_command_s(tmp_path, capfd):
    (tmp_path / "in").write_text("a word\n")
    code = (
        "from headway.guard.child import Child\nc = Child(['cat'], lambda d, s: None)\nc.start()\n"
        "while c.pump(0.1) is None: pass\nc.close()"
    )
    with (tmp_path / "in").open() as given:
        done = subprocess.run([sys.executable, "-c", code], stdin=given, capture_output=True, text=True, check=True)
    assert done.stdout == "a word\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGWINCH])
def test_a_signal_is_passed_on_to_the_command_alone(number, capfd):
    script = (
        f"trap 'echo got; exit 9' {number:d}; "
        f"bash -c \"trap 'echo inner' {number:d}; echo ready; sleep 0.6\" & while true; do sleep 0.02; done"
    )
    seen: list[bytes] = []
    child = Child(["bash", "-c", script], lambda data, stream: seen.append(data))
    child.start()
    while b"ready" not in b"".join(seen):
        assert child.pump(0.1) is None
    child.send(number)
    while (end := child.pump(0.1)) is None:
        pass
    child.close()
    assert end == Exit(9)
    assert b"".join(seen).split() == [b"ready", b"got"]


def test_a_key_reaches_the_whole_group_once(capfd):
    inner = "trap 'echo inner; exit' TERM; echo ready; sleep 2 & wait"
    script = f'trap "echo outer; wait; exit 5" TERM; bash -c "{inner}" & wait'
    seen: list[bytes] = []
    child = Child(["bash", "-c", script], lambda data, stream: seen.append(data))
    child.start()
    while b"ready" not in b"".join(seen):
        assert child.pump(0.1) is None
    child.send(signal.SIGTERM, key=True)
    while (end := child.pump(0.1)) is None:
        pass
    child.close()
    assert end == Exit(5)
    assert sorted(b"".join(seen).split()) == [b"inner", b"outer", b"ready"]


def test_what_the_command_left_behind_does_not_hold_headway(capfd):
    began = time.monotonic()
    end, out, _ = output("bash", "-c", "(sleep 20; echo late) & echo $!; exit 4")
    assert (end, time.monotonic() - began < 3) == (Exit(4), True)
    os.kill(int(out), signal.SIGKILL)


def test_signals_to_a_command_that_has_ended_are_nobody_s(capfd):
    child = Child(["true"], lambda data, stream: None)
    child.start()
    while child.pump(0.1) is None:
        pass
    child.send(signal.SIGKILL)
    child.close()


def test_output_of_a_command_goes_on_while_another_thread_works(capfd):
    stop = threading.Event()
    busy = threading.Thread(target=lambda: [sum(range(1000)) for _ in iter(stop.is_set, True)])
    busy.start()
    try:
        end, out, _ = output("bash", "-c", "for i in {1..2000}; do echo line $i; done")
    finally:
        stop.set()
        busy.join()
    assert end == Exit(0)
    assert out.count(b"\n") == 2000


class TestLogLines:
    """Phases and steps, from lines as the systems print them."""

    @pytest.mark.parametrize(
        ("line", "phase", "step"),
        [
            ("(MegatronTrainRayActor pid=4412) timer.py:28 - Timer update_weights start", "sync", None),
            ("[Rank 3] Memory-Usage before offload model: {'gpu': '3', 'total_GB': 139.8}", "sleep", None),
            ("(RolloutManager pid=9) rollout 12: {'rollout/reward': 0.5}", None, 12),
            ("(TaskRunner pid=77) step:74 - actor/loss:0.1 - timing_s/gen:3.0", None, 74),
            ("(TaskRunner pid=77) local_global_step_folder: ckpt/global_step_20", "save", None),
            ("(TaskRunner pid=77) test_gen_batch meta info: {'eos_token_id': 1}", "eval", None),
            ("***** Running Evaluation *****", "eval", None),
            ("Saving model checkpoint to out/checkpoint-500", "save", None),
            (" iteration       12/     500 | consumed samples:           96 |", None, 12),
            ("saving checkpoint at iteration      40 to /ckpt in torch_dist format", "save", 40),
            ("(PPORayActorGroup pid=1) Train epoch [1/1]:  10%|█", "train", None),
            ("step 3/50  reward 0.125  12.0 s", None, 3),
            ("The train station is near the rollout of the new bus", None, None),
            ("Timer of the washing machine started", None, None),
        ],
    )  # fmt: skip
    def test_where_a_run_stands(self, line, phase, step):
        reader = LogReader()
        reader.feed(line.encode() + b"\n")
        assert (reader.phase, reader.step) == (phase, step)

    def test_timers_nest(self):
        reader = LogReader()
        phases = []
        words = (
            "train_wait start", "train_wait end", "train start", "log_probs start", "log_probs end",
            "actor_train start", "actor_train end", "train end", "update_weights start", "update_weights end",
        )  # fmt: skip
        for word in words:
            reader.feed(f"Timer {word}\n".encode())
            phases.append(reader.phase)
        assert phases == ["rollout", None, "train", "score", "train", "train", "train", None, "sync", None]

    def test_pieces_of_a_line_are_put_together(self):
        reader = LogReader()
        assert not reader.feed(b"Timer save_")
        assert not reader.feed(b"model sta")
        assert reader.feed(b"rt\nstep 7")
        assert (reader.phase, reader.step) == ("save", None)
        assert reader.feed(b": {}\n")
        assert reader.step == 7
