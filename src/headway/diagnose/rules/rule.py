"""A rule is a document: what it sees, why that happens, how sure it is, what to change, and what only looks alike."""

from collections.abc import Callable, Mapping

from msgspec import Struct, field

from headway.diagnose.case import Case
from headway.diagnose.causes import Level
from headway.diagnose.evidence import Evidence, Grade, Place
from headway.diagnose.frameworks import Change

GradeOf = Callable[[Evidence], Grade | None]
"""How sure one piece of evidence makes a mechanism; None: it is another one."""


class Advice(Struct, frozen=True):
    """A change to make: what, what it does, and what it may cost.

    `text` is in plain words that hold everywhere. `change` is the change's key in frameworks.py, by which the flag of
    the trainer that is seen is added; `on` the one platform of seen.py that it is for. `flag` is what was added.

    >>> Advice("lower max-tokens-per-gpu", "less device memory in forward and backward", "more micro-batches").risk
    'more micro-batches'
    """

    text: str
    effect: str
    risk: str
    change: Change = ""
    on: str = ""
    flag: str = ""


class Settle(Struct, frozen=True):
    """What would settle an open question: a command, the file or place that it reads, and the line to look for.

    `on` is the one platform of seen.py that has the command; `instead` is asked where that is not seen.

    >>> Settle("dmesg -T", "kernel log", "oom-kill:constraint=").where
    'kernel log'
    """

    command: str
    where: str
    line: str
    on: str = ""
    instead: "Settle | None" = None


class Claim(Struct, frozen=True):
    """What a rule says of a case: how sure, because of what, and the lines that say it. `advice` are changes for this
    case, which come before the rule's own.

    >>> Claim("supported", "the request is 20 times the setting").grade
    'supported'
    """

    grade: Grade
    because: str
    places: tuple[Place, ...] = ()
    advice: tuple[Advice, ...] = ()


def of_stop(case: Case, pool: str, *detectors: str) -> Claim | None:
    """What headway's guard said when it stopped the run, where that was for a pool like this by one of these."""
    found = case.stopped
    if found is None or found.fields["detector"] not in detectors or pool not in found.fields["pool"]:
        return None
    return Claim("proven", found.fields["reason"], (found.place,))


def of_growth(case: Case, pool: str) -> Claim | None:
    """The growth of a pool like this that headway saw shortly before memory ran out; None where it saw none."""
    said = [each for each in case.evidence if each.kind == "box-growth" and pool in each.fields["pool"]]
    if case.mechanism == "cgroup-oom-kill":
        said = [each for each in said if each.fields["gauge"] == "cgroup"]
    if not said:
        return None
    return Claim("supported", said[-1].fields["reason"], (said[-1].place,))


class Rule(Struct, frozen=True):
    """One name of the table as a document. A mechanism's `ends` are the kinds of evidence that show it, with how sure
    each makes it; `tier` 0 are outside agents that name themselves, 1 faults of the work itself, 2 and 3 what may
    follow from those, 4 teardown. A cause's `find` weighs a case. `example` shows it; `near_miss` only looks like it.
    """

    name: str
    level: Level
    sees: str
    why: str
    sure: str
    look_alikes: str
    example: str
    near_miss: str
    refuters: tuple[str, ...] = ()
    advice: tuple[Advice, ...] = ()
    settle: tuple[Settle, ...] = ()
    tier: int = 4
    ends: Mapping[str, Grade | GradeOf] = field(default_factory=dict)
    find: Callable[[Case], Claim | None] | None = None

    def grade(self, evidence: Evidence) -> Grade | None:
        """How sure a piece of evidence makes this mechanism."""
        found = self.ends.get(evidence.kind)
        return found(evidence) if callable(found) else found
