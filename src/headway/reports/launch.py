"""What was read of a launch script: its settings with their places, what is unknown, and the notes of the lint."""

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from headway.foreign.found import KEYS, Found
from headway.foreign.lint.rule import LintNote
from headway.reports.widgets import hanging

STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan"}
MARKS = {"error": "✗", "warning": "!", "note": "·"}


def settings_report(found: Found) -> Group:
    """Every setting that was read: its value and where it stands, then defaults, then what is unknown and why."""
    said = [key for key in KEYS if found.settings.get(key) is not None and key not in found.unknown]
    parts: list[RenderableType] = [Text.assemble((found.system, "bold"), f" {found.program} ", (_at(found), "dim"))]
    parts.append(hanging(((key, _said(found, key)) for key in said), justify="left"))
    derived = {key: value for key, value in found.derived.items() if key not in said and key not in found.unknown}
    if derived:
        parts.append(Text("\nBy the system's defaults, or from other settings", style="bold"))
        parts.append(hanging([("", Text(", ".join(f"{key} = {value}" for key, value in derived.items())))]))
    if found.unknown:
        parts.append(Text("\nUnknown", style="bold"))
        parts += _reasons(found)
    for title, texts in (("Not read", found.unread), ("Notes", found.notes)):
        if texts:
            parts.append(Text(f"\n{title}", style="bold"))
            parts.append(hanging(("-", Text(text)) for text in texts))
    return Group(*parts)


def _at(found: Found) -> str:
    return f"({found.at})" if found.at is not None else ""


def _said(found: Found, key: str) -> Text:
    place = found.places.get(key)
    return Text.assemble(str(found.settings[key]), (f"  {place}" if place is not None else "", "dim"))


def _reasons(found: Found) -> Iterator[RenderableType]:
    """The unknown keys by their reason."""
    reasons: dict[str, list[str]] = {}
    for key, why in found.unknown.items():
        reasons.setdefault(why, []).append(key)
    yield hanging(("-", Text.assemble(", ".join(keys), (f" ({why})", "dim"))) for why, keys in reasons.items())


SHORT = 5
"""Notes that are shown in short, and all errors."""


def lint_report(notes: Sequence[LintNote], *, lines: bool = True) -> Group:
    """The notes, errors first: what, where, why, what to do instead. A reason that several share is told once.

    Without `lines` the first few, and of what is no error only what it is.
    """
    parts: list[RenderableType] = [Text("\nIn the launch", style="bold")]
    told: set[str] = set()
    errors = sum(note.severity == "error" for note in notes)
    shown = notes if lines else notes[: max(SHORT, errors)]
    for note in shown:
        where = f"line {note.line}: " if note.line else ""
        text = Text.assemble((f"{note.severity} ", STYLES[note.severity]), (where, "dim"), note.text)
        if note.why not in told and (lines or note.severity == "error"):
            text.append(f"\n{note.why}; {note.instead}", style="dim")
        told.add(note.why)
        parts.append(hanging([(MARKS[note.severity], text)]))
    if not lines and len(notes) > errors:
        more = (
            f"{len(notes) - len(shown)} more, and why each matters" if len(notes) > len(shown) else "Why each matters"
        )
        parts.append(Text(f"{more}: --lines", style="dim"))
    return Group(*parts) if notes else Group()
