"""Verdicts against limits, and the longest sample."""

from dataclasses import replace

import pytest

from headway.facts.machine import Limit, Machine, Pool
from headway.plan.plan import plan
from headway.plan.verdict import longest_sample, verdict

from .test_plan import HOST, example


def machine(*limits: int) -> Machine:
    known = tuple(Limit(f"limit {size}", size, "the run ends", "a test") for size in limits)
    return Machine("a", (Pool(HOST, "host", 1 << 40, known),), 2)


LEDGER = plan(example())
PEAK, UPPER = LEDGER.peak(HOST), LEDGER.upper(HOST)


@pytest.mark.parametrize(
    ("limit", "kind"),
    [
        (PEAK.bytes - 1, "does not fit"), (PEAK.bytes, "tight"), (UPPER - 1, "tight"), (UPPER, "fits"),
        (UPPER + 1000, "fits"),
    ],
)  # fmt: skip
def test_the_expected_peak_decides_whether_it_fits_and_the_bound_whether_surely(limit: int, kind: str) -> None:
    (found,) = verdict(LEDGER, machine(limit))
    assert found.kind == kind
    assert found.margin == limit - UPPER
    assert (found.peak, found.upper) == (PEAK, UPPER)


def test_the_lowest_limit_counts() -> None:
    (found,) = verdict(LEDGER, machine(1 << 50, PEAK.bytes - 1, 1 << 40))
    assert found.limit is not None
    assert found.limit.bytes == PEAK.bytes - 1


def test_a_pool_without_known_limits_fits() -> None:
    (found,) = verdict(LEDGER, Machine("unknown", (), 1))
    assert (found.kind, found.limit, found.margin) == ("fits", None, 0)


def test_limits_of_unified_memory_hold_for_the_host() -> None:
    limit = Limit("MemAvailable", PEAK.bytes - 1, "the kernel kills", "a test")
    unified = Machine("gb10", (Pool("node[0].unified", "unified", 1 << 37, (limit,)),), 20)
    assert [each.kind for each in verdict(LEDGER, unified)] == ["does not fit"]


def test_the_longest_sample_is_the_last_that_surely_fits_alone() -> None:
    workload = replace(example(max_prompt=1000, max_answer=1000), trainer=replace(example().trainer, cap=1))
    sizes = {}
    for tokens in (400, 401):
        shorter = example(max_prompt=tokens - 200, max_answer=200)
        sizes[tokens] = plan(replace(shorter, trainer=workload.trainer)).upper(HOST)
    workload = replace(workload, rollout=replace(workload.rollout, max_answer=200))
    assert sizes[401] > sizes[400]
    assert longest_sample(workload, machine(sizes[400])) == 400


def test_no_sample_fits_below_the_weights_and_all_fit_in_plenty() -> None:
    assert longest_sample(example(), machine(1 << 20)) == 0
    assert longest_sample(example(), machine(1 << 45)) == 128
