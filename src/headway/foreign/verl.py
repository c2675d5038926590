"""verl's launch scripts: `python3 -m verl.trainer.main_ppo` with Hydra overrides and YAML files -> `Found`.

Paths and defaults: verl-project/verl 0.7 (commit 01d4d766, 2026), `verl/trainer/config/_generated_ppo_trainer.yaml`
and `_generated_ppo_megatron_trainer.yaml`; older paths that scripts still use stand beside them.
"""

import re
from pathlib import Path

from msgspec.structs import replace

from headway.foreign import documents
from headway.foreign.command import Launch
from headway.foreign.documents import RefusedError
from headway.foreign.found import Found, Setting
from headway.foreign.gather import (
    Gather,
    Got,
    Kind,
    checkpoint,
    describe,
    dtype,
    number,
    text,
    tree,
    truth,
    whole,
)
from headway.foreign.hydra import Config, config, read_files
from headway.foreign.shell import Script
from headway.foreign.shell.values import Gap, Word

VERSION = "verl 0.7"
ACTOR, ROLLOUT, REF, MODEL = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "ref", "model"))
BUILTIN = frozenset({
    "ppo_trainer", "ppo_megatron_trainer", "ppo_torchtitan_trainer", "ppo_veomni_trainer", "ppo_mindspeed_trainer",
    "sft_trainer", "sft_trainer_engine", "fully_async_ppo_trainer", "fully_async_ppo_megatron_trainer",
    "one_step_off_ppo_trainer", "one_step_off_ppo_megatron_trainer", "dapo_trainer", "dapo_megatron_trainer",
})  # fmt: skip
"""Configurations that come with verl: what they say is the defaults below."""

DEFAULTS: dict[str, Setting] = {
    "data.max_prompt_length": 512, "data.max_response_length": 512, "data.train_batch_size": 1024,
    f"{ACTOR}.ppo_mini_batch_size": 256, f"{ACTOR}.use_dynamic_bsz": False, f"{ACTOR}.ppo_epochs": 1,
    f"{ACTOR}.ppo_max_token_len_per_gpu": 16384, f"{ACTOR}.use_kl_loss": False, f"{ACTOR}.kl_loss_coef": 0.001,
    f"{ACTOR}.ulysses_sequence_parallel_size": 1, f"{ACTOR}.entropy_coeff": 0,
    f"{ROLLOUT}.name": "vllm", f"{ROLLOUT}.n": 1, f"{ROLLOUT}.gpu_memory_utilization": 0.5,
    f"{ROLLOUT}.tensor_model_parallel_size": 2, f"{ROLLOUT}.max_num_seqs": 256,
    f"{ROLLOUT}.max_num_batched_tokens": 8192, f"{ROLLOUT}.free_cache_engine": True,
    f"{ROLLOUT}.enforce_eager": False, f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes": 2048,
    f"{MODEL}.enable_gradient_checkpointing": True, f"{MODEL}.lora_rank": 0, f"{MODEL}.use_fused_kernels": False,
    "algorithm.adv_estimator": "gae", "algorithm.use_kl_in_reward": False, "algorithm.kl_ctrl.kl_coef": 0.001,
    "trainer.nnodes": 1, "trainer.n_gpus_per_node": 8, "trainer.save_freq": -1, "trainer.test_freq": -1,
}  # fmt: skip

Row = tuple[str, tuple[str, ...], Kind, Setting]


def _row(key: str, kind: Kind, *paths: str) -> Row:
    return key, paths, kind, DEFAULTS.get(paths[0])


COMMON: tuple[Row, ...] = (
    _row("engine", text, f"{ROLLOUT}.name"),
    _row("nodes", whole, "trainer.nnodes"),
    _row("gpus_per_node", whole, "trainer.n_gpus_per_node"),
    _row("gpus_per_engine", whole, f"{ROLLOUT}.tensor_model_parallel_size"),
    _row("dynamic_batch", truth, f"{ACTOR}.use_dynamic_bsz"),
    _row("max_tokens_per_gpu", whole, f"{ACTOR}.ppo_max_token_len_per_gpu"),
    _row("micro_batch", whole, f"{ACTOR}.ppo_micro_batch_size_per_gpu"),
    _row("global_batch", whole, f"{ACTOR}.ppo_mini_batch_size"),
    _row("rollout_batch", whole, "data.train_batch_size"),
    _row("samples_per_prompt", whole, f"{ROLLOUT}.n"),
    _row("max_prompt_len", whole, "data.max_prompt_length"),
    _row("max_response_len", whole, "data.max_response_length"),
    _row("max_total_len", whole, f"{ROLLOUT}.max_model_len"),
    _row("engine_mem_fraction", number, f"{ROLLOUT}.gpu_memory_utilization"),
    _row("use_kl_loss", truth, f"{ACTOR}.use_kl_loss"),
    _row("kl_loss_coef", number, f"{ACTOR}.kl_loss_coef"),
    _row("kl_coef", number, "algorithm.kl_ctrl.kl_coef", "critic.kl_ctrl.kl_coef"),
    _row("low_precision", text, f"{ROLLOUT}.quantization"),
    _row("save_interval", whole, "trainer.save_freq"),
    _row("eval_interval", whole, "trainer.test_freq"),
)
MCORE, FSDP = f"{ACTOR}.megatron", f"{ACTOR}.fsdp_config"
MEGATRON: tuple[Row, ...] = (
    ("tp", (f"{MCORE}.tensor_model_parallel_size",), whole, 1),
    ("pp", (f"{MCORE}.pipeline_model_parallel_size",), whole, 1),
    ("cp", (f"{MCORE}.context_parallel_size",), whole, 1),
    ("ep", (f"{MCORE}.expert_model_parallel_size",), whole, 1),
    ("etp", (f"{MCORE}.expert_tensor_parallel_size",), whole, None),
    ("sequence_parallel", (f"{MCORE}.sequence_parallel",), truth, True),
    ("param_offload", (f"{MCORE}.param_offload",), truth, False),
    ("optimizer", (f"{ACTOR}.optim.optimizer",), text, "adam"),
    ("lora_rank", (f"{MODEL}.lora.rank", f"{MODEL}.lora_rank"), whole, 0),
    ("dtype", (f"{MCORE}.dtype",), dtype, "bf16"),
)
RANKS = MEGATRON[:6]
"""The rows that divide the model."""
SHARDED: tuple[Row, ...] = (
    ("cp", (f"{ACTOR}.ulysses_sequence_parallel_size", f"{FSDP}.ulysses_sequence_parallel_size"), whole, 1),
    ("param_offload", (f"{FSDP}.param_offload",), truth, False),
    ("optimizer", (f"{ACTOR}.optim.optimizer",), text, "AdamW"),
    ("lora_rank", (f"{MODEL}.lora_rank", f"{MODEL}.lora.rank"), whole, 0),
    ("dtype", (f"{FSDP}.model_dtype",), dtype, "fp32"),
)
SFT: tuple[Row, ...] = (
    ("cp", ("ulysses_sequence_parallel_size", "engine.ulysses_sequence_parallel_size"), whole, 1),
    ("dynamic_batch", ("data.use_dynamic_bsz",), truth, None),
    ("max_tokens_per_gpu", ("data.max_token_len_per_gpu",), whole, None),
    ("micro_batch", ("data.micro_batch_size_per_gpu",), whole, 4),
    ("global_batch", ("data.train_batch_size",), whole, 256),
    ("max_total_len", ("data.max_length",), whole, 1024),
    ("optimizer", ("optim.optimizer",), text, "AdamW"),
    ("param_offload", ("engine.param_offload", "model.fsdp_config.offload_params"), truth, False),
    ("optimizer_offload", ("engine.optimizer_offload",), truth, False),
    ("lora_rank", ("model.lora_rank",), whole, 0),
    ("dtype", ("engine.model_dtype", "model.fsdp_config.model_dtype"), dtype, "fp32"),
    ("save_interval", ("trainer.save_freq",), whole, -1),
    ("eval_interval", ("trainer.test_freq",), whole, -1),
)

CORE = f"{MCORE}.override_transformer_config"
DETAILS = (
    f"{ACTOR}.entropy_coeff", f"{ROLLOUT}.max_num_seqs", f"{ROLLOUT}.max_num_batched_tokens",
    f"{ROLLOUT}.free_cache_engine", f"{ROLLOUT}.enforce_eager", f"{MODEL}.use_fused_kernels", f"{FSDP}.fsdp_size",
    f"{FSDP}.offload_policy",
    f"{REF}.megatron.param_offload", f"{MODEL}.target_modules", f"{MCORE}.virtual_pipeline_model_parallel_size",
    f"{CORE}.num_layers_in_first_pipeline_stage", f"{CORE}.num_layers_in_last_pipeline_stage",
    "algorithm.use_kl_in_reward", "trainer.total_training_steps", f"{MODEL}.use_remove_padding",
    f"{CORE}.recompute_method", f"{CORE}.recompute_num_layers", f"{CORE}.recompute_modules",
    f"{ACTOR}.optim.override_optimizer_config.optimizer_offload_fraction",
)  # fmt: skip
"""What a plan asks for beside the keys of `Found`: in its `flags`, wherever it is written."""
CRITIC_FSDP = ("critic.model.fsdp_config", "critic.fsdp_config", "critic.fsdp")
PATHS = ("critic.model.path", "reward_model.model.path", f"{REF}.model.path")
"""Checkpoints of other models than the actor."""
OTHERS = (
    "critic.strategy", "critic.ppo_micro_batch_size_per_gpu", "critic.ppo_micro_batch_size", "critic.use_dynamic_bsz",
    "critic.ppo_max_token_len_per_gpu", "critic.ulysses_sequence_parallel_size",
    "critic.model.enable_gradient_checkpointing", "critic.model.lora_rank", "critic.model.use_remove_padding",
    *(
        f"{section}.{key}" for section in CRITIC_FSDP
        for key in ("param_offload", "optimizer_offload", "offload_policy", "model_dtype", "fsdp_size")
    ),
    *(
        f"{section}.megatron.{key}" for section in ("critic", "reward_model")
        for key in (
            "param_offload", "optimizer_offload", "tensor_model_parallel_size", "pipeline_model_parallel_size",
            "context_parallel_size", "expert_model_parallel_size", "sequence_parallel",
            "override_transformer_config.recompute_granularity",
        )
    ),
    *(
        f"{section}.{key}" for section in ("reward_model", "reward.reward_model")
        for key in ("enable", "enable_resource_pool", "rollout.name", "nnodes", "n_gpus_per_node", "strategy",
                    "micro_batch_size_per_gpu", "micro_batch_size", "use_dynamic_bsz",
                    "forward_max_token_len_per_gpu")
    ),
    *(
        f"{section}.log_prob_{key}" for section in (ROLLOUT, REF)
        for key in ("use_dynamic_bsz", "max_token_len_per_gpu", "micro_batch_size_per_gpu", "micro_batch_size")
    ),
    *(f"critic.forward_{key}" for key in ("max_token_len_per_gpu", "micro_batch_size_per_gpu", "micro_batch_size")),
    "algorithm.adv_estimator", "distillation.enabled",
)  # fmt: skip
"""The same of the models beside the actor."""
ENABLE = ("reward_model.enable", "reward.reward_model.enable", "distillation.enabled")
"""Those that say whether there is one."""

TRAINING = re.compile(
    r"verl\.trainer\.(?:main_ppo\w*|sft_trainer\w*|fsdp_sft_trainer|main_ppo_sync)"
    r"|(?:recipe|verl)\.[\w.]*\.(?:\w*main\w*|\w*trainer\w*)"
)
OF_FORKS = ("worker.", "config=")
"""Keys of EasyR1, which has verl's modules and a configuration of its own."""
NOT_TRAINING = ("main_generation", "main_eval", "model_merger", "_server", "preprocess")


def claims(launch: Launch) -> bool:
    """Whether a program is a trainer of verl's: by its module, or by the keys that it is given.

    A program of somebody's own is one where it is given keys that only verl has.
    """
    name = launch.program.removesuffix(".py").replace("/", ".")
    firsts = [item.parts[0] for item in launch.arguments if isinstance(item, Word) and item.parts]
    texts = [each for each in firsts if isinstance(each, str)]
    if any(part in name for part in NOT_TRAINING) or any(each.startswith(OF_FORKS) for each in texts):
        return False
    keys = sum("actor_rollout_ref." in each[:24] for each in texts)
    found = TRAINING.search(name)
    # many projects have recipes: one of verl's is a module of its own, or has its keys
    hydra = not any(each.startswith("--") and not each.startswith("--config") for each in texts)
    ours = found is not None and ((found.start() == 0 and hydra) or "verl" in found[0] or keys > 0)
    return ours or keys >= 3


def read(script: Script, root: Path | None = None) -> Found | None:
    """A script of verl; None where it is none. YAML files are read below `root` only; nothing is run."""
    path, root = tree(script, root)

    def world(launch: Launch, words: list[Word | Gap]) -> Found:
        made = config(words, dict(DEFAULTS))
        read_files(made, BUILTIN, path, root)
        if root is not None and not made.base and launch.program == "verl.trainer.main_ppo":
            read_copy(made, root)
        return from_config(made, launch.program, tuple(launch.launcher))

    return describe(script, claims, world)


def read_copy(made: Config, root: Path) -> None:
    """Put the defaults of the copy of verl that the script's tree has under the overrides.

    Only where they are one file, as before version 0.5: they differ from the defaults here (no checkpointing).
    """
    name = made.name or "ppo_trainer"
    path = root / "verl" / "trainer" / "config" / f"{name}.yaml"
    if name not in BUILTIN or not path.is_file() or root not in path.resolve().parents:
        return
    try:
        found = documents.table(path)
    except RefusedError as error:
        made.unread.append(f"{path.name}: {error}")
        return
    if "defaults" not in found:
        made.base, made.base_name = _told(found), f"verl/trainer/config/{path.name}"


def _told(table: documents.Table) -> documents.Table:
    """A table without the keys that are null."""
    return {
        key: _told(value) if isinstance(value, dict) else value for key, value in table.items() if value is not None
    }  # fmt: skip


def from_config(made: Config, program: str, launcher: tuple[object, ...] = ()) -> Found:
    """What a configuration says, from overrides, files or a log."""
    into = Gather("verl")
    is_sft = "sft" in program.rpartition("/")[2] or any("sft" in name for name in made.parents)
    model = made.get("model.path", "model.partial_pretrain") if is_sft else made.get(f"{MODEL}.path")
    if is_sft:
        _sft(into, made, launcher)
    else:
        _rl(into, made, program)
    name = checkpoint(into, model)
    into.unread += made.unread
    flags = {each.key: (None if each.why else _shown(each.value),) for each in made.overrides}
    for path in DETAILS:
        got = made.get(path)
        if got.given and not got.why:
            flags[path] = (_shown(got.raw),)
    for path in OTHERS:
        got = made.get(path)
        flags.pop(path, None)
        if got.given and got.why and path in ENABLE:
            flags[path] = (None,)
        elif got.given and got.why and path.startswith("critic.") and into.value("critic_loaded") is not False:
            into.unread.append(f"{path}: {got.why}")
        elif got.given and not got.why and got.raw is not None:
            flags[path] = (_shown(got.raw),)
    for path in PATHS:
        got = made.get(path)
        flags.pop(path, None)
        if got.given and (got.why or got.raw is not None):
            flags[path] = (_same(got, model) or _shown(None if got.why else got.raw),)
    return into.found(flags=flags, model=name, program=program, asked=frozenset(made.asked))


def _same(got: Got, actor: Got) -> str:
    """That a path is the actor's own, where it cannot be told but both are written alike; empty where it is not."""
    alike = got.word is not None and actor.word is not None and got.word.shown == actor.word.shown
    return "the actor's" if alike and got.why else ""


def _shown(value: object) -> str:
    return "null" if value is None else str(value)[:200]


def _fill(into: Gather, made: Config, rows: tuple[Row, ...]) -> None:
    for key, paths, kind, default in rows:
        into.take(key, made.get(*paths), kind, default)


# -- reinforcement learning ---------------------------------------------------------------------------------


def _rl(into: Gather, made: Config, program: str) -> None:
    _fill(into, made, COMMON)
    backend = _backend(into, made)
    if backend == "megatron":
        _fill(into, made, MEGATRON)
    else:
        _fill(into, made, SHARDED)
        for key in ("tp", "pp"):
            into.derive(key, 1)
    _offload(into, made, backend)
    _recompute(into, made, backend)
    _micro_batch(into, made)
    _placement(into, made, program)
    _reference(into, made)
    _bucket(into, made)
    _worked_out(into, made)


def _backend(into: Gather, made: Config) -> str:
    """The trainer's backend, by its strategy, the engine group or the name of the configuration."""
    strategy, engine = made.get(f"{ACTOR}.strategy"), made.group("model_engine")
    if not engine.given:
        engine = made.group("actor")
    for got in (strategy, engine):
        if got.given and not got.why and got.raw is not None:
            name = str(got.raw).removesuffix("_actor").removesuffix("_dp")
            into.take("trainer_backend", replace(got, raw="fsdp" if name == "dp" else name), text)
            return str(into.value("trainer_backend") or "fsdp")
        if got.given and got.why:
            into.take("trainer_backend", got, text)
            return "fsdp"
    named = "megatron" in made.name or any("megatron" in name for name in made.parents)
    used = any(each.key.startswith(f"{MCORE}.") for each in made.overrides)
    if named or used:
        into.said("trainer_backend", "megatron")
        return "megatron"
    into.take("trainer_backend", strategy, text, "fsdp")
    return "fsdp"


def _offload(into: Gather, made: Config, backend: str) -> None:
    """Megatron's own offload of the optimizer's step counts as well: it keeps the state in host memory for good."""
    if backend != "megatron":
        into.take("optimizer_offload", made.get(f"{FSDP}.optimizer_offload"), truth, False)
        return
    hybrid = made.get(f"{ACTOR}.optim.override_optimizer_config.optimizer_cpu_offload")
    if hybrid.given and not hybrid.why and str(hybrid.raw).lower() == "true":
        into.take("optimizer_offload", hybrid, truth)
        return
    into.take("optimizer_offload", made.get(f"{MCORE}.optimizer_offload"), truth, False)
    for key, part in (("param_offload", "param"), ("optimizer_offload", "optimizer")):
        target = made.get(f"{MCORE}.offload.{part}.target")
        if target.given and target.raw is not None:
            into.unknown.pop(key, None)
            into.take(key, replace(target, raw=str(target.raw).lower() in ("cpu", "disk")), truth)


def _recompute(into: Gather, made: Config, backend: str) -> None:
    checkpointing = made.get(f"{MODEL}.enable_gradient_checkpointing")
    if backend == "megatron":
        got = made.get(
            f"{MCORE}.override_transformer_config.recompute_granularity",
            f"{MODEL}.gradient_checkpointing_kwargs.activations_checkpoint_granularity",
        )
        if got.given:
            into.take("recompute", got, text)
            return
    into.take("recompute", checkpointing, _checkpointing, "gradient_checkpointing" if backend != "megatron" else None)


def _checkpointing(raw: object) -> Setting:
    """`recompute` of an on/off setting."""
    found = truth(raw)
    return "gradient_checkpointing" if found else found


def _micro_batch(into: Gather, made: Config) -> None:
    """The older key counts the samples of all devices."""
    whole_batch = made.get(f"{ACTOR}.ppo_micro_batch_size")
    if into.settings.get("micro_batch") is not None or "micro_batch" in into.unknown:
        return
    nodes, devices = into.count("nodes"), into.count("gpus_per_node")
    if whole_batch.given and not whole_batch.why and nodes and devices:
        try:
            total = whole(whole_batch.raw)
        except (ValueError, OverflowError):
            return
        if total:
            into.derive("micro_batch", max(1, total // (nodes * devices)))


def _placement(into: Gather, made: Config, program: str) -> None:
    names = (program, made.name, *made.parents)
    is_async = any("async" in name or "one_step_off" in name for name in names)
    into.said("mode", "async" if is_async else "sync")
    hybrid = made.get("actor_rollout_ref.hybrid_engine")
    into.take("colocate", hybrid, truth, not is_async)
    nodes = made.get("rollout.nnodes", f"{ROLLOUT}.nnodes")
    devices = made.get("rollout.n_gpus_per_node", f"{ROLLOUT}.n_gpus_per_node")
    _product(into, "rollout_gpus", nodes, devices)


def _product(into: Gather, key: str, *parts: Got) -> None:
    """The product of whole numbers that are all given, and not known where one of those that are given is not."""
    unknown = [got.why for got in parts if got.why]
    if unknown:
        into.cannot(key, unknown[0])
        return
    if not all(got.given for got in parts):
        return
    total = 1
    try:
        for got in parts:
            total *= whole(got.raw) or 0
    except (ValueError, OverflowError):
        into.cannot(key, "is no whole number")
        return
    if total:
        into.said(key, total, parts)


def _reference(into: Gather, made: Config) -> None:
    """A reference is loaded for a KL in the loss or in the reward; with LoRA it is the model without its adapter."""
    path = made.get(f"{REF}.model.path")
    if path.why:
        into.cannot("reference_path_given", path.why)
    else:
        into.said("reference_path_given", path.given and path.raw is not None, (path,))
    _either(
        into, "reference_loaded",
        (made.get(f"{ACTOR}.use_kl_loss"), made.get("algorithm.use_kl_in_reward")),
    )  # fmt: skip
    rank = into.value("lora_rank")
    if into.settings.get("reference_loaded") is True and isinstance(rank, int) and rank > 0:
        into.said("reference_loaded", False)
        into.notes.append("the reference is the model without its adapter")
    enabled, estimator = made.get("critic.enable"), made.get("algorithm.adv_estimator")
    if enabled.given and enabled.raw is not None and not enabled.why:
        into.take("critic_loaded", enabled, truth)
    elif enabled.why or estimator.why:
        into.cannot("critic_loaded", enabled.why or estimator.why)
    else:
        name = str(estimator.raw if estimator.given else DEFAULTS["algorithm.adv_estimator"])
        into.said("critic_loaded", name.rpartition(".")[2].lower() == "gae", (estimator,))


def _either(into: Gather, key: str, parts: tuple[Got, ...]) -> None:
    """True where one of several on/off settings is on, false where all are off, and else not known."""
    states = []
    for got in parts:
        try:
            states.append(None if got.why else bool(truth(got.raw)) if got.given else False)
        except ValueError:
            states.append(None)
    if True in states:
        into.said(key, True, parts)
    elif None in states:
        into.cannot(key, next((got.why for got in parts if got.why), "is neither true nor false"))
    else:
        into.said(key, False)


def _bucket(into: Gather, made: Config) -> None:
    got = made.get(
        f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes", f"{ROLLOUT}.update_weights_bucket_megabytes"
    )
    default = DEFAULTS[f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes"]
    assert isinstance(default, int)
    into.take("update_weight_buffer_bytes", got, _mebibytes, default << 20)


def _mebibytes(raw: object) -> int | None:
    found = whole(raw)
    return None if found is None else found << 20


def _worked_out(into: Gather, made: Config) -> None:
    """What follows from other settings."""
    prompts, mini, epochs = into.count("rollout_batch"), into.count("global_batch"), made.get(f"{ACTOR}.ppo_epochs")
    if prompts and mini:
        try:
            rounds = (whole(epochs.raw) or 1) if epochs.given and not epochs.why else 1
        except (ValueError, OverflowError):
            rounds = 1
        into.derive("num_steps_per_rollout", max(1, prompts // mini) * rounds)
    answers = into.value("max_response_len")
    into.derive("eval_max_response_len", answers)
    prompt = into.count("max_prompt_len")
    if prompt and isinstance(answers, int) and into.settings.get("max_total_len") is None:
        into.derive("max_total_len", prompt + answers)
    nodes, devices = into.count("nodes"), into.count("gpus_per_node")
    if into.value("colocate") and nodes and devices:
        into.derive("rollout_gpus", nodes * devices)
    if into.value("trainer_backend") in ("fsdp", "fsdp2"):
        into.derive("zero_stage", 3)


# -- supervised fine-tuning ---------------------------------------------------------------------------------


def _sft(into: Gather, made: Config, launcher: tuple[object, ...]) -> None:
    from headway.foreign.launcher import processes

    _fill(into, made, SFT)
    strategy, engine = made.get("model.strategy", "engine.strategy"), made.group("engine")
    into.take("trainer_backend", strategy if strategy.given or not engine.given else engine, text, "fsdp")
    if into.value("trainer_backend") == "megatron":
        for key, paths, kind, default in RANKS:
            into.take(key, made.get(f"engine.{paths[0].removeprefix(MCORE + '.')}"), kind, default)
    into.take("recompute", made.get("model.enable_gradient_checkpointing"), _checkpointing, "gradient_checkpointing")
    started = processes(launcher)
    for key, got, path in (
        ("nodes", started.nodes, "trainer.nnodes"),
        ("gpus_per_node", started.devices, "trainer.n_gpus_per_node"),
    ):
        into.take(key, got if got.given or got.why else made.get(path), whole, 1)
    into.said("mode", "sync")
    into.said("reference_path_given", False)
    into.said("reference_loaded", False)
    into.said("critic_loaded", False)
