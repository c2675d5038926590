"""Trainers: by what each shows in a log, and how each writes the changes that advice asks for. One visible table.

A rule names a change in plain words and by its key; the flag is added where the trainer is known, and left away where
it is not or where the trainer has none. Each flag was read in its trainer's source or documentation; names of the
planner's remedies (foreign/spelling.py) are the same.
"""

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Literal

from msgspec import Struct, field

Change = Literal[
    "",
    "fewer-tokens", "shorter-sequences", "recompute", "chunked-logprobs", "smaller-batch", "balance",
    "engine-share", "raise-engine-share", "engine-requests", "engine-graphs", "engine-length", "engine-ranks",
    "sync-bucket", "timeout", "save-often", "save-sharded", "save-async", "save-in-parts", "loader-workers",
    "gather-parts", "less-offload", "watchdog", "memory-limit", "pod-requests", "allocator",
]  # fmt: skip
"""What advice may ask for. `engine-*` are settings of the inference engine as the trainer passes them on."""

Flags = Mapping[str, tuple[str, ...]]
"""Change -> the ways to write it, the first that applies is told: `name`, `name=value` that switches it on, or
`without --name`, which applies where the launch has it."""


class Framework(Struct, frozen=True, dict=True):
    """One trainer. `marks`: what only its own code, actors or commands look like. `rank`: how far on top of others it
    is built, as Unsloth on TRL (2) on transformers (1)."""

    marks: str
    flags: Flags = field(default_factory=dict)
    rank: int = 3

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        return re.compile(self.marks)


_ROOT = r"(?:^|[\s\"'\\=]|(?<!/home)(?<!/Users)/)"
"""Where a path begins, or a folder in it that is not a person's own."""

_TRANSFORMERS: Flags = {
    "fewer-tokens": ("per_device_train_batch_size",),
    "recompute": ("gradient_checkpointing=True",),
    "chunked-logprobs": ("use_liger_kernel=True",),
    "timeout": ("ddp_timeout",),
    "save-often": ("save_steps",),
    "save-sharded": ("fsdp_state_dict_type: SHARDED_STATE_DICT with FSDP",),
    "loader-workers": ("dataloader_num_workers",),
}
_TRL: Flags = {
    **_TRANSFORMERS,
    "fewer-tokens": ("per_device_train_batch_size", "max_completion_length"),
    "shorter-sequences": ("max_completion_length",),
    "gather-parts": ("ds3_gather_for_generation=False",),
    "engine-share": ("vllm_gpu_memory_utilization",),
    "engine-length": ("vllm_max_model_length",),
    "engine-ranks": ("vllm_tensor_parallel_size",),
}
_MEGATRON: Flags = {
    "fewer-tokens": ("--micro-batch-size", "--seq-length"),
    "shorter-sequences": ("--seq-length",),
    "recompute": ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",),
    "chunked-logprobs": ("--cross-entropy-loss-fusion",),
    "timeout": ("--distributed-timeout-minutes",),
    "save-often": ("--save-interval",),
    "save-sharded": ("--ckpt-format torch_dist",),
    "save-async": ("--async-save",),
    "less-offload": ("without --optimizer-cpu-offload",),
    "loader-workers": ("--num-workers",),
}
_SLIME_ROLLOUT: Flags = {
    "fewer-tokens": ("--max-tokens-per-gpu",),
    "shorter-sequences": ("--rollout-max-response-len",),
    "smaller-batch": ("--rollout-batch-size",),
    "balance": ("--balance-data",),
    "engine-share": ("--sglang-mem-fraction-static",),
    "engine-requests": ("--sglang-max-running-requests and --sglang-chunked-prefill-size",),
    "engine-graphs": ("--sglang-cuda-graph-max-bs, or --sglang-disable-cuda-graph",),
    "engine-length": ("--sglang-context-length",),
    "engine-ranks": ("--rollout-num-gpus-per-engine",),
    "sync-bucket": ("--update-weight-buffer-size",),
    "watchdog": ("--sglang-watchdog-timeout",),
    "save-often": ("--save-interval",),
}
_SLIME: Flags = {
    **_MEGATRON,
    **_SLIME_ROLLOUT,
    "chunked-logprobs": ("--log-probs-chunk-size",),
    "loader-workers": (),
}
_SHARE = "actor_rollout_ref.rollout"
_VERL: Flags = {
    "fewer-tokens": (
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
    ),
    "shorter-sequences": ("data.max_response_length",),
    "recompute": ("actor_rollout_ref.model.enable_gradient_checkpointing=True",),
    "chunked-logprobs": ("actor_rollout_ref.model.use_fused_kernels=True",),
    "smaller-batch": ("data.train_batch_size",),
    "balance": ("trainer.balance_batch=True",),
    "engine-share": (f"{_SHARE}.gpu_memory_utilization",),
    "engine-requests": (f"{_SHARE}.max_num_seqs and {_SHARE}.max_num_batched_tokens",),
    "engine-graphs": (f"{_SHARE}.enforce_eager=True",),
    "engine-length": (f"{_SHARE}.max_model_len",),
    "engine-ranks": (f"{_SHARE}.tensor_model_parallel_size",),
    "sync-bucket": (
        f"{_SHARE}.checkpoint_engine.update_weights_bucket_megabytes", f"{_SHARE}.update_weights_bucket_megabytes",
    ),
    "timeout": ("actor_rollout_ref.nccl_timeout",),
    "less-offload": ("actor_rollout_ref.actor.fsdp_config.optimizer_offload=False",),
    "save-often": ("trainer.save_freq",),
    "loader-workers": ("data.dataloader_num_workers",),
}  # fmt: skip
_VERL_CORE = "++actor_rollout_ref.actor.megatron.override_transformer_config.recompute"
_NEMO = "policy.generation.vllm_cfg"
_NEMO_RL: Flags = {
    "fewer-tokens": (
        "policy.train_micro_batch_size", "policy.dynamic_batching.train_mb_tokens",
        "policy.sequence_packing.train_mb_tokens",
    ),
    "shorter-sequences": ("policy.max_total_sequence_length",),
    "recompute": ("policy.dtensor_cfg.activation_checkpointing=true",),
    "chunked-logprobs": ("policy.logprob_chunk_size",),
    "smaller-batch": ("grpo.num_prompts_per_step",),
    "engine-share": (f"{_NEMO}.gpu_memory_utilization",),
    "engine-graphs": (f"{_NEMO}.enforce_eager=true",),
    "engine-length": (f"{_NEMO}.max_model_len",),
    "engine-ranks": (f"{_NEMO}.tensor_parallel_size",),
    "less-offload": ("policy.dtensor_cfg.cpu_offload=false",),
    "save-often": ("checkpointing.save_period",),
}  # fmt: skip

FRAMEWORKS: Mapping[str, Framework] = {
    "slime": Framework(
        rf"{_ROOT}slime/(?:backends|ray|rollout|router|slime)/|{_ROOT}slime/(?:train|train_async)\.py|"
        r"\bslime\.(?:backends|ray|rollout|utils)\.|\bslime_plugins\b|\b(?:Megatron|FSDP)TrainRayActor\b",
        _SLIME,
    ),
    "miles": Framework(
        rf"{_ROOT}miles/(?:backends|ray|rollout|router|miles)/|{_ROOT}miles/(?:train|train_async)\.py|"
        r"\bmiles\.(?:backends|ray|rollout|utils)\.|\bmiles_plugins\b",
        {**_SLIME, "save-in-parts": ("--ckpt-save-staging-buckets",)},
        rank=4,
    ),
    "miles-fsdp": Framework(r"(?!)", {**_SLIME_ROLLOUT, "recompute": ("--gradient-checkpointing",)}),
    "verl": Framework(
        rf"{_ROOT}verl/(?:workers|single_controller|third_party|experimental|verl)/|{_ROOT}verl/protocol\.py|"
        rf"{_ROOT}verl/trainer/(?:main_\w+|ppo|fsdp_sft|sft|config|constants)|"
        r"\bverl\.(?:trainer|workers|utils|single_controller)\.(?!main\b)|\bactor_rollout_ref\b|\bWorkerDict\b|"
        r"\bRayPPOTrainer\b",
        _VERL,
    ),
    "verl-megatron": Framework(
        r"(?!)",
        {
            **_VERL,
            "recompute": (f"{_VERL_CORE}_granularity=full {_VERL_CORE}_method=uniform {_VERL_CORE}_num_layers=1",),
            "chunked-logprobs": (),
            "less-offload": ("actor_rollout_ref.actor.megatron.optimizer_offload=False",),
            "save-async": ("actor_rollout_ref.actor.checkpoint.async_save=True",),
        },
    ),
    "verl-sft": Framework(
        r"(?!)",
        {
            "fewer-tokens": ("data.micro_batch_size_per_gpu", "data.max_length"),
            "shorter-sequences": ("data.max_length",),
            "recompute": ("model.enable_gradient_checkpointing=True",),
            "save-often": ("trainer.save_freq",),
        },
    ),
    "openrlhf": Framework(
        rf"{_ROOT}openrlhf/(?:trainer|cli|models|datasets|utils|openrlhf)/|\bopenrlhf\.(?:cli|trainer)\b|"
        r"\b(?:Policy|Reference|Reward|Critic)ModelActor\b|\bActorModelRayActor\b",
        {
            "fewer-tokens": ("--micro_train_batch_size", "--max_tokens_per_gpu"),
            "shorter-sequences": ("--generate_max_len",),
            "recompute": ("--gradient_checkpointing",),
            "smaller-batch": ("--rollout_batch_size",),
            "engine-share": ("--vllm_gpu_memory_utilization",),
            "engine-graphs": ("--enforce_eager",),
            "engine-ranks": ("--vllm_tensor_parallel_size",),
            "less-offload": ("without --adam_offload",),
            "save-often": ("--save_steps",),
        },
    ),
    "openrlhf-sft": Framework(
        r"(?!)",
        {
            "fewer-tokens": ("--micro_train_batch_size", "--max_len"),
            "shorter-sequences": ("--max_len",),
            "recompute": ("--gradient_checkpointing",),
            "save-often": ("--save_steps",),
        },
    ),
    "nemo-rl": Framework(
        rf"{_ROOT}nemo_rl/|\bnemo_rl\.|{_ROOT}examples/run_(?:grpo|ppo|sft|dpo|rm|vlm|distillation)\w*\.py|"
        r"\b(?:DTensor|Megatron)PolicyWorker|\bVllmGenerationWorker|\bVllmAsyncGenerationWorker",
        _NEMO_RL,
    ),
    "nemo-rl-megatron": Framework(
        r"(?!)", {**_NEMO_RL, "recompute": ("policy.megatron_cfg.activation_checkpointing=true",), "less-offload": ()}
    ),
    "prime-rl": Framework(
        rf"{_ROOT}prime_rl/|\bprime_rl\.|{_ROOT}prime-rl/src/|\buv run (?:rl|sft|trainer|orchestrator|inference) @",
        {
            "fewer-tokens": ("trainer.model.seq_len",),
            "shorter-sequences": ("trainer.model.seq_len",),
            "recompute": ("[trainer.model.ac]",),
            "chunked-logprobs": ("trainer.model.fused_lm_head_token_chunk_size",),
            "smaller-batch": ("orchestrator.batch_size",),
            "engine-share": ("inference.gpu_memory_utilization",),
            "engine-length": ("inference.model.max_model_len",),
            "timeout": ("trainer.dist_timeout_seconds",),
        },
    ),
    "open-instruct": Framework(
        rf"{_ROOT}open_instruct/|\bopen_instruct\.",
        {
            "fewer-tokens": ("--per_device_train_batch_size", "--pack_length"),
            "shorter-sequences": ("--response_length",),
            "recompute": ("--gradient_checkpointing",),
            "smaller-batch": ("--num_unique_prompts_rollout",),
            "engine-share": ("--vllm_gpu_memory_utilization",),
            "engine-graphs": ("--vllm_enforce_eager",),
            "engine-ranks": ("--vllm_tensor_parallel_size",),
            "timeout": ("--backend_timeout",),
            "save-often": ("--checkpoint_state_freq",),
        },
    ),
    "unsloth": Framework(
        rf"{_ROOT}unsloth(?:_zoo)?/|\bunsloth_compiled_cache\b|\bUnsloth\w+Trainer\b|\bUnsloth[: ] ?(?:Will|20\d\d)",
        {
            **_TRANSFORMERS,
            "fewer-tokens": ("per_device_train_batch_size", "max_seq_length"),
            "shorter-sequences": ("max_seq_length, or max_completion_length of GRPO",),
            "recompute": ('use_gradient_checkpointing="unsloth"',),
            "engine-share": ("gpu_memory_utilization",),
        },
    ),
    "axolotl": Framework(
        rf"{_ROOT}axolotl/(?:cli|core|utils|monkeypatch|integrations|loaders|train\.py|src)|\baxolotl\.(?:cli|core)\b|"
        r"\baxolotl (?:train|preprocess)\b",
        {
            "fewer-tokens": ("micro_batch_size", "sequence_len"),
            "shorter-sequences": ("sequence_len",),
            "recompute": ("gradient_checkpointing: true",),
            "chunked-logprobs": ("cut_cross_entropy: true",),
            "engine-share": ("vllm.gpu_memory_utilization",),
            "engine-graphs": ("vllm.enforce_eager: true",),
            "engine-length": ("vllm.max_model_len",),
            "engine-ranks": ("vllm.tensor_parallel_size",),
            "timeout": ("ddp_timeout",),
            "save-often": ("save_steps",),
            "loader-workers": ("dataloader_num_workers",),
        },
    ),
    "llama-factory": Framework(
        rf"{_ROOT}llamafactory/|\bllamafactory-cli\b|\bllamafactory\.|{_ROOT}LLaMA-Factory/src/",
        {
            "fewer-tokens": ("per_device_train_batch_size", "cutoff_len"),
            "shorter-sequences": ("cutoff_len",),
            "recompute": ("disable_gradient_checkpointing: false",),
            "chunked-logprobs": ("enable_liger_kernel: true",),
            "engine-share": ("vllm_gpu_util",),
            "engine-graphs": ("vllm_enforce_eager: true",),
            "engine-length": ("vllm_maxlen",),
            "timeout": ("ddp_timeout",),
            "save-often": ("save_steps",),
            "loader-workers": ("dataloader_num_workers",),
        },
    ),
    "ms-swift": Framework(
        rf"{_ROOT}swift/(?:cli|llm|trainers|rlhf_trainers|plugin|megatron|pipelines|tuners)/|\bswift\.(?:cli|llm)\b|"
        r"\b(?:swift|megatron) (?:sft|pt|rlhf)\b",
        {
            "fewer-tokens": ("--per_device_train_batch_size", "--max_completion_length", "--max_length"),
            "shorter-sequences": ("--max_completion_length, or --max_length of SFT",),
            "recompute": ("--gradient_checkpointing true",),
            "chunked-logprobs": ("--use_liger_kernel true",),
            "engine-share": ("--vllm_gpu_memory_utilization",),
            "engine-length": ("--vllm_max_model_len",),
            "engine-ranks": ("--vllm_tensor_parallel_size",),
            "timeout": ("--ddp_timeout",),
            "save-often": ("--save_steps",),
            "loader-workers": ("--dataloader_num_workers",),
        },
    ),
    "ms-swift-megatron": Framework(
        r"(?!)",
        {
            "fewer-tokens": ("--micro_batch_size", "--max_completion_length", "--max_length"),
            "shorter-sequences": ("--max_length",),
            "recompute": ("--recompute_granularity full --recompute_method uniform --recompute_num_layers 1",),
            "chunked-logprobs": ("--cross_entropy_loss_fusion true",),
            "engine-share": ("--vllm_gpu_memory_utilization",),
            "engine-length": ("--vllm_max_model_len",),
            "less-offload": ("--optimizer_cpu_offload false",),
        },
    ),
    "torchtune": Framework(
        rf"{_ROOT}torchtune/|\btorchtune\.|\btune run\b",
        {
            "fewer-tokens": ("batch_size", "tokenizer.max_seq_len"),
            "shorter-sequences": ("tokenizer.max_seq_len",),
            "recompute": ("enable_activation_checkpointing=True",),
        },
    ),
    "litgpt": Framework(
        rf"{_ROOT}litgpt/|\blitgpt (?:finetune|pretrain)",
        {
            "fewer-tokens": ("--train.micro_batch_size", "--train.max_seq_length"),
            "shorter-sequences": ("--train.max_seq_length",),
        },
    ),
    "headway": Framework(
        rf"{_ROOT}headway/(?:train|rollout)/|\bheadway\.(?:train|rollout)\.|\bheadway train\b",
        {
            "fewer-tokens": ("train.cap",),
            "shorter-sequences": ("rollout.max_answer",),
            "recompute": ("train.checkpointing = true",),
            "chunked-logprobs": ("train.logprob_chunk",),
            "smaller-batch": ("rollout.prompts",),
            "engine-share": ("rollout.kv_budget",),
        },
    ),
    "EasyR1": Framework(rf"{_ROOT}verl/trainer/main\.py|\bverl\.trainer\.main\b", rank=4),
    "SkyRL": Framework(
        rf"{_ROOT}skyrl(?:_train)?/|\bskyrl_train\.",
        {
            "fewer-tokens": ("trainer.micro_train_batch_size_per_gpu",),
            "shorter-sequences": ("generator.sampling_params.max_generate_length",),
            "smaller-batch": ("trainer.train_batch_size",),
            "engine-share": ("generator.gpu_memory_utilization",),
            "engine-ranks": ("generator.inference_engine_tensor_parallel_size",),
            "save-often": ("trainer.ckpt_interval",),
        },
    ),
    "AReaL": Framework(rf"{_ROOT}areal/|\bareal\.|{_ROOT}AReaL/"),
    "RLinf": Framework(rf"{_ROOT}rlinf/|\brlinf\."),
    "ROLL": Framework(rf"{_ROOT}roll/(?:pipeline|distributed)/|\broll\.pipeline\."),
    "torchtitan": Framework(rf"{_ROOT}torchtitan/|\btorchtitan\."),
    "NeMo": Framework(rf"{_ROOT}nemo/(?:collections|lightning)/|\bnemo\.collections\."),
    "trl": Framework(
        rf"{_ROOT}trl/(?:trainer|scripts|extras|models|commands|cli|experimental)/|\btrl\.(?:trainer|scripts|cli)\b|"
        r"\btrl (?:sft|dpo|grpo|rloo|kto|reward|vllm-serve)\b|\b(?:GRPO|SFT|DPO|RLOO|KTO)(?:Config|Trainer)\b",
        _TRL,
        rank=2,
    ),
    "trl-sft": Framework(
        r"(?!)",
        {
            **_TRANSFORMERS,
            "fewer-tokens": ("per_device_train_batch_size", "max_length"),
            "shorter-sequences": ("max_length",),
        },
        rank=2,
    ),
    "megatron": Framework(
        rf"{_ROOT}megatron/(?:core|training|legacy)/|\bmegatron\.(?:core|training)\.|{_ROOT}pretrain_gpt\.py",
        _MEGATRON,
        rank=1,
    ),
    "transformers": Framework(
        rf"{_ROOT}transformers/(?:trainer|training_args|trainer_\w+)\.py|\bTrainingArguments\(", _TRANSFORMERS, rank=1
    ),
}  # fmt: skip
"""Those without flags are here so that they are not taken for the trainer that they are built on."""

_FSDP = r"FSDPTrainRayActor|backends/(?:fsdp_utils|experimental/fsdp)|--train-backend[ =]fsdp"
VARIANTS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "slime": ((_FSDP, "miles-fsdp"),),
    "miles": ((_FSDP, "miles-fsdp"),),
    "verl": (
        (r"\bsft_trainer|fsdp_sft_trainer", "verl-sft"),
        (r"megatron_(?:workers|actor|critic)|megatron/core/|strategy['\"]?[=:] ?['\"]?megatron", "verl-megatron"),
    ),
    "openrlhf": ((r"\bcli[./]train_(?:sft|dpo|rm|kto|kd)|trainer/(?:sft|dpo|rm|kto|kd)_trainer", "openrlhf-sft"),),
    "ms-swift": ((r"\bmegatron (?:sft|pt|rlhf)\b|swift/(?:megatron|cli/_megatron)/", "ms-swift-megatron"),),
    "trl": (
        (
            r"(?s)\A(?!.*(?:grpo|rloo|online_dpo|GRPO|RLOO))"
            r".*(?:(?:sft|dpo|kto|reward)_trainer|(?:SFT|DPO|KTO|Reward)(?:Config|Trainer))",
            "trl-sft",
        ),
    ),
    "nemo-rl": ((r"MegatronPolicyWorker|megatron_policy_worker", "nemo-rl-megatron"),),
}
"""A trainer -> what shows a backend or a program of it that has flags of its own, and that one's name."""

ON_RAY = frozenset({
    "slime", "miles", "miles-fsdp", "verl", "verl-megatron", "openrlhf", "nemo-rl", "nemo-rl-megatron", "SkyRL",
})  # fmt: skip
"""Trainers that always run on Ray."""

_SYSTEMS = {
    "miles-megatron": "miles", "verl-fsdp": "verl", "trl-script": "trl", "trl-sft-script": "trl-sft",
    "hf": "transformers", "hf-script": "transformers", "peft": "transformers", "peft-script": "transformers",
    "unsloth-kept": "unsloth", "deepspeed": "transformers",
}  # fmt: skip
"""The planner's names of trainers that are more than one here."""

_PLATFORMS: Mapping[str, Flags] = {
    "kubernetes": {
        "memory-limit": ("resources.limits.memory of the pod",), "pod-requests": ("resources.requests.memory",),
    },
    "docker": {"memory-limit": ("docker run --memory",)},
    "slurm": {"memory-limit": ("sbatch --mem",)},
}  # fmt: skip
_ENGINES: Mapping[str, Flags] = {
    "vllm": {
        "engine-share": ("gpu_memory_utilization",),
        "engine-requests": (
            "max_num_seqs (the sampler's logits are that many x vocabulary) and max_num_batched_tokens",
        ),
        "engine-graphs": ("cudagraph_capture_sizes, or enforce_eager=True",),
        "engine-length": ("max_model_len",),
        "engine-ranks": ("tensor_parallel_size",),
        "watchdog": ("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS",),
    },
    "sglang": {
        "engine-share": ("--mem-fraction-static",),
        "engine-requests": ("--max-running-requests and --chunked-prefill-size",),
        "engine-graphs": ("--cuda-graph-max-bs, or --disable-cuda-graph",),
        "engine-length": ("--context-length",),
        "engine-ranks": ("--tp-size",),
        "watchdog": ("--watchdog-timeout",),
    },
}
"""An engine's own settings, where no trainer that passes them on is known."""


def of_system(system: str) -> str:
    """The name here of a trainer by the name that a plan or a script's reader has for it; empty for none."""
    name = _SYSTEMS.get(system, system)
    return name if name in FRAMEWORKS else ""


def flags(
    change: str, framework: str = "", engine: str = "", platforms: frozenset[str] = frozenset()
) -> tuple[str, ...]:
    """How a change is written where the run was: by its trainer, else by its engine or platform. Empty where it is
    not known or the trainer has no flag for it.

    >>> flags("fewer-tokens", "slime"), flags("fewer-tokens"), flags("engine-share", "", "vllm")
    (('--max-tokens-per-gpu',), (), ('gpu_memory_utilization',))
    """
    change = "engine-share" if change == "raise-engine-share" else change
    if change == "allocator":
        return ("PYTORCH_HIP_ALLOC_CONF" if "amd" in platforms else "PYTORCH_CUDA_ALLOC_CONF",)
    known = FRAMEWORKS[framework].flags if framework else {}
    if change in known:
        return known[change]
    if (change.startswith("engine-") or change == "watchdog") and "engine-share" not in known:
        return _ENGINES.get(engine, {}).get(change, ())
    for platform, table in _PLATFORMS.items():
        if platform in platforms and change in table:
            return table[change]
    return ()
