"""A recorded command that ended with a bad code: its last words, bounded; and nobody who has a recording is asked for
one."""

import subprocess
import sys
from pathlib import Path

import pytest

from headway.cli.doctor import diagnosed
from headway.diagnose.finding import Diagnosis
from headway.diagnose.readers.blackbox import LONGEST_SAID, SAID_LINES
from headway.guard.blackbox import BlackBox
from headway.guard.boxlog import ERROR_BYTES, ErrorTail
from headway.guard.boxrecords import Begun, Over

T = 1_700_000_000.0


def boxed(folder: Path, over: Over, log: bytes = b"output\n") -> Diagnosis:
    box = BlackBox(folder, Begun(T, ("bash", "run.sh"), 1, "0.1.0"))
    box.log(log)
    box.add(over)
    box.close()
    return diagnosed([str(folder)], [], None, None, live=False)


def test_a_real_command_s_standard_error_is_told_and_its_output_is_not(tmp_path):
    code = r"import sys; print('fine'); print('\x1b[31mno such\x07 file\x9b2J: a.txt', file=sys.stderr); sys.exit(3)"
    words = [
        sys.executable,
        "-m",
        "headway",
        "watch",
        "--out",
        str(tmp_path / "box"),
        "--",
        sys.executable,
        "-c",
        code,
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "What the command said last\n  no such file2J: a.txt" in done.stderr
    found = diagnosed([str(tmp_path / "box")], [], None, None, live=False)
    assert found.said == ("no such file2J: a.txt",)
    assert found.sentence.endswith(
        "exit code 3; why is not in what was read; the last that it said: no such file2J: a.txt."
    )


def test_whatever_a_recording_holds_little_is_shown(tmp_path):
    errors = "a\u202eb\x1b[2J\x00\n" * 9000 + "x" * 10_000_000
    found = boxed(tmp_path, Over(T + 9, 2, 3, errors=errors))
    assert len(found.said) <= SAID_LINES
    assert max(map(len, found.said)) <= LONGEST_SAID
    assert not any(char < " " or char in "\x7f\u202e" for line in found.said for char in line)
    many = boxed(tmp_path / "many", Over(T + 9, 2, 3, errors="".join(f"line {n}\n" for n in range(500))))
    assert many.said[-1] == "line 499"
    assert len(many.said) == SAID_LINES


def test_without_a_standard_error_of_its_own_the_end_of_the_output_is_told(tmp_path):
    assert boxed(tmp_path, Over(T + 9, 2, 3), log=b"one\ntwo\n").said == ("one", "two")


TRACEBACK = b"Traceback (most recent call last):\n  File \"a.py\", line 3, in f\nKeyError: 'a'\n"


@pytest.mark.parametrize(
    ("over", "log"),
    [
        (Over(T + 9, 2, 0, errors="a warning\n"), b"x\n"),
        (Over(T + 9, 2, None, 9, errors="a warning\n"), b"x\n"),
        (Over(T + 9, 2, 1, errors="KeyError: 'a'\n"), TRACEBACK),
    ],
)
def test_no_last_words_where_something_else_tells_or_nothing_failed(tmp_path, over, log):
    assert boxed(tmp_path, over, log).said == ()


def test_the_tail_keeps_the_end_however_it_comes():
    tail = ErrorTail()
    for size in (1, ERROR_BYTES * 3, 7):
        tail.write(b"a" * size)
    assert (len(tail.text), len(tail._pieces)) == (ERROR_BYTES, 2)
    for _ in range(100_000):
        tail.write(b"b")
    assert tail.text == "b" * ERROR_BYTES


REFUSED = "step 3: x\nMemoryError\n"
ASK = "headway watch -- CMD"


def asked(found: Diagnosis) -> list[str]:
    return [each.command for finding in (found.answer, *found.findings) for each in finding.would_settle]


def test_nobody_who_has_a_recording_is_asked_for_one(tmp_path):
    assert ASK not in asked(boxed(tmp_path / "box", Over(T + 9, 2, 1), REFUSED.encode()))
    inside = diagnosed([str(tmp_path / "box" / "log.0.txt")], [], None, None, live=False)
    assert ASK not in asked(inside)
    assert f"headway doctor {tmp_path / 'box'}" in asked(inside)


def test_a_log_without_one_is(tmp_path):
    log = tmp_path / "train.log"
    log.write_text(REFUSED)
    assert ASK in asked(diagnosed([str(log)], [], None, None, live=False))
    (tmp_path / "recording.jsonl").write_text("{}\n")
    beside = asked(diagnosed([str(log)], [], None, None, live=False))
    assert ASK not in beside
    assert f"headway doctor {tmp_path}" in beside
