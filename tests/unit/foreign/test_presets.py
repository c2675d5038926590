"""Presets of known trainers: what they assume is said, what contradicts is refused."""

import pytest

from headway.errors import InputError
from headway.facts.shapes import ModelShape, by_name
from headway.foreign import presets
from headway.foreign.presets import PRESETS, value, workload


def shape(name: str = "qwen3-4B") -> ModelShape:
    found = by_name(name)
    assert found is not None
    return found


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_says_what_it_assumes_until_it_is_told(name: str) -> None:
    run = workload(shape(), name)
    assumed = {text.partition(" = ")[0] for text in run.unknown}
    grows = {presets.GROWTH} if run.ray else set()
    assert assumed == set(PRESETS[name].assumes) | grows
    told = workload(shape(), name, [f"{key}={value(run, key)}" for key in PRESETS[name].assumes])
    assert set(told.unknown) == grows


def test_ranks_of_a_sharded_trainer_divide_the_state() -> None:
    assert workload(shape(), "miles-fsdp", ["layout.devices=8"]).layout.shards == 8
    assert workload(shape(), "miles-fsdp", ["layout.devices=8", "layout.shards=4"]).layout.shards == 4
    assert workload(shape(), "trl", ["layout.devices=8"]).layout.shards == 1


def test_headways_cap_follows_the_longest_sample() -> None:
    run = workload(shape(), "headway", ["rollout.max_prompt=100", "rollout.max_answer=200"])
    assert run.trainer.cap == 300
    assert workload(shape(), "headway", ["trainer.cap=4096"]).trainer.cap == 4096


@pytest.mark.parametrize(
    ("name", "settings", "told"),
    [
        ("miles-fsdp", ["layout.shards=8"], "layout"),
        ("trl", ["trainer.reference=adapter-off"], "needs trainer.lora"),
        ("miles-fsdp", ["engine.memory_fraction=1.5"], "at most 1"),
        ("hf", ["trainer.quant.kind=nf4"], "needs trainer.lora"),
        ("headway", ["trainer.param_dtype=fp16"], "fp32 or bf16"),
        ("hf", ["trainer.rows=0"], "both 0"),
        ("headway", ["trainer.logprob_chunk=0"], "logprob_chunk = 0"),
    ],
)
def test_contradictions_are_refused(name: str, settings: list[str], told: str) -> None:
    with pytest.raises(InputError, match=told):
        workload(shape(), name, settings)


def test_an_unknown_trainer_gets_the_nearest_names() -> None:
    with pytest.raises(InputError, match="miles-fsdp"):
        workload(shape(), "miles")
