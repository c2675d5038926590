"""The rules: one for each name of causes.csv, in the file of its name."""

from functools import cache
from importlib import import_module

from headway.diagnose.causes import Level, table
from headway.diagnose.rules.rule import Rule

FOLDERS: dict[Level, str] = {"mechanism": "mechanisms", "cause": "causes"}


@cache
def rules(level: Level) -> dict[str, Rule]:
    """The rules of a level by name, in the order of the table."""
    found = {}
    for name in table(level):
        module = import_module(f"headway.diagnose.rules.{FOLDERS[level]}.{name.replace('-', '_')}")
        rule: Rule = module.RULE
        found[name] = rule
    return found
