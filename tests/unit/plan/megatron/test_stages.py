"""Layers of pipeline stages, and micro-batches in flight against the schedules themselves."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from headway.errors import InputError
from headway.facts.blocks import Block
from headway.facts.workload import Layout, Megatron
from headway.plan.megatron.stages import Stage, in_flight, stages

from .runs import LLAMA, MOE


@given(layers=st.integers(1, 96), count=st.integers(1, 8), parts=st.integers(1, 4))
def test_stages_hold_every_layer_once(layers: int, count: int, parts: int) -> None:
    if count * parts > layers:
        return
    found = stages(replace(LLAMA, layers=layers), Layout(pipeline=count, virtual_pipeline=parts), Megatron())
    assert sum(stage.layers for stage in found) == layers
    assert [stage.embedding for stage in found] == [True] + [False] * (count - 1)
    assert [stage.head for stage in found] == [False] * (count - 1) + [True]


def test_uneven_ends_and_counted_embedding() -> None:
    uneven = stages(
        replace(LLAMA, layers=61), Layout(pipeline=8, first_stage_layers=7, last_stage_layers=6), Megatron()
    )
    assert [stage.layers for stage in uneven] == [7, 8, 8, 8, 8, 8, 8, 6]
    counted = stages(
        replace(LLAMA, layers=6), Layout(pipeline=4, virtual_pipeline=2),
        Megatron(count_embedding=True, count_loss=True),
    )  # fmt: skip
    # of eight parts the first is the embedding alone and the last the loss alone
    assert [stage.layers for stage in counted] == [1, 2, 2, 1]


def test_dense_layers_come_first() -> None:
    found = stages(replace(MOE, layers=8, dense_layers=2), Layout(pipeline=4), Megatron())
    assert [dict(stage.groups) for stage in found] == [
        {Block("full", experts=False): 2}, *[{Block("full", experts=True): 2}] * 3
    ]  # fmt: skip


def test_more_parts_than_layers_says_what_to_set() -> None:
    with pytest.raises(InputError, match="virtual_pipeline=4 makes 16 parts of 8 layers"):
        stages(LLAMA, Layout(pipeline=4, virtual_pipeline=4), Megatron())
    with pytest.raises(InputError, match="first_stage_layers"):
        stages(LLAMA, Layout(pipeline=2, first_stage_layers=6, last_stage_layers=6), Megatron())


def scheduled(count: int, index: int, parts: int, micro_batches: int) -> tuple[int, Counter[int]]:
    """The most passes whose backward pass is to come, and which parts they are of, by running the schedule."""

    def part(number: int, *, backward: bool) -> int:
        place = number % (count * parts) // count
        return parts - 1 - place if backward else place

    total = micro_batches * parts
    warm = count - index - 1 if parts == 1 else 2 * (count - index - 1) + (parts - 1) * count
    order = [("f", number) for number in range(min(warm, total))]
    for number in range(max(0, total - warm)):
        order += [("f", warm + number), ("b", number)]
    held: Counter[int] = Counter()
    most, which = 0, Counter[int]()
    for kind, number in order:
        held[part(number, backward=kind == "b")] += 1 if kind == "f" else -1
        if held.total() > most:
            most, which = held.total(), held.copy()
    return most, which


@given(count=st.integers(1, 8), place=st.integers(0, 7), parts=st.integers(1, 4), groups=st.integers(1, 4))
def test_in_flight_is_what_the_schedule_holds(count: int, place: int, parts: int, groups: int) -> None:
    index = place % count
    if parts > 1 and count == 1:
        return
    chunk = ((Block("full", experts=False), 1),)
    stage = Stage(index, count, (chunk,) * parts, embedding=index == 0, head=index == count - 1)
    most, which = scheduled(count, index, parts, groups * count)
    found = in_flight(stage, groups * count)
    assert sum(found) == most
    assert found == tuple(which[part] for part in range(parts))


def test_interleaving_costs_what_its_formula_says() -> None:
    count, parts = 4, 3
    chunk = ((Block("full", experts=False), 2),)
    plain = in_flight(Stage(0, count, (chunk * parts,), embedding=True, head=False), 64)
    woven = in_flight(Stage(0, count, (chunk,) * parts, embedding=True, head=False), 64)
    assert sum(woven) / parts == pytest.approx(plain[0] * (1 + (count - 1) / (count * parts)))
