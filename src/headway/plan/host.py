"""Host memory that no tensor explains: the process itself, and the processes beside it."""

from headway.facts.calibration import ProcessBase
from headway.facts.workload import Workload
from headway.plan.item import Item
from headway.plan.ledger import Phase
from headway.units import KIB, MIB, format_bytes

LOADED = 378 * MIB
"""Python with headway, torch 2.13 (CPU), transformers 5.24, peft 0.21 and tensorboard imported, when the model has
been loaded. Fitted on 10 runs of four models, which differed by 4 MiB."""
RUNNING = 408 * MIB
"""The same once the model has generated and trained: code pages that were touched, kernels made at run time.
Fitted on the same runs, which differed by 17 MiB."""
HEAP = 12 * MIB
"""Blocks below the mapping threshold that come and go while the model computes, with the holes between them."""
UNCERTAIN = 32 * MIB
"""Upper bound of what other versions of the libraries and other kernels add."""
TENSORBOARD = 12 * MIB
"""Part of the above that output.tensorboard = false saves."""
ADAPTER = 64 * KIB
"""Python objects of one adapted projection. Fitted on 3 LoRA runs (14 MiB for 210 of them)."""
DATASETS = 60 * MIB
"""Imported where a Parquet file is read."""
CUDA_BASE = 2200 * MIB
"""The same with a CUDA build of torch and a context. Not measured here."""
CUDA_CONTEXT = 700 * MIB
"""Device memory of a CUDA context and its modules. Not measured here; 0.3 to 0.7 GiB were reported."""
WORKERS = {"task": 110 * MIB, "math": 57 * MIB, "function": 14 * MIB, "exact": 0, "regex": 0}
"""Resident size of the process that scores answers."""
TOKEN_BYTES = 450
"""A fast tokenizer's memory for each entry of its vocabulary. Fitted on SmolLM2's (22 MiB for 49,152)."""
PROBLEM_BYTES = 2500
"""Python objects of one problem."""
COMPUTING = (Phase.ROLLOUT, Phase.SCORE, Phase.TRAIN, Phase.EVAL)
SLACK = 0.08
"""Upper bound of fragmentation: share of the bytes that come and go within a phase."""
ROUNDING = 1 / 32
"""The same on a calibrated CPU, where less was seen: a block of 128 KiB that is mapped on its own (train/memory.py)
takes a page more at most."""
CONTEXT_UNCERTAIN = 128 * MIB
"""Upper bound of what kernels that were not used yet add to a measured context."""


def process(workload: Workload, phase: Phase, base: ProcessBase | None = None) -> Item:
    """The trainer's process without tensors; `base` is what was measured of it on the run's machine."""
    loading = phase == Phase.LOAD
    if base is not None:
        size = base.loaded if loading else base.running
    elif workload.device == "cuda":
        text = "python, torch with CUDA, transformers"
        return Item("process", CUDA_BASE, 2 * CUDA_BASE, text, "constant, not measured here")
    else:
        size = LOADED if loading else RUNNING
    if phase in COMPUTING and (base is None or base.overhead is None):
        size += HEAP
    if (lora := workload.trainer.lora) is not None:
        size += ADAPTER * workload.model.layers * len(workload.model.lora_linears(lora.targets))
    size -= 0 if workload.tensorboard else TENSORBOARD
    size += DATASETS if workload.data == "parquet" else 0
    source = "measured" if base is None else base.source
    return Item("process", size, size + UNCERTAIN, "python, torch, transformers, peft, heap", source)


def cuda_context(base: ProcessBase | None = None) -> Item:
    """Device memory of one process's CUDA context; `base` is what was measured of it on the run's machine."""
    if base is not None and base.context is not None:
        return Item("CUDA context", base.context, base.context + CONTEXT_UNCERTAIN, "constant", base.source)
    return Item("CUDA context", CUDA_CONTEXT, 2 * CUDA_CONTEXT, "constant", "reported 0.3 to 0.7 GiB")


def problems(workload: Workload) -> Item:
    """The problems with their prompts, held for the whole run."""
    size = workload.problems * (PROBLEM_BYTES + 36 * workload.rollout.max_prompt)
    return Item("problems", size, 2 * size, f"{workload.problems:,} problems", "Python objects")


def tokenizer(workload: Workload) -> Item | None:
    """The vocabulary and merges of a real model's tokenizer; random models have a byte-level one."""
    if not workload.weights_file_bytes:
        return None
    vocab = workload.model.vocab
    size = TOKEN_BYTES * vocab
    return Item("tokenizer", size, 2 * size, f"{vocab:,} entries x {TOKEN_BYTES} B", "measured on one tokenizer")


def reward(workload: Workload) -> Item | None:
    """The process that scores answers; a user's function may take up to its limit."""
    size = WORKERS[workload.reward_kind]
    if size == 0:
        return None
    upper = workload.reward_limit_bytes if workload.reward_kind == "function" else size * 3 // 2
    return Item("reward process", size, max(size, upper), f"reward.kind = {workload.reward_kind}", "measured")


def fragmentation(transient: int, base: ProcessBase | None = None) -> Item:
    """Holes of the heap and rounding to pages; their bound grows with what comes and goes in a phase.

    >>> fragmentation(1000).upper
    80
    """
    found = None if base is None else base.overhead
    if base is None or found is None:
        return Item("fragmentation", 0, round(SLACK * transient), f"up to {SLACK:.0%} of transient bytes", "bound")
    share = SLACK if found.share is None else max(found.share, ROUNDING)
    upper = found.holes + found.spread + round(share * transient)
    text = f"{format_bytes(found.holes)}; up to {format_bytes(found.spread)} and {share:.1%} of transient bytes more"
    return Item("fragmentation", found.holes, upper, text, base.source)
