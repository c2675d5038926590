"""A diagnosis as JSON: the document of `headway doctor --json`. docs/doctor.md describes its keys."""

from collections.abc import Mapping
from typing import Any

from headway.diagnose.causes import UNKNOWN
from headway.diagnose.evidence import Place
from headway.diagnose.finding import Diagnosis, Finding, Moment

Document = dict[str, Any]


def document(found: Diagnosis) -> Document:
    """The whole diagnosis, of JSON types alone."""
    answer = _finding(found.answer)
    answer["remedies"] = [*map(dict, found.remedies), *answer["remedies"]]
    return {
        "answer": answer,
        "findings": [_finding(each) for each in found.findings],
        "timeline": [_moment(each) for each in found.timeline],
        "context": list(found.context),
        "notes": list(found.notes),
        "said": list(found.said),
    }


def _finding(found: Finding) -> Document:
    return {
        "outcome": "unknown" if found.mechanism == UNKNOWN and not found.evidence else found.outcome,
        "sentence": found.sentence,
        "mechanism": found.mechanism,
        "mechanism_grade": found.mechanism_grade,
        "cause": found.cause or None,
        "cause_grade": found.cause_grade if found.cause else None,
        "family": found.family,
        "phase": found.phase or None,
        "step": found.step,
        "component": found.component or None,
        "process": found.process or None,
        "because": found.because,
        "evidence": [_place(each) for each in found.evidence],
        "ruled_out": [
            {
                "name": each.name,
                "because": each.because,
                "evidence": None if each.place is None else _place(each.place),
            }
            for each in found.ruled_out
        ],
        "candidates": [
            {"name": each.name, "because": each.because, "grade": each.grade} for each in found.candidates
        ],
        "would_settle": [
            {"command": each.command, "where": each.where, "line": each.line} for each in found.would_settle
        ],
        "remedies": [{"text": each.text, "effect": each.effect, "risk": each.risk} for each in found.advice],
        "survived": found.survived,
        "run": found.run,
    }


def _place(place: Place) -> Mapping[str, object]:
    return {"file": place.file, "line": place.line, "text": place.text}


def _moment(found: Moment) -> Mapping[str, object]:
    return {
        **_place(found.place),
        "kind": found.kind,
        "role": found.role,
        "says": found.says,
        "repeated": found.repeated,
        "run": found.run,
    }
