"""Advice: keys of the RunSpec that lower the peak, with what they lower it to."""

import re
from dataclasses import replace

from hypothesis import given, settings

from headway.facts.workload import Workload
from headway.plan.advise import advise, changes
from headway.plan.plan import plan
from headway.units import parse_bytes

from .test_plan import HOST, example, workloads
from .test_verdict import machine


def sizes(line: str) -> tuple[int, int]:
    """Before and after, as the line says."""
    found = re.search(r": ([\d.]+ \w+) -> ([\d.]+ \w+)", line)
    assert found is not None, line
    return parse_bytes(found[1]), parse_bytes(found[2])


@settings(max_examples=30, deadline=None)
@given(workloads())
def test_every_line_lowers_the_peak(workload: Workload) -> None:
    for line in advise(workload, machine(1 << 40)):
        before, after = sizes(line)
        assert after <= before


@settings(max_examples=30, deadline=None)
@given(workloads())
def test_a_change_is_of_one_key_and_leads_to_another_workload(workload: Workload) -> None:
    for change in changes(workload):
        assert re.match(r"(\w+\.\w+ = |\[lora\])", change.text)
        assert change.workload != workload


def test_the_best_comes_first() -> None:
    workload = example(max_prompt=512, max_answer=512)
    workload = replace(workload, trainer=replace(workload.trainer, checkpointing=False, cap=4096))
    after = [sizes(line)[1] for line in advise(workload, machine(1 << 40))]
    assert after == sorted(after)
    assert len(after) > 2


def test_changes_are_combined_where_one_is_not_enough() -> None:
    workload = example(max_prompt=512, max_answer=512, samples=8)
    workload = replace(workload, trainer=replace(workload.trainer, checkpointing=False, cap=8192))
    singles = [plan(change.workload).peak(HOST).bytes for change in changes(workload)]
    limit = min(singles) - (1 << 20)
    lines = advise(workload, machine(limit))
    assert " and " in lines[-1]
    assert lines[-1].endswith("which fits")
    assert sizes(lines[-1])[1] <= limit + (1 << 20)
