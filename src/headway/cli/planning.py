"""From a RunSpec to its plan on this machine: what `headway train` starts from."""

from collections.abc import Callable, Collection

from msgspec import Struct

from headway.config.accept import Accept
from headway.config.fits import missing_packages
from headway.config.sections import RunSpec
from headway.config.source import ModelSource, resolve
from headway.config.workload import to_workload
from headway.errors import InputError
from headway.facts import probe
from headway.plan.planned import Planned, examine


class TrainPlan(Struct, frozen=True):
    """Where the model of a run is, and what the planner says about the run."""

    source: ModelSource
    planned: Planned

    @property
    def longest_sample(self) -> int:
        """The longest sample in tokens that may be trained alone; the run makes none that is longer."""
        return self.planned.longest_alone


def make_plan(spec: RunSpec, message: Callable[[str], None]) -> TrainPlan:
    """Plan a RunSpec on this machine. The model's files come here first, as shape and tokenizer are in them.

    InputError for all that keeps a run from starting, but for what `check_start` tries.
    """
    from headway.rollout.lengths import data_facts

    source = resolve(spec.model)
    if missing := tuple(missing_packages(spec, source)):
        raise InputError(*missing)
    if source.shape is None or not (source.folder is None or source.folder.is_dir()):
        from headway.train.model import prepare

        source = prepare(source, message)
    data = data_facts(spec, source, thorough=True)
    return TrainPlan(source, examine(to_workload(spec, source, data=data), probe.detect(spec.memory.limit)))


def check_start(spec: RunSpec, accepted: Collection[Accept], *, whole: bool) -> None:
    """Try what a run starts with, and write nothing: its device, its output directory, its problems and its reward.
    `whole`, in a dry run: what takes seconds too.

    InputError for what `headway train` would refuse later.
    """
    from headway.rollout.inputs import check_inputs
    from headway.train.job import pick_device
    from headway.train.output import RunFolder
    from headway.train.resume import claim

    assert spec.output.dir is not None, "the loader sets it"
    pick_device(spec.memory.device)
    claim(RunFolder(spec.output.dir), spec, accepted)
    check_inputs(spec, whole=whole)
