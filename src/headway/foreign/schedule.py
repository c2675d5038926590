"""How long a run of another system goes on, and how often it saves and evaluates, in the planner's steps."""

from msgspec.structs import replace

from headway.facts.workload import Workload
from headway.foreign.found import Found
from headway.foreign.runs import Reading

STEPS = {
    "trl": "max_steps", "hf": "max_steps", "unsloth": "max_steps", "verl": "trainer.total_training_steps",
    "megatron": "train-iters",
}  # fmt: skip
"""System -> flag that bounds its steps: optimizer steps, and rollouts in verl's. Epochs of data of unknown size say
nothing."""


def scheduled(reading: Reading, made: Workload) -> Workload:
    """The run with its steps, which are rollouts where there are any, and those between saves and evaluations."""
    found = reading.found
    steps = reading.number(STEPS[found.system]) if found.system in STEPS else 0
    updates = made.trainer.updates if found.system != "verl" else 1
    return replace(
        made, steps=-(-steps // updates) if steps > 0 else made.steps, steps_known=steps > 0,
        save_every=_every(found, "save_interval"), eval_every=_every(found, "eval_interval"),
    )  # fmt: skip


def _every(found: Found, key: str) -> int:
    """Steps between two saves or evaluations; 0 where there is no such number."""
    value = found.value(key)
    return max(0, value) if isinstance(value, int) else 0
