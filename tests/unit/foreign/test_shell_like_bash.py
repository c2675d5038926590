"""Scripts and snippets whose command lines are known: headway's reading and bash itself agree word by word."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from headway.foreign.command import launches
from headway.foreign.shell import Script, read_script, read_text
from headway.foreign.shell.values import Word, worlds

from . import random_bash
from .real_bash import BASH, started

SCRIPTS = Path(__file__).parents[2] / "data" / "scripts"
PLAIN = (
    "slime-arrays", "slime-branches", "slime-defaults", "slime-eval-command", "slime-functions",
    "slime-heredoc-shell", "slime-look-alikes", "slime-loops", "slime-nested", "slime-ppo-fp8", "slime-sft",
    "slime-strings", "slime-twice", "miles-fsdp", "miles-lora", "miles-sourcing",
)  # fmt: skip
"""Scripts in which nothing hangs on the machine or on who runs them."""

SNIPPETS = dict(piece.split("\n", 1) for piece in (SCRIPTS.parent / "snippets.txt").read_text().split("### ")[1:])
"""Pieces of bash by what they are about."""


def ours(script: Script) -> list[list[list[str | None]]]:
    """For each program that a script starts, its words in each world."""
    found = [launch for command in script.commands for launch in launches(command) if "train" in launch.name]
    return [[[item.text for item in world] for world in worlds(launch.arguments)] for launch in found]


def theirs(path: Path, folder: Path) -> list[list[str]]:
    """The words after the program's file of each command that bash starts."""
    return [command[_file(command) + 1 :] for command in started(path, folder) if "train" in " ".join(command[:6])]


def _file(command: list[str]) -> int:
    return next(place for place, word in enumerate(command) if word.endswith(".py"))


@pytest.mark.skipif(BASH is None, reason="no bash here")
@pytest.mark.parametrize("name", PLAIN)
def test_a_script_starts_what_bash_says(name, tmp_path):
    shutil.copytree(SCRIPTS, tmp_path / "scripts")
    script = tmp_path / "scripts" / f"{name}.sh"
    said = theirs(script, tmp_path)
    assert said
    assert ours(read_script(script)) == [[words] for words in said]


@pytest.mark.skipif(BASH is None, reason="no bash here")
@pytest.mark.parametrize("name", SNIPPETS)
def test_a_snippet_is_what_bash_makes_of_it(name, tmp_path):
    text = re.sub(r"\bT (?=\S)|(?<=')T(?=[' ])|(?<=\()T ", "python3 train.py ", SNIPPETS[name])
    script = tmp_path / "snippet.sh"
    script.write_text(text)
    said = theirs(script, tmp_path)
    assert said
    assert ours(read_text(text)) == [[words] for words in said], text


def printed(text: str) -> list[str]:
    """The words that bash starts the last program with, where `python3` is a function that prints them."""
    assert BASH is not None
    whole = 'python3() { printf "%s\\0" "$@"; }\n' + text
    done = subprocess.run([BASH, "-c", whole], capture_output=True, env={"PATH": "/none"}, timeout=30, check=False)
    return done.stdout.decode().split("\0")[:-1]


@pytest.mark.skipif(BASH is None, reason="no bash here")
def test_scripts_made_at_random_are_what_bash_makes_of_them():
    unclear = 0
    for seed in range(150):
        text = random_bash.script(seed)
        read = read_text(text)
        if any("read in part" in note for note in read.unread):
            continue
        (world, *more) = worlds(read.commands[-1].argv[1:])
        words = [item.text if isinstance(item, Word) else None for item in world]
        if None in words or more:
            unclear += 1
            continue
        assert words == printed(text), text
    assert unclear < 15
