"""OpenRLHF's launch scripts: `openrlhf.cli.train_ppo_ray` and the other trainers, old and new flags -> `Found`.

Names and defaults: OpenRLHF 0.9 (commit 021d1b096, `openrlhf/cli/train_ppo_ray.py`), flags with underscores; 0.10
writes the same settings with dots (`--actor.num_nodes`), and may shard with FSDP2 instead of DeepSpeed (`--fsdp.*`).
"""

import re
from collections.abc import Sequence

from msgspec.structs import replace

from headway.foreign.command import Launch, Line, split
from headway.foreign.found import Found, Setting
from headway.foreign.gather import Gather, Got, Kind, checkpoint, describe, dtype, flag, number, text, truth, whole
from headway.foreign.launcher import processes
from headway.foreign.shell import Script
from headway.foreign.shell.values import Gap, Word

VERSION = "OpenRLHF 0.9"
MODULE = re.compile(r"(?:^|[./])openrlhf[./]cli[./]train_(\w+?)(?:\.py)?$|(?:^|/)train_ppo_ray\w*\.py$")
SWITCHES = frozenset({
    "colocate_actor_ref", "colocate_critic_reward", "colocate_all_models", "vllm_sync_with_ray", "enforce_eager",
    "enable_prefix_caching", "vllm_enable_sleep", "enable_vllm_is_correction", "async_train", "save_hf_ckpt",
    "disable_ds_ckpt", "load_checkpoint", "use_ds_universal_ckpt", "gradient_checkpointing", "deepcompile", "bf16",
    "enable_ema", "adam_offload", "actor_init_on_gpu", "flash_attn", "use_liger_kernel", "overlap_comm",
    "gradient_checkpointing_use_reentrant", "disable_fast_tokenizer", "deepspeed_enable_sleep", "packing_samples",
    "use_dynamic_batch", "load_in_4bit", "normalize_reward", "full_determinism", "save_value_network", "use_kl_loss",
    "no_advantage_std_norm", "ref_reward_offload", "apply_chat_template", "dynamic_filtering", "perf", "use_ms",
    "multiturn", "pretrain_mode", "train.colocate_all", "train.colocate_actor_ref", "train.colocate_critic_reward",
    "train.async_enable", "train.partial_rollout_enable", "train.dynamic_batch_enable",
    "train.full_determinism_enable", "vllm.enable_sleep", "vllm.enforce_eager", "vllm.enable_prefix_caching",
    "ds.enable_sleep", "ds.adam_offload", "ds.packing_samples", "ds.use_liger_kernel", "ds.load_in_4bit",
    "fsdp.enable_sleep", "fsdp.cpu_offload", "fsdp.packing_samples", "fsdp.load_in_4bit", "ref.offload",
    "actor.gradient_checkpointing_enable", "actor.gradient_checkpointing", "model.gradient_checkpointing_enable",
    "algo.kl.use_loss", "algo.dynamic_filtering_enable", "data.apply_chat_template", "ckpt.save_hf",
    "ckpt.load_enable",
})  # fmt: skip
"""Flags that take no value."""

Row = tuple[str, tuple[str, ...], Kind, Setting]
VALUED: tuple[Row, ...] = (
    ("nodes", ("actor_num_nodes", "actor.num_nodes"), whole, 1),
    ("gpus_per_node", ("actor_num_gpus_per_node", "actor.num_gpus_per_node"), whole, 8),
    ("gpus_per_engine", ("vllm_tensor_parallel_size", "vllm.tensor_parallel_size"), whole, 1),
    ("tp", ("ds_tensor_parallel_size", "ds.tensor_parallel_size", "fsdp.tp_size"), whole, 1),
    ("cp", ("ring_attn_size", "ds.ring_attn_size", "fsdp.ring_attn_size", "fsdp.cp_size"), whole, 1),
    ("max_tokens_per_gpu", ("train_max_tokens_per_gpu", "train.max_tokens_per_gpu"), whole, 16192),
    ("micro_batch", ("micro_train_batch_size", "train.micro_batch_size"), whole, 4),
    ("global_batch", ("train_batch_size", "train.batch_size"), whole, 128),
    ("rollout_batch", ("rollout_batch_size", "rollout.batch_size"), whole, 1024),
    ("samples_per_prompt", ("n_samples_per_prompt", "rollout.n_samples_per_prompt"), whole, 1),
    ("max_prompt_len", ("prompt_max_len", "data.prompt_max_len"), whole, 1024),
    ("max_response_len", ("generate_max_len", "rollout.max_new_tokens"), whole, 1024),
    ("max_total_len", ("max_len", "data.max_len"), whole, None),
    ("engine_mem_fraction", ("vllm_gpu_memory_utilization", "vllm.gpu_memory_utilization"), number, 0.95),
    ("kl_coef", ("init_kl_coef", "algo.kl.init_coef"), number, 0.01),
    ("optimizer", ("optimizer", "actor.optim", "actor.optimizer"), text, "adamw"),
    ("lora_rank", ("lora_rank", "ds.lora.rank", "fsdp.lora.rank"), whole, 0),
    ("save_interval", ("save_steps", "ckpt.save_steps"), whole, -1),
    ("eval_interval", ("eval_steps", "eval.steps"), whole, -1),
)
"""Key, the names of its flag, its kind and its default."""
ON_OFF: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("colocate", ("colocate_all_models", "train.colocate_all")),
    ("dynamic_batch", ("use_dynamic_batch", "train.dynamic_batch_enable")),
    ("use_kl_loss", ("use_kl_loss", "algo.kl.use_loss")),
    ("optimizer_offload", ("adam_offload", "ds.adam_offload", "fsdp.cpu_offload")),
)
MODEL = ("pretrain", "actor.model_name_or_path", "model.model_name_or_path")
CHECKPOINTING = (
    "gradient_checkpointing", "actor.gradient_checkpointing_enable", "actor.gradient_checkpointing",
    "model.gradient_checkpointing_enable",
)  # fmt: skip
FSDP = re.compile(r"fsdp\.")


def claims(launch: Launch) -> bool:
    """Whether a program is a trainer of OpenRLHF's.

    >>> from headway.foreign.shell import read_text
    >>> from headway.foreign.command import launches
    >>> command = read_text("deepspeed --module openrlhf.cli.train_sft --pretrain x").commands[0]
    >>> [claims(launch) for launch in launches(command)]
    [True]
    """
    return MODULE.search(launch.program) is not None


def read(script: Script) -> Found | None:
    """A script of OpenRLHF; None where it is none. An on/off flag that is not there is off."""

    def world(launch: Launch, words: list[Word | Gap]) -> Found:
        return from_line(split(words, SWITCHES), launch.program, launch.launcher)

    return describe(script, claims, world)


def from_line(line: Line, program: str, launcher: Sequence[object] = ()) -> Found:
    """What flags say, of a command or of a log."""
    into = Gather("openrlhf")
    match = MODULE.search(program)
    is_rl = match is None or (match[1] or "ppo_ray").startswith(("ppo", "grpo", "es", "opd"))
    for key, names, kind, default in VALUED:
        into.take(key, flag(line, *names), kind, default if is_rl or key in ALWAYS else None)
    for key, names in ON_OFF:
        into.take(key, _switch(line, names), truth, absent=False)
    checkpointing = _switch(line, CHECKPOINTING)
    into.take("recompute", checkpointing, _checkpointing, absent=False)
    _backend(into, line)
    _precision(into, line)
    if is_rl:
        _engine(into, line)
        _reference(into, line)
    else:
        _supervised(into, match[1] if match and match[1] else "", launcher)
    is_async = _switch(line, ("async_train", "train.async_enable"))
    if is_async.why:
        into.cannot("mode", is_async.why)
    else:
        into.said("mode", "async" if is_async.given else "sync", (is_async,))
    _worked_out(into, is_rl)
    model = checkpoint(into, flag(line, *MODEL))
    flags = {key: tuple(value.text for value in given[-1].values) for key, given in line.flags.items()}
    return into.found(flags=flags, model=model, program=program, asked=frozenset(line.asked))


ALWAYS = frozenset({"tp", "cp", "optimizer", "lora_rank", "save_interval", "eval_interval", "global_batch"})
"""Keys whose default is the same in every trainer."""


def _switch(line: Line, names: tuple[str, ...]) -> Got:
    """An on/off flag: on where it is there, whatever stands behind it."""
    got = flag(line, *names, switch=True)
    return Got(True, given=True, at=got.at) if got.given else got


def _checkpointing(raw: object) -> Setting:
    return "gradient_checkpointing" if raw else False


def _backend(into: Gather, line: Line) -> None:
    """DeepSpeed, or FSDP2 where its flags are used."""
    flags = [name for name in line.flags if FSDP.match(name)]
    if flags:
        into.said("trainer_backend", "fsdp2", (flag(line, flags[0]),))
        into.take("zero_stage", Got(), whole, 3)
        return
    into.said("trainer_backend", "deepspeed")
    into.take("zero_stage", flag(line, "zero_stage", "ds.zero_stage"), whole, 2)


def _precision(into: Gather, line: Line) -> None:
    given = flag(line, "param_dtype", "ds.param_dtype", "fsdp.param_dtype")
    half = _switch(line, ("bf16",))
    if given.given:
        into.take("dtype", given, dtype)
    else:
        into.take("dtype", replace(half, raw="bf16") if half.given else half, text, "bf16")
    packed = _switch(line, ("load_in_4bit", "ds.load_in_4bit", "fsdp.load_in_4bit"))
    into.take("low_precision", replace(packed, raw="4bit") if packed.given else packed, text)


def _engine(into: Gather, line: Line) -> None:
    engines = flag(line, "vllm_num_engines", "vllm.num_engines")
    if engines.why:
        into.cannot("engine", engines.why)
        into.cannot("rollout_gpus", engines.why)
        return
    try:
        count = whole(engines.raw) if engines.given else None
    except (ValueError, OverflowError):
        into.cannot("engine", "vllm_num_engines is no whole number")
        return
    into.take("engine", Got("vllm" if count else None, given=engines.given, at=engines.at), text, "hf")
    if "gpus_per_engine" in into.unknown:
        into.cannot("rollout_gpus", into.unknown["gpus_per_engine"])
    elif count:
        width = into.settings.get("gpus_per_engine")
        if isinstance(width, int):
            into.said("rollout_gpus", count * width, (engines,))
        else:
            into.take("rollout_gpus", Got(), whole, count)


def _reference(into: Gather, line: Line) -> None:
    """A reference is loaded at a KL coefficient above 0, a critic for GAE."""
    path = flag(line, "ref_pretrain", "ref.model_name_or_path")
    if path.why and not path.given:
        into.cannot("reference_path_given", path.why)
    else:
        into.said("reference_path_given", path.given, (path,))
    strength = into.value("kl_coef")
    if "kl_coef" in into.unknown:
        into.cannot("reference_loaded", into.unknown["kl_coef"])
    else:
        into.said("reference_loaded", isinstance(strength, int | float) and strength > 0)
    estimator = flag(line, "advantage_estimator", "algo.advantage.estimator")
    if estimator.why:
        into.cannot("critic_loaded", estimator.why)
    else:
        into.said("critic_loaded", not estimator.given or estimator.raw == "gae", (estimator,))


def _supervised(into: Gather, kind: str, launcher: Sequence[object]) -> None:
    """SFT, DPO, reward models: started by DeepSpeed on the devices that it is told, no engine."""
    started = processes(launcher)
    for key, got in (("nodes", started.nodes), ("gpus_per_node", started.devices)):
        if into.settings.get(key) is None:
            into.take(key, got, whole)
    for key in ("colocate", "use_kl_loss"):
        into.settings[key] = False
    into.said("reference_path_given", False)
    into.said("reference_loaded", kind in ("dpo", "kto"))
    into.said("critic_loaded", False)


def _worked_out(into: Gather, is_rl: bool) -> None:
    """What follows from other settings."""
    if not is_rl:
        return
    prompts, samples, batch = (
        into.count("rollout_batch"),
        into.count("samples_per_prompt"),
        into.count("global_batch"),
    )
    if prompts and samples and batch:
        into.derive("num_steps_per_rollout", max(1, prompts * samples // batch))
    prompt, answer = into.count("max_prompt_len"), into.count("max_response_len")
    if prompt and answer and into.settings.get("max_total_len") is None:
        into.derive("max_total_len", prompt + answer)
    nodes, devices, rows = into.count("nodes"), into.count("gpus_per_node"), into.count("micro_batch")
    width, ring = into.count("tp"), into.count("cp")
    if nodes and devices and rows and batch and width and ring:
        copies = max(1, nodes * devices // (width * ring))
        into.derive("grad_accum", max(1, batch // (rows * copies)))
