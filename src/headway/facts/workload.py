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

    `max_prompt` and `max_answer` bound the tokens of a prompt and of an answer. Evaluation generates
    `eval_problems` x `eval_samples` answers through the same engine; 0 problems: none.
    """

    prompts: int
    samples: int
    max_prompt: int
    max_answer: int
    kv_budget: int
    eval_problems: int
    eval_samples: int

    @property
    def longest(self) -> int:
        """Tokens of the longest sample: prompt and answer."""
        return self.max_prompt + self.max_answer


@dataclass(frozen=True)
class Workload:
    """One run: model, trainer, engine and the processes beside them, on one device.

    `weights_file_bytes` is what loading reads from disk (0: random weights). A `function` reward runs in a process
    bounded by `reward_limit_bytes`. `problems` are held in host memory, `data` tells where they come from.
    `steps` are rollouts; `save`: checkpoints are written.
    """

    model: ModelShape
    trainer: Trainer
    rollout: Rollout
    device: Literal["cpu", "cuda"]
    threads: int
    weights_file_bytes: int
    reward_kind: Literal["task", "exact", "regex", "math", "function"]
    reward_limit_bytes: int
    data: Literal["task", "json", "parquet"]
    problems: int
    steps: int
    save: bool
    tensorboard: bool

    @property
    def optimizer_steps(self) -> int:
        """Optimizer steps of the whole run."""
        return self.steps * self.trainer.updates
