"""The planner's neutral input: what runs, how large, in which precision. Every reader of a run maps to it."""

from dataclasses import dataclass
from typing import Literal

from headway.facts.shapes import ModelShape

Dtype = Literal["fp32", "bf16"]
DTYPE_BYTES: dict[Dtype, int] = {"fp32": 4, "bf16": 2}


@dataclass(frozen=True)
class Lora:
    """Adapters on a frozen base; adapters are fp32.

    >>> Lora(rank=16, targets="all-linear")
    Lora(rank=16, targets='all-linear')
    """

    rank: int
    targets: Literal["all-linear", "attention"]


@dataclass(frozen=True)
class Trainer:
    """The role that holds parameters and takes gradients.

    `cap` bounds the tokens of a micro-batch (padding included); `reference` tells where the reference
    log-probs come from: none at coefficient 0, the same model with its adapter off, or a frozen copy.
    `updates` > 1 or a reference add the score phase.
    """

    param_dtype: Dtype
    lora: Lora | None
    reference: Literal["none", "adapter-off", "copy"]
    cap: int
    checkpointing: bool
    attention: Literal["sdpa", "eager"]
    logprob_chunk: int
    entropy: bool
    updates: int


@dataclass(frozen=True)
class Rollout:
    """What the embedded engine generates: `prompts` x `samples` answers a step, in batches bounded by `kv_budget`.

    Greedy evaluation generates `eval_sequences` answers through the same engine.
    """

    prompts: int
    samples: int
    max_prompt: int
    max_answer: int
    kv_budget: int
    eval_problems: int
    eval_samples: int


@dataclass(frozen=True)
class Workload:
    """One run: model, trainer, engine and the processes beside them, on one device.

    `init` and `weights_bytes` describe loading: the bytes of the weight files read from disk (0 for random
    weights). `reward_process_bytes` bounds the resident size of the process that scores answers (0: none).
    `resident_problems` counts the problems held in host memory.
    """

    model: ModelShape
    trainer: Trainer
    rollout: Rollout
    device: Literal["cpu", "cuda"]
    threads: int
    weights_file_bytes: int
    reward_kind: Literal["task", "exact", "regex", "math", "function"]
    reward_limit_bytes: int
    problems: int
    steps: int
    save: bool
