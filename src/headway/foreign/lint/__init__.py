"""Lint of a launch script: what will cost memory, work or a neighbour's run, before anything starts.

A rule is a document (`Rule`), one file each; `table.RULES` is all of them, `docs/lint.md` is made from them.
"""

from headway.foreign.lint.rule import LintNote, Rule, Sighting, Subject
from headway.foreign.lint.table import RULES, lint

__all__ = ["RULES", "LintNote", "Rule", "Sighting", "Subject", "lint"]
