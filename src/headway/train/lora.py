"""Adapters on a frozen base, through peft."""

import warnings
from contextlib import AbstractContextManager
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import PreTrainedModel

from headway.config.sections import LoraSection

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
FUSED_EXPERTS = ("qwen3_moe",)
"""Families whose experts are one 3-D parameter. peft adapts those only by building the whole updated tensor in every
forward pass, which costs more memory than training it, so adapters go on the attention alone."""


def target_modules(family: str, targets: str) -> tuple[str, ...]:
    """Names of the linear layers that carry an adapter; they match `ModelShape.lora_linears`.

    >>> target_modules("qwen3_moe", "all-linear")
    ('q_proj', 'k_proj', 'v_proj', 'o_proj')
    """
    return ATTENTION if targets == "attention" or family in FUSED_EXPERTS else ATTENTION + MLP


def add_adapters(model: PreTrainedModel, section: LoraSection, seed: int) -> PeftModel:
    """Freeze the model and put fp32 adapters into it, in place; only they require gradients.

    A is random from the seed and B zero, so that the model computes what it did. Global random state is left alone.
    """
    config = LoraConfig(
        r=section.rank,
        lora_alpha=section.alpha,
        lora_dropout=0.0,
        bias="none",
        target_modules=list(target_modules(model.config.model_type, section.targets)),
        task_type="CAUSAL_LM",
    )
    # peft creates the layers on the CPU and moves them, so that every device gets the same numbers
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        torch.manual_seed(seed)
        # peft 0.21 asks transformers 5.24 for it by its former name
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated", category=FutureWarning)
        adapted: Any = get_peft_model(model, config, autocast_adapter_dtype=True)
    return adapted


def adapter_off(model: PeftModel) -> AbstractContextManager[None]:
    """The base model's own results inside the context: the reference model of a LoRA run."""
    return model.disable_adapter()


def merge(model: PeftModel) -> PreTrainedModel:
    """Add the adapters to the base weights, in place and in their dtype, and return the base: for export only."""
    return model.merge_and_unload()
