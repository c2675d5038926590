"""Workloads of known trainers by name, as their own defaults and launchers set them: `--trainer miles-fsdp`.

A preset says what the system does with memory. What a run chooses (prompts, lengths, caps) has the value that the
system's defaults or most of its launchers have; each such value that nobody gave is listed in `unknown`.
"""

from collections.abc import Callable, Sequence
from difflib import get_close_matches

from msgspec import Struct
from msgspec.structs import replace

from headway.errors import InputError
from headway.facts.shapes import ModelShape
from headway.facts.workload import ROLES, Engine, Layout, Lora, Optimizer, Quant, Rollout, Trainer, Workload
from headway.foreign import settings
from headway.units import GIB

MAX_PROMPT = 512
"""Tokens of a prompt where nothing says how long prompts are."""


class Preset(Struct, frozen=True):
    """One trainer as `--trainer` names it; `assumes` are the keys that a run of it usually sets itself."""

    name: str
    title: str
    build: Callable[[ModelShape], Workload]
    assumes: tuple[str, ...]


_RL = ("rollout.prompts", "rollout.samples", "rollout.max_prompt", "rollout.max_answer")
_SFT = ("trainer.rows", "rollout.max_answer")
_PLACED = ("layout.devices", "layout.tensor")


def _run(shape: ModelShape, trainer: Trainer, rollout: Rollout, **more: object) -> Workload:
    """A run of 100 steps on a CUDA device with nothing else said."""
    base = Workload(
        model=shape, trainer=trainer, rollout=rollout, device="cuda", threads=1,
        weights_file_bytes=shape.parameters() * 2, reward_kind="exact", reward_limit_bytes=0, data="json",
        problems=10_000, steps=100, steps_known=False, save=False, tensorboard=False,
    )  # fmt: skip
    return replace(base, **more)


def _rollout(prompts: int, samples: int, max_prompt: int, max_answer: int) -> Rollout:
    return Rollout(prompts, samples, max_prompt, max_answer, 0, 0, 1)


def _headway(shape: ModelShape) -> Workload:
    longest = MAX_PROMPT + 1024
    trainer = Trainer(
        param_dtype="bf16", lora=None, reference="none", cap=longest, checkpointing=True, attention="sdpa",
        logprob_chunk=256, entropy=False, updates=1,
    )  # fmt: skip
    rollout = replace(_rollout(8, 8, MAX_PROMPT, 1024), kv_budget=2 * GIB)
    return _run(shape, trainer, rollout, save=True, reward_kind="math")


def _headway_lora(shape: ModelShape) -> Workload:
    workload = _headway(shape)
    return replace(workload, trainer=replace(workload.trainer, lora=Lora(16, "all-linear")))


def _miles_fsdp(shape: ModelShape) -> Workload:
    """Miles, `--train-backend fsdp --colocate`: fp32 parameters, a reference even at coefficient 0, SGLang beside."""
    trainer = Trainer(
        system="miles-fsdp", param_dtype="fp32", compute_dtype="bf16", grad_dtype="fp32", lora=None,
        reference="host", cap=9216, checkpointing=True, attention="flash", logprob_chunk=0, entropy=True, updates=1,
        scores=True, optimizer=Optimizer(step="foreach"), loss="logits", gradients_stay=True, offload="host",
        reference_weight=0.0,
    )  # fmt: skip
    return _run(
        shape, trainer, _rollout(8, 8, MAX_PROMPT, 1024), engine=Engine("sglang", 0.4), ray=True, reward_kind="math"
    )


def _megatron_rl(system: str, **how: object) -> Trainer:
    """A Megatron trainer of reinforcement learning: bf16 parameters, fp32 gradients, the distributed optimizer."""
    trainer = Trainer(
        system=system, param_dtype="bf16", grad_dtype="fp32", lora=None, reference="host", cap=9216,
        checkpointing=True, attention="flash", logprob_chunk=0, entropy=False, updates=1,
        optimizer=Optimizer(step="fused"), loss="logits",
    )  # fmt: skip
    return replace(trainer, **how)


def _slime(shape: ModelShape) -> Workload:
    """slime, colocated: a pinned copy of every rank's parameters, one more of a reference that `--use-kl-loss` or
    `--kl-coef` loads at coefficient 0 too; parameter and gradient buffers are dropped while SGLang generates."""
    trainer = _megatron_rl("slime", copies=("actor",), offload="dropped", reference_weight=0.0)
    engine = Engine("sglang", 0.7)
    return _run(
        shape, trainer, _rollout(8, 8, MAX_PROMPT, 1024), engine=engine, ray=True, reward_kind="math",
        layout=Layout(devices=8),
    )  # fmt: skip


def _verl(shape: ModelShape, trainer: Trainer) -> Workload:
    """verl with vLLM: the engine drops its weights and its cache while the trainer works (sleep level 2)."""
    engine = Engine("vllm", 0.5, tensor_parallel=2, bucket=2 * GIB)
    return _run(
        shape, trainer, _rollout(128, 8, 512, 1024), engine=engine, ray=True, reward_kind="math",
        layout=Layout(devices=8),
    )  # fmt: skip


def _verl_fsdp(shape: ModelShape) -> Workload:
    """verl's FSDP trainer: fp32 parameters, old log-probs in a pass of their own, nothing offloaded."""
    trainer = Trainer(
        system="verl-fsdp", param_dtype="fp32", compute_dtype="bf16", grad_dtype="fp32", lora=None, reference="none",
        cap=16384, checkpointing=True, attention="flash", logprob_chunk=0, entropy=False, updates=1, scores=True,
        optimizer=Optimizer(step="foreach"), loss="logits",
    )  # fmt: skip
    return _verl(shape, trainer)


def _verl_megatron(shape: ModelShape) -> Workload:
    """verl's Megatron trainer: nothing offloaded; a reference would be a second model on the devices."""
    return _verl(shape, _megatron_rl("verl-megatron", reference="none", cap=16384, scores=True))


def _openrlhf(shape: ModelShape) -> Workload:
    """OpenRLHF's hybrid engine: DeepSpeed ZeRO 3 in bf16 with an fp32 master, whose optimizer sleeps in the host (not
    its parameters), a reference of its own, vLLM on the same devices at sleep level 1."""
    trainer = Trainer(
        system="openrlhf", param_dtype="bf16", grad_dtype="bf16", lora=None, reference="copy", cap=16192,
        checkpointing=False, attention="flash", logprob_chunk=0, entropy=False, updates=1, scores=True,
        optimizer=Optimizer(step="fused"), loss="logits", offload="optimizer",
    )  # fmt: skip
    engine = Engine("vllm", 0.6, host_copy=True)
    return _run(shape, trainer, _rollout(128, 8, 1024, 1024), engine=engine, ray=True, layout=Layout(devices=8))


def _trl(shape: ModelShape) -> Workload:
    """TRL's GRPOTrainer with its defaults: fp32 weights under bf16 autocast, generation by transformers itself."""
    trainer = Trainer(
        system="trl", param_dtype="fp32", compute_dtype="bf16", grad_dtype="fp32", lora=None, reference="none",
        cap=0, rows=8, checkpointing=True, attention="sdpa", logprob_chunk=0, entropy=False, updates=1, scores=True,
        optimizer=Optimizer(step="fused"), loss="logits",
    )  # fmt: skip
    return _run(shape, trainer, _rollout(1, 8, MAX_PROMPT, 512), save=True)


def _sft(system: str, **how: object) -> Callable[[ModelShape], Workload]:
    """Supervised fine-tuning on one device: sequences of 2,048 tokens, `rows` of them in a micro-batch."""

    def build(shape: ModelShape) -> Workload:
        trainer = Trainer(
            system=system, param_dtype="bf16", lora=None, reference="none", cap=0, rows=1, checkpointing=True,
            attention="sdpa", logprob_chunk=0, entropy=False, updates=1,
            optimizer=Optimizer(state_dtype="bf16", master=False, step="foreach"), loss="logits",
        )  # fmt: skip
        return _run(shape, replace(trainer, **how), _rollout(8, 1, 0, 2048), save=True)

    return build


_FP32_STATES = Optimizer(step="foreach", master=False)
_FP32 = {"param_dtype": "fp32", "compute_dtype": "bf16", "grad_dtype": "fp32", "optimizer": _FP32_STATES}
_TITAN = {
    **_FP32, "optimizer": Optimizer(step="fused", master=False), "checkpointing": False, "selective": True,
}  # fmt: skip

PRESETS = {
    preset.name: preset
    for preset in (
        Preset("headway", "headway, all parameters", _headway, (*_RL, "trainer.cap")),
        Preset("headway-lora", "headway with LoRA", _headway_lora, (*_RL, "trainer.cap")),
        Preset("miles-fsdp", "Miles, FSDP trainer, colocated SGLang", _miles_fsdp, (*_RL, "trainer.cap")),
        Preset("slime", "slime, Megatron trainer, SGLang", _slime, (*_RL, "trainer.cap", *_PLACED)),
        Preset("verl-fsdp", "verl, FSDP trainer, vLLM", _verl_fsdp, (*_RL, "trainer.cap", "layout.devices")),
        Preset("verl-megatron", "verl, Megatron trainer, vLLM", _verl_megatron, (*_RL, "trainer.cap", *_PLACED)),
        Preset("openrlhf", "OpenRLHF, ZeRO 3, vLLM", _openrlhf, (*_RL, "trainer.cap", "layout.devices")),
        Preset("trl", "TRL GRPOTrainer", _trl, (*_RL, "trainer.rows")),
        Preset("hf", "Hugging Face Trainer, fp32 weights under autocast", _sft("hf", **_FP32), _SFT),
        Preset("peft", "PEFT with LoRA", _sft("peft", lora=Lora(16, "all-linear")), _SFT),
        Preset(
            "qlora", "PEFT with QLoRA",
            _sft("peft", lora=Lora(16, "all-linear", dtype="bf16"), quant=Quant("nf4", double=True)), _SFT,
        ),
        Preset("fsdp2", "FSDP2, fp32 parameters, bf16 compute", _sft("fsdp2", **_FP32), (*_SFT, "layout.devices")),
        Preset(
            "torchtitan", "torchtitan, each operation checkpointed by its own rule, not compiled",
            _sft("torchtitan", **_TITAN),
            (*_SFT, "layout.devices"),
        ),
        Preset(
            "torchtune", "torchtune full fine-tuning, compiled",
            _sft("torchtune", kernels="fused", optimizer=Optimizer(state_dtype="bf16", master=False, step="fused")),
            _SFT,
        ),
        Preset("litgpt", "litgpt full fine-tuning", _sft("litgpt", loss="logits-chunks"), _SFT),
    )
}  # fmt: skip
SHORT_NAMES = {"verl": "verl-fsdp"}
"""A system's name -> its trainer where it has one by default."""
GROWTH = "what host memory gains from step to step (not planned: a leak is no setting; measure two steps)"
"""What no plan of a long run knows, though runs have died of it."""
SHARDED = frozenset(
    {"miles-fsdp", "verl-fsdp", "openrlhf", "fsdp2", "fsdp1", "litgpt", "deepspeed", "torchtune", "torchtitan"}
)
"""Systems whose ranks divide parameters, gradients and optimizer state among them when nothing else is set."""


NODES = {"slime", "verl-megatron"}
"""Megatron's systems, whose launch scripts take whole nodes."""
LARGE, LARGER = 30e9, 60e9
"""Parameters from which launch scripts divide and offload a model, and from which their engines take a whole node."""
SOURCES = {
    "slime": "slime's own scripts for models of this size, such as run-qwen3-32B.sh",
    "verl-fsdp": "verl's own scripts for models of this size, such as run_qwen2-32b_sglang_fsdp_npu.sh",
    "verl-megatron": "verl's own scripts for models of this size",
}


def large(run: Workload, given: set[str]) -> tuple[str, ...]:
    """Settings that a system's own launch scripts have for models of 30 billion parameters and more, where the run
    has its preset's: tensor parallel ranks in trainer and engine, the optimizer's state in host memory.

    Sources: THUDM/slime scripts/run-qwen3-32B.sh and run-qwen3-30B-A3B.sh; verl examples/grpo_trainer.

    >>> from headway.facts.shapes import table
    >>> large(workload(table()["qwen3-32b"], "slime"), {"engine.tensor_parallel"})
    ('layout.tensor=8', 'trainer.optimizer.offload=1.0', 'trainer.optimizer.precision_aware=true')
    """
    shape, system = run.model, run.trainer.system
    if system not in SOURCES or shape.parameters() < LARGE:
        return ()
    found: dict[str, str] = {}
    if system in NODES:
        found["layout.tensor"] = str(_ranks(run, 4 if shape.experts else 8, shape.kv_heads))
        if shape.experts:
            found |= {"layout.expert_parallel": str(_ranks(run, 8, shape.experts)), "layout.expert_tensor": "1"}
    if system == "slime":
        found |= {"trainer.optimizer.offload": "1.0", "trainer.optimizer.precision_aware": "true"}
        found["engine.tensor_parallel"] = str(_ranks(run, 8, shape.heads))
    else:
        found["trainer.offload"] = "parameters+optimizer"
        found["engine.tensor_parallel"] = str(_ranks(run, 4 if shape.parameters() < LARGER else 8, shape.heads))
    return tuple(f"{key}={value}" for key, value in found.items() if key not in given)


def _ranks(run: Workload, most: int, *counts: int) -> int:
    """The most ranks, a power of two, that divide a node's devices, what the model has of something, and `most`."""
    ranks = most
    while ranks > 1 and any(count % ranks for count in (run.layout.devices, *counts)):
        ranks //= 2
    return ranks


OWN_ENGINES = {"trl": Engine("vllm", 0.3, releases="nothing")}
"""The engine that a system makes where one is asked for, with its own defaults: TRL 1.16's `GRPOConfig`."""
FRESH = ("engine.memory_fraction", "engine.releases")
"""What such an engine has and a run usually sets itself."""


def by_name(name: str) -> Preset:
    """The preset of a trainer. InputError with the nearest names."""
    found = PRESETS.get(SHORT_NAMES.get(name.lower(), name.lower()))
    if found is None:
        near = get_close_matches(name.lower(), PRESETS, n=3, cutoff=0.5)
        nearest = f"nearest are {', '.join(near)}; " if near else ""
        raise InputError(f"--trainer {name}: no such trainer; {nearest}there are {', '.join(PRESETS)}")
    return found


def workload(shape: ModelShape, trainer: str, overrides: Sequence[str] = ()) -> Workload:
    """The workload of a model under a preset with `key=value` overrides.

    InputError names every override that cannot be and every contradiction among the values.
    """
    preset = by_name(trainer)
    given = {each.partition("=")[0].strip() for each in overrides}
    built = preset.build(shape)
    fresh = built.engine is None and any(key.startswith("engine.") for key in given)
    if fresh and preset.name in OWN_ENGINES:
        built = replace(built, engine=OWN_ENGINES[preset.name])
    run = settings.apply(built, overrides)
    run = _settled(run, given)
    problems = contradictions(run)
    if problems:
        raise InputError(*problems)
    assumed = tuple(
        f"{key} = {value(run, key)} (nobody said; {preset.title} as most launchers set it)"
        for key in (*preset.assumes, *(FRESH if fresh and run.engine is not None else ()))
        if key not in given
    )
    grows = (GROWTH,) if run.engine is not None and run.ray else ()
    return replace(run, unknown=(*run.unknown, *assumed, *shape.assumed, *grows))


def value(run: Workload, path: str) -> object:
    """The value at a key's path."""
    found: object = run
    for name in path.split("."):
        found = getattr(found, name)
    return found


def _settled(run: Workload, given: set[str]) -> Workload:
    """What follows from what was set: shards from the ranks, the cap of headway's own trainer from the lengths."""
    layout = run.layout
    divided = layout.tensor * layout.pipeline * layout.replicas
    if run.trainer.system in SHARDED and not given & {"layout.shards", "layout.replicas"}:
        layout = replace(layout, shards=max(1, layout.ranks // max(1, divided)))
    trainer = run.trainer
    if trainer.system == "headway" and "trainer.cap" not in given:
        trainer = replace(trainer, cap=max(run.rollout.longest, 1))
    engine = run.engine
    if engine is not None and engine.colocated and "engine.tensor_parallel" not in given:
        while layout.ranks % engine.tensor_parallel:
            engine = replace(engine, tensor_parallel=max(1, engine.tensor_parallel // 2))
    if engine is not None and not engine.colocated and "trainer.offload" not in given:
        # the trainer keeps its devices, so nothing has to go
        trainer = replace(trainer, offload="none")
    if trainer.system == "headway" and trainer.lora is not None and trainer.reference == "copy":
        trainer = replace(trainer, reference="adapter-off")
    others = {
        name: replace(getattr(run, name), layout=layout)
        for name in ROLES
        if getattr(run, name) is not None and not any(key.startswith(f"{name}.layout.") for key in given)
    }
    return replace(run, layout=layout, trainer=trainer, engine=engine, **others)


def contradictions(run: Workload) -> list[str]:
    """What the values of a workload say against each other, in words; empty where they agree."""
    layout, trainer, engine, found = run.layout, run.trainer, run.engine, []
    divided = layout.shards * layout.replicas * layout.tensor * layout.pipeline * layout.context
    if layout.ranks % layout.tensor and layout.tensor <= layout.ranks:
        choices = [each for each in range(1, layout.ranks + 1) if layout.ranks % each == 0]
        found.append(
            f"layout.tensor = {layout.tensor}: does not divide the run's {layout.ranks} devices; "
            f"set one of {', '.join(map(str, choices[:8]))}"
        )
    elif layout.ranks % layout.tensor or layout.ranks % layout.pipeline or divided > layout.ranks * layout.context:
        parts = ", ".join(f"{name} {getattr(layout, name)}" for name in Layout.__struct_fields__[2:7])
        found.append(
            f"layout: {layout.nodes} x {layout.devices} devices cannot hold {parts}; "
            "set layout.devices and layout.nodes to what the run has"
        )
    if trainer.reference == "adapter-off" and trainer.lora is None:
        found.append(
            "trainer.reference = adapter-off needs trainer.lora; set trainer.reference=copy or trainer.lora.rank=16"
        )
    if engine is not None and not 0 < engine.memory_fraction <= 1:
        found.append(f"engine.memory_fraction = {engine.memory_fraction}: must be above 0 and at most 1")
    if trainer.quant is not None and trainer.lora is None:
        found.append("trainer.quant needs trainer.lora: packed weights take no gradients; set trainer.lora.rank=16")
    if trainer.lora is not None and trainer.lora.rank > run.model.hidden:
        found.append(
            f"trainer.lora.rank = {trainer.lora.rank}: is above the model's width of {run.model.hidden}, where an "
            "adapter has more parameters than what it adapts; ranks of 8 to 128 are usual"
        )
    if not 0 <= trainer.optimizer.offload <= 1:
        found.append(f"trainer.optimizer.offload = {trainer.optimizer.offload}: is a share, from 0 to 1")
    if trainer.system == "headway" and trainer.param_dtype not in ("fp32", "bf16"):
        found.append(f"trainer.param_dtype = {trainer.param_dtype}: headway trains in fp32 or bf16")
    if trainer.loss == "hidden-chunks" and not trainer.logprob_chunk:
        found.append("trainer.logprob_chunk = 0: set the tokens of a chunk, such as 256")
    if not trainer.rows and not trainer.cap:
        found.append("trainer.cap and trainer.rows are both 0: set the tokens or the samples of a micro-batch")
    return found
