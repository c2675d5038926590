"""All that `headway size` shows of one machine: what headway trains there, what others do, the rule of thumb."""

from collections.abc import Sequence

from msgspec import Struct

from headway.facts.machine import Machine
from headway.facts.shapes import TRAINED, ModelShape
from headway.facts.workload import Rollout
from headway.plan.size import Recipe, Row, Rule, largest, memory, size, standard


class Sizing(Struct, frozen=True):
    """A machine's table. `own` are the rows of what headway trains, `others` those of other trainers.

    `memory` is that of the device, or of the one pool, in bytes. `batch` is the standard batch of headway's recipes.
    `best` has the largest model that surely fits by recipe, `rules` the rule of thumb by model. `said` is what to
    know of the machine, in words.
    """

    machine: Machine
    memory: int
    batch: Rollout
    own: tuple[Row, ...]
    others: tuple[Row, ...]
    best: dict[str, Row | None]
    rules: dict[str, Rule]
    said: tuple[str, ...] = ()

    @property
    def guess(self) -> str | None:
        """The largest model that the rule of thumb lets through; None where it lets none."""
        fitting = [name for name, rule in self.rules.items() if rule.fits]
        return max(fitting, key=lambda name: self.rules[name].parameters, default=None)


def sizing(machine: Machine, models: Sequence[ModelShape], own: Sequence[Recipe], others: Sequence[Recipe]) -> Sizing:
    """Plan every model under every recipe of others, and under headway's own where headway trains it.

    >>> from headway.facts import machines, shapes
    >>> from headway.plan.size import OWN
    >>> found = sizing(machines.by_name("h100-80"), [shapes.table()["qwen3-0.6b"]], OWN[:1], ())
    >>> [(row.model, row.kind) for row in found.own], found.guess
    ([('qwen3-0.6B', 'fits')], 'qwen3-0.6B')
    """
    ours = [shape for shape in models if shape.family in TRAINED]
    rows, more = size(machine, ours, own), size(machine, models, others)
    total = memory(machine)
    return Sizing(
        machine=machine, memory=total, batch=standard(own[0], models[0], machine).rollout, own=rows, others=more,
        best={**largest(rows), **largest(more)},
        rules={shape.name: Rule(shape.parameters(), total) for shape in models},
    )  # fmt: skip
