"""Adapters on a frozen base, through peft."""

import warnings
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors import safe_open
from transformers import PreTrainedModel

from headway.config.adapter import WEIGHTS, target_modules
from headway.config.sections import LoraSection
from headway.errors import InputError


def lora_config(section: LoraSection, family: str) -> LoraConfig:
    """peft's config of the adapters that a [lora] section describes."""
    return LoraConfig(
        r=section.rank,
        lora_alpha=section.alpha,
        lora_dropout=0.0,
        bias="none",
        target_modules=list(target_modules(family, section.targets)),
        task_type="CAUSAL_LM",
    )


def add_adapters(model: PreTrainedModel, section: LoraSection, seed: int) -> PeftModel:
    """Freeze the model and put fp32 adapters into it, in place; only they require gradients.

    A is random from the seed and B zero, so that the model computes what it did. Global random state is left alone.
    """
    config = lora_config(section, model.config.model_type)
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


def fill_adapters(model: PeftModel, folder: Path) -> None:
    """Copy an adapter's weights into the live adapters, which go on training from there, one tensor at a time.

    InputError where the folder's are others than the model's.
    """
    live = {saved_name(name): value for name, value in model.named_parameters() if value.requires_grad}
    with safe_open(folder / WEIGHTS, framework="pt") as saved, torch.no_grad():
        odd = sorted(set(saved.keys()) ^ set(live))
        if odd:
            raise InputError(f"{folder / WEIGHTS} is of another model (for example {', '.join(odd[:3])})")
        for name, parameter in live.items():
            tensor = saved.get_tensor(name)
            if tensor.shape != parameter.shape:
                raise InputError(
                    f"{folder / WEIGHTS}: {name} is {tuple(tensor.shape)}, the model has {tuple(parameter.shape)}"
                )
            parameter.copy_(tensor)


def saved_name(name: str) -> str:
    """What a live adapter's parameter is called in a file that peft reads.

    >>> saved_name("base_model.model.model.layers.0.mlp.up_proj.lora_A.default.weight")
    'base_model.model.model.layers.0.mlp.up_proj.lora_A.weight'
    """
    return name.replace(".default.weight", ".weight")


def merged(model: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """The model with an adapter of any kind that peft reads added to its weights, in place and in their dtype."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning, module="peft")
        return merge(PeftModel.from_pretrained(model, folder, autocast_adapter_dtype=True)).requires_grad_(True)


def merge(model: PeftModel) -> PreTrainedModel:
    """Add the adapters to the base weights, in place and in their dtype, and return the base: for export only."""
    return model.merge_and_unload()
