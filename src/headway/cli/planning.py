"""From a RunSpec to its plan: shared by every command that needs one."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from headway.config.sections import RunSpec
from headway.config.source import ModelSource, resolve
from headway.config.workload import to_workload
from headway.facts import probe
from headway.facts.machine import Machine
from headway.facts.workload import Workload
from headway.plan.ledger import Ledger
from headway.plan.plan import plan
from headway.plan.remedies import remedies
from headway.plan.verdict import PoolVerdict, longest_sample, verdict
from headway.reports.terminal import remedy_line


@dataclass(frozen=True)
class Planned:
    """A workload on a machine, and what the planner says about it."""

    source: ModelSource
    workload: Workload
    machine: Machine
    ledger: Ledger
    verdicts: tuple[PoolVerdict, ...]

    @property
    def fits(self) -> bool:
        """Whether the expected peak is inside every limit of every pool."""
        return all(each.kind != "does not fit" for each in self.verdicts)

    def longest_sample(self) -> int:
        """The longest sample in tokens that may be trained alone."""
        return longest_sample(self.workload, self.machine)

    def advice(self) -> tuple[str, ...]:
        """What to set instead, each with its new peak."""
        return tuple(remedy_line(each) for each in remedies(self.workload, self.machine).remedies)

    def as_json(self) -> dict[str, Any]:
        """The plan as `plan.json` and `--json` show it."""
        return {
            "verdict": [asdict(each) for each in self.verdicts],
            "lines": [line._asdict() for line in self.ledger.lines],
        }

    def json_text(self) -> str:
        """`as_json` as text."""
        return json.dumps(self.as_json(), indent=1) + "\n"


def make_plan(spec: RunSpec, message: Callable[[str], None]) -> Planned:
    """Plan a RunSpec on this machine. A hub id is fetched first, as its shape is not known before."""
    source = resolve(spec.model)
    if source.shape is None:
        from headway.train.model import prepare

        source = prepare(source, message)
    workload = to_workload(spec, source)
    machine = probe.detect(spec.memory.limit)
    ledger = plan(workload, machine)
    return Planned(source, workload, machine, ledger, verdict(ledger, machine))
