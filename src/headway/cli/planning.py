"""From a RunSpec to its plan on this machine: what `headway train` starts from."""

from collections.abc import Callable

from msgspec import Struct

from headway.config.sections import RunSpec
from headway.config.source import ModelSource, resolve
from headway.config.workload import to_workload
from headway.facts import probe
from headway.plan.planned import Planned, examine


class TrainPlan(Struct, frozen=True):
    """Where the model of a run is, and what the planner says about the run."""

    source: ModelSource
    planned: Planned

    @property
    def longest_sample(self) -> int:
        """The longest sample in tokens that may be trained alone; the run makes none that is longer."""
        return min(self.planned.longest_sample, self.planned.workload.rollout.longest)


def make_plan(spec: RunSpec, message: Callable[[str], None]) -> TrainPlan:
    """Plan a RunSpec on this machine. A hub id is fetched first, as its shape is not known before."""
    source = resolve(spec.model)
    if source.shape is None:
        from headway.train.model import prepare

        source = prepare(source, message)
    return TrainPlan(source, examine(to_workload(spec, source), probe.detect(spec.memory.limit)))
