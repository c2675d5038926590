"""How often `headway doctor` is right on labelled deaths, and whether it ever claims too much.

    python benchmarks/doctor_accuracy.py FILE.jsonl [--json] [--wrong]

Each line is a case: `log_lines` and `config`, which are all that the program gets, and labels: `mechanism` (names
that are right), `accept_causes`, `must_not_claim`, and `decidable`, how far the case can be decided (mechanism,
family, cause or none). A cause above grade open on a case that is not decidable to it counts as overclaimed unless
it is accepted.
"""

import argparse
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headway.diagnose.causes import NOT_ESTABLISHED, family
from headway.diagnose.doctor import diagnose
from headway.diagnose.finding import Finding
from headway.diagnose.lines import Source
from headway.diagnose.settings import from_table

LEVELS = {"mechanism": ("mechanism", "family", "cause"), "family": ("family", "cause"), "cause": ("cause",)}


def answer(case: Mapping[str, Any]) -> Finding:
    """What the program says of a case's lines and configuration."""
    text = "\n".join(case["log_lines"]).encode()
    source = Source("log", lambda: io.BytesIO(text))
    return diagnose([source], from_table(case.get("config") or {})).answer


def judge(case: Mapping[str, Any], found: Finding) -> dict[str, bool | None]:
    """What is right and wrong about an answer; None where the case does not decide it."""
    level, accepted = case["decidable"], case["accept_causes"]
    families = {family("cause", name) for name in accepted}
    proven = {found.mechanism} if found.mechanism_grade == "proven" else set()
    proven |= {found.cause} if found.cause_grade == "proven" else set()
    false = found.mechanism_grade == "proven" and found.mechanism not in case["mechanism"]
    false |= found.cause_grade == "proven" and found.cause not in (*accepted, case["cause_true"])
    above = found.cause != NOT_ESTABLISHED and found.cause_grade != "open"
    return {
        "mechanism": found.mechanism in case["mechanism"] if level in LEVELS["mechanism"] else None,
        "family": found.family in families if level in LEVELS["family"] else None,
        "cause": found.cause in accepted and found.cause != NOT_ESTABLISHED if level in LEVELS["cause"] else None,
        "wrong_at_proven": bool(proven & set(case["must_not_claim"])) or false,
        "overclaimed": above and level != "cause" and found.cause not in accepted,
        "abstained": found.cause == NOT_ESTABLISHED,
    }


def summary(judged: list[dict[str, bool | None]]) -> dict[str, Any]:
    """The figures over all cases."""
    made: dict[str, Any] = {"cases": len(judged)}
    for level in LEVELS:
        decided = [each[level] for each in judged if each[level] is not None]
        made[f"{level}_accuracy"] = sum(map(bool, decided)) / len(decided) if decided else None
        made[f"{level}_cases"] = len(decided)
    for name in ("wrong_at_proven", "overclaimed"):
        made[name] = sum(bool(each[name]) for each in judged)
    made["abstentions"] = sum(bool(each["abstained"]) for each in judged)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--wrong", action="store_true", help="show each answer that is not right")
    options = parser.parse_args()
    cases = [json.loads(line) for line in options.file.read_text(encoding="utf-8").splitlines() if line.strip()]
    judged = []
    for case in cases:
        found = answer(case)
        verdict = judge(case, found)
        judged.append(verdict)
        bad = False in (verdict["mechanism"], verdict["family"], verdict["cause"])
        if options.wrong and (bad or verdict["wrong_at_proven"] or verdict["overclaimed"]):
            print(
                f"{case['id']}: {found.mechanism} ({found.mechanism_grade}), {found.cause} "
                f"({found.cause_grade}): {verdict}"
            )
    figures = summary(judged)
    if options.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:20} {value:.3f}" if isinstance(value, float) else f"{name:20} {value}")


if __name__ == "__main__":
    main()
