"""Host memory that no tensor explains: the process itself, and the processes beside it."""

from headway.facts.workload import Workload
from headway.plan.item import Item
from headway.units import MIB

BASE = 430 * MIB
"""Python with torch 2.13 (CPU), transformers 5.24 and peft 0.21 imported, after a first forward and backward pass."""
BASE_UPPER = 560 * MIB
CUDA_BASE = 2200 * MIB
"""The same with a CUDA build of torch and a context. Not measured here."""
CUDA_CONTEXT = 700 * MIB
"""Device memory of a CUDA context and its modules. Not measured here; 0.3 to 0.7 GiB were reported."""
TENSORBOARD = 30 * MIB
WORKERS = {"task": 150 * MIB, "math": 120 * MIB, "function": 60 * MIB, "exact": 0, "regex": 0}
"""Resident size of the process that scores answers."""
PROBLEM_BYTES = 2500
"""Python objects of one problem."""
SLACK = 0.08
"""Upper bound of fragmentation: share of the bytes that come and go within a phase."""


def process(workload: Workload) -> Item:
    """The trainer's process without tensors."""
    if workload.device == "cuda":
        return Item(
            "process",
            CUDA_BASE,
            2 * CUDA_BASE,
            "python, torch with CUDA, transformers",
            "constant, not measured here",
        )
    size = BASE + (TENSORBOARD if workload.tensorboard else 0)
    return Item("process", size, size + BASE_UPPER - BASE, "python, torch, transformers, peft", "measured")


def problems(workload: Workload) -> Item:
    """The problems with their prompts, held for the whole run."""
    size = workload.problems * (PROBLEM_BYTES + 36 * workload.rollout.max_prompt)
    return Item("problems", size, 2 * size, f"{workload.problems:,} problems", "Python objects")


def reward(workload: Workload) -> Item | None:
    """The process that scores answers; a user's function may take up to its limit."""
    size = WORKERS[workload.reward_kind]
    if size == 0:
        return None
    upper = workload.reward_limit_bytes if workload.reward_kind == "function" else size * 3 // 2
    return Item("reward process", size, max(size, upper), f"reward.kind = {workload.reward_kind}", "measured")


def fragmentation(transient: int) -> Item:
    """Holes of the heap and rounding to pages, in proportion to what comes and goes in a phase."""
    return Item("fragmentation", 0, round(SLACK * transient), f"up to {SLACK:.0%} of transient bytes", "bound")
