"""What a run may train alone, by its plan."""

import pytest
from msgspec.structs import replace

from headway.facts import machines
from headway.facts.machine import Limit, Machine
from headway.facts.shapes import table
from headway.foreign.presets import workload
from headway.plan.planned import Planned, examine
from headway.plan.verdict import tops

RUN = workload(table()["qwen3-0.6b"], "headway")
GB10 = machines.by_name("gb10").without_ray()


def under(limit: int) -> Planned:
    """The run on a machine with one limit."""
    pools = (replace(GB10.pools[0], limits=(Limit("memory", limit, "", ""),)),)
    return examine(RUN, Machine("small", pools, 20))


@pytest.fixture(scope="module")
def held() -> tuple[int, int]:
    """What the run is expected to hold and at most holds."""
    (sizes,) = tops(examine(RUN, GB10).ledger).values()
    return sizes


def test_a_run_that_fits_trains_every_sample_alone(held: tuple[int, int]) -> None:
    found = under(held[1])
    assert (found.outcome.kind, found.longest_alone) == ("fits", RUN.rollout.longest)


def test_a_tight_run_trains_alone_what_it_is_expected_to_hold(held: tuple[int, int]) -> None:
    found = under((held[0] + held[1]) // 2)
    assert found.outcome.kind == "tight"
    assert found.longest_sample < RUN.rollout.longest
    assert found.longest_alone == RUN.rollout.longest


def test_a_run_that_does_not_fit_trains_alone_only_what_does(held: tuple[int, int]) -> None:
    found = under(held[0] * 9 // 10)
    assert found.outcome.kind == "does not fit"
    assert found.longest_alone < RUN.rollout.longest


@pytest.mark.parametrize("model", ["smollm2-1.7b", "qwen3-0.6b"])
def test_no_sample_is_longer_than_the_context(model: str) -> None:
    shape = table()[model]
    assert examine(workload(shape, "headway"), machines.by_name("h200").without_ray()).longest_sample == shape.context
    endless = examine(workload(replace(shape, context=0), "headway"), machines.by_name("h200").without_ray())
    assert endless.longest_sample > shape.context
