"""Runs that did not die: what says that one came to its end, and the answer that it gets."""

from collections.abc import Sequence

from msgspec.structs import replace

from headway.diagnose.causes import ASKED, FINISHED, NOT_ESTABLISHED, UNKNOWN, family
from headway.diagnose.evidence import Evidence, Grade, Place
from headway.diagnose.finding import Finding, Outcome
from headway.diagnose.lines import Scan
from headway.guard.steps import latest_step

NO_DEATH: dict[Outcome, str] = {"finished": FINISHED, "stopped": ASKED}
"""How a run ended that did not die -> its name among the mechanisms."""
NOT_WELL = ("numerics", "gpu-hardware")
"""Causes that a run can come to its end with, and is to be told of."""
CODE = "box-code"
"""Evidence that a command ended with a bad code, whatever its log says."""


def no_death(found: Finding, outcome: Outcome, grade: Grade, sentence: str, shown: tuple[Place, ...] = ()) -> Finding:
    """The answer of a run that did not die, in place of one that could not tell: no cause, no advice, no question.
    What shows that the run was not well all the same stays, with its advice."""
    name = NO_DEATH[outcome]
    if found.cause in NOT_WELL and found.cause_grade != "open":
        because = f"{sentence.rstrip('.')}. {found.cause_grade.capitalize()}: {found.cause}, {found.because}."
        return replace(
            found, mechanism=name, mechanism_grade=grade, outcome=outcome, sentence=because, would_settle=(),
            evidence=(*found.evidence, *shown),
        )  # fmt: skip
    return replace(
        found, mechanism=name, mechanism_grade=grade, outcome=outcome, sentence=sentence, cause="", because="",
        family=family("mechanism", name), component="", process="", evidence=shown, ruled_out=(), candidates=(),
        would_settle=(), advice=(),
    )  # fmt: skip


def finished(findings: Sequence[Finding], scans: Sequence[Scan], evidence: Sequence[Evidence]) -> tuple[Finding, ...]:
    """The findings of a run whose log says at its end that it finished: what it survived, and that. () where no log
    says so, or something else ended it."""
    if any(each.kind == CODE for each in evidence):
        return ()
    for scan in scans:
        own = [each for each in evidence if each.place.file == scan.source.name]
        said = next((each for each in reversed(own) if each.role == "well"), None)
        if said is None or not _is_last(said, own, scan):
            continue
        ends = [_survived(each, said) for each in findings if each.mechanism != UNKNOWN]
        if not all(each.survived for each in ends):
            return ()
        step = max((step for each in scans for _, step in each.steps), default=None)
        where = "" if step is None else f" (step {step})"
        text = f"The run finished{where}: its log says so, and tells of no death."
        own_words = replace(_without_end(findings[-1]), step=step)
        return (*ends, no_death(own_words, "finished", "supported", text, (said.place,)))
    return ()


def _without_end(found: Finding) -> Finding:
    """A finding that tells of no end, in place of one that the run survived."""
    if found.mechanism == UNKNOWN:
        return found
    return replace(
        found, cause=NOT_ESTABLISHED, survived=False, phase="", clock=None, kill=None, asked=None, in_use=None
    )


def _survived(found: Finding, said: Evidence) -> Finding:
    """An end that the run went on after, as the step tells at which the log says that it finished."""
    before, at = found.step, said.line.step
    if found.survived or before is None or at is None or at <= before + 1:
        return found
    return replace(found, survived=True, sentence=f"{found.sentence.removesuffix('.')}; the run went on after it.")


def _is_last(said: Evidence, own: Sequence[Evidence], scan: Scan) -> bool:
    """Whether nothing of weight follows: the words stand among the last lines, and no step or symptom below them."""
    at = said.place.line
    if not scan.tail or at < scan.tail[0][0]:
        return False
    below = [text for number, text in scan.tail if number > at]
    if any(latest_step(text) is not None for text in below):
        return False
    return not any(each.place.line > at and each.role in ("end", "symptom", "why") for each in own)
