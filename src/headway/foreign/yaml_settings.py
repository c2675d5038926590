"""A YAML file of settings by itself: the command that reads such files, told by keys that only its settings have."""

from pathlib import Path
from typing import Any

from headway.foreign import documents
from headway.foreign.documents import RefusedError

OWN_KEYS: tuple[tuple[tuple[str, ...], frozenset[str], int], ...] = (
    (("axolotl", "train"), frozenset({
        "base_model", "sequence_len", "micro_batch_size", "adapter", "sample_packing", "lora_target_linear",
        "datasets", "chat_template", "val_set_size",
    }), 3),
    (("llamafactory-cli", "train"), frozenset({
        "finetuning_type", "cutoff_len", "template", "stage", "lora_target", "overwrite_cache", "dataset_dir",
    }), 2),
    (("trl", "grpo", "--config"), frozenset({
        "num_generations", "max_completion_length", "reward_funcs", "use_vllm", "vllm_mode",
    }), 1),
    (("trl", "dpo", "--config"), frozenset({"loss_type", "rpo_alpha", "beta", "precompute_ref_log_probs"}), 2),
    (("trl", "sft", "--config"), frozenset({
        "packing", "max_seq_length", "dataset_text_field", "completion_only_loss",
    }), 1),
)  # fmt: skip
"""A command, keys of its settings, and how many of them tell that a file is its."""
MODEL_KEYS = ("model_name_or_path", "base_model")


def command_of(path: Path) -> tuple[str, ...]:
    """The words of the command that would read the file in its folder; none where its keys tell no system, or
    where it names no model."""
    try:
        table: dict[str, Any] = documents.table(path)
    except RefusedError:
        return ()
    if not any(isinstance(table.get(key), str) for key in MODEL_KEYS):
        return ()
    for words, keys, least in OWN_KEYS:
        if len(keys & table.keys()) >= least:
            return (*words, path.name)
    return ()
