"""Which models train on a machine: the table, the longest answers, the rule of thumb beside it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from headway.errors import InputError
from headway.facts import machines
from headway.facts.machine import Limit, Machine, Pool
from headway.facts.shapes import TRAINED, ModelShape, table
from headway.facts.workload import Workload
from headway.plan import kvcache
from headway.plan.plan import plan
from headway.plan.size import (
    GRAIN,
    LONGEST,
    OTHERS,
    OWN,
    Recipe,
    Row,
    Rule,
    alike,
    in_both_units,
    largest,
    memory,
    size,
    standard,
    trainable,
)
from headway.plan.verdict import excess, with_lengths
from headway.units import format_bytes

SMALL = [table()[name] for name in ("smollm2-135m", "qwen3-0.6b", "qwen3-1.7b", "qwen3-4b")]
GB10 = machines.by_name("gb10")
L4 = machines.by_name("l4")


def cpu(gib: int) -> Machine:
    limit = Limit("memory", gib << 30, "the kernel kills a process", "a test")
    return Machine("a", (Pool("node[0].host", "host", gib << 30, (limit,)),), 4)


@pytest.fixture(scope="module")
def rows() -> tuple[Row, ...]:
    return size(L4, SMALL)


def test_each_row_is_the_plan_of_its_recipe_s_standard_run(rows: tuple[Row, ...]) -> None:
    shapes = {shape.name: shape for shape in SMALL}
    for row in rows:
        ledger = plan(standard(row.recipe, shapes[row.model], L4), L4)
        assert row.pool == "node[0].device[0]"
        assert (row.expected, row.upper) == (ledger.peak(row.pool).bytes, ledger.upper(row.pool))
        assert row.limit is not None
        inside = (row.upper <= row.limit.bytes, row.expected <= row.limit.bytes)
        assert row.kind == {(True, True): "fits", (False, True): "tight", (False, False): "does not fit"}[inside]


def test_the_longest_answer_is_the_last_that_surely_fits(rows: tuple[Row, ...]) -> None:
    shapes = {shape.name: shape for shape in SMALL}
    ends = set()
    for row in rows:
        run = standard(row.recipe, shapes[row.model], L4)
        ends.add((row.longest_answer > 0, row.longest_answer < LONGEST))
        for answer in (row.longest_answer, row.longest_answer + GRAIN):
            if 0 < answer <= LONGEST:
                over = excess(with_lengths(run, max_answer=answer), L4)
                assert over is not None
                beyond = 0 < run.model.context < run.rollout.max_prompt + answer
                assert (over <= 0 and not beyond) == (answer == row.longest_answer)
    assert len(ends) > 1


def test_the_samples_in_flight_fill_the_kv_budget_but_for_less_than_one(rows: tuple[Row, ...]) -> None:
    shapes = {shape.name: shape for shape in SMALL}
    for row in rows:
        assert row.in_flight is not None
        if not row.longest_answer:
            assert row.in_flight == 0
            continue
        run = with_lengths(standard(row.recipe, shapes[row.model], L4), max_answer=row.longest_answer)
        one = kvcache.token_bytes(run) * run.rollout.longest
        answers = run.rollout.prompts * run.rollout.samples
        assert row.in_flight == min(answers, max(1, run.rollout.kv_budget // one))


def test_adapters_let_a_larger_model_train_than_all_parameters() -> None:
    found = largest(size(cpu(16), SMALL))
    names = {recipe: row and row.model for recipe, row in found.items()}
    assert list(names) == [recipe.name for recipe in OWN]
    parameters = {recipe: row.parameters if row else 0 for recipe, row in found.items()}
    assert parameters["LoRA r16"] > parameters["full"] > 0
    assert parameters["LoRA r16"] >= parameters["LoRA r16, fp32"]


def test_where_nothing_fits_there_is_no_largest() -> None:
    found = size(cpu(1), SMALL)
    assert largest(found) == dict.fromkeys((recipe.name for recipe in OWN), None)
    assert [row.model for row in found if row.recipe is OWN[0]] == ["smollm2-135M"]


def test_larger_models_than_one_that_does_not_fit_at_all_are_left_out(rows: tuple[Row, ...]) -> None:
    full = [row for row in rows if row.recipe.name == "full"]
    assert [row.model for row in full] == ["smollm2-135M", "qwen3-0.6B", "qwen3-1.7B"]
    assert (full[-1].kind, full[-1].longest_answer) == ("does not fit", 0)
    assert [row.model for row in rows if row.recipe.name == "LoRA r16"] == [shape.name for shape in SMALL]


def test_other_trainers_have_recipes_under_their_names() -> None:
    assert {recipe.trainer_system for recipe in OWN} == {"headway"}
    found = size(GB10, [table()["qwen3-1.7b"]], OTHERS)
    assert [row.recipe.trainer_system for row in found] == ["miles-fsdp", "trl", "peft"]
    for row in found:
        assert standard(row.recipe, table()["qwen3-1.7b"], GB10).trainer.system == row.recipe.trainer_system


def test_a_model_that_the_engine_s_share_does_not_hold_does_not_fit() -> None:
    """0.4 of 22 GiB is less than the 15 GiB of 8B's weights, so that no answer has a place, however short."""
    (large,) = size(L4, [table()["qwen3-8b"]], OTHERS[:1])
    assert (large.kind, large.longest_answer, large.in_flight) == ("does not fit", 0, 0)


def test_an_engine_s_pool_bounds_the_longest_answer() -> None:
    (row,) = size(machines.by_name("h100-80"), [table()["qwen3-1.7b"]], [Recipe("short of KV", "miles-fsdp", _short)])
    assert 0 < row.longest_answer < LONGEST
    assert row.in_flight == 1


def _short(shape: ModelShape) -> Workload:
    """Little more than its weights for the engine."""
    run = OTHERS[0].build(shape)
    assert run.engine is not None
    return replace(run, engine=replace(run.engine, memory_fraction=0.085))


def test_the_run_goes_where_the_machine_computes() -> None:
    assert standard(OWN[0], SMALL[0], GB10).device == "cuda"
    assert standard(OWN[0], SMALL[0], cpu(16)).device == "cpu"
    assert standard(OWN[0], SMALL[0], cpu(16)).rollout.kv_budget == 1 << 30


def test_headway_s_recipes_are_not_held_to_ray_s_limit() -> None:
    (own,) = size(GB10, SMALL[:1], OWN[:1])
    (miles,) = size(GB10, SMALL[:1], OTHERS[:1])
    assert own.limit is not None
    assert miles.limit is not None
    assert (own.limit.name, miles.limit.name) == ("memory", "Ray 0.95")


def test_trainable_models_are_published_ones_by_size_and_each_once() -> None:
    shapes = trainable()
    assert len(shapes) > 20
    assert [shape.parameters() for shape in shapes] == sorted(shape.parameters() for shape in shapes)
    assert {shape.family for shape in shapes} <= set(TRAINED)
    assert not [shape.name for shape in shapes if shape.name.startswith(("tiny-", "small-"))]
    listed = {shape.name for shape in shapes}
    covered = listed | {name for shape in shapes for name in alike(shape)}
    published = {
        s.name for s in table().values() if s.family in TRAINED and not s.name.startswith(("tiny-", "small-"))
    }
    assert covered == published
    for shape in shapes:
        assert not listed & set(alike(shape))
        for name in alike(shape):
            assert table()[name.lower()].parameters() == pytest.approx(shape.parameters(), rel=0.01)


def test_the_memory_of_a_machine_is_where_the_tensors_are() -> None:
    assert memory(GB10) == 130_661_023_744
    assert memory(machines.by_name("8xh100-80")) == machines.by_name("h100-80").pools[-1].total_bytes
    assert memory(cpu(16)) == 16 << 30
    with pytest.raises(InputError, match="how much memory"):
        memory(Machine("unknown", (), 0))


def test_the_rule_of_thumb_of_a_4b_model_on_128_gb() -> None:
    """Decimal GB, as a model's card has them: 4.02e9 parameters x 16 = 64.4 GB, which is 59.9 GiB."""
    rule = Rule(table()["qwen3-4b"].parameters(), memory(GB10))
    assert rule.bytes == 16 * 4_022_468_096
    assert in_both_units(rule.bytes) == "64.4 GB (59.9 GiB)"
    assert in_both_units(Rule(table()["qwen3-1.7b"].parameters(), memory(GB10)).bytes) == "27.5 GB (25.6 GiB)"
    assert rule.fits
    assert not Rule(table()["qwen3-8b"].parameters(), memory(GB10)).fits


@given(st.integers(0, 10**15))
def test_decimal_and_binary_units_are_not_mixed(count: int) -> None:
    decimal, binary = in_both_units(count).removesuffix(" GiB)").replace(",", "").split(" GB (")
    assert float(decimal) == pytest.approx(count / 1e9, abs=0.051)
    assert float(binary) == pytest.approx(count / 2**30, abs=0.051)
    if count >= 1 << 30:
        assert format_bytes(count, digits=1) == f"{binary} GiB"
