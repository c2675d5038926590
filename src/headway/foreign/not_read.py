"""Flags of a launch that were given and that no reader asked for: a plan names them, so that none is passed over."""

import re
from collections.abc import Iterable

from headway.foreign.found import Found

NO_MEMORY = re.compile(
    r"(^|[._\-])(lr\w*|learning_rate|min_lr|warmup\w*|weight_decay|adam_\w+|beta[12s]|betas|eps(ilon)?(_high|_low)?|seed"
    r"|data_seed|clip\w*|log\w*|wandb\w*|use_wandb|swanlab\w*|use_swanlab|tensorboard\w*|use_tensorboard\w*|trackio\w*"
    r"|report_to|run_name|exp\w*_name|experiment\w*|project\w*|hub_\w+|push_to_hub|gamma|lam(bda)?|top_?[pk]|min_p"
    r"|temperature|(num_|total_|train_|max_)?(epochs?|episodes|steps|iters|training_steps)|num_train_epochs"
    r"|reward\w*|rm_type|rm_url|dataset\w*|prompt_data|train_files|val_files|\w*_key|tokenizer\w*|chat_template\w*"
    r"|apply_chat_template|system_prompt|shuffle|trust_remote_code|save\w*|load|ckpt\w*|output_dir|"
    r"overwrite_output_dir|logger|default_local_dir|resume\w*|eval_\w+|test_freq|val_\w+|do_(train|eval)|max_grad_norm"
    r"|metric\w*|nccl\w*|\w*timeout\w*|master_\w+|node_rank|rdzv\w*|main_process\w+|machine_rank|num_workers"
    r"|(kl|entropy|policy|value|vf)_\w*(coef|coeff|loss|type|target|penalty)\w*|hydra|config|scheduler\w*"
    r"|advantage\w*|normalize\w*|num_rollout|start_rollout_id|filter\w*|split|vocab_file|merge_file|truncation"
    r"|init_method_std|attention_dropout|hidden_dropout|rollout_(shuffle|temperature|top_?[pk]|seed))$",
    re.IGNORECASE,
)
"""Names of flags on which no memory hangs: how fast is learned, what is logged, where data and names are."""


def not_read(found: Found, asked: Iterable[str] = ()) -> tuple[str, ...]:
    """Flags that were given and that nobody asked for, as they are written; not those on which no memory hangs.

    A log prints every default, so nothing is said of one.

    >>> from headway.foreign.shell.values import known
    >>> flags = {"use_vllm": ("true",), "packing": (), "learning_rate": ("1e-5",)}
    >>> not_read(Found("trl", flags=flags, argv=(known("x"),), asked=frozenset({"use_vllm"})))
    ('--packing',)
    """
    if not found.argv:
        return ()
    known = {*found.asked, *asked, *OURS}
    if found.system in ("slime", "miles", "megatron"):
        from headway.foreign.lint.unknown_flag import flags_of

        known |= flags_of(found.system)
    names = [
        name
        for name in found.flags
        if name not in known and "$" not in name and NO_MEMORY.search(name.replace("-", "_")) is None
        and not any(each.startswith(f"{name}.") or name.startswith(f"{each}.") for each in known)
    ]  # fmt: skip
    return tuple(name if found.system == "verl" else f"--{name}" for name in names)


OURS = ("accelerate_config_file", "num_processes", "accelerate_config", "num_machines")
"""Names that a reader puts among the flags itself, and those of a launcher."""
