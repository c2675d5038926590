"""What shells say of a command that SIGKILL or SIGTERM ended, beside words of a program that only look like it."""

import subprocess

import pytest

from .told import told

SAID = (
    "./run.sh: line 3: 12345 Killed                  python train.py",
    "/my jobs/run.sh: line 3: 12345 Killed                  python train.py | tee a.log",
    "2026-03-01T10:00:00Z ./run.sh: line 3: 12345 Killed        python train.py",
    "(Trainer pid=12) Killed",
    "Killed",
    "Killed: 9",
    "[1]+  Killed                  python train.py",
    "[1]  + 12345 killed     python train.py",
    "zsh: killed     python train.py",
    "bash: Killed",
    " 12%|#2        | 12/100 [00:10<01:00,  1.20it/s]Killed",
    "srun: error: n1: task 0: Killed",
)
OTHER = (
    "Killed 3 stale workers",
    "Killed by the reaper: 3 environments",
    "(Trainer pid=12) Killed 3 stale workers",
    "INFO: Killed 12 zombie environments before start",
    "Episode 5: Killed",
    "reward: Killed",
    "answer: the king was killed",
    "run.sh: line 3: 12345 Done                    yes",
)


@pytest.mark.parametrize("text", SAID)
def test_a_shell_s_word_is_a_sigkill_as_exit_code_137_is(text):
    code = told("step 3: loss 1\nexit code 137")
    found = told(f"step 3: loss 1\n{text}")
    assert (found.mechanism, found.mechanism_grade) == (code.mechanism, code.mechanism_grade) == (
        "sigkill-class", "supported",
    )  # fmt: skip


@pytest.mark.parametrize("text", OTHER)
def test_a_program_s_own_words_are_none(text):
    assert told(f"step 3: loss 1\n{text}\nstep 4: loss 1").mechanism == "unknown"


def test_the_command_and_its_process_are_named():
    assert told(SAID[0]).process == "python train.py pid 12345"
    assert "SIGKILL ended python train.py pid 12345" in told(SAID[0]).sentence


def test_bash_says_it_so(tmp_path):
    script = tmp_path / "run.sh"
    script.write_text("echo begin\nbash -c 'kill -9 $$'\necho end\n")
    said = subprocess.run(["bash", script], capture_output=True, text=True, check=False, env={"LC_ALL": "C"}).stderr
    assert told(said).mechanism == "sigkill-class"


def test_terminated_is_told_in_the_same_ways():
    assert told("./run.sh: line 3: 12345 Terminated              python train.py").mechanism == "sigterm"
    assert told("Terminated 3 idle workers").mechanism == "unknown"
