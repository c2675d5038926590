"""Every rule finds its example and not its near-miss, and the pages are what the rules say."""

import csv
from pathlib import Path

import pytest

from headway.diagnose.causes import table
from headway.diagnose.document import explained, pages
from headway.diagnose.evidence import RANK
from headway.diagnose.readers import SIGNS
from headway.diagnose.rules import rules
from headway.errors import InputError

from .told import told

ROOT = Path(__file__).parents[3]
MECHANISMS = [(name, rule) for name, rule in rules("mechanism").items() if name != "unknown"]
CAUSES = [(name, rule) for name, rule in rules("cause").items() if name != "not-established"]
FACTS = {"device-oversize-sample": {"vocab_per_tp": 76032, "max_tokens_per_gpu": 9216}}
"""What a rule needs to know beside the text."""


def ids(pair):
    return pair if isinstance(pair, str) else ""


@pytest.mark.parametrize(("name", "rule"), MECHANISMS, ids=ids)
def test_a_mechanism_is_found_in_its_example(name, rule):
    assert told(rule.example).mechanism == name


@pytest.mark.parametrize(("name", "rule"), MECHANISMS, ids=ids)
def test_a_mechanism_is_not_found_in_what_looks_alike(name, rule):
    assert told(rule.near_miss).mechanism != name


@pytest.mark.parametrize(("name", "rule"), CAUSES, ids=ids)
def test_a_cause_is_supported_by_its_example(name, rule):
    found = told(rule.example, **FACTS.get(name, {}))
    assert (found.cause, RANK[found.cause_grade] <= RANK["supported"]) == (name, True)


@pytest.mark.parametrize(("name", "rule"), CAUSES, ids=ids)
def test_a_cause_is_not_claimed_of_what_looks_alike(name, rule):
    found = told(rule.near_miss, **FACTS.get(name, {}))
    assert found.cause != name or found.cause_grade == "open"


def test_nothing_is_known_of_an_ordinary_line():
    found = told(rules("mechanism")["unknown"].example)
    assert (found.mechanism, found.cause, found.mechanism_grade) == ("unknown", "not-established", "open")


def test_every_name_has_a_rule_and_the_table_is_whole():
    rows = list(csv.DictReader((ROOT / "src/headway/diagnose/causes.csv").read_text().splitlines()))
    assert len(rows) == len(rules("mechanism")) + len(rules("cause")) > 60
    for level in ("mechanism", "cause"):
        assert [rule.name for rule in rules(level).values()] == list(table(level))


def test_a_rule_names_only_kinds_that_are_read():
    kinds = {sign.kind for sign in SIGNS} | {"python-traceback", "python-error"}
    assert not {kind for rule in rules("mechanism").values() for kind in rule.ends} - kinds


def test_each_end_that_is_read_belongs_to_a_mechanism():
    used = {kind for rule in rules("mechanism").values() for kind in rule.ends}
    assert not {sign.kind for sign in SIGNS if sign.role == "end"} - used


def test_needles_are_what_a_lowered_line_holds():
    assert not [needle for sign in SIGNS for needle in sign.needles if needle != needle.lower() or len(needle) < 3]


def test_the_pages_are_what_the_rules_say():
    folder = ROOT / "docs" / "rules"
    there = {path.name: path.read_text() for path in folder.glob("*.md")}
    assert there == pages(), "run: .venv/bin/python -m headway.diagnose.document docs/rules"


def test_a_name_that_is_none_gets_the_nearest():
    with pytest.raises(InputError, match="device-logits"):
        explained("device-logit")


def test_a_name_on_both_levels_is_explained_twice():
    text = explained("node-lost")
    assert "A mechanism, family outside" in text
    assert "A cause, family outside" in text
