"""What a diagnosis says: one record for each end of a run, and all of them together."""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from headway.diagnose.evidence import Clock, Grade, Place
from headway.diagnose.numbers import MonitorKill
from headway.diagnose.rules.rule import Advice, Settle

Outcome = Literal["died", "finished", "stopped"]
"""died: also where nothing tells how it ended. stopped: it was asked to, as by Ctrl-C."""


class RuledOut(Struct, frozen=True):
    """Something that it was not, and what speaks against it.

    >>> RuledOut("cgroup-oom-kill", "a memory-limit kill is SIGKILL and cannot print it").name
    'cgroup-oom-kill'
    """

    name: str
    because: str
    place: Place | None = None


class Candidate(Struct, frozen=True):
    """A cause that the evidence leaves possible."""

    name: str
    because: str
    grade: Grade = "open"


class Finding(Struct, frozen=True):
    """One end: what ended the process and why, each with its own grade, and what speaks for and against it.

    `cause` is "not-established" where nothing shows it; with a grade of open it is the likeliest, not more. `family`
    is the cause's, of one that is only the likeliest too, else the mechanism's. `survived`: the run went on after
    it. `outcome`: whether it was a death at all; where not, the cause is empty as a rule. `kill` are the numbers of
    Ray's monitor, `asked` the bytes of a request that was refused, `in_use` those that its process held
    on the device.
    """

    mechanism: str
    mechanism_grade: Grade
    cause: str
    cause_grade: Grade
    family: str
    phase: str
    step: int | None
    component: str
    process: str
    because: str
    evidence: tuple[Place, ...]
    ruled_out: tuple[RuledOut, ...]
    candidates: tuple[Candidate, ...]
    would_settle: tuple[Settle, ...]
    advice: tuple[Advice, ...]
    clock: Clock | None = None
    run: int = 0
    survived: bool = False
    outcome: Outcome = "died"
    sentence: str = ""
    kill: MonitorKill | None = None
    asked: int | None = None
    in_use: int | None = None

    @property
    def established(self) -> bool:
        """Whether mechanism and cause are both more than open, or it was no death."""
        return self.outcome != "died" or (self.mechanism_grade != "open" and self.cause_grade != "open")


class Moment(Struct, frozen=True):
    """One line of the timeline."""

    place: Place
    clock: Clock | None
    kind: str
    role: str
    says: str
    repeated: int = 0
    run: int = 0


class Diagnosis(Struct, frozen=True):
    """The answer, all ends that were found, and the order of what was read. `notes` say what could not be read,
    `said` are the last words of a recorded command that ended with a bad code, where nothing else tells why."""

    answer: Finding
    findings: tuple[Finding, ...]
    timeline: tuple[Moment, ...]
    notes: tuple[str, ...] = ()
    context: tuple[str, ...] = ()
    remedies: tuple[Mapping[str, object], ...] = ()
    said: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        return self.answer.sentence

    def with_answer(self, answer: Finding) -> "Diagnosis":
        """The same with another answer, among the findings too."""
        findings = tuple(answer if each is self.answer else each for each in self.findings)
        return replace(self, answer=answer, findings=findings)

    @property
    def exit_code(self) -> int:
        """0 where mechanism and cause are established or it was no death, 4 where not."""
        return 0 if self.answer.established else 4
