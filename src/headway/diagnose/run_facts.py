"""What a launch script, or the arguments that a log prints, say of the run: settings, lints, the planned run."""

import re
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from headway.diagnose.settings import Settings
from headway.errors import InputError
from headway.facts import shapes
from headway.facts.shapes import ModelShape
from headway.facts.workload import Workload
from headway.foreign.found import Found, Setting

MARKS = (b" arguments ----", b"Namespace(", b"'actor_rollout_ref'", b"GRPOConfig(", b"TrainingArguments(")
TOLD = ("intervals",)
UNTOLD = ("undefined-variable", "unknown-flag")
"""Lints that a diagnosis leaves to `headway plan`."""
LAUNCH = 64 << 10
"""Bytes of a launch script that are looked at as text."""
_SCHEDULED = re.compile(r"#(?:SBATCH|PBS|BSUB)\b")
SEARCHED = 4 << 20
"""Bytes of a log's start that are looked at for printed arguments."""


def from_script(path: Path, step: int | None = None) -> Settings:
    """Settings of a launch script. InputError where it cannot be read or starts no trainer that is known."""
    from headway.foreign.lint import lint
    from headway.foreign.readers import settings_of
    from headway.foreign.shell import read_script

    script = read_script(path)
    found = settings_of(script)
    workload = _workload(found)
    made = replace(_settings(found, workload, str(path)), launch=launch_of(path))
    notes = lint(found, script, workload, at_step=step)
    notes = tuple(note for note in notes if note.severity != "note" or note.rule in TOLD)
    said = tuple(f"{Path(note.file).name}:{note.line} {note.text}" for note in notes if note.rule not in UNTOLD)
    return replace(made, lints=said)


def launch_of(path: Path) -> str:
    """The text of a launch script as far as it runs: no comments but a scheduler's; empty where none can be read."""
    try:
        with path.open("rb") as file:
            text = file.read(LAUNCH).decode(errors="replace")
    except OSError:
        return ""
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#") or _SCHEDULED.match(line))
    return "\n".join(lines)


def from_log(path: Path) -> Settings | None:
    """Settings that a log prints at its start; None where it prints none or is no plain file."""
    try:
        with path.open("rb") as file:
            start = file.read(SEARCHED)
    except OSError:
        return None
    if not any(mark in start for mark in MARKS):
        return None
    from headway.foreign.arguments_log import read_log

    found = read_log(start.decode(errors="replace"), str(path))
    return None if found is None else _settings(found, _workload(found), str(path))


def from_spec(text: str) -> Settings:
    """Settings that a black box keeps of a launch, as it was read before the run; none of another text."""
    try:
        kept = msgspec.json.decode(text, type=_Kept)
    except (msgspec.MsgspecError, RecursionError):
        return Settings()
    found = Found(str(kept.settings.get("system") or ""), kept.settings, kept.derived, kept.unknown)
    notes = [note for note in kept.lint if note.severity != "note" or note.rule in TOLD]
    said = tuple(f"{Path(note.file).name}:{note.line} {note.text}" for note in notes if note.rule not in UNTOLD)
    return replace(_settings(found, None, ""), lints=said)


class _KeptNote(Struct, frozen=True):
    """A note of the lint."""

    rule: str
    severity: str
    file: str
    line: int
    text: str


class _Kept(Struct, frozen=True):
    """What `headway plan --settings --json` prints, as far as it is needed here."""

    settings: dict[str, Setting]
    derived: dict[str, Setting] = {}
    unknown: dict[str, str] = {}
    lint: tuple[_KeptNote, ...] = ()


def _shape(found: Found) -> ModelShape | None:
    """The model of a run by its checkpoint's name; of a name that goes on, such as -Instruct or a date, its model."""
    for name in (found.model, found.value("model_name")):
        parts = name.rstrip("/").split("/")[-1].split("-") if isinstance(name, str) else []
        while parts:
            shape = shapes.by_name("-".join(parts))
            if shape is not None:
                return shape
            parts.pop()
    return None


def _workload(found: Found) -> Workload | None:
    """The run as the planner takes it; None for a model or system that it does not know."""
    from headway.foreign import launched

    try:
        return launched.workload(found)
    except InputError:
        shape = _shape(found)
    try:
        return None if shape is None else launched.workload(found, shape)
    except InputError:
        return None


def _settings(found: Found, workload: Workload | None, name: str) -> Settings:
    def whole(key: str) -> int | None:
        value = found.value(key)
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None

    padded = (found.flags.get("padded-vocab-size") or ("",))[0]
    vocab = int(padded) if padded and padded.isdecimal() else whole("vocab_size")
    vocab = vocab or (workload.model.vocab if workload is not None else None)
    return Settings(
        vocab=vocab, tensor=whole("tp") or 1, cap=whole("max_tokens_per_gpu"), save=whole("save_interval"),
        evaluate=whole("eval_interval"), workload=workload, system=found.system, script=name,
        flags={flag: values[-1] for flag, values in found.flags.items() if values and values[-1] is not None},
    )  # fmt: skip


def merged(first: Settings, second: Settings) -> Settings:
    """What `first` says, and what `second` says where it says nothing."""
    return replace(
        first, vocab=first.vocab or second.vocab, tensor=first.tensor if first.vocab else second.tensor,
        cap=first.cap or second.cap, save=first.save or second.save, evaluate=first.evaluate or second.evaluate,
        workload=first.workload or second.workload, system=first.system or second.system,
        unified=first.unified or second.unified, phase=first.phase or second.phase, step=first.step or second.step,
        flags=first.flags or second.flags, launch=first.launch or second.launch,
    )  # fmt: skip


def due(settings: Settings, step: int) -> list[str]:
    """What was due at a step, by its intervals. Steps count from 0 or from 1, so a step beside it is told as such.

    >>> due(Settings(save=50, evaluate=5), 75)
    ['evaluation (every 5) was due at step 75', 'a save (every 50) was not due at step 75: the last was at 50']
    """
    found = []
    for name, every in (("evaluation", settings.evaluate), ("a save", settings.save)):
        if every is None or every <= 0:
            continue
        if step % every == 0:
            found.append(f"{name} (every {every}) was due at step {step}")
        elif (step + 1) % every == 0:
            found.append(f"{name} (every {every}) was due at step {step} if steps count from 0")
        else:
            last = step // every * every
            before = f"the last was at {last}" if last else "none had been yet"
            found.append(f"{name} (every {every}) was not due at step {step}: {before}")
    return found


def other_starts(settings: Settings, mechanism: str) -> list[str]:
    """Whether the script's own clean-up can be what ended a run, by the signals that it sends.

    >>> told = other_starts(Settings(lints=("run.sh:8 pkill -9 ray: ends every process by SIGKILL",)), "sigterm")
    >>> told[0]
    'another start of this script on the node ends others by SIGKILL: it did not send this SIGTERM'
    """
    enders = [each for each in settings.lints if " by SIG" in each or " by the signal" in each]
    if mechanism != "sigterm" or not enders or not all(each.endswith("by SIGKILL") for each in enders):
        return []
    return ["another start of this script on the node ends others by SIGKILL: it did not send this SIGTERM"]


def resume(settings: Settings, step: int | None) -> list[str]:
    """From which checkpoint to go on, as far as the intervals tell."""
    if settings.save is None or step is None:
        return []
    last = step // settings.save * settings.save
    if not last:
        return [f"no checkpoint had been due before step {step} (a save every {settings.save})"]
    return [f"the last checkpoint that was due is that of step {last}: check that it is complete, and load it"]
