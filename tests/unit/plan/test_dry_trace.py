"""Planned bytes of the train and step phases against a dry trace of the trainer's own step.

The quick cases are two short traces each, extrapolated; the slow ones are traced whole. That the comparison can fail
is tested as well: a plan without one of its items, or of a run that keeps more, is not within the tolerance.
"""

from functools import cache

import pytest
from msgspec.structs import replace

from headway.plan.ledger import Ledger, Phase

from .dry_trace import CASES, QUICK, TRACED, Case, Peaks, allocated, extrapolated, planned, traced

TOLERANCE = 0.03
SHORT = Case("smollm2-135M", "fp32", 0, checkpointing=True, cap=2048, max_prompt=256, max_answer=256)
LAYERS = 2


def agrees(ledger: Ledger, phase: Phase, found: dict[Phase, Peaks]) -> bool:
    return allocated(ledger, phase) == pytest.approx(max(found[phase].values()), rel=TOLERANCE)


@cache
def short_trace(case: Case) -> dict[Phase, Peaks]:
    return traced(case, LAYERS)


@pytest.mark.parametrize(
    "case", [QUICK[1], pytest.param(QUICK[0], marks=pytest.mark.slow)], ids=lambda case: case.name
)
def test_a_plan_agrees_with_short_traces_extrapolated(case: Case) -> None:
    ledger, found = planned(case), extrapolated(case)
    assert [phase for phase in TRACED if not agrees(ledger, phase, found)] == []


@pytest.mark.slow
@pytest.mark.parametrize("case", QUICK[2:], ids=lambda case: case.name)
def test_more_shapes_agree_with_short_traces_extrapolated(case: Case) -> None:
    test_a_plan_agrees_with_short_traces_extrapolated(case)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_plan_agrees_with_a_whole_trace(case: Case) -> None:
    ledger, found = planned(case), traced(case)
    assert [phase for phase in TRACED if not agrees(ledger, phase, found)] == []
    ends = extrapolated(case)
    for phase in TRACED:
        assert max(ends[phase].values()) == pytest.approx(max(found[phase].values()), rel=1e-4)


@pytest.mark.parametrize(
    ("phase", "item"),
    [
        (Phase.TRAIN, "weights"),
        (Phase.TRAIN, "optimizer moments"),
        (Phase.TRAIN, "gradients"),
        (Phase.TRAIN, "head gradient"),
        (Phase.TRAIN, "working set"),
        (Phase.STEP, "weights"),
        (Phase.STEP, "optimizer moments"),
        (Phase.STEP, "gradients"),
    ],
)
def test_a_plan_that_forgets_an_item_does_not_agree(phase: Phase, item: str) -> None:
    ledger = planned(SHORT, LAYERS)
    assert agrees(ledger, phase, short_trace(SHORT))
    rest = tuple(line for line in ledger.lines if (line.phase, line.item) != (phase, item))
    assert len(rest) == len(ledger.lines) - 1
    assert not agrees(replace(ledger, lines=rest), phase, short_trace(SHORT))


@pytest.mark.parametrize("change", [{"checkpointing": False}, {"chunk": 2048}], ids=str)
def test_a_trainer_that_holds_more_does_not_agree_with_the_plan_of_one_that_does_not(change: dict[str, int]) -> None:
    other = replace(SHORT, **change)
    assert not agrees(planned(SHORT, LAYERS), Phase.TRAIN, short_trace(other))
    assert agrees(planned(other, LAYERS), Phase.TRAIN, short_trace(other))
