"""Adapters: where they are, what they change, and that nothing else moves."""

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from headway.config.sections import LoraSection, ModelSection
from headway.config.source import resolve
from headway.facts.shapes import by_name
from headway.train.lora import adapter_off, add_adapters, merge
from headway.train.model import backbone, head_weight, load, reference_of, save_model, set_checkpointing

SHAPES = ("tiny-llama", "tiny-qwen2", "tiny-qwen3", "tiny-qwen3-moe", "tiny-gemma")
IDS = torch.randint(0, 256, (2, 11), generator=torch.Generator().manual_seed(0))


def loaded(name, dtype="fp32"):
    section = ModelSection(path=name, init="random", dtype=dtype)
    return load(resolve(section), section, torch.device("cpu"), seed=1)


def adapted(name, dtype="fp32", **lora):
    return add_adapters(loaded(name, dtype).model, LoraSection(**lora), seed=2)


def move_adapters(model):
    """Give B values of its own, as training would, so that the adapters matter."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "lora_B" in name:
                value.copy_(torch.randn(value.shape, generator=generator) * 0.1)


def logprobs(model):
    hidden = backbone(model)(input_ids=IDS, use_cache=False).last_hidden_state
    return torch.log_softmax(hidden @ head_weight(model).T, dim=-1)


@pytest.mark.parametrize("targets", ["all-linear", "attention"])
@pytest.mark.parametrize("name", SHAPES)
def test_parameters_are_those_of_the_shape(name, targets):
    model = adapted(name, rank=3, targets=targets)
    trained = sum(value.numel() for value in model.parameters() if value.requires_grad)
    assert trained == by_name(name).lora_parameters(3, targets)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_adapters_are_fp32_on_a_frozen_base(dtype):
    model = adapted("tiny-llama", dtype)
    base = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
    for name, value in model.named_parameters():
        assert value.requires_grad == ("lora_" in name)
        assert value.dtype == (torch.float32 if "lora_" in name else base)


def test_the_seed_decides_the_adapters_and_global_randomness_is_left_alone():
    before = torch.get_rng_state()
    first, same = adapted("tiny-llama"), adapted("tiny-llama")
    other = add_adapters(loaded("tiny-llama").model, LoraSection(), seed=9)
    assert torch.equal(torch.get_rng_state(), before)
    pairs = list(zip(first.named_parameters(), same.named_parameters(), other.named_parameters(), strict=True))
    assert all(torch.equal(a, b) for (_, a), (_, b), _ in pairs)
    assert all(torch.equal(a, c) != ("lora_A" in name) for (name, a), _, (_, c) in pairs)


@pytest.mark.parametrize("name", SHAPES)
def test_off_is_the_base_and_on_again_is_the_adapter(name):
    plain = logprobs(loaded(name).model)
    model = adapted(name)
    assert torch.equal(logprobs(model), plain)
    move_adapters(model)
    changed = logprobs(model)
    assert (changed - plain).abs().max() > 1e-3
    with adapter_off(model):
        assert torch.equal(logprobs(model), plain)
    assert torch.equal(logprobs(model), changed)
    assert all(value.requires_grad == ("lora_" in key) for key, value in model.named_parameters())


@pytest.mark.parametrize("name", SHAPES)
def test_merged_equals_unmerged(name):
    model = adapted(name).double()
    model.get_base_model().set_experts_implementation("eager")  # torch has no grouped product in fp64
    move_adapters(model)
    unmerged = logprobs(model)
    merged = merge(model)
    assert not any("lora_" in key for key, _ in merged.named_parameters())
    torch.testing.assert_close(logprobs(merged), unmerged, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", SHAPES)
def test_gradients_reach_every_adapter_through_checkpoints_and_a_frozen_base(name):
    grads = []
    for checkpointing in (False, True):
        model = adapted(name)
        move_adapters(model)
        set_checkpointing(model, checkpointing)
        logprobs(model)[:, :, 5].sum().backward()
        grads.append({key: value.grad for key, value in model.named_parameters() if value.requires_grad})
        assert all(value.grad is None for value in model.parameters() if not value.requires_grad)
    assert all(grad is not None and grad.abs().max() > 0 for grad in grads[1].values())
    for key, grad in grads[0].items():
        torch.testing.assert_close(grads[1][key], grad, msg=key)


def test_reference_is_the_adapter_off_or_the_copy():
    model, copy = adapted("tiny-llama"), loaded("tiny-llama").model
    plain = logprobs(model)
    move_adapters(model)
    with reference_of(model, None) as reference:
        assert torch.equal(logprobs(reference), plain)
    with reference_of(model, copy) as reference:
        assert reference is copy


# peft 0.21 asks transformers 5.24 by a former name
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_a_saved_adapter_holds_no_base_and_peft_loads_it_onto_its_base(tmp_path):
    base = loaded("tiny-qwen3")
    save_model(base.model, base.tokenizer, tmp_path / "base")
    section = ModelSection(path=str(tmp_path / "base"), dtype="fp32")
    model = add_adapters(load(resolve(section), section, torch.device("cpu"), 0).model, LoraSection(rank=4), seed=2)
    move_adapters(model)
    expected = logprobs(model)
    save_model(model, base.tokenizer, tmp_path / "final")
    assert {file.name for file in (tmp_path / "final").glob("*.safetensors")} == {"adapter_model.safetensors"}
    again = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float32), tmp_path / "final"
    )
    assert again.peft_config["default"].base_model_name_or_path == str(tmp_path / "base")
    assert torch.equal(logprobs(again), expected)
