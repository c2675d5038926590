"""What was read of a launch script as JSON: docs/plan.md describes the keys."""

from collections.abc import Sequence
from typing import Any

from headway.foreign.found import KEYS, Found
from headway.foreign.lint.rule import LintNote


def settings_document(found: Found) -> dict[str, Any]:
    """The settings as JSON: `settings` as the launch says them (null: not given), `derived` what the system makes of
    the rest, `unknown` with the reasons."""
    return {
        "settings": {key: found.settings.get(key) for key in KEYS if key not in found.unknown},
        "derived": dict(found.derived),
        "unknown": dict(found.unknown),
        "places": {key: {"file": at.file, "line": at.line} for key, at in found.places.items()},
        "unread": list(found.unread),
        "notes": list(found.notes),
    }


def lint_document(notes: Sequence[LintNote]) -> list[dict[str, Any]]:
    """The notes as JSON."""
    return [
        {
            "rule": note.rule, "severity": note.severity, "file": note.file, "line": note.line, "text": note.text,
            "why": note.why, "instead": note.instead,
        }
        for note in notes
    ]  # fmt: skip
