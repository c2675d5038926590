"""A recording that is there already: nobody is asked to make one, and one beside a log is what is to be read."""

from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from headway.diagnose.finding import Diagnosis, Finding
from headway.diagnose.rules.rule import Settle
from headway.diagnose.rules.settle import MEMORY
from headway.guard.blackbox import is_blackbox

RECORDING = "recording.jsonl"
"""The recording of `headway train`, in the run's folder."""


def with_recording(found: Diagnosis, logs: Sequence[str], *, read: bool) -> Diagnosis:
    """The diagnosis without the question for a recording where one was `read`; where one stands beside a log that was
    given, the question is to read that one."""
    folder = next((str(path.parent) for word in logs if (path := Path(word)).is_file() and _recorded(path)), None)
    if not read and folder is None:
        return found
    instead = (
        ()
        if read or folder is None
        else (Settle(f"headway doctor {folder}", "the recording beside the log", MEMORY.line),)
    )
    changed = {id(each): _asking(each, instead) for each in found.findings}
    answer = changed.get(id(found.answer)) or _asking(found.answer, instead)
    return replace(found, answer=answer, findings=tuple(changed.values()))


def _recorded(log: Path) -> bool:
    """Whether a recording stands beside a log."""
    return (log.parent / RECORDING).is_file() or is_blackbox(log.parent)


def _asking(found: Finding, instead: tuple[Settle, ...]) -> Finding:
    asked = (new for each in found.would_settle for new in (instead if each == MEMORY else (each,)))
    return replace(found, would_settle=tuple(asked))
