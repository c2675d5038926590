"""Buffers of captured graphs, and the cache of a trainer that generates by itself."""

from typing import Any

import pytest

from headway.plan.item import Item
from headway.plan.ledger import Phase
from headway.plan.megatron.phases import stages_of, tensors
from headway.units import GIB

from .runs import LLAMA, run

STREAM = 2048 * LLAMA.hidden * 2
PIPED = {"devices": 2, "pipeline": 2}


def item(name: str, phase: Phase = Phase.STEP, stage: int = 0, **changes: Any) -> Item | None:
    """The item of that name on a stage, where it is there."""
    planned = run(**changes)
    found = tensors(planned, stages_of(planned)[stage], phase)
    return next((each for each in found if each.item == name), None)


@pytest.mark.parametrize("phase", [Phase.TRAIN, Phase.STEP])
def test_an_older_transformer_engine_has_four_buffers_for_each_layer_and_micro_batch(phase: Phase) -> None:
    found = item("captured graphs", phase, graphs="transformer_engine", te_version="2.1", accumulated=4)
    assert found is not None
    assert found.bytes == found.upper == 4 * 8 * 4 * STREAM


def test_later_ones_share_them_between_micro_batches() -> None:
    """Of eight micro-batches the first of two stages has two in flight, the last one has one."""
    for stage, flying in ((0, 2), (1, 1)):
        found = item("captured graphs", stage=stage, graphs="transformer_engine", **PIPED)
        assert found is not None
        assert (found.bytes, found.upper) == (2 * 4 * flying * STREAM, 4 * 4 * flying * STREAM)


def test_graphs_of_megatron_core_write_where_the_next_layer_reads() -> None:
    found = item("captured graphs", graphs="local", **PIPED)
    assert found is not None
    assert (found.bytes, found.upper) == (0, 4 * 4 * 2 * STREAM)


def test_tensor_ranks_divide_the_buffers() -> None:
    whole, half = (
        item("captured graphs", graphs="transformer_engine", **layout) for layout in ({}, {"devices": 2, "tensor": 2})
    )
    assert whole is not None
    assert half is not None
    assert whole.bytes == 2 * half.bytes


def test_a_trainer_that_generates_has_a_cache_from_the_start() -> None:
    found = item("inference cache", inference_cache=40 * GIB)
    assert found is not None
    assert 40 * GIB < found.bytes < found.upper < 50 * GIB


@pytest.mark.parametrize("name", ["captured graphs", "inference cache"])
def test_a_plain_run_has_neither(name: str) -> None:
    assert item(name) is None
    assert item(name, Phase.TRAIN) is None
