"""`headway plan SCRIPT --patch OUT`: a copy of the launch script with the change that makes it fit."""

import os
from collections.abc import Iterator
from pathlib import Path

from headway.cli.inputs import Case
from headway.cli.launch import Launch, planned_workload, root_of
from headway.errors import InputError
from headway.foreign.patch import Edit, Patched, edits_of, patch
from headway.foreign.readers import settings_of
from headway.foreign.shell import read_text
from headway.plan.moves import Cost
from headway.plan.planned import Planned
from headway.plan.remedies import Remedy
from headway.plan.verdict import Kind, fits_surely, verdict

NOT_OURS = frozenset({"model", "layout.devices", "layout.nodes"})
"""Changes that need more than a flag: another checkpoint's folder, more machines."""
RANK: dict[Kind, int] = {"fits": 0, "cannot tell": 1, "tight": 1, "does not fit": 2}


def write_patch(case: Case, planned: Planned, out: Path, model: str | None, keys: tuple[str, ...]) -> str:
    """Write the script with the first change that its flags can hold and that makes it fit; the change as a diff.

    The copy is read and planned again before it is written, and has to fit as the remedy was said to. Nothing is
    written where the run fits as it is. InputError where no change can be written, with the reasons.
    """
    launch = case.launch
    assert launch is not None
    if launch.path is None:
        raise InputError(
            f"--patch {out}: only a script can be copied, one that starts the trainer itself, and "
            f"{launch.script.path} is none"
        )
    if out.exists():
        raise InputError(f"--patch {out}: is there already; name a file that is not")
    if not out.parent.is_dir():
        raise InputError(f"--patch {out}: there is no folder {out.parent}")
    line_end = _line_end(launch, out)
    if planned.outcome.kind == "fits":
        return f"{out} is not written: the run fits as it is"
    reasons: list[str] = []
    for remedy in _candidates(planned):
        try:
            made = _made(launch, remedy, out)
        except InputError as error:
            reasons += error.problems
            continue
        kind = _planned_again(launch, made, case, model, keys)
        if RANK[kind] > RANK[remedy.kind]:
            reasons.append(f"{remedy.text}: the copy was planned again, and {kind}")
            continue
        _write(made.text.replace("\n", line_end), launch.path, out)
        said = "; ".join(made.notes)
        return f"{made.diff}\n{out}: {remedy.text}, so that it {_so(kind)} ({said}; planned again from the copy)"
    if reasons:
        raise InputError(f"--patch {out}: no change can be written into the script", *dict.fromkeys(reasons))
    return f"{out} is not written: no change of flags that this trainer accepts makes the run fit"


def _line_end(launch: Launch, out: Path) -> str:
    """What ends the script's lines. InputError for a file that is not the text which was read, byte for byte."""
    assert launch.path is not None
    data, text = launch.path.read_bytes(), launch.script.text
    for end in ("\n", "\r\n"):
        if data == text.replace("\n", end).encode(errors="replace"):
            return end
    raise InputError(
        f"--patch {out}: {launch.path} is not all UTF-8 text with one kind of line end, so that a copy would differ "
        "in more than the change"
    )


def _so(kind: Kind) -> str:
    return {"fits": "fits", "tight": "is tight"}.get(kind, kind)


def _candidates(planned: Planned) -> Iterator[Remedy]:
    """The remedies that fit; tight ones only where the run is not tight already. What hardly learns comes last."""
    kinds = ("fits",) if planned.outcome.kind == "tight" else ("fits", "tight")
    found = [remedy for kind in kinds for remedy in planned.advice.remedies if remedy.kind == kind]
    yield from sorted(found, key=lambda remedy: remedy.cost is Cost.LOSSY)


def _made(launch: Launch, remedy: Remedy, out: Path) -> Patched:
    assert launch.path is not None
    edits: list[Edit] = []
    if others := [change.text for change in remedy.changes if change.key in NOT_OURS]:
        raise InputError(f"{others[0]}: which folder or which nodes are meant is yours to say; make it by hand")
    for change in remedy.changes:
        edits += edits_of(change.text, launch.found)
    if not edits:
        raise InputError(f"{remedy.text}: changes no flag of the script")
    whole = launch.path.resolve()
    return patch(launch.script.path, launch.script.text, edits, path=whole, root=root_of(whole), out=str(out))


def _planned_again(launch: Launch, made: Patched, case: Case, model: str | None, keys: tuple[str, ...]) -> Kind:
    """The verdict of the copy, read and planned from its text."""
    from headway.plan.plan import plan

    assert launch.path is not None
    whole = launch.path.resolve()
    script = read_text(made.text, launch.script.path, whole, root_of(whole), counts=launch.counts)
    workload = planned_workload(settings_of(script, root_of(whole)), model, keys, case.machine)
    kinds = [each.kind for each in verdict(plan(workload, case.machine), case.machine)]
    if "does not fit" in kinds:
        return "does not fit"
    if workload.in_no_line:
        return "cannot tell"
    return "fits" if fits_surely(workload, case.machine) else "tight"


def _write(text: str, source: Path, out: Path) -> None:
    """The file appears whole or not at all, with the script's permissions, writable for its owner."""
    temporary = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        temporary.write_bytes(text.encode())
        temporary.chmod(source.stat().st_mode & 0o777 | 0o200)
        temporary.rename(out)
    except OSError as error:
        raise InputError(f"--patch {out}: cannot be written ({error.strerror})") from None
    finally:
        temporary.unlink(missing_ok=True)
