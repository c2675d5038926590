"""What a change costs, in words: what is lost in learning, speed or data, beside what it saves."""

from collections.abc import Iterable, Mapping

from headway.facts.workload import Workload
from headway.foreign.spelling import Scalar, SpellKey
from headway.plan.moves import LORA_RANK, Cost

NOTHING = "nothing"
_SMALLER_BATCHES = "speed: smaller micro-batches"
_FEWER_AT_ONCE = "speed: fewer answers generate at once"

PRICES: Mapping[tuple[SpellKey, Cost], str] = {
    ("trainer.reference", Cost.FREE): f"{NOTHING}: the KL's coefficient is 0",
    ("trainer.loss", Cost.FREE): f"{NOTHING}: the same loss without all logits at once",
    ("trainer.attention", Cost.FREE): f"{NOTHING}: the same attention",
    ("trainer.offload", Cost.FREE): "speed: state moves between host and device each step",
    ("trainer.optimizer.offload", Cost.FREE): f"{NOTHING}: the devices have room for it",
    ("trainer.logprob_chunk", Cost.FREE): f"{NOTHING}: the same log-probs in smaller chunks",
    ("trainer.cap", Cost.FREE): _SMALLER_BATCHES,
    ("trainer.rows", Cost.FREE): _SMALLER_BATCHES,
    ("trainer.score_cap", Cost.FREE): _SMALLER_BATCHES,
    ("trainer.score_rows", Cost.FREE): _SMALLER_BATCHES,
    ("engine.memory_fraction", Cost.FREE): _FEWER_AT_ONCE,
    ("critic.trainer.cap", Cost.FREE): _SMALLER_BATCHES,
    ("critic.trainer.rows", Cost.FREE): _SMALLER_BATCHES,
    ("layout.shards", Cost.FREE): "speed: ranks send each layer's weights to each other",
    ("gathers", Cost.FREE): f"{NOTHING}: a checkpoint has to be merged to be loaded elsewhere",
    ("engine.tensor_parallel", Cost.FREE): "speed: fewer engines of more GPUs each",
    ("critic.trainer.offload", Cost.FREE): "speed: the critic moves between host and device each step",
    ("engine.releases", Cost.FREE): "speed: the engine sleeps and wakes each step",
    ("trainer.checkpointing", Cost.FREE): "speed: training takes about a third longer",
    ("layout.tensor", Cost.SLOWER): "speed: GPUs wait for each other in every layer",
    ("layout.context", Cost.SLOWER): "speed: GPUs exchange keys and values in every layer",
    ("rollout.kv_budget", Cost.SLOWER): _FEWER_AT_ONCE,
    ("engine.max_seqs", Cost.SLOWER): _FEWER_AT_ONCE,
    ("engine.graphs", Cost.SLOWER): "speed: generation starts more kernels",
    ("trainer.optimizer.offload", Cost.SLOWER): "speed: the optimizer steps on the CPU and fills host memory",
    ("trainer.offload_parameters", Cost.SLOWER): "speed: weights and optimizer wait in host memory",
    ("layout.devices", Cost.HARDWARE): "hardware: more of this machine's GPUs",
    ("layout.nodes", Cost.HARDWARE): "hardware: more of this machine's nodes",
    ("rollout.prompts", Cost.EXPERIMENT): "data: fewer prompts a step",
    ("rollout.samples", Cost.EXPERIMENT): "data: fewer answers to compare in a group",
    ("rollout.max_answer", Cost.EXPERIMENT): "data: longer answers are cut off",
    ("trainer.reference", Cost.EXPERIMENT): "learning: no KL holds the model near its start",
    ("engine.kv_dtype", Cost.EXPERIMENT): "learning: answers are sampled a little off-policy",
    ("trainer.optimizer.state_dtype", Cost.EXPERIMENT): "learning: AdamW's moments are rounded",
    ("trainer.optimizer.in_backward", Cost.EXPERIMENT): "learning: no gradient clipping or accumulation",
    ("trainer.optimizer.paged", Cost.EXPERIMENT): "learning: 8-bit moments; speed: pages of them come from the host",
    ("trainer.param_dtype", Cost.EXPERIMENT): "learning: bf16 arithmetic with no update lost",
    ("trainer.lora", Cost.EXPERIMENT): "learning: adapters alone are trained at about 10x the learning rate",
    ("trainer.quant", Cost.EXPERIMENT): "learning: a 4-bit base is less exact; speed: it is unpacked in each pass",
    ("model", Cost.MODEL): "another model: smaller",
    ("trainer.param_dtype", Cost.LOSSY): "learning: at lr 1e-6 AdamW in pure bf16 loses most updates",
}  # fmt: skip
"""A change, at its cost -> what is lost, as `aspect: what`. docs/plan.md has the same scale in words."""


def price(key: SpellKey, cost: Cost, value: Scalar, run: Workload) -> str:
    """What one change costs in the run that has it.

    >>> from headway.facts.shapes import table
    >>> from headway.foreign.presets import workload
    >>> price("trainer.cap", Cost.FREE, 512, workload(table()["qwen3-4b"], "headway"))
    'speed: smaller micro-batches'
    """
    text = PRICES[key, cost]
    if key == "trainer.offload" and value == "none":
        return f"{NOTHING}: the devices have room for it"
    if key == "trainer.quant" and run.trainer.lora is not None and run.trainer.lora.rank == LORA_RANK:
        return f"{text}; adapters alone are trained"
    return text


def in_words(loses: str) -> str:
    """What changes cost, for a line of text.

    >>> in_words("speed: b, d; data: c")
    'speed (b, d), data (c)'
    """
    parts = (each.partition(": ") for each in loses.split("; "))
    return ", ".join(f"{aspect} ({what})" if what else aspect for aspect, _, what in parts)


def together(prices: Iterable[str]) -> str:
    """What several changes cost, one aspect after the other; what costs nothing is said only where all does.

    >>> together(["nothing: a", "speed: b", "data: c", "speed: d"])
    'speed: b, d; data: c'
    >>> together(["nothing: a"])
    'nothing: a'
    """
    aspects: dict[str, list[str]] = {}
    for part in (part for each in prices for part in each.split("; ")):
        aspect, colon, what = part.partition(": ")
        if not colon:
            aspect, what = "learning", part
        if what not in aspects.setdefault(aspect, []):
            aspects[aspect].append(what)
    if len(aspects) > 1:
        aspects.pop(NOTHING, None)
    return "; ".join(f"{aspect}: {', '.join(what)}" for aspect, what in aspects.items())
