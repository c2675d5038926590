"""A diagnosis for a terminal: a sentence, the lines that matter, what it was not, what to do, what would settle."""

import shutil
import textwrap
from collections.abc import Iterator

from headway.diagnose.finding import Diagnosis, Finding
from headway.units import format_bytes

LINES, TEXT = 8, 160
"""Lines of evidence that are shown, and characters of each."""
WIDEST = 110


def doctor_report(found: Diagnosis) -> str:
    """The whole text, as wide as the terminal."""
    width = min(WIDEST, shutil.get_terminal_size((80, 24)).columns)
    return "\n".join(line for part in _parts(found) for line in _wrapped(part, width))


def _wrapped(text: str, width: int) -> list[str]:
    """Lines of at most that width; what follows is indented as its first line is, and two more."""
    if not text:
        return [""]
    indent = " " * (len(text) - len(text.lstrip()) + 2)
    if text == text.lstrip():
        indent = ""
    return textwrap.wrap(text, max(width, 40), subsequent_indent=indent, break_on_hyphens=False) or [""]


def _parts(found: Diagnosis) -> Iterator[str]:
    answer = found.answer
    yield answer.sentence
    if answer.outcome != "died" and not answer.advice:
        yield from _section("Not read", list(found.notes))
        return
    yield ""
    yield from _grades(answer)
    yield from _section(
        "What shows it", [f"{place}  {place.text.strip()[:TEXT]}" for place in answer.evidence[:LINES]]
    )
    yield from _section("What the command said last", list(found.said))
    yield from _section("Ruled out", [f"{each.name}: {each.because}" for each in answer.ruled_out])
    title = "Who can have sent it" if answer.mechanism == "sigterm" else "Also possible"
    yield from _section(title, [f"{each.name}: {each.because}" for each in answer.candidates])
    yield from _section("About the run", list(found.context))
    yield from _section(
        "What to change",
        [*_remedies(found), *(f"{each.text}: {each.effect}; risk: {each.risk}" for each in answer.advice)],
    )
    yield from _section(
        "What would settle it", [f"{each.command}  ({each.where}): {each.line}" for each in answer.would_settle]
    )
    others = [each for each in found.findings if each is not answer]
    yield from _section("Other ends in these logs", [each.sentence for each in others])
    yield from _section("Not read", list(found.notes))


def _grades(answer: Finding) -> Iterator[str]:
    yield f"  mechanism  {answer.mechanism} ({answer.mechanism_grade})"
    cause = answer.cause if answer.cause == "not-established" else f"{answer.cause} ({answer.cause_grade})"
    yield f"  cause      {cause}"
    where = [f"family {answer.family}", *(f"{name} {value}" for name, value in (
        ("phase", answer.phase), ("step", answer.step), ("component", answer.component), ("process", answer.process),
    ) if value not in ("", None))]  # fmt: skip
    yield f"  where      {', '.join(where)}"


def _section(title: str, lines: list[str]) -> Iterator[str]:
    if lines:
        yield ""
        yield title
        yield from (f"  {line}" for line in lines)


def _remedies(found: Diagnosis) -> Iterator[str]:
    for each in found.remedies:
        before, after = each["before_bytes"], each["after_bytes"]
        sizes = ", ".join(
            name.format(format_bytes(size))
            for name, size in (("{} before", before), ("{} with it", after))
            if isinstance(size, int)
        )
        yield f"{each['text']}  ({each['pool']}: {sizes}, {each['verdict']})"
