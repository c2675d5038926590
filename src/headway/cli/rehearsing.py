"""Rehearses a RunSpec: makes its folder, runs it in a process of its own, and judges what was seen."""

import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from headway.cli.inputs import read_case
from headway.errors import HeadwayError, InputError
from headway.facts.workload import Rollout
from headway.guard import rehearsal
from headway.guard.rehearsed import KILLED, OUT_OF_MEMORY, Rehearsed, judge
from headway.plan.planned import Planned, examine
from headway.units import GIB

if TYPE_CHECKING:
    from headway.config.sections import RunSpec

SPARE_SHARE = 4
"""A rehearsal may ask the system for a quarter more than the lowest limit, and at least 1 GiB: its address space
holds more than its memory, and headway ends it at the limit itself."""


def rehearse(
    run: Path, settings: Sequence[str], *, steps: int, own: bool, out: Path | None, tensors: bool = False
) -> Rehearsed:
    """Rehearse a RunSpec, and count the bytes of its tensors in one more step where that is asked for.

    InputError for what the run itself would refuse, HeadwayError where the rehearsal broke.
    """
    case = read_case([str(run)], None, None, settings, thorough=True)
    if case.spec is None:
        raise InputError(f"{run}: only a RunSpec (TOML) or a launch script of slime or Miles can be rehearsed")
    if not _made_up(case.spec):
        from headway.rollout.inputs import check_inputs

        check_inputs(case.spec)
    planned = examine(case.workload, case.machine)
    steps = min(steps, case.spec.train.steps)
    with _folder(out) as folder:
        spec = folder / "rehearsal.toml"
        spec.write_text(_rehearsed(case.spec, planned.workload.rollout, folder / "run"))
        command = [
            sys.executable, "-m", "headway.train.rehearse", str(spec), "--steps", str(steps),
            "--longest", str(planned.longest_alone),
            "--weights", "own" if own else "random", *(["--tensors"] if tensors else []), *_most(planned),
        ]  # fmt: skip
        ended = rehearsal.run(command, planned.machine, _tell)
        if ended.status == InputError.exit_code and ended.reached is None:
            raise InputError(*ended.error.splitlines())
        if ended.status not in (0, OUT_OF_MEMORY, KILLED) and ended.reached is None:
            raise HeadwayError(
                f"the rehearsal broke in phase {ended.phase} (exit status {ended.status}):\n{ended.error}"
            )
        return judge(planned, ended, folder / "run" / "recording.jsonl")


def _made_up(spec: "RunSpec") -> bool:
    """Whether the model's files are not here, so that problems and reward are made up."""
    from headway.config.source import resolve

    return spec.model.init == "pretrained" and resolve(spec.model).folder is None


def _rehearsed(spec: "RunSpec", planned: Rollout, folder: Path) -> str:
    """The RunSpec with the planned prompts, an output directory of its own, nothing sent anywhere, and a guard that
    only looks."""
    from headway.config.load import dump

    data = spec.data.model_copy(update={"max_prompt": planned.max_prompt})
    evaluation = spec.eval.model_copy(update={"problems": planned.eval_problems})

    output = spec.output.model_copy(update={"dir": folder, "wandb": False})
    guard = spec.guard.model_copy(update={"policy": "observe"})
    return dump(spec.model_copy(update={"data": data, "eval": evaluation, "output": output, "guard": guard}))


def _most(planned: Planned) -> list[str]:
    """A bound of what the process may ask for, so that one huge allocation fails and does not fill the machine."""
    limits = [each.limit.bytes for each in planned.outcome.pools if each.limit is not None]
    if not limits or planned.workload.device != "cpu":
        return []
    return ["--most", str(min(limits) + max(GIB, min(limits) // SPARE_SHARE))]


@contextmanager
def _folder(out: Path | None) -> Iterator[Path]:
    """The folder that was asked for, which has to be new or empty, or a temporary one, gone after SIGTERM too."""
    if out is None:
        before = signal.signal(signal.SIGTERM, _exit)
        try:
            with tempfile.TemporaryDirectory(prefix="headway-rehearsal-") as name:
                yield Path(name)
        finally:
            signal.signal(signal.SIGTERM, before)
        return
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"--out {out}: is there already; name a folder that is new or empty")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {out}: cannot be made ({error.strerror})") from None
    yield out.resolve()


def _exit(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _tell(phase: str, step: int) -> None:
    """A line for each phase, on standard error."""
    os.write(2, f"rehearse: step {step}: {phase}\n".encode())
