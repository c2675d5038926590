"""Presets of known trainers: what they assume is said, what contradicts is refused."""

from pathlib import Path

import pytest

from headway.cli.inputs import read_case
from headway.errors import InputError
from headway.facts.shapes import ModelShape, by_name
from headway.facts.workload import Workload
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
        ("slime", ["layout.tensor=3"], "tensor = 3: does not divide the run's 8 devices; set one of 1, 2, 4, 8$"),
        ("slime", ["layout.tensor=16"], "cannot hold"),
        ("peft", ["trainer.lora.rank=2561"], "above the model's width of 2560"),
        ("peft", ["rollout.max_answer=4k"], "whole number, written out: 4096"),
        ("peft", ["rollout.max_answer=1e4"], "whole number, written out: 10000"),
        ("peft", ["rollout.max_answer=long"], "whole number$"),
    ],
)
def test_contradictions_are_refused(name: str, settings: list[str], told: str) -> None:
    with pytest.raises(InputError, match=told):
        workload(shape(), name, settings)


def test_an_unknown_trainer_gets_the_nearest_names() -> None:
    with pytest.raises(InputError, match="miles-fsdp"):
        workload(shape(), "miles")


# -- large models -----------------------------------------------------------------------------------------


def planned(name: str, trainer: str, machine: str, *settings: str) -> Workload:
    return read_case([name], trainer, machine, settings).workload


@pytest.mark.parametrize(("name", "machine", "ranks"), [
    ("qwen3-32B", "8xh100-80", 8), ("qwen3-32B", "4xh100-80", 4), ("llama3.3-70B-Instruct", "2x8xh100-80", 8),
])  # fmt: skip
def test_slime_starts_large_models_as_its_own_scripts_do(name: str, machine: str, ranks: int) -> None:
    run = planned(name, "slime", machine)
    assert run.engine is not None
    assert (run.layout.tensor, run.engine.tensor_parallel, run.trainer.optimizer.offload) == (ranks, ranks, 1.0)
    said = [text for text in run.unknown if text.startswith(("layout.tensor = ", "trainer.optimizer.offload = "))]
    assert [text for text in said if "run-qwen3-32B.sh" in text]
    assert f"layout.tensor = {ranks}" in " ".join(said)


def test_experts_are_divided_and_what_is_said_stays() -> None:
    moe = planned("qwen3-30B-A3B", "slime", "8xh100-80").layout
    assert (moe.tensor, moe.expert_parallel, moe.expert_tensor) == (4, 8, 1)
    told = planned("qwen3-32B", "slime", "8xh100-80", "layout.tensor=2", "layout.devices=8")
    assert told.layout.tensor == 2
    assert told.trainer.optimizer.offload == 1.0


def test_verl_offloads_large_models_and_gives_an_engine_more_devices() -> None:
    for trainer in ("verl", "verl-megatron"):
        run = planned("qwen2.5-32B", trainer, "8xh100-80")
        assert run.engine is not None
        assert (run.trainer.offload, run.engine.tensor_parallel) == ("parameters+optimizer", 4)
    assert planned("qwen2.5-32B", "verl-megatron", "8xh100-80").layout.tensor == 8
    larger = planned("qwen2.5-72B", "verl", "8xh100-80").engine
    assert larger is not None
    assert larger.tensor_parallel == 8


@pytest.mark.parametrize(("name", "trainer"), [
    ("qwen3-14B", "slime"), ("qwen3-14B", "verl"), ("qwen3-32B", "miles-fsdp"), ("qwen3-32B", "trl"),
])  # fmt: skip
def test_smaller_models_and_other_trainers_stay_as_their_presets(name: str, trainer: str) -> None:
    run, base = planned(name, trainer, "8xh100-80"), workload(shape(name), presets.by_name(trainer).name)
    assert run.trainer == base.trainer
    assert run.layout.tensor == 1
    assert run.engine == base.engine


def test_a_script_says_itself_how_it_divides(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("python3 train.py --hf-checkpoint /m/Qwen3-32B --actor-num-gpus-per-node 8 --colocate\n")
    run = read_case([str(script)], None, "8xh100-80", [], model="qwen3-32B").workload
    assert (run.layout.tensor, run.trainer.optimizer.offload) == (1, 0.0)


def test_a_trainer_of_whole_nodes_takes_what_the_machine_has() -> None:
    assert planned("qwen3-4B", "slime", "4xh100-80").layout.devices == 4
    one = planned("qwen3-4B", "verl", "rtx4090")
    assert one.engine is not None
    assert (one.layout.devices, one.engine.tensor_parallel) == (1, 1)


def test_an_engine_that_trl_is_given_has_trls_defaults_which_are_assumed() -> None:
    run = workload(shape(), "trl", ["engine.system=vllm"])
    engine = run.engine
    assert engine is not None
    assert (engine.memory_fraction, engine.releases) == (0.3, "nothing")
    assert any(text.startswith("engine.memory_fraction = 0.3") for text in run.unknown)
    told = workload(
        shape(), "trl", ["engine.system=vllm", "engine.memory_fraction=0.5", "engine.releases=weights+kv"]
    )
    assert not any(text.startswith("engine.") for text in told.unknown)
    # a system that has an engine keeps its own
    assert workload(shape(), "slime", ["engine.tensor_parallel=2"]).engine.memory_fraction == 0.7  # type: ignore[union-attr]
