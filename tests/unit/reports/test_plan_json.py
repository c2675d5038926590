"""The JSON of a plan: equal to itself written and read again, the ledger in it, sums and verdicts that agree."""

import json

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from headway.facts import machines, shapes
from headway.facts.machine import Machine
from headway.facts.workload import Workload
from headway.foreign import presets
from headway.plan.ledger import Phase
from headway.plan.planned import Planned, examine
from headway.reports.plan_json import document, ledger_of

NAMES = ("gb10", "rtx4090", "h100-80", "cpu-64gib", "cpu-1gib")


@st.composite
def cases(draw: st.DrawFn) -> tuple[Workload, Machine]:
    model = draw(st.sampled_from(["tiny-llama", "tiny-qwen3-moe", "qwen3-0.6b", "qwen3-4b", "qwen3-30b-a3b"]))
    trainer = draw(st.sampled_from(list(presets.PRESETS)))
    set_ = [f"rollout.max_answer={draw(st.integers(1, 5000))}", f"rollout.samples={draw(st.integers(1, 16))}"]
    workload = presets.workload(shapes.table()[model], trainer, set_[: draw(st.integers(0, 2))])
    machine = machines.by_name(draw(st.sampled_from(NAMES)))
    if not machine.device_count:
        assume(workload.engine is None)
        workload = replace(workload, device="cpu")
    return workload, machine if workload.ray else machine.without_ray()


def planned(model: str, machine: str) -> Planned:
    return examine(presets.workload(shapes.table()[model], "headway"), machines.by_name(machine).without_ray())


@settings(max_examples=25, deadline=None)
@given(cases())
def test_a_document_is_itself_again_and_holds_the_ledger(case: tuple[Workload, Machine]) -> None:
    found = examine(*case)
    written = document(found, "some trainer")
    again = json.loads(json.dumps(written))
    assert again == written
    assert ledger_of(again).lines == found.ledger.lines
    assert all(
        ledger_of(again).first_step[line.phase] == found.ledger.first_step[line.phase] for line in found.ledger.lines
    )


@settings(max_examples=25, deadline=None)
@given(cases())
def test_the_numbers_of_a_document_agree_with_each_other(case: tuple[Workload, Machine]) -> None:
    found = document(examine(*case), "some trainer")
    for pool in found["pools"]:
        phases, worst = pool["phases"], pool["worst"]
        for name, phase in phases.items():
            lines = ledger_of(found).select(pool["pool"], Phase(name))
            assert phase["expected_bytes"] == sum(line.bytes for line in lines)
            assert phase["expected_bytes"] <= phase["upper_bytes"] <= sum(line.upper for line in lines)
        assert pool["highest"]["expected_bytes"] == max(phase["expected_bytes"] for phase in phases.values())
        over = bool(pool["limits"]) and pool["highest"]["expected_bytes"] > pool["limits"][0]["bytes"]
        assert (pool["verdict"] == "does not fit") == over
        assert over or pool["verdict"] == "tight" or pool["highest"]["expected_bytes"] == pool["expected_bytes"]
        assert pool["verdict"] != "tight" or phases[worst["phase"]]["upper_bytes"] == pool["upper_bytes"]
        assert pool["upper_bytes"] == max(phase["upper_bytes"] for phase in phases.values())
        assert phases[worst["phase"]]["expected_bytes"] == pool["expected_bytes"]
        assert phases[worst["phase"]]["step"] == worst["step"]
        sizes = [limit["bytes"] for limit in pool["limits"]]
        assert sizes == sorted(sizes)
        assert pool["margin_bytes"] == (sizes[0] - pool["upper_bytes"] if sizes else None)
        assert (pool["verdict"] == "cannot tell") == (not sizes)
    for remedy in found["remedies"]:
        before, after = remedy["before"], remedy["after"]
        assert after["expected_bytes"] <= before["expected_bytes"]
        assert after != before


def test_what_fits_surely_has_nothing_to_change_and_what_does_not_has() -> None:
    fits, over = document(planned("qwen3-0.6b", "gb10"), ""), document(planned("qwen3-8b", "rtx4090"), "")
    assert (fits["verdict"], fits["remedies"], fits["without_effect"]) == ("fits", [], [])
    assert over["verdict"] == "does not fit"
    assert any(remedy["verdict"] == "fits" for remedy in over["remedies"])
    assert over["without_effect"]


def test_a_pool_without_a_limit_says_so() -> None:
    host = next(pool for pool in document(planned("qwen3-0.6b", "rtx4090"), "")["pools"] if pool["kind"] == "host")
    assert (host["verdict"], host["limits"], host["margin_bytes"]) == ("cannot tell", [], None)


@pytest.mark.parametrize("key", ["verdict", "machine", "model", "trainer", "pools", "lines", "remedies", "unknown"])
def test_the_documented_keys_are_there(key: str) -> None:
    assert key in document(planned("qwen3-0.6b", "gb10"), "")
