"""Which ends belong together, and which of them came first: time order, and what follows from what."""

from collections.abc import Iterator, Sequence
from functools import cached_property

from msgspec import Struct, field

from headway.diagnose.evidence import RANK, Evidence, Grade
from headway.diagnose.numbers import refusal
from headway.diagnose.rules import rules
from headway.diagnose.rules.rule import Rule

LATER = {
    "ray-creation-error": 3, "nccl-error": 3, "engine-dead": 3, "ray-exit-code": 3, "slurm-cancel": 2,
    "ray-worker-crashed": 4,
    "ray-owner-node": 4, "k8s-deleted": 4, "disk-full": 2, "elastic-exit": 3, "k8s-preempted": 1, "cuda-error": 2,
    "box-stop": 0, "kernel-cgroup-frame": 1, "kernel-killed": 1,
}  # fmt: skip
"""Kinds that are further from the root than their mechanism: tier."""
REFUSED = ("device-allocation-failure", "host-allocation-failure")
"""Refusals, which follow from an earlier fault of their process where no machine could have served them."""
KERNEL = ("kernel-cgroup-oom", "kernel-oom")
"""The kernel's own words on which pool was empty."""
OUTSIDE_THE_KERNEL = ("slurm-oom", "k8s-oomkilled")
"""What counts a kill in a group, which the kernel does for one of the whole machine too."""
DISTRIBUTED = ("peer-lost", "collective-timeout", "device-allocation-failure")
TOGETHER_S, WAITED_S = 900.0, 7200.0
"""Seconds within which ends belong together: at most, and for what waits long before it says something."""
TOLERANCE_S = 60.0
"""Clocks of processes and of log forwarding differ by this much."""
NEAR = 400
"""Lines within which one file's order is that of forwarding, not of events."""


def is_interrupt(evidence: Evidence) -> bool:
    """Whether it is what Python says of Ctrl-C or SIGINT."""
    return evidence.fields.get("type", "").rpartition(".")[2] == "KeyboardInterrupt"


class End(Struct, frozen=True):
    """Evidence of how a process ended, with its mechanism."""

    rule: Rule
    grade: Grade
    evidence: Evidence

    @property
    def tier(self) -> int:
        if self.name in REFUSED and refusal(self.evidence.place.text).impossible:
            return 2
        if is_interrupt(self.evidence):
            return 4
        return LATER.get(self.evidence.kind, self.rule.tier)

    @property
    def name(self) -> str:
        return self.rule.name

    @property
    def order(self) -> int:
        return self.evidence.line.order

    def after(self, other: "End") -> float | None:
        """Seconds by which it came later, where clocks tell."""
        mine, theirs = self.evidence.line.clock, other.evidence.line.clock
        if mine is None or theirs is None:
            return None
        if mine.base == "boot" and self.evidence.place.file != other.evidence.place.file:
            return None
        return mine.after(theirs)


class Incident(Struct, dict=True):
    """Ends that belong to one death. `survived`: the run's steps went on after it."""

    ends: list[End] = field(default_factory=list)
    survived: bool = False

    @cached_property
    def root(self) -> End:
        """The end that the others follow from."""
        ends = [end for end in self.ends if not self._explained(end)] or self.ends
        if any(end.grade != "open" for end in ends):
            ends = [end for end in ends if end.grade != "open"]
        first = ends[0]
        for end in ends:
            same_line = end.evidence.place == first.evidence.place and RANK[end.grade] < RANK[first.grade]
            if (end.tier < first.tier and may_explain(end, first)) or (end.tier == first.tier and same_line):
                first = end
        if first.evidence.kind in OUTSIDE_THE_KERNEL:
            first = next((end for end in ends if end.evidence.kind in KERNEL), first)
        asked = is_interrupt(first.evidence)
        same = [end for end in ends if end.name == first.name and is_interrupt(end.evidence) == asked]
        return min(same, key=lambda end: (RANK[end.grade], "to allocate" not in end.evidence.place.text, end.order))

    def _explained(self, end: End) -> bool:
        """Whether another end of the incident is what this one tells of in other words."""
        names = {other.name for other in self.ends if other is not end}
        kind, text = end.evidence.kind, end.evidence.place.text
        kind_of_error = end.evidence.fields.get("type", "")
        if end.name == "native-crash" and ("ABRT" in text or "abort" in text.lower() or kind == "terminate-called"):
            return bool(names & {"collective-timeout", "host-allocation-failure", "device-allocation-failure"})
        if kind.startswith("python-") or kind == "nccl-error":
            if kind == "nccl-error" or "Dist" in kind_of_error:
                return bool(names & set(DISTRIBUTED))
            return any(same_exception(end, other) for other in self.ends)
        if kind == "ray-creation-error":
            return any(
                0 <= other.order - end.order <= NEAR for other in self.ends if other.evidence.fields.get("type")
            )
        if end.name == "python-exit":
            return "sigterm" in names
        return False


def same_exception(end: End, other: End) -> bool:
    """Whether `other`, of another mechanism, is what an exception's own text says, or an engine's word about it."""
    if other is end or other.evidence.place.file != end.evidence.place.file or other.name == "python-exception":
        return False
    first, distance = end.evidence.place.line, other.evidence.place.line - end.evidence.place.line
    if other.evidence.kind == "engine-exception":
        return -12 <= distance <= 0
    if distance == 0:
        return True
    message = end.evidence.fields.get("message", "")
    last = max((number for number, _ in end.evidence.line.after), default=first)
    inside = end.evidence.kind == "python-traceback" and 0 < distance <= last - first
    words = other.evidence.place.text
    return inside and bool(end.evidence.fields.get("type", "-") in words and message[:80] in words)


def may_explain(end: End, other: End) -> bool:
    """Whether `end` may be why `other` came, `end` being nearer to a root by its kind."""
    seconds = end.after(other)
    if seconds is not None:
        return seconds <= TOLERANCE_S
    if end.evidence.place.file != other.evidence.place.file or end.tier == 0:
        return True
    lines = end.order - other.order
    return lines <= (NEAR if end.tier == 1 else 5)


def ends_of(evidence: Sequence[Evidence]) -> list[End]:
    """The ends among all evidence in the order of time, each with its likeliest mechanism."""
    found = []
    for each in evidence:
        if each.role != "end":
            continue
        graded = [(rule, grade) for rule in rules("mechanism").values() if (grade := rule.grade(each)) is not None]
        if graded:
            rule, grade = min(graded, key=lambda pair: (RANK[pair[1]], pair[0].tier))
            found.append(End(rule, grade, each))
    return in_time(found)


def in_time(ends: Sequence[End]) -> list[End]:
    """By the clock where two can be compared, else as they were read; an insertion keeps both as far as it can."""
    found: list[End] = []
    for end in sorted(ends, key=lambda end: end.order):
        place = len(found)
        while place > 0 and (seconds := end.after(found[place - 1])) is not None and seconds < 0:
            place -= 1
        found.insert(place, end)
    return found


def incidents(evidence: Sequence[Evidence], progress: Sequence[tuple[int, int]] = ()) -> list[Incident]:
    """Deaths in the order of time. `progress` are (order, step) through the logs of one run."""
    found: list[Incident] = []
    for end in ends_of(evidence):
        if found and _belongs(found[-1], end):
            found[-1].ends.append(end)
            continue
        if found:
            found[-1].survived = _went_on(found[-1], end.evidence.line.step)
        found.append(Incident([end]))
    if found and progress:
        last = max((step for order, step in progress if order > found[-1].ends[-1].order), default=None)
        found[-1].survived = _went_on(found[-1], last)
    return found


def _steps(incident: Incident) -> Iterator[int]:
    return (end.evidence.line.step for end in incident.ends if end.evidence.line.step is not None)


def _went_on(incident: Incident, step: int | None) -> bool:
    """Whether a later step is more than one beyond the incident's: the run took it and went on."""
    before = max(_steps(incident), default=None)
    return before is not None and step is not None and step > before + 1


def _belongs(incident: Incident, end: End) -> bool:
    last, step = incident.ends[-1], end.evidence.line.step
    if last.evidence.line.run != end.evidence.line.run:
        return False
    before = max(_steps(incident), default=None)
    if before is not None and step is not None and not before - 1 <= step <= before + 1:
        return False
    seconds = end.after(last)
    if seconds is None:
        return True
    return seconds <= (WAITED_S if end.tier >= 2 else TOGETHER_S)
