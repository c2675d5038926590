"""How each trainer writes a change, and which it refuses."""

import re
from string import Formatter
from typing import get_args

import pytest

from headway.config.keys import show
from headway.config.sections import RunSpec
from headway.foreign.presets import PRESETS
from headway.foreign.spelling import SPELLINGS, Counts, SpellKey, accepts, runspec, spell

KEYS = set(get_args(SpellKey))
KNOWN = {"value", "before", "mib", *Counts.__struct_fields__}


@pytest.mark.parametrize("system", SPELLINGS)
def test_a_table_spells_keys_of_a_workload_with_known_fields(system: str) -> None:
    for key, text in SPELLINGS[system].items():
        assert key.partition("=")[0].partition(":")[0] in KEYS
        assert {name for _, name, _, _ in Formatter().parse(text) if name} <= KNOWN


def test_every_preset_s_trainer_has_a_table() -> None:
    from headway.facts.shapes import table

    systems = {preset.build(table()["qwen3-0.6b"]).trainer.system for preset in PRESETS.values()}
    assert systems <= set(SPELLINGS)


@pytest.mark.parametrize(
    ("system", "key", "value", "text"),
    [
        ("headway", "rollout.kv_budget", 512 << 20, 'rollout.kv_budget = "512MiB"'),
        ("headway", "trainer.param_dtype", "bf16", 'model.dtype = "bf16"'),
        ("slime", "rollout.max_answer", 256, "--rollout-max-response-len 256"),
        ("miles-fsdp", "trainer.param_dtype", "bf16", "--no-keep-fp32-master"),
        ("trl", "rollout.prompts", 2, "--generation_batch_size 16"),
        ("verl", "trainer.cap", 8192, "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=8192"),
        ("hf", "trainer.optimizer.state_dtype", "int8", "--optim adamw_bnb_8bit"),
        ("litgpt", "trainer.quant", "nf4", "litgpt finetune_lora --quantize bnb.nf4"),
    ],
)
def test_a_change_is_written_as_the_system_writes_it(system: str, key: SpellKey, value: int | str, text: str) -> None:
    assert spell(system, key, value, beside=Counts(answers=16)) == text


@pytest.mark.parametrize(
    ("system", "key", "value"),
    [
        ("miles-fsdp", "trainer.lora", 16), ("miles-fsdp", "trainer.optimizer.state_dtype", "int8"),
        ("slime", "trainer.lora", 16), ("hf", "trainer.optimizer.state_dtype", "bf16"),
        ("headway", "trainer.optimizer.state_dtype", "int8"), ("headway", "layout.devices", 2),
        ("litgpt", "trainer.checkpointing", True), ("nobody", "rollout.prompts", 1),
    ],
)  # fmt: skip
def test_what_a_system_does_not_take_is_not_written(system: str, key: SpellKey, value: int | str) -> None:
    assert spell(system, key, value) is None
    assert not accepts(system, key, value)


def test_headway_s_text_and_its_keys_are_the_same_keys() -> None:
    sections = {name: field.annotation for name, field in RunSpec.model_fields.items()}
    for key, text in SPELLINGS["headway"].items():
        found = runspec(key, 512 << 20)  # type: ignore[arg-type]
        if key == "model":
            assert found == {}
            continue
        ((name, value),) = found.items()
        section, _, field = name.partition(".")
        if key == "trainer.lora":
            assert text.startswith(f"[{section}] {field} = ")
            continue
        assert text.startswith(f"{name} = ")
        assert field in sections[section].model_fields
        if "{" not in text:
            assert re.fullmatch(rf"{name} = {show(value)}|{name} = 0", text)


@pytest.mark.parametrize(("system", "key", "value", "zero", "text"), [
    ("trl-sft", "trainer.offload_parameters", True, False, "accelerate launch --use_fsdp --fsdp_offload_params true"),
    ("trl", "trainer.optimizer.offload", 1.0, True, "offload_optimizer_device: cpu in the DeepSpeed configuration"),
    ("trl-sft", "trainer.optimizer.offload", 1.0, False, None),
    ("trl", "layout.devices", 4, True, "accelerate launch --num_processes 4"),
    ("trl-script", "gathers", "nothing", True, "zero3_save_16bit_model: false in the DeepSpeed configuration"),
])  # fmt: skip
def test_under_deepspeed_changes_are_those_of_its_configuration(system, key, value, zero, text) -> None:
    assert spell(system, key, value, beside=Counts(zero=zero)) == text
    assert accepts(system, key, value, Counts(zero=zero)) == (text is not None)
