"""Which changes a trainer accepts, and how each is written in its own flags: one visible table.

A system that is not here accepts nothing that is known, and a key that a system's table lacks is refused by it:
Miles's FSDP trainer takes no LoRA and no optimizer but Adam, so no remedy proposes them.
"""

import re
from typing import Literal

from msgspec import Struct
from msgspec.structs import asdict

from headway.facts.workload import Workload

Scalar = int | float | str | bool

SpellKey = Literal[
    "rollout.prompts", "rollout.samples", "rollout.max_answer", "rollout.kv_budget",
    "trainer.cap", "trainer.rows", "trainer.score_cap", "trainer.score_rows", "trainer.checkpointing",
    "trainer.reference", "trainer.attention",
    "trainer.logprob_chunk", "trainer.loss", "trainer.param_dtype", "trainer.lora", "trainer.quant",
    "trainer.optimizer.state_dtype", "trainer.optimizer.in_backward", "trainer.optimizer.offload", "trainer.offload",
    "trainer.optimizer.paged", "trainer.offload_parameters",
    "engine.memory_fraction", "engine.tensor_parallel", "engine.max_seqs", "engine.graphs",
    "engine.kv_dtype", "engine.releases", "model", "gathers",
    "layout.devices", "layout.nodes", "layout.shards", "layout.tensor", "layout.context",
    "critic.trainer.rows", "critic.trainer.cap", "critic.trainer.offload",
]  # fmt: skip
"""Keys of a Workload that a remedy may change; "model" is the model itself, "trainer.lora" the rank."""

_HEADWAY = {
    "rollout.prompts": "rollout.prompts = {value}",
    "rollout.samples": "rollout.samples = {value}",
    "rollout.max_answer": "rollout.max_answer = {value}",
    "rollout.kv_budget": 'rollout.kv_budget = "{mib}MiB"',
    "trainer.cap": "train.cap = {value}",
    "trainer.checkpointing": "train.checkpointing = true",
    "trainer.reference": "objective.kl_coef = 0",
    "trainer.attention": 'model.attention = "{value}"',
    "trainer.logprob_chunk": "train.logprob_chunk = {value}",
    "trainer.param_dtype": 'model.dtype = "{value}"',
    "trainer.lora": "[lora] rank = {value}",
    "model": "model.path = the folder or hub id of {value}",
}
"""A RunSpec's keys. headway trains on one device, with fp32 AdamW."""

_SLIME_ROLLOUT = {
    "rollout.prompts": "--rollout-batch-size {value} --global-batch-size {batch}",
    "rollout.samples": "--n-samples-per-prompt {value} --global-batch-size {batch}",
    "rollout.max_answer": "--rollout-max-response-len {value}",
    "trainer.cap": "--max-tokens-per-gpu {each}",
    "trainer.rows": "--micro-batch-size {value}",
    "trainer.reference": "no --use-kl-loss and --kl-coef 0 (free where --kl-loss-coef is 0)",
    "engine.memory_fraction": "--sglang-mem-fraction-static {before} -> {value}",
    "engine.tensor_parallel": "--rollout-num-gpus-per-engine {value}",
    "engine.max_seqs": "--sglang-max-running-requests {value}",
    "engine.graphs": "--sglang-disable-cuda-graph",
    "engine.kv_dtype": "--sglang-kv-cache-dtype fp8_e4m3",
    "model": "--hf-checkpoint {value}",
    "layout.devices": "--actor-num-gpus-per-node {value}",
    "layout.nodes": "--actor-num-nodes {value}",
}
"""slime and Miles share these (radixark/miles 31f1ca961 and THUDM/slime 624b824a8, utils/arguments.py)."""

_CORE = {
    "trainer.rows": "--micro-batch-size {value}",
    "trainer.checkpointing": "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
    "trainer.optimizer.offload=0.0": "no --optimizer-cpu-offload",
    "trainer.optimizer.offload": "--optimizer-cpu-offload --use-precision-aware-optimizer",
    "layout.tensor": "--tensor-model-parallel-size {value}",
    "layout.context": "--context-parallel-size {value}",
}
"""Megatron-LM's own flags."""

_MEGATRON = {
    **_SLIME_ROLLOUT,
    **_CORE,
    "trainer.optimizer.offload": "--optimizer-cpu-offload --overlap-cpu-optimizer-d2h-h2d "
    "--use-precision-aware-optimizer",
}

_ZERO = {
    "trainer.optimizer.offload:zero": "offload_optimizer_device: cpu in the DeepSpeed configuration",
    "trainer.optimizer.offload=0.0": "offload_optimizer_device: none in the DeepSpeed configuration",
    "trainer.offload_parameters:zero": "offload_param_device: cpu and offload_optimizer_device: cpu in the DeepSpeed "
    "configuration",
    "gathers:zero": "zero3_save_16bit_model: false in the DeepSpeed configuration",
    "layout.shards:zero": "zero_stage: 3 in the DeepSpeed configuration",
    "layout.devices:zero": "accelerate launch --num_processes {value}",
    "layout.nodes:zero": "accelerate launch --num_machines {value}",
}
"""Where accelerate starts DeepSpeed, as its own file has it (`:zero`)."""

_TRANSFORMERS = {
    **_ZERO,
    "trainer.rows": "--per_device_train_batch_size {value} --gradient_accumulation_steps {accum}",
    "trainer.checkpointing": "--gradient_checkpointing true",
    "trainer.attention": "--attn_implementation {value}",
    "trainer.loss": "--use_liger_kernel true",
    "trainer.optimizer.state_dtype=int8": "--optim adamw_bnb_8bit",
    "trainer.optimizer.paged": "--optim paged_adamw_8bit",
    "trainer.offload_parameters": "accelerate launch --use_fsdp --fsdp_offload_params true",
    "gathers": "accelerate launch --fsdp_state_dict_type SHARDED_STATE_DICT",
    "model": "--model_name_or_path {value}",
    "layout.shards": "accelerate launch --use_fsdp --fsdp_version 2",
    "layout.devices": "accelerate launch --use_fsdp --fsdp_version 2 --num_processes {value}",
    "layout.nodes": "accelerate launch --use_fsdp --fsdp_version 2 --num_machines {value}",
}
"""transformers' TrainingArguments, as every trainer on top of it takes them."""

_TRL = {
    **_TRANSFORMERS,
    "trainer.param_dtype": "--dtype bfloat16",
    "trainer.lora": "--use_peft --lora_r {value}",
    "trainer.quant": "--use_peft --load_in_4bit",
}
"""TRL's ModelConfig on top of it."""

_SCRIPT = {
    **_ZERO,
    "trainer.rows": "per_device_train_batch_size={value}, gradient_accumulation_steps={accum}",
    "trainer.checkpointing": "gradient_checkpointing=True",
    "trainer.attention": 'attn_implementation="{value}"',
    "trainer.loss": "use_liger_kernel=True",
    "trainer.param_dtype": 'dtype="bfloat16"',
    "trainer.optimizer.state_dtype=int8": 'optim="adamw_bnb_8bit"',
    "trainer.optimizer.paged": 'optim="paged_adamw_8bit"',
    "trainer.offload_parameters": "accelerate launch --use_fsdp --fsdp_offload_params true",
    "gathers": "accelerate launch --fsdp_state_dict_type SHARDED_STATE_DICT",
    "layout.shards": "accelerate launch --use_fsdp --fsdp_version 2",
    "trainer.lora": "peft_config=LoraConfig(r={value})",
    "trainer.quant": "quantization_config=BitsAndBytesConfig(load_in_4bit=True), with a LoRA",
    "model": 'model="{value}"',
    "layout.devices": "accelerate launch --use_fsdp --fsdp_version 2 --num_processes {value}",
    "layout.nodes": "accelerate launch --use_fsdp --fsdp_version 2 --num_machines {value}",
}
"""The same in a Python script, as arguments of the configuration or of from_pretrained."""

UNSLOTH_FREE = 0.96
"""What is free of a device when vLLM starts: 22.52 of 23.51 GiB in a public log (unsloth issue 3542)."""
_UNSLOTH = {
    "rollout.samples": "num_generations={value}",
    "rollout.max_answer": "max_completion_length={value}",
    "rollout.max_answer:sft": "max_seq_length={value}",
    "trainer.rows": "per_device_train_batch_size={value}, gradient_accumulation_steps={accum}",
    "trainer.checkpointing": 'use_gradient_checkpointing="unsloth"',
    "trainer.optimizer.state_dtype=int8": 'optim="adamw_8bit"',
    "trainer.optimizer.paged": 'optim="paged_adamw_8bit"',
    "engine.releases": 'os.environ["UNSLOTH_VLLM_STANDBY"] = "1" before the import',
    "trainer.lora": "get_peft_model(model, r={value})",
    "trainer.quant": "load_in_4bit=True",
    "engine.memory_fraction": "gpu_memory_utilization={before} -> {value}",
    "model": 'model_name="{value}"',
}

_FSDP = {
    "trainer.rows": "{value} samples in a micro-batch",
    "rollout.max_answer": "sequences of at most {value} tokens",
    "trainer.checkpointing": "checkpoint_wrapper around every block",
    "trainer.offload_parameters": "offload the parameters to the CPU (CPUOffload, CPUOffloadPolicy)",
    "trainer.param_dtype": "load the parameters in bfloat16",
    "trainer.optimizer.state_dtype=int8": "torchao.optim.AdamW8bit",
    "trainer.optimizer.state_dtype=bf16": "keep Adam's moments in bfloat16",
    "model": "the model {value}",
    "layout.devices": "torchrun --nproc_per_node {value}",
    "layout.nodes": "torchrun --nnodes {value}",
}
"""Plain FSDP has no flags of its own: what a script changes, in words."""

_VERL = {
    "rollout.prompts": "data.train_batch_size={value} actor_rollout_ref.actor.ppo_mini_batch_size={mini}",
    "rollout.samples": "actor_rollout_ref.rollout.n={value}",
    "rollout.max_answer": "data.max_response_length={value}",
    "trainer.cap": "actor_rollout_ref.actor.ppo_max_token_len_per_gpu={each}",
    "trainer.rows": "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu={value}",
    "trainer.score_cap": "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu={scored} "
    "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu={scored}",
    "trainer.score_rows": "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu={value} "
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu={value}",
    "trainer.checkpointing": "actor_rollout_ref.model.enable_gradient_checkpointing=True",
    "trainer.reference": "actor_rollout_ref.actor.use_kl_loss=False algorithm.use_kl_in_reward=False",
    "trainer.lora": "actor_rollout_ref.model.lora_rank={value}",
    "critic.trainer.rows": "critic.ppo_micro_batch_size_per_gpu={value}",
    "critic.trainer.cap": "critic.ppo_max_token_len_per_gpu={value}",
    "critic.trainer.offload": "critic.model.fsdp_config.param_offload=True "
    "critic.model.fsdp_config.optimizer_offload=True",
    "engine.memory_fraction": "actor_rollout_ref.rollout.gpu_memory_utilization={before} -> {value}",
    "engine.tensor_parallel": "actor_rollout_ref.rollout.tensor_model_parallel_size={value}",
    "engine.max_seqs": "actor_rollout_ref.rollout.max_num_seqs={value}",
    "engine.graphs": "actor_rollout_ref.rollout.enforce_eager=True",
    "engine.kv_dtype": "+actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_dtype={value}",
    "engine.releases": "actor_rollout_ref.rollout.free_cache_engine=True",
    "model": "actor_rollout_ref.model.path={value}",
    "layout.devices": "trainer.n_gpus_per_node={value}",
    "layout.nodes": "trainer.nnodes={value}",
    # its trainers of supervised fine-tuning; what the old one and the new one call differently has no spelling
    "rollout.prompts:sft": "data.train_batch_size={value}",
    "rollout.max_answer:sft": "data.max_length={value}",
    "trainer.cap:sft": "data.max_token_len_per_gpu={each}",
    "trainer.rows:sft": "data.micro_batch_size_per_gpu={value}",
    "trainer.checkpointing:sft": "model.enable_gradient_checkpointing=True",
    "trainer.lora:sft": "model.lora_rank={value}",
    "trainer.loss:sft": "",
    "trainer.param_dtype:sft": "",
    "trainer.offload_parameters:sft": "",
    "trainer.optimizer.offload:sft": "",
    "model:sft": "the model {value}",
    "layout.shards:sft": "",
    "layout.tensor:sft": "",
    "layout.context:sft": "",
    "layout.devices:sft": "torchrun --nproc-per-node {value}",
    "layout.nodes:sft": "torchrun --nnodes {value}",
}


def _verl_offload(section: str) -> dict[str, str]:
    """verl's two switches for each of `Trainer.offload`."""
    parts = {"none": (False, False), "parameters": (True, False), "optimizer": (False, True)}
    return {
        f"trainer.offload={name}": f"{section}.param_offload={parameters} {section}.optimizer_offload={optimizer}"
        for name, (parameters, optimizer) in {**parts, "parameters+optimizer": (True, True)}.items()
    }


_VERL_FSDP = {
    **_VERL,
    **_verl_offload("actor_rollout_ref.actor.fsdp_config"),
    "trainer.loss": "actor_rollout_ref.model.use_fused_kernels=True",
    "trainer.param_dtype": "actor_rollout_ref.actor.fsdp_config.model_dtype=bfloat16",
    "trainer.offload_parameters": "actor_rollout_ref.actor.strategy=fsdp2 "
    "actor_rollout_ref.actor.fsdp_config.offload_policy=True",
    "layout.shards": "actor_rollout_ref.actor.fsdp_config.fsdp_size={value}",
    "layout.context": "actor_rollout_ref.actor.ulysses_sequence_parallel_size={value}",
}
_VERL_CORE = "++actor_rollout_ref.actor.megatron.override_transformer_config.recompute"
_VERL_ADAM = "++actor_rollout_ref.actor.optim.override_optimizer_config.optimizer"
_VERL_MEGATRON = {
    **_VERL,
    "critic.trainer.offload": "critic.megatron.param_offload=True critic.megatron.optimizer_offload=True",
    **_verl_offload("actor_rollout_ref.actor.megatron"),
    "trainer.checkpointing": f"{_VERL_CORE}_granularity=full {_VERL_CORE}_method=uniform {_VERL_CORE}_num_layers=1",
    "trainer.optimizer.offload=0.0": f"{_VERL_ADAM}_cpu_offload=False",
    "trainer.optimizer.offload": f"{_VERL_ADAM}_cpu_offload=True {_VERL_ADAM}_offload_fraction=1.0",
    "layout.tensor": "actor_rollout_ref.actor.megatron.tensor_model_parallel_size={value}",
    "layout.context": "actor_rollout_ref.actor.megatron.context_parallel_size={value}",
}

SPELLINGS: dict[str, dict[str, str]] = {
    "headway": _HEADWAY,
    "miles-fsdp": {
        **_SLIME_ROLLOUT,
        "trainer.checkpointing": "--gradient-checkpointing",
        "trainer.attention": "--attn-implementation {value}",
        "trainer.param_dtype": "--no-keep-fp32-master",
    },
    "miles-megatron": {**_MEGATRON, "trainer.lora": "--lora-rank {value}"},
    "slime": _MEGATRON,
    "trl": {
        **_TRL,
        "rollout.prompts": "--generation_batch_size {answers}",
        "rollout.samples": "--num_generations {value}",
        "rollout.max_answer": "--max_completion_length {value}",
        "trainer.reference": "--beta 0",
        "engine.memory_fraction": "--vllm_gpu_memory_utilization {before} -> {value}",
        "engine.tensor_parallel": "--vllm_tensor_parallel_size {value}",
        "engine.releases": "--vllm_enable_sleep_mode true",
    },
    "trl-sft": {**_TRL, "rollout.max_answer": "--max_length {value}"},
    "hf": {**_TRANSFORMERS, "rollout.max_answer": "--block_size {value}"},
    "peft": {
        **_TRANSFORMERS,
        "rollout.max_answer": "--max_length {value}",
        "trainer.lora": "--use_peft --lora_r {value}",
        "trainer.quant": "--use_peft --load_in_4bit",
    },
    "trl-script": {
        **_SCRIPT,
        "rollout.prompts": "generation_batch_size={answers}",
        "rollout.samples": "num_generations={value}",
        "rollout.max_answer": "max_completion_length={value}",
        "trainer.reference": "beta=0",
        "engine.memory_fraction": "vllm_gpu_memory_utilization={before} -> {value}",
        "engine.releases": "vllm_enable_sleep_mode=True",
    },
    "trl-sft-script": {**_SCRIPT, "rollout.max_answer": "max_length={value}"},
    "hf-script": {**_SCRIPT, "rollout.max_answer": "max_length={value} where the data is tokenized"},
    "peft-script": {**_SCRIPT, "rollout.max_answer": "max_length={value} where the data is tokenized"},
    "unsloth": _UNSLOTH,
    "unsloth-kept": _UNSLOTH,
    "fsdp1": _FSDP,
    "fsdp2": _FSDP,
    "torchtitan": _FSDP,
    "deepspeed": {
        **_TRANSFORMERS,
        "layout.devices": "deepspeed --num_gpus {value}",
        "layout.shards": '"zero_optimization": {{"stage": 3}} in the DeepSpeed configuration',
        "trainer.offload_parameters": '"offload_param" and "offload_optimizer": {{"device": "cpu"}} in the DeepSpeed '
        "configuration",
        "trainer.optimizer.offload=0.0": 'no "offload_optimizer" in the DeepSpeed configuration',
        "trainer.optimizer.offload": '"offload_optimizer": {{"device": "cpu"}} in the DeepSpeed configuration',
        "gathers": '"stage3_gather_16bit_weights_on_model_save": false in the DeepSpeed configuration',
    },
    "torchtune": {
        "trainer.rows": "batch_size={value}",
        "rollout.max_answer": "tokenizer.max_seq_len={value}",
        "trainer.checkpointing": "enable_activation_checkpointing=True",
        "trainer.param_dtype": "dtype=bf16",
        "trainer.optimizer.state_dtype=int8": "optimizer._component_=bitsandbytes.optim.AdamW8bit",
        "trainer.optimizer.in_backward": "optimizer_in_bwd=True",
        "trainer.lora": "tune run lora_finetune_single_device, model.lora_rank={value}",
        "model": "the config of {value}",
        "layout.devices": "tune run --nproc_per_node {value} full_finetune_distributed",
    },
    "litgpt": {
        "trainer.rows": "--train.micro_batch_size {value}",
        "rollout.max_answer": "--train.max_seq_length {value}",
        "trainer.param_dtype": "--precision bf16-true",
        "trainer.lora": "litgpt finetune_lora --lora_r {value}",
        "trainer.quant": "litgpt finetune_lora --quantize bnb.{value}",
        "model": "litgpt finetune {value}",
        "layout.devices": "--devices {value}",
        "layout.nodes": "--num_nodes {value}",
    },
    "verl": _VERL_FSDP,
    "verl-fsdp": _VERL_FSDP,
    "verl-megatron": _VERL_MEGATRON,
    "megatron": {
        **_CORE,
        "rollout.prompts": "--global-batch-size {value}",
        "rollout.max_answer": "--seq-length {value}",
        "layout.devices": "torchrun --nproc_per_node {value}",
        "layout.nodes": "torchrun --nnodes {value}",
    },
    "openrlhf": {
        "rollout.prompts": "--rollout_batch_size {value} --train_batch_size {batch}",
        "rollout.samples": "--n_samples_per_prompt {value} --train_batch_size {batch}",
        "rollout.max_answer": "--generate_max_len {value}",
        "trainer.cap": "--max_tokens_per_gpu {value}",
        "trainer.rows": "--micro_train_batch_size {value}",
        "trainer.score_cap": "--rollout_max_tokens_per_gpu {value}",
        "trainer.score_rows": "--micro_rollout_batch_size {value}",
        "trainer.checkpointing": "--gradient_checkpointing",
        "trainer.reference": "--init_kl_coef 0",
        "trainer.lora": "--lora_rank {value}",
        "engine.memory_fraction": "--vllm_gpu_memory_utilization {before} -> {value}",
        "engine.tensor_parallel": "--vllm_num_engines {engines} --vllm_tensor_parallel_size {value}",
        "engine.graphs": "--enforce_eager",
        "engine.releases": "--vllm_enable_sleep",
        "trainer.optimizer.offload=0.0": "no --adam_offload",
        "trainer.optimizer.offload": "--adam_offload",
        "layout.shards": "--zero_stage 3",
        "model": "--pretrain {value}",
        "layout.devices": "--actor_num_gpus_per_node {value}",
        "layout.nodes": "--actor_num_nodes {value}",
    },
}
"""system -> key of the workload, or `key=value` where only some values are taken -> text with the value put in.

`{before}` is the value that is replaced, `{mib}` a size in whole MiB, the others are `counts`.
"""


class Counts(Struct, frozen=True):
    """What goes with a change where a system wants it written too: `answers` of a step, `batch` of them and `mini`
    prompts for an optimizer step, `accum` micro-batches of a rank for one, `engines`, and `each` and `scored`:
    a cap's tokens for each of the ranks that divide a sample, in training and where it is only scored. `supervised`:
    the samples come from the data; `zero`: a master in fp32, which under accelerate is DeepSpeed's.

    >>> Counts(answers=64).batch
    0
    """

    answers: int = 0
    batch: int = 0
    mini: int = 0
    accum: int = 0
    engines: int = 0
    each: int = 0
    scored: int = 0
    supervised: bool = False
    zero: bool = False


def counts(workload: Workload) -> Counts:
    """Those of a run as changed.

    >>> from headway.facts.shapes import table
    >>> from headway.foreign.presets import workload
    >>> counts(workload(table()["qwen3-4b"], "verl-fsdp"))
    Counts(answers=1024, batch=1024, mini=128, accum=0, engines=4, each=16384, scored=0, supervised=False, zero=False)
    """
    rollout, layout, trainer, engine = workload.rollout, workload.layout, workload.trainer, workload.engine
    answers, updates = rollout.prompts * rollout.samples, max(1, trainer.updates)
    accum = max(1, answers // (updates * max(1, layout.data_ranks) * trainer.rows)) if trainer.rows else 0
    engines = 0
    if engine is not None:
        devices = layout.ranks if engine.colocated else engine.devices
        engines = devices // (engine.tensor_parallel * engine.pipeline_parallel)
    each, scored = (-(-cap // layout.context) for cap in (trainer.cap, trainer.score_cap))
    master = trainer.optimizer.master and trainer.param_dtype != "fp32"
    kinds = not rollout.max_prompt, master and trainer.system.startswith(("trl", "hf", "peft"))
    return Counts(answers, answers // updates, rollout.prompts // updates, accum, engines, each, scored, *kinds)


_RUNSPEC: dict[str, tuple[str, Scalar | None]] = {
    "rollout.prompts": ("rollout.prompts", None),
    "rollout.samples": ("rollout.samples", None),
    "rollout.max_answer": ("rollout.max_answer", None),
    "rollout.kv_budget": ("rollout.kv_budget", None),
    "trainer.cap": ("train.cap", None),
    "trainer.checkpointing": ("train.checkpointing", True),
    "trainer.reference": ("objective.kl_coef", 0.0),
    "trainer.attention": ("model.attention", None),
    "trainer.logprob_chunk": ("train.logprob_chunk", None),
    "trainer.param_dtype": ("model.dtype", None),
    "trainer.lora": ("lora.rank", None),
}
"""Key of the workload -> key of the RunSpec, and the value where it is not the workload's own. A smaller model has
none: which of its folders or hub ids is meant is the user's to say."""


def spell(
    system: str, key: SpellKey, value: Scalar, before: Scalar | None = None, beside: Counts | None = None
) -> str | None:
    """A change as the system's own input writes it; None where the system does not accept it. Unsloth's share of the
    device is one of what is free, of which it gives vLLM a little less.

    >>> spell("miles-fsdp", "engine.memory_fraction", 0.2, before=0.4)
    '--sglang-mem-fraction-static 0.4 -> 0.2'
    >>> spell("miles-fsdp", "trainer.lora", 16) is None
    True
    """
    table = SPELLINGS.get(system, {})
    beside = beside or Counts()
    kinds = [f"{key}:{kind}" for kind, on in (("zero", beside.zero), ("sft", beside.supervised)) if on]
    text = next((table[name] for name in (f"{key}={value}", *kinds, key) if name in table), None)
    if not text:
        return None
    if key == "engine.memory_fraction" and system.startswith("unsloth"):
        value, before = _of_free(value), None if before is None else _of_free(before)
    mib = value >> 20 if isinstance(value, int) else 0
    more = asdict(beside)
    caps = {key: more[key] or value for key in ("each", "scored")}
    return text.format(value=value, before=before, mib=mib, **{**more, **caps})


def shares_as_given(system: str, text: str) -> str:
    """A message of the planner with the share of the device as the system's own input has it.

    >>> shares_as_given("unsloth", "engine.memory_fraction = 0.672: leaves a KV pool of 0 B")
    'engine.memory_fraction = 0.7: leaves a KV pool of 0 B'
    """
    if not system.startswith("unsloth"):
        return text
    share = r"(engine\.memory_fraction = )(\d+\.\d+)"
    return re.sub(share, lambda match: f"{match[1]}{_of_free(match[2]):g}", text)


def _of_free(share: Scalar) -> float:
    """A share of the device as one of what is free of it."""
    return round(float(share) / UNSLOTH_FREE, 2)


def accepts(system: str, key: SpellKey, value: Scalar, beside: Counts | None = None) -> bool:
    """Whether a system accepts a change.

    >>> accepts("torchtune", "trainer.optimizer.state_dtype", "int8"), accepts("torchtune", "trainer.quant", "nf4")
    (True, False)
    """
    return spell(system, key, value, beside=beside) is not None


def runspec(key: SpellKey, value: Scalar) -> dict[str, Scalar]:
    """A change as keys of headway's own RunSpec with their values; empty where it is not a key's to make.

    >>> runspec("trainer.cap", 512), runspec("trainer.reference", "none")
    ({'train.cap': 512}, {'objective.kl_coef': 0.0})
    """
    if key not in _RUNSPEC:
        return {}
    name, fixed = _RUNSPEC[key]
    return {name: value if fixed is None else fixed}
