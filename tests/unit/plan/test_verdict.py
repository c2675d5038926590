"""Verdicts against limits, and the longest sample."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from headway.facts.machine import Limit, Machine, Pool
from headway.facts.workload import Workload
from headway.plan.plan import plan
from headway.plan.verdict import furthest, judge, longest_sample, overall, tops, verdict, with_lengths

from .test_plan import HOST, example, workloads

DEVICE = "node[0].device[0]"


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


def test_a_pool_without_known_limits_is_not_judged() -> None:
    (found,) = verdict(LEDGER, Machine("unknown", (), 1))
    assert (found.kind, found.limit, found.margin, found.margins) == ("cannot tell", None, 0, ())
    assert overall((found,)).kind == "cannot tell"


def test_what_is_in_no_line_holds_a_verdict_back_and_only_what_is_over_a_limit_wins() -> None:
    """A model of unknown size: pools that fit tell nothing, a pool that does not fit still does."""
    fits, tight, over = (verdict(LEDGER, machine(limit)) for limit in (UPPER, PEAK.bytes, PEAK.bytes - 1))
    assert [overall(pools, unplanned=("critic",)).kind for pools in (fits, tight, over)] == [
        "cannot tell", "cannot tell", "does not fit",
    ]  # fmt: skip
    assert overall(fits, refusals=("no room",), unplanned=("critic",)).kind == "does not fit"
    found = judge(replace(example(), unplanned=("critic",)), machine(UPPER))
    assert (found.kind, found.exit_code, found.unplanned) == ("cannot tell", 4, ("critic",))
    assert judge(example(), machine(UPPER)).kind == "fits"


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


def test_every_limit_is_told_apart_the_lowest_first() -> None:
    (found,) = verdict(LEDGER, machine(UPPER + 7, PEAK.bytes - 5, PEAK.bytes + 3))
    assert [(each.limit.bytes, each.expected, each.upper, each.kind) for each in found.margins] == [
        (PEAK.bytes - 5, -5, PEAK.bytes - 5 - UPPER, "does not fit"),
        (PEAK.bytes + 3, 3, PEAK.bytes + 3 - UPPER, "tight"),
        (UPPER + 7, UPPER + 7 - PEAK.bytes, 7, "fits"),
    ]


def test_the_worst_phase_names_its_largest_lines_and_the_role_that_holds_the_most() -> None:
    (found,) = verdict(LEDGER, machine(UPPER))
    lines = LEDGER.select(HOST, PEAK.phase)
    sizes = [line.bytes for line in found.largest]
    assert sizes == sorted((line.bytes for line in lines), reverse=True)[: len(sizes)]
    trainer = sum(line.bytes for line in lines if line.role == "trainer")
    assert (found.role, found.rank) == ("trainer", 0)
    assert trainer > PEAK.bytes / 2


def device_machine(device: int, host: int | None) -> Machine:
    def limits(size: int | None) -> tuple[Limit, ...]:
        return () if size is None else (Limit("memory", size, "the run ends", "a test"),)

    return Machine("a", (Pool(HOST, "host", 0, limits(host)), Pool(DEVICE, "device", device, limits(device))), 2)


CUDA = replace(example(), device="cuda")
MUCH = 1 << 40


@pytest.mark.parametrize(
    ("device", "host", "kind", "code"),
    [
        (MUCH, None, "fits", 0), (MUCH, MUCH, "fits", 0), (1, None, "does not fit", 3), (MUCH, 1, "does not fit", 3),
        (None, MUCH, "cannot tell", 4), (None, 1, "does not fit", 3), (None, None, "cannot tell", 4),
        (plan(CUDA).upper(DEVICE) - 1, None, "tight", 0),
    ],
)  # fmt: skip
def test_the_whole_is_judged_by_its_pools(device: int | None, host: int | None, kind: str, code: int) -> None:
    here = device_machine(device or 1, host)
    if device is None:
        here = Machine("a", here.pools[:1], 2)
    found = overall(verdict(plan(CUDA, here), here))
    assert (found.kind, found.exit_code) == (kind, code)
    assert {each.pool for each in found.pools} == {HOST, DEVICE}


@settings(max_examples=30, deadline=None)
@given(workloads(), st.integers(1, 1 << 33), st.integers(0, 1 << 32))
def test_a_higher_limit_never_makes_the_verdict_worse(workload: Workload, limit: int, more: int) -> None:
    order = ["fits", "tight", "does not fit"]
    ledger = plan(workload)
    low, high = (verdict(ledger, machine(size))[0] for size in (limit, limit + more))
    assert order.index(high.kind) <= order.index(low.kind)
    assert high.margin - low.margin == more


@settings(max_examples=30, deadline=None)
@given(workloads())
def test_the_tops_of_a_ledger_are_its_peaks_and_bounds(workload: Workload) -> None:
    ledger = plan(workload)
    assert tops(ledger) == {pool: (ledger.peak(pool).bytes, ledger.upper(pool)) for pool in ledger.pools()}


def unsaid(max_prompt: int) -> Workload:
    text = f"rollout.max_prompt = {max_prompt} (nobody said)"
    return replace(example(max_prompt=max_prompt), unknown=(text, "trainer.cap = 1024 (nobody said)"))


def test_an_unknown_length_that_makes_the_difference_decides() -> None:
    sizes = {length: plan(with_lengths(unsaid(512), max_prompt=length)).peak(HOST).bytes for length in (512, 1024)}
    assert sizes[1024] > sizes[512]
    between = machine(sizes[1024] - 1)
    assert judge(unsaid(512), between).deciding == unsaid(512).unknown[:1]
    assert judge(unsaid(512), between).kind == "cannot tell"
    assert judge(replace(unsaid(512), unknown=()), between).kind in ("fits", "tight")
    assert judge(unsaid(512), machine(MUCH)).kind == "fits"
    assert judge(unsaid(512), machine(1)).kind == "does not fit"


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 50), st.integers(-100_000, 1000), st.integers(0, 5000))
def test_the_furthest_size_is_the_last_that_fits(flat: int, slope: int, start: int, high: int) -> None:
    def over(size: int) -> int:
        return max(flat + start, slope * size + start, size * size // 50 + start)

    fitting = [size for size in range(1, high + 1) if over(size) <= 0]
    assert furthest(over, 0, high) == max(fitting, default=0)


def test_a_longer_sample_than_the_run_makes_is_found_where_it_is_asked_for() -> None:
    def alone(answer: int) -> int:
        return plan(replace(example(max_answer=answer), trainer=replace(example().trainer, cap=1))).upper(HOST)

    here = machine(alone(900))
    assert longest_sample(example(), here) == 128
    longest = longest_sample(example(), here, most=4096)
    assert longest >= 996
    assert alone(longest - 96) <= alone(900) < alone(longest + 1 - 96)


@settings(max_examples=30, deadline=None)
@given(workloads(), st.integers(1 << 28, 1 << 30))
def test_the_longest_sample_keeps_the_bound_inside_the_limit(workload: Workload, limit: int) -> None:
    found = longest_sample(workload, machine(limit))
    if found > 1:
        rollout = workload.rollout
        answer = max(1, min(rollout.max_answer, found - 1))
        alone = replace(
            workload,
            rollout=replace(rollout, max_prompt=max(1, found - answer), max_answer=answer),
            trainer=replace(workload.trainer, cap=1),
        )
        assert plan(alone).upper(HOST) <= limit


def test_what_is_not_planned_leaves_the_verdict_open_but_where_it_does_not_fit() -> None:
    open_ = ("how many devices the run has is not known",)
    for limit, kind in ((UPPER, "cannot tell"), (PEAK.bytes, "cannot tell"), (PEAK.bytes - 1, "does not fit")):
        found = overall(verdict(LEDGER, machine(limit)), unplanned=open_)
        assert (found.kind, found.unplanned) == (kind, open_)
    judged = judge(replace(example(), unplanned=open_), machine(UPPER))
    assert (judged.kind, judged.exit_code) == ("cannot tell", 4)
