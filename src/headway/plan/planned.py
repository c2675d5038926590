"""All that the planner says about one run on one machine, as every report shows it."""

from msgspec import Struct
from msgspec.structs import replace

from headway.facts.machine import Machine
from headway.facts.workload import Workload
from headway.plan import half
from headway.plan.ledger import Ledger
from headway.plan.plan import plan
from headway.plan.remedies import Advice, remedies
from headway.plan.time import Estimate, estimate
from headway.plan.verdict import Outcome, judge, longest_sample, overall

LONGEST = 1 << 20
"""Tokens up to which the longest sample is searched."""
NO_ADVICE = Advice((), (), 0)


class Planned(Struct, frozen=True):
    """A run's ledger on a machine, its verdict, and what to change.

    `longest_sample` is in tokens, of a sample that is trained alone, at most `LONGEST` and the model's context; the
    run's own lengths do not bound it. `longest_expected` is that by what is expected alone: an upper bound may be
    over a limit whatever the samples are. `advice` is empty where even the upper bound fits: nothing has to change
    then. `time` is how long the run takes, None where nothing tells.

    >>> from headway.facts import machines, shapes
    >>> from headway.foreign.presets import workload
    >>> found = examine(workload(shapes.table()["qwen3-0.6b"], "headway"), machines.by_name("gb10").without_ray())
    >>> found.outcome.kind, found.longest_sample > 1536, found.advice.remedies
    ('fits', True, ())
    """

    workload: Workload
    machine: Machine
    ledger: Ledger
    outcome: Outcome
    longest_sample: int
    advice: Advice
    longest_expected: int = 0
    time: Estimate | None = None

    @property
    def longest_alone(self) -> int:
        """The longest sample in tokens that a run may train alone, at most its own longest: by the upper bound, and
        of a tight run, which starts on what is expected, by what is expected."""
        longest = self.workload.rollout.longest
        if self.longest_sample >= longest or self.fits:
            return longest
        return max(self.longest_sample, min(self.longest_expected, longest))

    @property
    def fits(self) -> bool:
        """Whether all is planned, its expected peak is inside every known limit, and no engine refuses."""
        return not (self.outcome.refusals or self.outcome.unplanned) and all(
            each.kind != "does not fit" for each in self.outcome.pools
        )


def examine(workload: Workload, machine: Machine) -> Planned:
    """Plan a run and ask everything of the plan: some ten plans, and hundreds where it does not surely fit."""
    workload = replace(workload, unknown=(*workload.unknown, *half.note(workload, machine)))
    ledger = plan(workload, machine)
    outcome = judge(workload, machine, ledger)
    fits = overall(outcome.pools, outcome.deciding, outcome.refusals).kind == "fits"
    advice = NO_ADVICE if fits else remedies(workload, machine)
    most = min(LONGEST, workload.model.context or LONGEST)
    surely = longest_sample(workload, machine, most)
    expected = surely or longest_sample(workload, machine, most, surely=False)
    time = estimate(workload, machine, ledger)
    return Planned(workload, machine, ledger, outcome, surely, advice, expected, time)
