"""The planner's neutral input: what runs, how large, in which precision. Every reader of a run maps to it.

Fields say what a trainer or an engine does with memory, not whose product it is: `Trainer.system` and
`Engine.system` are names for messages and for what only measurements tell (constants of a version).
"""

from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from headway.facts.blocks import LoraTargets
from headway.facts.shapes import ModelShape

Dtype = Literal["fp32", "bf16", "fp16"]
DTYPE_BYTES: dict[Dtype, int] = {"fp32": 4, "bf16": 2, "fp16": 2}
StateDtype = Literal["fp32", "bf16", "int8", "int4"]
Packed = Literal["nf4", "int4", "mxfp4", "int8", "fp8"]
Gathers = Literal["usual", "nothing", "weights", "in turn", "together"]
Offload = Literal["none", "host", "parameters", "optimizer", "parameters+optimizer", "dropped"]


class Lora(Struct, frozen=True):
    """Adapters on a frozen base. `embeddings`: the embedding and the head are trained in full as well.

    `magnitude`: each adapted weight has a trained norm for every output (DoRA).

    >>> Lora(rank=16, targets="all-linear")
    Lora(rank=16, targets='all-linear', dtype='fp32', embeddings=False, dropout=False, magnitude=False)
    """

    rank: int
    targets: LoraTargets
    dtype: Dtype = "fp32"
    embeddings: bool = False
    dropout: bool = False
    magnitude: bool = False


class Quant(Struct, frozen=True):
    """How the projections of a frozen base are packed. `double`: the scales of nf4 are quantised again. mxfp4 packs
    experts alone, as gpt-oss is published.

    >>> Quant("nf4").double
    False
    """

    kind: Packed
    double: bool = False


class Float8(Struct, frozen=True):
    """Products of a model's projections in float8, trained in full, beside parameters and a stream in half precision.
    Embedding, norms, router and head stay as they are.

    `recipe` says how values are scaled: torchao's "tensorwise", "rowwise" and "rowwise_with_gw_hp", or Transformer
    Engine's "delayed", "tensorwise", "blockwise" and "mxfp8". `gather`: weights are gathered in float8
    (`enable_fsdp_float8_all_gather`), or stored in it (`--fp8-param-gather`). `transposed`: Transformer Engine has a
    transposed copy of each weight beside it, as on Hopper; Blackwell needs none with one scale a tensor.

    >>> Float8("rowwise").gather
    False
    """

    recipe: Literal[
        "tensorwise", "rowwise", "rowwise_with_gw_hp", "delayed", "blockwise", "mxfp8",
    ] = "tensorwise"  # fmt: skip
    gather: bool = False
    transposed: bool = True


class Optimizer(Struct, frozen=True):
    """What the optimizer keeps for each trained parameter and what a step needs beside it.

    `master`: an fp32 copy of half-precision parameters. `step`: how the update runs: "blocks" of one parameter at a
    time, "foreach" over all at once, or "fused" without temporaries. `in_backward`: each gradient is used and freed
    as soon as it is there. `paged`: the state may be moved to host memory. `offload`: share of the state in host
    memory. `distributed`: Megatron's distributed optimizer, whose state the data parallel ranks share.
    `precision_aware`: it takes gradients as the buffer has them, and `master_dtype` may be half precision.

    >>> Optimizer().state_dtype
    'fp32'
    """

    kind: Literal["adamw", "adafactor", "sgd", "muon", "lion", "rmsprop", "adagrad"] = "adamw"
    state_dtype: StateDtype = "fp32"
    master: bool = True
    step: Literal["blocks", "foreach", "fused"] = "blocks"
    in_backward: bool = False
    paged: bool = False
    offload: float = 0.0
    distributed: bool = True
    precision_aware: bool = False
    master_dtype: Dtype = "fp32"


class Recompute(Struct, frozen=True):
    """What Megatron computes again in the backward pass instead of keeping it.

    "selective" drops what `modules` name (`core_attn`, `moe_act`, `layernorm`, `mla_up_proj`, `mlp`, `moe`,
    `shared_experts`). "full" keeps inputs of layers: "uniform" those of each group of `layers` layers, "block"
    those of the first `layers` layers of a stage and all of the others. `layers` 0: one by one, or all.

    >>> Recompute("selective", ("core_attn",)).layers
    0
    """

    granularity: Literal["none", "selective", "full"] = "none"
    modules: tuple[str, ...] = ()
    method: Literal["uniform", "block"] = "uniform"
    layers: int = 0


class Megatron(Struct, frozen=True):
    """How Megatron runs a model, where that decides memory: `--transformer-impl`, fusions, dropout, experts.

    `te_version` and `core_version` are Transformer Engine's and Megatron Core's, empty for recent ones.
    `fused_gradients`: weight gradients are added straight to the gradient buffer. `fused_activation`: gate and up
    are one kernel (Megatron's arguments say so, Megatron-Bridge's configurations mostly not). `cross_entropy`:
    "unfused", "native" (compiled) or "te". `context_exchange`: how context parallel ranks see each other's keys and
    values (`--cp-comm-type`). `dispatcher`: how tokens come to experts; `grouped_experts`: all of a rank's experts
    run in one grouped product. `capacity` > 0: experts are padded to that capacity factor; else no token is dropped,
    and the fullest expert rank has `imbalance` times its share of tokens. The vocabulary is padded to a multiple of
    `vocab_multiple` x tensor parallel ranks. `optimizer_instances`: copies of the distributed optimizer's shards,
    each over a part of the data parallel ranks. `count_embedding` and `count_loss`: each counts as a layer when
    layers are divided over stages. `regather_lora`: an adapter's gathered input is gathered again in the backward
    pass instead of kept. `encoder_length`: tokens of a sample that an encoder reads (`--encoder-seq-length`); the
    sample's own are the decoder's. `offload_modules`: modules whose kept inputs go to pinned host memory until the
    backward pass needs them (`--fine-grained-activation-offloading --offload-modules`), and `offload_fraction` the
    share of those that do. `defer_gradients`: the output layer's weight gradient waits for the step's end, of at most
    `deferral_limit` micro-batches (0: of all). `fsdp`: Megatron's own FSDP, and what it divides
    (`--data-parallel-sharding-strategy`). `graphs`: whose CUDA graphs layers run in (`--cuda-graph-impl`).
    `inference_cache`: bytes of the cache that Megatron generates with in the trainer's own process
    (`--inference-dynamic-batching-buffer-size-gb` with `--perform-rl-step`).

    `Trainer.attention` "sdpa" is cuDNN's, which Transformer Engine takes on Hopper and newer, "flash" FlashAttention
    2, which it takes on Ampere and where determinism is asked for, "eager" plain torch.

    >>> Megatron(te_version="2.1").dispatcher
    'alltoall'
    """

    implementation: Literal["te", "local"] = "te"
    te_version: str = ""
    core_version: str = ""
    fused_gradients: bool = True
    fused_activation: bool = True
    cross_entropy: Literal["unfused", "native", "te"] = "unfused"
    hidden_dropout: bool = False
    attention_dropout: bool = False
    context_exchange: Literal["p2p", "a2a", "all_gather"] = "p2p"
    dispatcher: Literal["alltoall", "allgather", "flex"] = "alltoall"
    grouped_experts: bool = True
    capacity: float = 0.0
    imbalance: float = 1.0
    vocab_multiple: int = 128
    optimizer_instances: int = 1
    count_embedding: bool = False
    count_loss: bool = False
    regather_lora: bool = False
    encoder_length: int = 0
    offload_modules: tuple[str, ...] = ()
    offload_fraction: float = 1.0
    defer_gradients: bool = False
    deferral_limit: int = 0
    fsdp: Literal["", "optim", "optim_grads", "optim_grads_params"] = ""
    graphs: Literal["", "local", "transformer_engine"] = ""
    inference_cache: int = 0


class Trainer(Struct, frozen=True):
    """The role that holds parameters and takes gradients; the numbers are those of one rank.

    `cap` bounds the tokens of a micro-batch (padding included); with `rows` > 0 a micro-batch is that many samples
    instead. `score_cap` and `score_rows` are the same of passes that only score, where those differ (both 0: they do
    not). `padding_free`: the samples of a micro-batch lie one behind another, so that it is as long as they are.
    `reference` tells where the reference log-probs come from: none at coefficient 0, the same model with its adapter
    off, a frozen copy beside the model, or one in host memory that is streamed in block by block.
    `reference_weight` is the coefficient of its KL: 0 where nothing uses what it says, None where nobody said.
    `updates` > 1 or a reference add the score phase; so does `scores`, where old log-probs are always computed.
    `compute_dtype` is that of gathered or cast weights, where it is not `param_dtype`. `float8`: projections compute
    in float8; read for FSDP 2 and Megatron.
    `loss`: "hidden-chunks" goes from hidden states to log-probs in chunks of `logprob_chunk` tokens; "logits" makes
    all logits; "logits-chunks" makes all and takes the loss chunk by chunk; "fused" forms gradients chunk by chunk;
    "value": a head of one output a token instead of logits (critics and reward models).
    `kernels`: "eager" as the model's Python says, "fused" as compiled.
    `gradients_stay`: they outlive the step until the next backward pass.
    `offload`: where the trainer's state goes while an engine on the same devices generates. "none": it stays. "host":
    all of it is copied to host memory, gradients too. "parameters", "optimizer" and "parameters+optimizer" copy
    those; with the parameters gradient buffers are freed. "dropped": parameters and gradient buffers go without a
    copy, because `copies` has one, and the optimizer's part is copied.
    `copies`: half-precision copies of its parameters that each rank keeps in pinned host memory beside that of a
    `reference` in the host: of "actor" (what the engine gets), "old_actor", "teacher", "rollout_actor".
    `offload_parameters`: they wait in host memory whenever they do not compute, as FSDP's CPU offload and ZeRO 3's
    `offload_param` have them.
    `selective`: without full checkpointing, only the results of every second matrix product and of attention stay.
    `recompute` and `megatron` are read for Megatron's trainers only.
    """

    param_dtype: Dtype
    lora: Lora | None
    reference: Literal["none", "adapter-off", "copy", "host"]
    cap: int
    checkpointing: bool
    attention: Literal["sdpa", "eager", "flash"]
    logprob_chunk: int
    entropy: bool
    updates: int
    system: str = "headway"
    rows: int = 0
    score_cap: int = 0
    score_rows: int = 0
    padding_free: bool = False
    scores: bool = False
    compute_dtype: Dtype | None = None
    grad_dtype: Dtype | None = None
    quant: Quant | None = None
    float8: Float8 | None = None
    optimizer: Optimizer = field(default_factory=Optimizer)
    loss: Literal["hidden-chunks", "logits", "logits-chunks", "fused", "value"] = "hidden-chunks"
    kernels: Literal["eager", "fused"] = "eager"
    temperature: bool = False
    gradients_stay: bool = False
    offload: Offload = "none"
    copies: tuple[str, ...] = ()
    offload_parameters: bool = False
    reference_weight: float | None = None
    selective: bool = False
    recompute: Recompute = field(default_factory=Recompute)
    megatron: Megatron = field(default_factory=Megatron)


class Rollout(Struct, frozen=True):
    """The samples: `prompts` x `samples` answers a step, from the embedded engine in batches bounded by `kv_budget`.

    `max_prompt` and `max_answer` bound the tokens of a prompt and of an answer. Evaluation generates
    `eval_problems` x `eval_samples` answers through the same engine; 0 problems: none. In supervised fine-tuning
    the samples come from the data: no prompt, and answers as long as the sequences.
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


class Engine(Struct, frozen=True):
    """An engine in processes of its own, which generates on the trainer's devices (`colocated`) or on others.

    `memory_fraction` is the engine's own: of free memory before loading in SGLang (`mem_fraction_static`, weights
    and KV pool), of the device's total in vLLM (`gpu_memory_utilization`, everything). `releases` is what it gives
    back when it sleeps; `host_copy`: its weights then wait in host memory. `max_seqs` and `max_batched_tokens`: what
    runs at once. `graphs`: CUDA graphs are captured. `bucket` is the buffer in bytes through which new weights come.
    `devices`: how many it has where it is not colocated, all engines together; `prefill` of the engines only read
    prompts, for others that answer. `update`: "delta" sends what changed since a snapshot in the trainer's host.
    `shared`: its weights are the trainer's own tensors, counted there alone.

    >>> Engine("sglang", 0.4).tensor_parallel
    1
    """

    system: Literal["sglang", "vllm"]
    memory_fraction: float
    version: str = ""
    dtype: Dtype = "bf16"
    kv_dtype: Literal["bf16", "fp16", "fp8"] = "bf16"
    quant: Quant | None = None
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    max_length: int = 0
    max_seqs: int = 256
    max_batched_tokens: int = 8192
    graphs: bool = True
    colocated: bool = True
    releases: Literal["nothing", "kv", "weights+kv"] = "weights+kv"
    host_copy: bool = False
    bucket: int = 512 << 20
    devices: int = 0
    prefill: int = 0
    update: Literal["full", "delta"] = "full"
    shared: bool = False


class Layout(Struct, frozen=True):
    """Where ranks are: `devices` on each of `nodes`, and how the trainer divides the model over them.

    `shards`: ranks that share one set of parameters, gradients and optimizer state; `replicas` of such a set.
    `tensor` parallel ranks split every projection (`sequence_parallel`: the norms' tokens too), `context` parallel
    ranks split the tokens of a sample, `pipeline` stages the layers, each in `virtual_pipeline` parts.
    `expert_parallel` ranks share the experts, each of which `expert_tensor` ranks split (None: as `tensor`).
    `first_stage_layers` and `last_stage_layers`: layers of the first and last stage where they have fewer.
    `zero`: replicas divide the optimizer's state among them, or gradients as well, as DeepSpeed's ZeRO 1 and 2 do.

    >>> Layout(devices=8, shards=8).ranks
    8
    """

    nodes: int = 1
    devices: int = 1
    shards: int = 1
    replicas: int = 1
    tensor: int = 1
    context: int = 1
    pipeline: int = 1
    sequence_parallel: bool = True
    expert_parallel: int = 1
    expert_tensor: int | None = None
    virtual_pipeline: int = 1
    first_stage_layers: int | None = None
    last_stage_layers: int | None = None
    zero: Literal["none", "optimizer", "gradients"] = "none"

    @property
    def ranks(self) -> int:
        """Processes of the trainer."""
        return self.nodes * self.devices

    @property
    def data_ranks(self) -> int:
        """Groups of ranks that each take other samples; 0 where more ranks divide the model than there are."""
        return self.ranks // (self.tensor * self.pipeline * self.context)


class OtherModel(Struct, frozen=True):
    """A whole model beside the one that answers: a critic, a reward model, a teacher, a reference on other devices.

    `model` is its shape, without the output head where one value a token stands in its place; None where what the run
    names (`named`) tells no sizes, so that it is in no line. `trainer` says how it is held and computed, in the words
    of the actor's. `trained`: it takes gradients and has an optimizer; others only score. `layout` divides it over
    ranks. `group` 0 shares the trainer's devices; models of one number above share
    devices of their own, behind those of trainer and engine. `in_host`: its parameters stay in pinned host memory and
    come to the device block by block. `process`: its ranks are processes of their own, not the trainer's.
    `together`: it is trained in one backward pass with the actor.
    """

    model: ModelShape | None
    trainer: Trainer
    layout: Layout
    trained: bool = False
    group: int = 0
    in_host: bool = False
    process: bool = False
    together: bool = False
    named: str = ""


Role = Literal["critic", "reward", "teacher", "reference"]
ROLES: dict[str, Role] = {
    "critic": "critic", "reward_model": "reward", "teacher": "teacher", "reference_model": "reference"
}  # fmt: skip
"""Fields of a Workload that hold another model -> its role in the ledger."""
VALUED = frozenset({"critic", "reward"})
"""Roles whose model has one output a token instead of logits."""


def unknown_key(text: str) -> str:
    """The key that one of `Workload.unknown` is about; a word where it is about none.

    >>> unknown_key("rollout.max_answer = 1024 (nobody said)"), unknown_key("rollout.max_prompt: taken from the data")
    ('rollout.max_answer', 'rollout.max_prompt')
    """
    return text.partition(" ")[0].rstrip(":")


class Workload(Struct, frozen=True):
    """One run: model, trainer, engine and the processes beside them.

    `engine` None: the trainer generates itself, or nothing is generated. `weights_file_bytes` is what loading reads
    from disk (0: random weights). A `function` reward runs in a process bounded by `reward_limit_bytes`. `problems`
    are held in host memory, `data` tells where they come from. `steps` are rollouts (not `steps_known`: as many stand
    for a run of which nobody said how many); `save`: checkpoints are
    written, every `save_every` steps, as evaluations are made every `eval_every` (0: at the end). `ray`: processes
    are actors of a Ray cluster on the same nodes. `unknown` lists, in words, what the run does not say and what was
    assumed. `mode`: whether the engine generates while the trainer trains: the next step's
    answers ("one-step-off"), or without a break ("async"). `checkpoint`: "async" writes while the run goes on.
    `gathers`: what the first rank gathers in host memory for a checkpoint where ranks divide the model: "nothing",
    the "weights", weights and then the optimizer's state ("in turn") or both ("together"); "usual": what the system
    does.
    `loads`: the "first" rank reads the whole model into host memory for all, or "each" does.
    `tools_limit_bytes`: what tools and environments of all samples may take of a node's host memory.
    `critic`, `reward_model`, `teacher` and `reference_model` are whole models of their own (`trainer.reference` is a
    frozen copy beside the actor). `unplanned` says, in words, what holds memory and is in no line, or is not known:
    the plan cannot tell then. `not_read` are flags of a launch that no line hangs on.
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
    engine: Engine | None = None
    layout: Layout = field(default_factory=Layout)
    ray: bool = False
    mode: Literal["sync", "one-step-off", "async"] = "sync"
    checkpoint: Literal["sync", "async"] = "sync"
    gathers: Gathers = "usual"
    loads: Literal["first", "each"] = "first"
    tools_limit_bytes: int = 0
    save_every: int = 0
    eval_every: int = 0
    steps_known: bool = True
    unknown: tuple[str, ...] = ()
    critic: OtherModel | None = None
    reward_model: OtherModel | None = None
    teacher: OtherModel | None = None
    reference_model: OtherModel | None = None
    unplanned: tuple[str, ...] = ()
    not_read: tuple[str, ...] = ()

    @property
    def others(self) -> tuple[tuple[Role, OtherModel], ...]:
        """The models beside the actor's whose sizes are known, each with its role."""
        return tuple((ROLES[name], each) for name, each in self.by_field.items() if each.model is not None)

    @property
    def in_no_line(self) -> tuple[str, ...]:
        """What holds memory and is not planned, in words: `unplanned`, and models whose sizes nobody said."""
        unknown = (
            f"{ROLES[name]} ({each.named}): its sizes are not known; --set {name}.model=NAME"
            for name, each in self.by_field.items()
            if each.model is None
        )
        return (*unknown, *self.unplanned)

    @property
    def by_field(self) -> dict[str, OtherModel]:
        """All models beside the actor's, by the name of their field."""
        found = {
            "critic": self.critic, "reward_model": self.reward_model, "teacher": self.teacher,
            "reference_model": self.reference_model,
        }  # fmt: skip
        return {name: each for name, each in found.items() if each is not None}

    def placed(self, layout: Layout) -> "Workload":
        """The run on other devices: models that share the trainer's, and are divided as it is, go with it."""
        moved = {
            name: replace(each, layout=layout)
            for name, each in self.by_field.items()
            if not each.group and each.layout == self.layout
        }
        return replace(self, layout=layout, **moved)

    @property
    def groups(self) -> tuple[int, ...]:
        """Devices of each group of other models that have devices of their own, in order."""
        sizes: dict[int, int] = {}
        for each in self.by_field.values():
            if each.group:
                sizes[each.group] = max(sizes.get(each.group, 0), each.layout.ranks)
        return tuple(sizes[group] for group in sorted(sizes))

    @property
    def in_trainers_process(self) -> bool:
        """Whether the engine is in the processes of the trainer's ranks: vLLM on their devices, without Ray."""
        engine = self.engine
        return engine is not None and engine.colocated and engine.system == "vllm" and not self.ray

    @property
    def first_save(self) -> int:
        """The step of the first checkpoint."""
        return min(self.save_every or self.steps, self.steps)

    @property
    def first_eval(self) -> int:
        """The step of the first evaluation after training has begun."""
        return min(self.eval_every or self.steps, self.steps)

    @property
    def optimizer_steps(self) -> int:
        """Optimizer steps of the whole run."""
        return self.steps * self.trainer.updates
