"""From what a script of verl, TRL, OpenRLHF or Megatron-LM says to the planner's `Workload`.

Memory habits by the systems' code: verl 1dda039b9, TRL f2cd57710, OpenRLHF 021d1b096, Megatron-LM core_r0.16. What a
script does not tell has the system's default, and every such value is named in `Workload.unknown`.
"""

import re
from collections.abc import Callable
from math import ceil
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from headway.errors import InputError
from headway.facts.blocks import LoraTargets
from headway.facts.shapes import ModelShape
from headway.facts.workload import (
    Dtype,
    Engine,
    Layout,
    Lora,
    Offload,
    Optimizer,
    Quant,
    Recompute,
    Rollout,
    StateDtype,
    Trainer,
    Workload,
)
from headway.foreign.found import Found
from headway.foreign.gather import truth
from headway.foreign.hydra import value as literal
from headway.foreign.megatron_ways import products, ways
from headway.foreign.not_read import not_read
from headway.foreign.trl_losses import with_loss

MAX_PROMPT = 512
"""Tokens of a prompt where nothing says how long prompts are."""
ACTOR, ROLLOUT, REF, MODEL = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "ref", "model"))
HALF: dict[object, Dtype] = {"bf16": "bf16", "fp16": "fp16", "fp32": "fp32"}


class Reading(Struct):
    """A `Found` asked for values that a plan needs; what is assumed for those that it lacks is noted.

    >>> reading = Reading(Found("trl", {"nodes": 2}, derived={"grad_accum": 1}))
    >>> reading.whole("nodes", 1), reading.whole("grad_accum", 1), reading.whole("micro_batch", 8), reading.notes
    (2, 1, 8, ['micro_batch = 8 (assumed: the script does not say)'])
    """

    found: Found
    notes: list[str] = field(default_factory=list)
    asked: set[str] = field(default_factory=set)

    def whole(self, key: str, assumed: int, least: int = 1) -> int:
        """A whole number."""
        value = self.found.value(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or value < least:
            return self._assumed(key, assumed)
        return int(value)

    def share(self, key: str, assumed: float) -> float:
        """A number above 0 and at most 1."""
        value = self.found.value(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
            self._assumed(key, 0, str(assumed))
            return assumed
        return float(value)

    def on(self, key: str, assumed: bool = False) -> bool:
        """Whether a setting is on."""
        value = self.found.value(key)
        if isinstance(value, bool):
            return value
        if key in self.found.unknown:
            self._assumed(key, 0, str(assumed).lower())
        return assumed

    def parallel(self, key: str) -> int:
        """Ranks that divide something; 1 where the script divides nothing."""
        return self.whole(key, 1) if self.found.value(key) or key in self.found.unknown else 1

    def _named(self) -> str:
        """The files that say how the model is shared, by their names, which often tell what they hold."""
        return " ".join(self.text(name) or "" for name in ("accelerate_config_file", "deepspeed")).lower()

    def backend(self) -> str:
        """How processes share the model."""
        known = self.found.value("trainer_backend")
        if known is None and (match := re.search(r"zero_?[123]|deepspeed|fsdp", self._named())) is not None:
            guess = "fsdp" if match[0] == "fsdp" else "deepspeed"
            self._assumed("trainer_backend", 0, guess)
            return guess
        return str(known or "ddp")

    def stage(self) -> int:
        """DeepSpeed's ZeRO stage."""
        match = re.search(r"(?:zero|stage)_?([123])", self._named())
        return self.whole("zero_stage", int(match[1]) if match else 2, least=0)

    def checkpointing(self) -> bool:
        """Whether blocks keep their inputs alone."""
        if "recompute" in self.found.unknown:
            self._assumed("recompute", 0, "none")
        return bool(self.found.value("recompute"))

    def _assumed(self, key: str, value: int, shown: str = "") -> int:
        why = self.found.unknown.get(key, "the script does not say")
        self.notes.append(f"{key} = {shown or value} (assumed: {why})")
        return value

    def defaults(self, version: str, *keys: str) -> None:
        """Note which of the keys are the system's defaults."""
        for key in keys:
            if self.found.settings.get(key) is None and key not in self.found.unknown and key in self.found.derived:
                self.notes.append(f"{key} = {self.found.derived[key]} (not in the script; {version}'s default)")

    def text(self, *names: str) -> str | None:
        """The value of the first of these flags that is given; None where none is."""
        self.asked.update(names)
        for name in names:
            values = self.found.flags.get(name)
            if values and values[-1] is not None:
                return values[-1]
        return None

    def flag(self, *names: str, default: bool = False) -> bool:
        """Whether one of these on/off flags is on."""
        self.asked.update(names)
        for name in names:
            if name in self.found.flags:
                text = self.text(name)
                try:
                    return bool(truth(text)) if text else True
                except ValueError:
                    return True
        return default

    def number(self, *names: str, default: int = 0) -> int:
        """A flag that is a whole number."""
        text = self.text(*names)
        found = literal(text) if text else None
        return int(found) if isinstance(found, int | float) and not isinstance(found, bool) else default

    def lora(self, *names: str, default: LoraTargets = "all-linear") -> Lora | None:
        """The adapters; None without."""
        rank = self.found.value("lora_rank")
        if not isinstance(rank, int) or rank < 1:
            return None
        return Lora(rank, self._targets(names, default))

    def _targets(self, names: tuple[str, ...], default: LoraTargets) -> LoraTargets:
        self.asked.update(names)
        given = next((self.found.flags[name] for name in names if self.found.flags.get(name)), ())
        words = [word.strip(" ,'\"[]") for each in given if each for word in each.split(",")]
        words = [word for word in words if word]
        if not words or words == ["None"] or words == ["null"]:
            return default
        return "all-linear" if words == ["all-linear"] else tuple(words)


def workload(found: Found, shape: ModelShape) -> Workload:
    """The run that a script starts, for a model. InputError for a system whose runs are not planned from scripts.

    `unknown` lists what the script does not say with the value used, what could not be read, and what no line holds.
    """
    from headway.foreign.schedule import scheduled

    build = BUILDERS.get(found.system)
    if "script_kind" in found.flags:
        from headway.foreign.runs_python import workload as build
    if build is None:
        raise InputError(f"{found.system}: runs of it are not planned from scripts; name the trainer with --trainer")
    reading = Reading(found)
    made = scheduled(reading, _with_others(reading, build(reading, shape)))
    unread = tuple(f"not read: {text}" for text in found.unread)
    unknown = tuple(dict.fromkeys((*made.unknown, *reading.notes, *unread, *shape.assumed)))
    return replace(made, unknown=unknown, not_read=not_read(found, reading.asked))


def _with_others(reading: Reading, made: Workload) -> Workload:
    """The run with the models beside its actor, and what of it is in no line."""
    if reading.found.system == "megatron":
        return made
    from headway.foreign.models import unplanned, with_others
    from headway.foreign.scoring import with_scoring

    made = with_others(reading, with_scoring(reading, made))
    if made.engine is None and reading.found.system in ("verl", "openrlhf") and made.trainer.scores:
        name = reading.found.value("engine") or "the engine"
        made = unplanned(made, f"{name}, which generates: only vllm and sglang are planned")
    return made


def _run(shape: ModelShape, trainer: Trainer, rollout: Rollout, layout: Layout, engine: Engine | None) -> Workload:
    """A run of 100 steps on CUDA devices with nothing else said."""
    return Workload(
        model=shape, trainer=trainer, rollout=rollout, device="cuda", threads=1,
        weights_file_bytes=shape.parameters() * 2, reward_kind="math", reward_limit_bytes=0, data="parquet",
        problems=10_000, steps=100, save=True, tensorboard=False, engine=engine, layout=layout,
    )  # fmt: skip


def _rollout(reading: Reading, prompts: int) -> Rollout:
    samples = reading.whole("samples_per_prompt", 8)
    answers = reading.whole("max_response_len", 1024)
    total = reading.found.value("max_total_len")
    if reading.found.value("max_prompt_len") is None and isinstance(total, int) and total > answers:
        prompt = total - answers
    else:
        prompt = reading.whole("max_prompt_len", MAX_PROMPT)
    return Rollout(max(1, prompts), samples, prompt, answers, 0, 0, 1)


def _half(reading: Reading, default: Dtype) -> Dtype:
    return HALF.get(reading.found.value("dtype"), default)


# -- verl ---------------------------------------------------------------------------------------------------


def _verl(reading: Reading, shape: ModelShape) -> Workload:
    found, version = reading.found, "verl 0.7"
    reading.defaults(
        version, "nodes", "gpus_per_node", "rollout_batch", "samples_per_prompt", "max_prompt_len",
        "max_response_len", "global_batch", "engine_mem_fraction", "gpus_per_engine", "recompute",
    )  # fmt: skip
    if found.program.rpartition(".")[2].find("sft") >= 0:
        return _verl_sft(reading, shape)
    is_megatron = found.value("trainer_backend") == "megatron"
    rollout = _rollout(reading, reading.whole("rollout_batch", 1024))
    trainer = _verl_megatron(reading) if is_megatron else _verl_fsdp(reading)
    cap, rows = _batching(reading)
    updates = reading.whole("num_steps_per_rollout", 1)
    packed = is_megatron or reading.flag(f"{MODEL}.use_remove_padding", default=True)
    trainer = replace(
        trainer, updates=updates, cap=cap, rows=rows, reference_weight=_kl_weight(reading), padding_free=packed
    )
    layout = _megatron_layout(reading, _verl_stages(reading)) if is_megatron else _verl_layout(reading)
    made = _run(shape, trainer, rollout, layout, _verl_engine(reading, rollout))
    mode = "sync" if found.value("mode") != "async" else "one-step-off" if "one_step" in found.program else "async"
    files = reading.text(f"{ACTOR}.checkpoint.save_contents", f"{ACTOR}.checkpoint.contents") or ""
    return replace(
        made, ray=True, mode=mode, gathers="weights" if "hf_model" in files and not is_megatron else "usual"
    )


def _verl_sft(reading: Reading, shape: ModelShape) -> Workload:
    """Supervised fine-tuning: the sequences of the data, no engine and no reference."""
    rollout = Rollout(reading.whole("global_batch", 256), 1, 0, reading.whole("max_total_len", 1024), 0, 0, 1)
    cap, rows = _batching(reading)
    trainer = replace(_verl_fsdp(reading), scores=False, reference="none", offload="none", cap=cap, rows=rows)
    return _run(shape, trainer, rollout, _verl_layout(reading), None)


def _batching(reading: Reading) -> tuple[int, int]:
    """`cap`, in tokens of a micro-batch before context parallel ranks divide them, and `rows`: one of them is 0."""
    if reading.on("dynamic_batch"):
        return reading.whole("max_tokens_per_gpu", 16384) * reading.whole("cp", 1), 0
    return 0, reading.whole("micro_batch", 1)


def _entropy(reading: Reading) -> bool:
    """Whether the loss has an entropy term."""
    weight = literal(reading.text(f"{ACTOR}.entropy_coeff") or "0")
    return not isinstance(weight, int | float) or weight != 0


def _offload(reading: Reading) -> Offload:
    """What of verl's trainer goes to host memory while the engine generates on the same devices."""
    if not reading.on("colocate", assumed=True):
        return "none"
    parameters, optimizer = reading.on("param_offload"), reading.on("optimizer_offload")
    if parameters:
        return "parameters+optimizer" if optimizer else "parameters"
    return "optimizer" if optimizer else "none"


def _verl_fsdp(reading: Reading) -> Trainer:
    """fp32 parameters that are cast when gathered, unless `model_dtype` says otherwise; an offloaded reference."""
    dtype, policy = _half(reading, "fp32"), reading.flag(f"{ACTOR}.fsdp_config.offload_policy")
    state: StateDtype = "fp32" if dtype == "fp32" else "bf16"
    lora = reading.lora(f"{MODEL}.target_modules")
    return Trainer(  # under FSDP2's offload policy all waits in host memory, and verl itself moves nothing
        system="verl-fsdp", param_dtype=dtype, compute_dtype="bf16", grad_dtype=dtype if lora is None else None,
        lora=lora, reference=_reference(reading, lora, "host"), cap=0, checkpointing=reading.checkpointing(),
        attention="flash", logprob_chunk=0, entropy=_entropy(reading), updates=1, scores=True,
        optimizer=Optimizer(step="foreach", master=False, state_dtype=state, offload=1.0 if policy else 0.0),
        loss="fused" if reading.flag(f"{MODEL}.use_fused_kernels") else "logits",
        offload="none" if policy else _offload(reading), offload_parameters=policy,
    )  # fmt: skip


def _reference(
    reading: Reading, lora: Lora | None, where: Literal["copy", "host"]
) -> Literal["none", "adapter-off", "copy", "host"]:
    """Where the reference log-probs come from."""
    if reading.on("reference_loaded", assumed="reference_loaded" in reading.found.unknown):
        return where
    if lora is not None and reading.found.value("use_kl_loss") is True:
        return "adapter-off"
    return "none"


def _kl_weight(reading: Reading) -> float | None:
    """The larger coefficient of the KLs that are on; None where one is not known."""
    value = reading.found.value
    loss = value("kl_loss_coef") if value("use_kl_loss") is not False else 0
    reward = value("kl_coef") if reading.flag("algorithm.use_kl_in_reward") else 0
    return max(loss, reward) if isinstance(loss, int | float) and isinstance(reward, int | float) else None


def _verl_layout(reading: Reading) -> Layout:
    nodes, devices = reading.whole("nodes", 1), reading.whole("gpus_per_node", 8)
    ranks = nodes * devices
    shards = reading.number(f"{ACTOR}.fsdp_config.fsdp_size", default=-1)
    if shards < 1 or ranks % shards:
        shards = ranks
    return Layout(
        nodes=nodes, devices=devices, shards=shards, replicas=ranks // shards, context=reading.whole("cp", 1)
    )


CORE = f"{ACTOR}.megatron.override_transformer_config"


def _verl_stages(reading: Reading) -> dict[str, int | None]:
    first = reading.number(f"{CORE}.num_layers_in_first_pipeline_stage")
    last = reading.number(f"{CORE}.num_layers_in_last_pipeline_stage")
    virtual = reading.number(f"{ACTOR}.megatron.virtual_pipeline_model_parallel_size", default=1)
    return {
        "first_stage_layers": first or None, "last_stage_layers": last or None, "virtual_pipeline": max(1, virtual)
    }  # fmt: skip


def _verl_megatron(reading: Reading) -> Trainer:
    """bf16 parameters with fp32 gradients, master and moments; the reference is a model of its own."""
    lora = reading.lora()
    away = reading.flag(f"{REF}.megatron.param_offload")
    share = literal(reading.text(f"{ACTOR}.optim.override_optimizer_config.optimizer_offload_fraction") or "0")
    offload = float(share) if isinstance(share, int | float) and 0 <= share <= 1 else 0.0
    return Trainer(
        system="verl-megatron", param_dtype=_half(reading, "bf16"), grad_dtype="fp32", lora=lora,
        reference=_reference(reading, lora, "host" if away else "copy"), cap=0, checkpointing=False,
        attention="flash", logprob_chunk=0, entropy=_entropy(reading), updates=1, scores=True,
        optimizer=Optimizer(offload=offload), loss="logits",
        offload=_offload(reading),
        recompute=_recompute(
            reading, reading.text(f"{CORE}.recompute_method"), reading.number(f"{CORE}.recompute_num_layers"),
            reading.text(f"{CORE}.recompute_modules"),
        ),
    )  # fmt: skip


def _recompute(reading: Reading, method: str | None, layers: int, modules: str | None) -> Recompute:
    granularity = reading.found.value("recompute")
    if granularity == "full":
        return Recompute("full", (), "block" if method == "block" else "uniform", max(0, layers))
    if granularity == "selective":
        named = [word.strip(" '\"[]") for word in (modules or "").replace(",", " ").split()]
        return Recompute("selective", tuple(word for word in named if word) or ("core_attn",))
    return Recompute()


def _megatron_layout(reading: Reading, stages: dict[str, int | None]) -> Layout:
    tensor, pipeline, context = (reading.parallel(key) for key in ("tp", "pp", "cp"))
    experts, expert = reading.parallel("ep"), reading.found.value("etp")
    width = expert if isinstance(expert, int) and expert > 0 else tensor
    devices = reading.whole("gpus_per_node", 8)
    least = max(tensor * context, experts * width) * pipeline
    nodes = reading.whole("nodes", ceil(least / devices))
    return Layout(
        nodes=nodes, devices=devices, tensor=tensor, pipeline=pipeline, context=context,
        replicas=max(1, nodes * devices // (tensor * pipeline * context)),
        sequence_parallel=bool(reading.found.value("sequence_parallel")) and tensor > 1,
        expert_parallel=experts, expert_tensor=width if expert else None,
        **stages,  # type: ignore[arg-type]
    )  # fmt: skip


def _verl_engine(reading: Reading, rollout: Rollout) -> Engine | None:
    name = reading.found.value("engine")
    if name not in ("vllm", "sglang"):
        return None
    total, bucket = reading.found.value("max_total_len"), reading.found.value("update_weight_buffer_bytes")
    sleeps = reading.flag(f"{ROLLOUT}.free_cache_engine", default=True)
    return Engine(
        "vllm" if name == "vllm" else "sglang", reading.share("engine_mem_fraction", 0.5),
        tensor_parallel=reading.whole("gpus_per_engine", 2),
        max_length=total if isinstance(total, int) else rollout.longest,
        max_seqs=reading.number(f"{ROLLOUT}.max_num_seqs", default=256),
        max_batched_tokens=reading.number(f"{ROLLOUT}.max_num_batched_tokens", default=8192),
        graphs=not reading.flag(f"{ROLLOUT}.enforce_eager"), colocated=reading.on("colocate", assumed=True),
        releases="weights+kv" if sleeps else "nothing", bucket=bucket if isinstance(bucket, int) else 2048 << 20,
        devices=_apart(reading),
    )  # fmt: skip


def _apart(reading: Reading) -> int:
    """Devices of engines that do not share the trainer's; 0 where they do."""
    devices = reading.found.value("rollout_gpus")
    return devices if isinstance(devices, int) and not reading.on("colocate", assumed=True) else 0


# -- TRL ----------------------------------------------------------------------------------------------------


def _trl(reading: Reading, shape: ModelShape) -> Workload:
    found = reading.found
    reading.defaults(
        "TRL 1.x", "nodes", "gpus_per_node", "micro_batch", "grad_accum", "samples_per_prompt", "max_response_len",
        "recompute", "engine_mem_fraction" if found.value("engine") == "vllm" else "recompute",
    )  # fmt: skip
    samples_known = "samples_per_prompt" in found.settings or "samples_per_prompt" in found.derived
    is_sampling = samples_known and found.value("samples_per_prompt") is not None
    layout = _shared_layout(reading)
    rows = reading.whole("micro_batch", 8)
    batch = rows * reading.whole("grad_accum", 1) * layout.ranks
    if is_sampling:
        samples = found.value("samples_per_prompt")
        whole = reading.whole("rollout_batch", batch)
        rollout = _rollout(reading, whole // samples if isinstance(samples, int) and samples > 0 else 1)
    else:
        rollout = Rollout(max(1, batch), 1, 0, reading.whole("max_total_len", 1024), 0, 0, 1)
    trainer = with_loss(reading, _trl_trainer(reading, rows, is_sampling))
    if trainer.rows != rows:
        rollout = replace(rollout, prompts=rollout.prompts * trainer.rows // rows)
    made = _run(shape, trainer, rollout, layout, _trl_engine(reading, rollout) if is_sampling else None)
    return replace(made, **{key: found.derived[key] for key in ("gathers", "loads") if key in found.derived})


def _trl_trainer(reading: Reading, rows: int, is_sampling: bool) -> Trainer:
    """Weights in fp32 under autocast unless `--dtype` says otherwise; under DeepSpeed in bf16 with a master."""
    loaded = reading.text("dtype", "torch_dtype")
    dtype = _half(reading, "fp32") if loaded and loaded != "auto" else "bf16" if loaded else "fp32"
    is_deepspeed = reading.backend() == "deepspeed"
    lora = reading.lora("lora_target_modules", default=("q_proj", "v_proj"))
    quant = {"4bit": Quant("nf4", double=reading.flag("use_bnb_nested_quant")), "8bit": Quant("int8")}.get(
        str(reading.found.value("low_precision"))
    )
    if is_deepspeed:
        dtype = "bf16"
    return Trainer(
        system="trl" if is_sampling else "trl-sft", param_dtype=dtype,
        compute_dtype="bf16" if dtype == "fp32" and not reading.flag("no_bf16") else None,
        grad_dtype=dtype if lora is None else None, lora=lora, quant=quant if lora is not None else None,
        reference=_reference(reading, lora, "copy"), cap=0, rows=rows,
        checkpointing=reading.checkpointing(), attention=_attention(reading, "attn_implementation"),
        logprob_chunk=0, entropy=False, updates=reading.whole("num_steps_per_rollout", 1) if is_sampling else 1,
        scores=is_sampling, optimizer=_optimizer(reading, dtype, is_deepspeed),
        offload_parameters=reading.on("param_offload"),
        loss="logits",
        temperature=is_sampling and (reading.text("temperature") or "1.0") not in ("1", "1.0"),
    )  # fmt: skip


def _attention(reading: Reading, name: str) -> Literal["sdpa", "eager", "flash"]:
    given = reading.text(name) or "sdpa"
    return "flash" if "flash" in given else "eager" if given == "eager" else "sdpa"


def _optimizer(reading: Reading, dtype: Dtype, is_deepspeed: bool) -> Optimizer:
    """transformers' `--optim`: moments in the parameters' type, unless DeepSpeed keeps a master in fp32."""
    name = str(reading.found.value("optimizer") or "adamw_torch_fused")
    state: StateDtype = "fp32" if dtype == "fp32" or is_deepspeed else "bf16"
    state = "int8" if "8bit" in name else "int4" if "4bit" in name else state
    kinds = ("adafactor", "lion", "sgd", "muon", "rmsprop", "adagrad")
    kind = next((each for each in kinds if each in name), "adamw")
    return Optimizer(
        kind=kind, state_dtype=state, master=is_deepspeed, paged="paged" in name,  # type: ignore[arg-type]
        step="fused" if "fused" in name else "foreach" if name in ("adamw_torch", "rmsprop", "adagrad") else "blocks",
        # what FSDP offloads are parameters, and the optimizer's state is made where they are
        offload=1.0 if reading.on("optimizer_offload") or (reading.on("param_offload") and not is_deepspeed) else 0.0,
    )  # fmt: skip


def _shared_layout(reading: Reading) -> Layout:
    """DDP copies the model, FSDP and ZeRO 3 shard it, ZeRO 1 and 2 shard the optimizer's state."""
    nodes, devices = reading.whole("nodes", 1), reading.whole("gpus_per_node", 1)
    ranks, backend = nodes * devices, reading.backend()
    stage = reading.stage() if backend == "deepspeed" else 0
    tensor, context = reading.parallel("tp"), reading.parallel("cp")
    ranks = max(1, ranks // tensor)
    if backend in ("fsdp", "fsdp2") or stage == 3:
        return Layout(nodes=nodes, devices=devices, shards=ranks, tensor=tensor, context=context)
    zero: Literal["none", "optimizer", "gradients"] = "none"
    if stage:
        zero = "optimizer" if stage == 1 else "gradients"
    return Layout(nodes=nodes, devices=devices, replicas=ranks, tensor=tensor, context=context, zero=zero)


def _trl_engine(reading: Reading, rollout: Rollout) -> Engine | None:
    if reading.found.value("engine") != "vllm":
        return None
    total = reading.found.settings.get("max_total_len")
    sleeps = reading.flag("vllm_enable_sleep_mode")
    return Engine(
        "vllm", reading.share("engine_mem_fraction", 0.3), tensor_parallel=reading.whole("gpus_per_engine", 1),
        max_length=total if isinstance(total, int) else rollout.longest,
        colocated=reading.on("colocate", assumed=True), releases="weights+kv" if sleeps else "nothing",
        devices=_apart(reading),
    )  # fmt: skip


# -- OpenRLHF -----------------------------------------------------------------------------------------------


SLEEPS = ("deepspeed_enable_sleep", "ds.enable_sleep", "fsdp.enable_sleep")
"""Flags that send the optimizer's state and the gradient buffers to host memory while the engine generates."""


def _openrlhf(reading: Reading, shape: ModelShape) -> Workload:
    found = reading.found
    reading.defaults(
        "OpenRLHF 0.9", "nodes", "gpus_per_node", "zero_stage", "rollout_batch", "samples_per_prompt",
        "max_prompt_len", "max_response_len", "micro_batch", "global_batch", "kl_coef", "engine_mem_fraction",
    )  # fmt: skip
    is_rl = found.value("max_response_len") is not None
    layout = _shared_layout(reading)
    if is_rl:
        rollout = _rollout(reading, reading.whole("rollout_batch", 1024))
    else:
        rollout = Rollout(reading.whole("global_batch", 128), 1, 0, reading.whole("max_total_len", 2048), 0, 0, 1)
    lora, dtype = reading.lora("target_modules", "ds.lora.target_modules"), _half(reading, "bf16")
    away, (cap, rows) = reading.flag("ref_reward_offload", "ref.offload"), _batching(reading)
    trainer = Trainer(
        system="openrlhf", param_dtype=dtype, grad_dtype=dtype if lora is None else None, lora=lora,
        quant=Quant("nf4") if found.value("low_precision") == "4bit" and lora is not None else None,
        reference=_reference(reading, None, "host" if away else "copy"), logprob_chunk=0, entropy=False,
        updates=reading.whole("num_steps_per_rollout", 1) if is_rl else 1, scores=is_rl,
        checkpointing=reading.checkpointing(), attention="flash",
        optimizer=Optimizer(step="fused", offload=1.0 if reading.on("optimizer_offload") else 0.0),
        loss="logits",
        offload="optimizer" if reading.flag(*SLEEPS) else "none", cap=cap, rows=rows,
        padding_free=reading.flag("packing_samples", "ds.packing_samples", "fsdp.packing_samples"),
    )  # fmt: skip
    made = _run(shape, trainer, rollout, layout, _openrlhf_engine(reading, rollout) if is_rl else None)
    return replace(made, ray=is_rl, mode="async" if found.value("mode") == "async" else "sync")


def _openrlhf_engine(reading: Reading, rollout: Rollout) -> Engine | None:
    if reading.found.value("engine") != "vllm":
        return None
    sleeps = reading.flag("vllm_enable_sleep", "vllm.enable_sleep")
    is_colocated = reading.on("colocate") and reading.found.value("mode") != "async"
    devices = reading.found.value("rollout_gpus")
    total = reading.found.value("max_total_len")
    return Engine(
        "vllm", reading.share("engine_mem_fraction", 0.95), tensor_parallel=reading.whole("gpus_per_engine", 1),
        max_length=total if isinstance(total, int) else rollout.longest,
        graphs=not reading.flag("enforce_eager", "vllm.enforce_eager"),
        colocated=is_colocated, releases="weights+kv" if sleeps else "nothing", host_copy=sleeps,
        devices=0 if is_colocated or not isinstance(devices, int) else devices,
    )  # fmt: skip


# -- Megatron-LM --------------------------------------------------------------------------------------------


def _megatron(reading: Reading, shape: ModelShape) -> Workload:
    found = reading.found
    reading.defaults("Megatron-LM core_r0.16", "nodes", "micro_batch", "optimizer")
    first = reading.number("decoder-first-pipeline-num-layers", "num-layers-in-first-pipeline-stage")
    last = reading.number("decoder-last-pipeline-num-layers", "num-layers-in-last-pipeline-stage")
    stages: dict[str, int | None] = {"first_stage_layers": first or None, "last_stage_layers": last or None}
    layout = _megatron_layout(reading, stages)
    virtual = reading.number("num-virtual-stages-per-pipeline-rank")
    per_stage = reading.number("num-layers-per-virtual-pipeline-stage")
    if per_stage:
        virtual = shape.layers // max(1, layout.pipeline * per_stage)
    if "|" in shape.letters:
        virtual = (shape.letters.count("|") + 1) // layout.pipeline
    layout = replace(layout, virtual_pipeline=max(1, virtual))
    dtype = _half(reading, "fp32")
    share = literal(reading.text("optimizer-offload-fraction") or "1")
    optimizer = Optimizer(
        master=dtype != "fp32", distributed="use-distributed-optimizer" in found.flags,
        offload=float(share) if reading.on("optimizer_offload") and isinstance(share, int | float) else 0.0,
        precision_aware="use-precision-aware-optimizer" in found.flags,
    )  # fmt: skip
    trainer = Trainer(
        system="megatron", param_dtype=dtype, grad_dtype="fp32", lora=None, reference="none", cap=0,
        rows=reading.whole("micro_batch", 1), checkpointing=False, attention="flash", logprob_chunk=0, entropy=False,
        updates=1, optimizer=optimizer, loss="logits", megatron=ways(reading, shape), float8=products(reading),
        recompute=_recompute(
            reading, reading.text("recompute-method"), reading.number("recompute-num-layers"),
            " ".join(word or "" for word in found.flags.get("recompute-modules", ())),
        ),
    )  # fmt: skip
    samples = reading.whole("global_batch", layout.replicas)
    length = reading.number("decoder-seq-length") or reading.whole("max_total_len", 4096)
    return _run(shape, trainer, Rollout(samples, 1, 0, length, 0, 0, 1), layout, None)


BUILDERS: dict[str, Callable[[Reading, ModelShape], Workload]] = {
    "verl": _verl, "trl": _trl, "openrlhf": _openrlhf, "megatron": _megatron,
}  # fmt: skip
"""A system's name in `Found` -> its run."""
