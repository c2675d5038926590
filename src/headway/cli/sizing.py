"""What `headway size` asks the planner: which machine, which models, which standard batch."""

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

from msgspec.structs import replace

from headway.cli.inputs import find_machine, host_memory
from headway.config.words import as_workload
from headway.errors import InputError
from headway.facts import machines
from headway.facts.machine import Machine
from headway.facts.shapes import TRAINED, ModelShape, nearest, table
from headway.facts.workload import Workload
from headway.foreign import settings
from headway.plan.size import OTHERS, OWN, Recipe, popular, trainable
from headway.plan.sizing import Sizing, sizing
from headway.plan.smaller import is_rehearsal
from headway.plan.verdict import with_lengths

BATCH = ("rollout.max_prompt", "rollout.max_answer", "rollout.prompts", "rollout.samples")
"""Keys of the standard batch that may be set."""


def sized(name: str | None, given: Sequence[str], pattern: str | None, *, every: bool = True) -> Sizing:
    """The table of a machine by name, or of this one: of models of a pattern, of all that headway trains (`every`),
    or of those that people train today. InputError for what cannot be set and a pattern of no model."""
    host, batch = host_memory(as_workload(given))
    machine = find_machine(name, host, ray=True)
    change = _change(batch)
    own, others = (tuple(_with(recipe, change) for recipe in recipes) for recipes in (OWN, OTHERS))
    plain = trainable() if every else popular()
    models = plain if pattern is None else _matching(pattern)
    found = sizing(machine, models, own, others if machine.device_count else ())
    return replace(found, said=_said(name, machine))


def _said(name: str | None, machine: Machine) -> tuple[str, ...]:
    """What a reader of the table has to know of the machine: for what its name was taken, what does not run there."""
    found = list(machines.said(name)) if name is not None else []
    if machines.is_apple(machine):
        found.append(
            "Miles, vLLM and bitsandbytes need CUDA: on a Mac their columns tell sizes alone, and headway trains on "
            "its CPU there"
        )
    if machine.device_count > 1:
        found.append(
            f"each run is on one of the {machine.device_count} devices; others divide a model over all of them: "
            "headway plan MODEL --trainer fsdp2, verl or slime"
        )
    return tuple(found)


def _matching(pattern: str) -> tuple[ModelShape, ...]:
    """Published models by name, whole or in part, in any case."""
    plain = pattern.lower()
    wanted = plain if set(plain) & set("*?[") else f"*{plain}*"
    found = [shape for key, shape in table().items() if fnmatchcase(key, wanted) and not is_rehearsal(shape)]
    if not found:
        near = f"; nearest are {', '.join(nearest(pattern))}" if nearest(pattern) else ""
        raise InputError(f"--model {pattern}: no model of that name{near}")
    if not any(shape.family in TRAINED for shape in found):
        raise InputError(f"--model {pattern}: headway trains {', '.join(TRAINED)}, and none of these is one")
    return tuple(shape for shape in found if shape.family in TRAINED)


def _change(batch: Sequence[str]) -> Callable[[Workload], Workload]:
    """What `--set` does to the standard run of a recipe."""
    for setting in batch:
        key = setting.partition("=")[0].strip()
        if key not in BATCH:
            raise InputError(
                f"--set {setting}: size has {', '.join(BATCH)} and machine.host; use headway plan for more"
            )

    def change(workload: Workload) -> Workload:
        rollout = settings.apply(workload, batch).rollout
        longer = with_lengths(workload, max_prompt=rollout.max_prompt, max_answer=rollout.max_answer)
        return replace(longer, rollout=rollout)

    return change


def _with(recipe: Recipe, change: Callable[[Workload], Workload]) -> Recipe:
    return replace(recipe, build=lambda shape: change(recipe.build(shape)))
