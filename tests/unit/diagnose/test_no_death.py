"""Runs that did not die: what finished and what was asked to stop gets one line, and no advice; a death behind it
stays one."""

import json
import os
from pathlib import Path

import pytest
from msgspec import to_builtins
from typer.testing import CliRunner

from headway.cli.app import app
from headway.cli.doctor import diagnosed
from headway.diagnose.finding import Finding
from headway.facts.machines import by_name
from headway.guard.blackbox import BlackBox
from headway.guard.boxrecords import Acted, Begun, Ended, Event, Over, Sent
from headway.guard.frame import Action, Frame

from .told import diagnosis, told

T = 1_700_000_000.0
STEPS = "step 99: {'loss': 0.6}\nstep 100: {'loss': 0.5}\n"
TRACE = 'Traceback (most recent call last):\n  File "/home/me/train.py", line 9, in <module>\n    save()\n'
INTERRUPT = f"{TRACE}KeyboardInterrupt\n"
LAST_WORDS = (
    "{'train_runtime': 120.1, 'train_samples_per_second': 3.2, 'train_loss': 0.61, 'epoch': 1.0}",
    "  train_runtime            = 0:02:00.10",
    "Training completed. Do not forget to share your model on huggingface.co/models =)",
    "[after training is done] datetime: 2026-03-01 10:00:00 ",
    "`Trainer.fit` stopped: `max_epochs=3` reached.",
    "Job 'raysubmit_a1B2c3' succeeded",
    "Training finished successfully!",
    "run       100 steps in 12.1 s, finished   ",
)


def told_in_one_line(found: Finding, outcome: str) -> None:
    assert found.outcome == outcome
    assert found.established
    assert (found.advice, found.would_settle, found.candidates, found.ruled_out) == ((), (), (), ())


@pytest.mark.parametrize("words", LAST_WORDS)
def test_a_log_that_ends_well_gets_no_advice(words):
    found = told(f"{STEPS}{words}\nuploading the card\n")
    told_in_one_line(found, "finished")
    assert (found.mechanism, found.mechanism_grade, found.cause, found.step) == ("finished", "supported", "", 100)
    assert found.evidence[0].text.strip() == words.strip()


@pytest.mark.parametrize("words", LAST_WORDS)
@pytest.mark.parametrize(
    ("after", "mechanism"),
    [
        (f"{TRACE}OSError: [Errno 28] No space left on device\n", "python-exception"),
        ("run.sh: line 3: 12345 Killed   python train.py\n", "sigkill-class"),
        ("step 101: {'loss': 0.4}\n", "unknown"),
        ("x\n" * 60, "unknown"),
    ],
)
def test_what_follows_the_words_counts(words, after, mechanism):
    found = told(f"{STEPS}{words}\n{after}")
    assert (found.outcome, found.mechanism) == ("died", mechanism)


@pytest.mark.parametrize(
    "words",
    [
        "Training finished for epoch 3, evaluating",
        "training done on 12 of 40 shards",
        "Job 'raysubmit_a1B2c3' failed",
        "request 7 succeeded",
        "run       100 steps in 12.1 s, stopped by guard; the same command resumes",
    ],
)
def test_words_that_are_no_end_of_a_run(words):
    assert told(f"{STEPS}{words}\n").outcome == "died"


def test_a_death_that_the_run_survived_is_told_beside_its_end():
    log = (
        f"step 3: {{'loss': 1}}\n{TRACE}KeyError: 'a'\nstep 4: {{'loss': 1}}\n{'noise' * 9}\nstep 9: {{'loss': 1}}\n"
    )
    found = diagnosis(f"{log}{LAST_WORDS[0]}\n")
    assert found.answer.outcome == "finished"
    assert [each.mechanism for each in found.findings] == ["python-exception", "finished"]
    assert (found.answer.cause, found.answer.survived) == ("", False)
    assert found.findings[0].survived


@pytest.mark.parametrize(
    "end",
    [
        INTERRUPT,
        f"^C{INTERRUPT}",
        "run       12 steps in 1.2 s, stopped by SIGINT; the same command resumes",
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 7 got signal: 2\nexit code 130",
        "W0301 10:00:00 api.py:9] Received Signals.SIGINT death signal, shutting down workers",
    ],
)
def test_ctrl_c_is_no_death(end):
    found = told(f"step 12: {{'loss': 1}}\n{end}\n")
    told_in_one_line(found, "stopped")
    assert "Ctrl-C" in found.sentence
    assert "the same command" in found.sentence


def test_an_error_before_the_interrupts_of_the_other_ranks_is_a_death():
    other = f"[rank1]: {INTERRUPT.replace(chr(10), chr(10) + '[rank1]: ')}"
    assert told(f"step 12: x\n{TRACE}KeyError: 'a'\n{other}").outcome == "died"
    ranks = diagnosis(f"step 12: x\n{INTERRUPT}", f"step 12: x\n{TRACE}KeyError: 'a'\n").answer
    assert (ranks.outcome, "KeyError" in ranks.sentence) == ("died", True)
    after = told(
        f"step 12: x\n{INTERRUPT}\n{'x' * 9}\nDuring handling, another exception occurred:\n{TRACE}EOFError\n"
    )
    assert after.outcome == "stopped"


# -- black boxes


def boxed(folder: Path, *events: Event, over: Over, log: bytes = b"step 41: {'loss': 1}\n") -> Finding:
    box = BlackBox(folder, Begun(T, ("bash", "run.sh"), 1, "0.1.0"))
    box.add(Frame(T + 50, (), phase="train", step=41))
    box.log(log)
    for each in (*events, over):
        box.add(each)
    box.close()
    return diagnosed([str(folder)], [], None, None, live=False).answer


CTRL_C = Sent(T + 59, 2, None, kernel=True)
STOP = Action(T + 59, "stop", "forecast", "node[0].host", "cgroup", 9, 10, 5.0, "grows")


def test_exit_code_0_is_the_end_of_a_recorded_command(tmp_path):
    found = boxed(tmp_path, Ended(T + 5, 9, "grep", code=1, rss=1 << 20), over=Over(T + 60, 7, 0))
    told_in_one_line(found, "finished")
    assert found.mechanism_grade == "proven"


ENGINE = Ended(T + 59, 8, "VLLM::EngineCore", signal=15, rss=1 << 30, since=T + 58)


@pytest.mark.parametrize(
    ("sent", "outcome"),
    [
        (Sent(T + 59, 15, 8, "x", sender=7, sender_name="python3", inside=True), "finished"),
        (Sent(T + 59, 15, 8, "x", sender=99, sender_name="kubelet"), "died"),
        (Sent(T + 59, 15, 8, "x", sender=8, sender_name="x", inside=True), "died"),
        (Sent(T + 59, 9, 7, "y", sender=7, sender_name="python3", inside=True), "died"),
    ],
)
def test_an_engine_that_the_run_itself_took_down_is_no_death(tmp_path, sent, outcome):
    assert boxed(tmp_path, sent, ENGINE, over=Over(T + 60, 7, 0)).outcome == outcome


@pytest.mark.parametrize(
    ("events", "log"),
    [
        ((Ended(T + 59, 8, "python3 train.py", code=1, rss=1 << 30),), b""),
        ((Acted(STOP), Ended(T + 60, 7, "python3", signal=15)), b""),
        ((), f"{TRACE}KeyError: 'a'\n".encode()),
    ],
)
def test_exit_code_0_of_a_pipe_hides_no_death(tmp_path, events, log):
    assert boxed(tmp_path, *events, over=Over(T + 60, 7, 0), log=log).outcome == "died"


def test_the_last_words_of_a_log_do_not_stand_above_an_exit_code(tmp_path):
    found = boxed(tmp_path, over=Over(T + 60, 7, 3), log=LAST_WORDS[0].encode() + b"\n")
    assert (found.outcome, found.mechanism) == ("died", "unknown")
    assert "exit code 3" in found.sentence


@pytest.mark.parametrize(
    "over", [Over(T + 60, 7, None, 2), Over(T + 60, 7, 130), Over(T + 60, 7, 1), Over(T + 60, 7, 0)]
)
def test_ctrl_c_at_a_recorded_command(tmp_path, over):
    told_in_one_line(boxed(tmp_path, CTRL_C, over=over), "stopped")


def test_a_key_that_reached_the_command_s_own_terminal(tmp_path):
    told_in_one_line(boxed(tmp_path, over=Over(T + 60, 7, None, 2)), "stopped")


def test_a_ctrl_c_long_before_the_end_or_a_kill_after_it_is_none(tmp_path):
    assert boxed(tmp_path / "a", CTRL_C, over=Over(T + 900, 7, 1)).outcome == "died"
    killed = Ended(T + 60, 7, "python3", signal=9, since=T + 59)
    assert boxed(tmp_path / "b", CTRL_C, killed, over=Over(T + 60, 7, None, 9)).mechanism == "sigkill-class"


# -- runs of headway train


def recorded(folder: Path, reason: str, pid: int = 7) -> Path:
    machine = to_builtins(by_name("cpu-16gib"))
    phase = {
        "kind": "phase", "t": T, "phase": "train", "step": 2, "seconds": 1.0, "rss_start": 9, "rss_peak": 9,
        "rss_end": 9, "children_peak": 0, "tree_peak": 9, "node_used_peak": None, "cgroup_current_peak": None,
        "outside_peak": 9,
    }  # fmt: skip
    header = {"kind": "header", "format": 1, "t": T, "version": "0", "pid": 7, "machine": machine, "expected": {}}
    folder.mkdir(parents=True)
    (folder / "recording.jsonl").write_text(f"{json.dumps(header)}\n{json.dumps(phase)}\n")
    summary = {"steps": 2, "exit_reason": reason, "attempts": [{"t": T, "pid": pid}]}
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def doctor(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["doctor", *map(str, words)], env={"COLUMNS": "200"})
    return done.exit_code, done.output


@pytest.mark.parametrize("name", ["", "recording.jsonl"])
def test_a_finished_run_is_told_in_one_line(tmp_path, name):
    run = recorded(tmp_path / "run", "finished") / name
    assert doctor(run) == (0, "The run finished (step 2): nothing ended it early.\n")
    code, text = doctor(run, "--json")
    answer = json.loads(text)["answer"]
    assert (code, answer["outcome"], answer["mechanism"], answer["cause"]) == (0, "finished", "finished", None)
    assert (answer["remedies"], answer["would_settle"]) == ([], [])


@pytest.mark.parametrize("reason", ["SIGINT", "SIGTERM"])
def test_a_stopped_run_is_told_how_to_go_on(tmp_path, reason):
    code, text = doctor(recorded(tmp_path / "run", reason))
    assert (code, len(text.splitlines())) == (0, 1 if len(text) < 110 else 2)
    assert reason in text
    assert "the same command goes on from it" in " ".join(text.split())


def test_what_is_no_such_end_stays_as_it_is(tmp_path):
    other = recorded(tmp_path / "earlier", "finished", pid=6)
    assert doctor(other)[0] == 4, "the summary is of an earlier process"
    old = recorded(tmp_path / "old", "finished")
    os.utime(old / "summary.json", (T, T))
    assert doctor(old)[0] == 4
    assert doctor(recorded(tmp_path / "guard", "guard"))[0] == 4
    odd = recorded(tmp_path / "odd", "finished")
    (odd / "summary.json").write_text('{"steps": "many", "exit_reason": ["finished"], "attempts": 3}')
    assert doctor(odd)[0] == 4


def test_a_death_in_a_log_beside_a_finished_run_stays_one(tmp_path):
    run = recorded(tmp_path / "run", "finished")
    (run / "train.log").write_text(f"step 2\n{TRACE}KeyError: 'a'\n")
    assert "KeyError" in doctor(run)[1]
