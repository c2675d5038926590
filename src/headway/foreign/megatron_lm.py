"""Megatron-LM's launch scripts: `torchrun ... pretrain_gpt.py` with Megatron's flags -> `Found`.

Flags and defaults: NVIDIA/Megatron-LM core_r0.16 (2026), `megatron/training/arguments.py`.
"""

import re

from headway.foreign import megatron_flags as megatron
from headway.foreign import slime
from headway.foreign.command import Launch, Line
from headway.foreign.found import Found, Setting
from headway.foreign.gather import Got, trainers, whole
from headway.foreign.launcher import processes
from headway.foreign.rules import Answer, Answers, Rule, Unclear
from headway.foreign.shell import Script

VERSION = "Megatron-LM core_r0.16"
RULES = (
    *megatron.SHAPE,
    *megatron.LAYOUT,
    *megatron.TRAINING,
    Rule("max_total_len", ("seq-length",)),
    Rule("lora_rank", ("lora-rank",)),
)
SIGNS = frozenset({
    "num-layers", "hidden-size", "num-attention-heads", "seq-length", "max-position-embeddings", "micro-batch-size",
    "global-batch-size", "tensor-model-parallel-size", "pipeline-model-parallel-size", "train-iters",
    "train-samples", "expert-model-parallel-size", "use-mcore-models", "transformer-impl", "tokenizer-type",
    "use-distributed-optimizer", "data-path", "split", "lr-decay-iters", "context-parallel-size", "bf16",
})  # fmt: skip
"""Flags by which a training command of Megatron-LM is known; four of them are no accident."""
ONLY = frozenset({
    "tensor-model-parallel-size", "pipeline-model-parallel-size", "expert-model-parallel-size", "use-mcore-models",
    "use-distributed-optimizer", "transformer-impl", "max-position-embeddings", "train-samples", "lr-decay-iters",
    "context-parallel-size", "tokenizer-type",
})  # fmt: skip
"""Those that no other trainer has; model sizes and batch sizes are called so by many."""
NAMED = re.compile(r"(?:pretrain|finetune|sft|train)_\w*\.py|(?:pretrain|finetune|train_rl)\.py")
NOT_TRAINING = re.compile(r"convert|checkpoint|preprocess|inference|generate|eval|tasks/|text_generation|server")


def claims(launch: Launch) -> bool:
    """Whether a program is a trainer on Megatron-LM's own loop.

    slime and Miles, which take the same flags, are asked before.
    """
    if NOT_TRAINING.search(launch.program):
        return False
    lines = launch.lines(slime.SWITCHES)
    signs = max(len(SIGNS & line.flags.keys()) for line in lines)
    sure = any(ONLY & line.flags.keys() for line in lines) or launch.name.startswith("pretrain")
    hidden = NAMED.fullmatch(launch.name) is not None and any(line.gaps for line in lines)
    return sure and (signs >= 4 or (signs >= 1 and hidden))


def read(script: Script) -> Found | None:
    """A script of Megatron-LM; None where it is none."""
    found = trainers(script, claims)
    return slime.describe(script, found, "megatron", RULES, _own) if found else None


def _own(said: Answers, line: Line, launch: Launch) -> tuple[Answers, dict[str, Setting]]:
    """No engine and no reference: samples come from data."""
    started = processes(launch.launcher)
    stage = line.last("zero-stage", "data-parallel-sharding-strategy")
    own: Answers = {
        "trainer_backend": "megatron",
        "dtype": megatron.dtype(line),
        "low_precision": megatron.low_precision(line),
        "recompute": megatron.recompute(line),
        "model_name": None,
        "nodes": _count(started.nodes),
        "gpus_per_node": _count(started.devices),
        "reference_path_given": False,
        "reference_loaded": False,
        "critic_loaded": False,
        "param_offload": False,
        "zero_stage": None,
    }
    derived = {key: value for key, value in slime.follows({**_EMPTY, **said}).items() if key in FOLLOWS}
    derived |= {"dtype": "fp32", "mode": "sync"}
    if started.kind not in ("", "srun") and not started.nodes.given:
        derived["nodes"] = 1
    if started.kind == "torchrun" and not started.devices.given:
        derived["gpus_per_node"] = 1
    if "use-distributed-optimizer" in line:
        derived["zero_stage"] = 1
    if stage is not None and stage.name == "zero-stage" and stage.text is not None and stage.text.isdigit():
        own["zero_stage"] = int(stage.text[:2])
    return own, derived


FOLLOWS = frozenset({"etp", "num_kv_heads", "kv_channels"})
_EMPTY: Answers = dict.fromkeys(
    ("rollout_gpus", "colocate", "eval_max_response_len", "max_response_len", "etp", "dtype"), None
)  # fmt: skip


def _count(got: Got) -> Answer:
    if got.why:
        return Unclear(got.why)
    try:
        return whole(got.raw)
    except (ValueError, OverflowError):
        return Unclear(f"{str(got.raw)[:40]!r} is no number of processes")
