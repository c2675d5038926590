"""`headway train --on-limit resume`: after a stop at a memory limit the same command goes on in a fresh process.

The process replaces its own program, so that its pid, its terminal and who waits for it stay the same, and what it
held is gone. Each try must get further than the one before it.
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from msgspec import Struct

from headway.errors import LimitReachedError

TRIES = 100
"""Fresh processes after the first. Each has got further, so that this bounds a run that crawls."""


class Place(Struct, frozen=True, order=True):
    """How far a run's last checkpoint is: steps that are finished, and what is done of the next one.

    `part` counts its optimizer steps, and one for a rollout that was kept.

    >>> Place(4, 0) < Place(4, 1) < Place(5, 0)
    True
    """

    step: int
    part: int

    def __str__(self) -> str:
        return f"step {self.step}" if not self.part else f"step {self.step} and a part of the next"


NOWHERE = Place(0, 0)


def place(checkpoints: Path) -> Place:
    """Where the last checkpoint in a folder stands; NOWHERE without one that can be read."""
    folders = sorted(checkpoints.glob("step-*"), key=lambda path: (len(path.name), path.name))
    if not folders:
        return NOWHERE
    try:
        saved = json.loads((folders[-1] / "rollout.json").read_text())
        return Place(saved["step"], saved["updates"] + bool(saved["rollout"]))
    except (OSError, ValueError, KeyError, TypeError):
        return NOWHERE


def refusal(before: Place, now: Place, tries: int) -> str | None:
    """Why a fresh process would not help; None where it may.

    >>> refusal(Place(4, 0), Place(4, 0), 1)
    'this try ended at a limit where it began, after step 4: another would too'
    """
    if now <= before:
        return f"this try ended at a limit where it began, after {now}: another would too"
    if tries >= TRIES:
        return f"{tries} fresh processes were tried; the last got from {before} to {now}"
    return None


def command(words: Sequence[str], arguments: int, tries: int) -> list[str]:
    """The command line of the next try: `words` is all of the present one, `arguments` how many follow the program.

    >>> command(["python", "-m", "headway", "train", "a.toml", "--json"], 3, 2)
    ['python', '-m', 'headway', 'train', '--tries', '2', 'a.toml', '--json']
    >>> command(["python", "-m", "headway", "train", "--tries", "2", "a.toml"], 4, 3)
    ['python', '-m', 'headway', 'train', '--tries', '3', 'a.toml']
    """
    at = len(words) - arguments + 1
    rest = list(words[at:])
    if rest[:1] == ["--tries"]:
        rest = rest[2:]
    return [*words[:at], "--tries", str(tries), *rest]


def go_on(before: Place, now: Place, tries: int, reason: str) -> NoReturn:
    """Replace this process by the next try. LimitReachedError with `reason` where that would not help."""
    why = refusal(before, now, tries)
    if why is not None:
        raise LimitReachedError(f"{reason}\n--on-limit resume: {why}")
    sys.stderr.write(f"{reason}\n--on-limit resume: a fresh process goes on after {now} (try {tries + 2})\n")
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, command(sys.orig_argv, len(sys.argv) - 1, tries + 1))
