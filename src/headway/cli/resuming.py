"""`headway watch --restart N`: whether a foreign command is started again, from where, and with which flags."""

import os
import shlex
from pathlib import Path

from headway.cli.inputs import is_launch, is_shell_script
from headway.cli.launch import read_launch, reason_of
from headway.cli.watch_plan import SAID, run_of
from headway.diagnose.finding import Finding
from headway.diagnose.restart import why_no_restart
from headway.errors import InputError
from headway.foreign.found import Found
from headway.foreign.resume import (
    Checkpoint,
    edits_of_resume,
    last_checkpoint,
    resumed_command,
    resumed_script,
    saves_to,
)


def _launch_of(command: tuple[str, ...]) -> Found:
    """What the command starts. InputError with what can be restarted where it is nothing that headway reads."""
    shown = shlex.join(command)
    if (run := run_of(command)) is not None:
        words = shlex.join(["headway", "train", run[0], *(each for key in run[1] for each in ("--set", key))])
        raise InputError(f"--restart: {shown}: a run of headway itself goes on by: {words} --on-limit resume")
    reason = ""
    if is_launch(command):
        try:
            return read_launch(command).found
        except InputError as error:
            reason = f" ({reason_of(error)})"
    raise InputError(
        f"--restart: {shown[:SAID]}: it is no launch that headway can tell to resume{reason}; it knows those of "
        "slime, Miles, Megatron-LM and verl, as a script or as the command of their trainer; leave --restart out to "
        "only watch it"
    )


class Resumer:
    """Knows where a command's run goes on from. InputError, before anything runs, where nothing would be resumed."""

    def __init__(self, command: tuple[str, ...], cwd: Path) -> None:
        self._command, self._cwd = command, cwd
        self._found = _launch_of(command)
        try:
            saves_to(self._found)
        except InputError as error:
            raise InputError(*(f"--restart: {problem}" for problem in error.problems)) from None
        self._before = self._step()

    def again(self, finding: Finding, folder: Path, number: int) -> tuple[list[str], str]:
        """The command of restart `number`, and from where it goes on; a changed script is written into `folder`.

        InputError with the reason where the run is not to be restarted: its end would come again, no checkpoint is
        complete, or none was written since the last start.
        """
        reason = why_no_restart(finding)
        if reason is not None:
            raise InputError(reason)
        checkpoint = last_checkpoint(self._found, self._cwd)
        if self._before is not None and checkpoint.step <= self._before:
            raise InputError(
                f"no checkpoint was written since the last start (the last is still {checkpoint.step}), so a restart "
                "would do the same again"
            )
        command = self._resumed(checkpoint, folder, number)
        self._before = checkpoint.step
        return command, f"goes on from checkpoint {checkpoint.step} ({checkpoint.place}): {shlex.join(command)}"

    def _step(self) -> int | None:
        try:
            return last_checkpoint(self._found, self._cwd).step
        except InputError:
            return None

    def _resumed(self, checkpoint: Checkpoint, folder: Path, number: int) -> list[str]:
        edits = edits_of_resume(self._found, checkpoint)
        words = list(self._command)
        if not edits:
            return words
        place = next((at for at, word in enumerate(words) if is_shell_script(self._cwd / word)), None)
        if place is None:
            return resumed_command(words, edits)
        script = self._cwd / words[place]
        copy = folder.resolve() / f"restart-{number}-{script.name}"
        temporary = copy.with_name(f".{copy.name}.{os.getpid()}")
        temporary.write_text(resumed_script(script, edits))
        temporary.chmod(script.stat().st_mode & 0o777 | 0o200)
        temporary.rename(copy)
        return [*words[:place], str(copy), *words[place + 1 :]]
