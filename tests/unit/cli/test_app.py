"""The command's edge: messages without traceback, exit codes, and a quick start."""

import resource
import subprocess
import sys

import pytest

import headway
from headway.cli.app import error_text
from headway.errors import DoesNotFitError, InputError


def call(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)


def command_that(body: str) -> subprocess.CompletedProcess[str]:
    """`headway x`, where x is a command with that body."""
    code = f"""
import sys
from headway.cli import app
from headway.errors import *
@app.app.command()
def x():
    {body}
sys.argv = ["headway", "x"]
app.main()
"""
    return call("-c", code)


def test_bad_input_is_a_message_and_code_2(tmp_path):
    run = tmp_path / "run.toml"
    run.write_text('[model]\npath = "tiny-llama"\ninit = "random"\n[data]\ntask = "gcd"\n[train]\nsetps = 3\n')
    done = call("-m", "headway", "train", str(run), "--set", "train.lr=-1")
    assert done.returncode == 2
    assert done.stderr == (
        "headway: 2 problems\n"
        "  train.setps: unknown key; did you mean train.steps?\n"
        "  train.lr = -1: must be from 0 to 10\n"
    )


@pytest.mark.parametrize(
    ("body", "code", "text"),
    [
        ("raise DoesNotFitError('too large')", 3, "headway: too large\n"),
        ("raise LimitReachedError('full')", 5, "headway: full\n"),
        ("raise KeyboardInterrupt", 130, ""),
    ],
)
def test_an_error_has_its_code_and_no_traceback(body, code, text):
    done = command_that(body)
    assert (done.returncode, done.stderr, done.stdout) == (code, text, "")


def test_our_own_mistake_keeps_its_traceback():
    done = command_that("return {}['missing']")
    assert done.returncode == 1
    assert "KeyError: 'missing'" in done.stderr


@pytest.mark.parametrize("arguments", [["train"], ["trian"], ["train", "x.toml", "--no-such-option"]])
def test_wrong_usage_is_code_2(arguments):
    done = call("-m", "headway", *arguments)
    assert done.returncode == 2
    assert "Usage: " in done.stderr
    assert "Traceback" not in done.stderr


def test_version():
    assert call("-m", "headway", "--version").stdout == f"headway {headway.__version__}\n"


def test_help_starts_quickly():
    """CPU time, the least of three, so that a busy machine does not fail it."""

    def cpu_seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert "train" in call("-m", "headway", "--help").stdout
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)

    assert min(cpu_seconds() for _ in range(3)) < 0.8


def test_the_list_of_commands_loads_none_of_them():
    code = "import sys, headway.cli.app\nprint(*sys.modules)"
    loaded = set(call("-c", code).stdout.split())
    assert {"headway.cli.train", "headway.cli.plan", "headway.cli.size"} <= loaded
    assert not {"headway.config.load", "headway.plan.plan", "headway.facts.probe", "rich.table", "psutil"} & loaded


def test_one_problem_is_one_line_and_more_are_a_list():
    assert error_text(InputError("a")) == "headway: a"
    assert error_text(InputError("a", "b\n  c")) == "headway: 2 problems\n  a\n  b\n    c"
    assert error_text(DoesNotFitError("a\nb")) == "headway: a\nb"
