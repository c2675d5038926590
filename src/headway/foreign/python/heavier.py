"""Of several values that a setting may have, the one with which a run takes the most memory."""

from collections.abc import Sequence
from typing import Any

from headway.facts import shapes
from headway.foreign.python.values import Missing

MORE = frozenset({
    "per_device_train_batch_size", "max_length", "max_seq_length", "max_prompt_length", "max_completion_length",
    "response_length", "max_new_tokens", "lora_r", "vllm_gpu_memory_utilization", "gpu_memory_utilization",
    "num_generations", "beta", "generation_batch_size", "vllm_max_model_length", "model_max_seq_length",
    "gradient_accumulation_steps", "num_iterations", "block_size",
})  # fmt: skip
"""Numbers of which the larger takes more."""
OFF = frozenset({
    "gradient_checkpointing", "load_in_4bit", "load_in_8bit", "use_peft", "use_liger_kernel", "use_liger_loss",
    "vllm_enable_sleep_mode", "bf16", "fp16", "tf32", "packing", "padding_free",
})  # fmt: skip
"""Switches that take more where they are off."""
ON = frozenset({"use_vllm", "fast_inference", "full_finetuning"})
DEFAULTS: dict[str, Any] = {
    "per_device_train_batch_size": 8, "max_length": 1024, "max_completion_length": 512, "num_generations": 8,
    "vllm_gpu_memory_utilization": 0.3, "beta": 0.0, "gradient_accumulation_steps": 1, "num_iterations": 1,
    "lora_r": 0, "gradient_checkpointing": True, "optim": "adamw_torch_fused", "dtype": "float32",
    "attn_implementation": "sdpa", "bf16": True,
}  # fmt: skip
"""What TRL takes where a setting is not given."""
WORDS = {
    "dtype": ("float16", "bfloat16", "auto", "float32"),
    "attn_implementation": ("flash", "sdpa", "eager"),
    "vllm_mode": ("server", "colocate"),
    "optim": ("adafactor", "paged", "4bit", "8bit", "sgd", "lion", "rmsprop", "adagrad", "adamw"),
}
"""Words of settings, those that take more behind those that take less."""


def heavier(name: str, values: Sequence[Any]) -> tuple[int, str] | None:
    """The place of the value that takes the most, and what to say of it; None where nobody can say.

    >>> heavier("per_device_train_batch_size", [4, 8]), heavier("load_in_4bit", [True, False])
    ((1, 'takes the most memory'), (1, 'takes the most memory'))
    >>> heavier("max_grad_norm", [0.1, 1.0]) is None
    True
    """
    ranks = [_rank(name, DEFAULTS.get(name) if isinstance(value, Missing) else value) for value in values]
    known = [rank for rank in ranks if rank is not None]
    if len(known) < len(ranks):
        return None
    most = max(known)
    return ranks.index(most), "takes the most memory" if len(set(known)) > 1 else ""


def _rank(name: str, value: Any) -> float | None:
    if name == "model_name_or_path":
        shape = shapes.by_name(value) if isinstance(value, str) else None
        return None if shape is None else float(shape.parameters())
    if name in OFF or name in ON:
        return float(bool(value) == (name in ON))
    if name in MORE:
        if value is None:
            return 0.0
        return float(value) if isinstance(value, int | float) else None
    if name in WORDS:
        text = str(value).lower()
        found = [place for place, word in enumerate(WORDS[name]) if word in text]
        return float(found[0] if name == "optim" else found[-1]) if found else None
    if name in ("lora_target_modules", "lora_modules_to_save") and value is not None:
        return float(99 if value == "all-linear" else len(value))
    return None
