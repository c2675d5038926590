"""What a cause rule weighs: the event that ended the run, what stands around it, and what else is known."""

import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import takewhile

from msgspec import Struct, field

from headway.diagnose.evidence import Evidence, Place
from headway.diagnose.numbers import MonitorKill, Refusal, Slope, host_series, monitor_kill, refusal, series, slope
from headway.diagnose.seen import Seen
from headway.diagnose.settings import Settings
from headway.diagnose.text import without_prefix

_FRAME = re.compile(r'File "[^"]+", line \d+|^\s*(?:at |#\d+ )|\w\(|^\w+$|\bin \w+$')
_GENERATED = ("sequence", "rollout", "sample", "response", "completion", "batch", "single", "and_", "async", "token")
"""What functions that generate answers have in their names after that word; `generate_qkv` makes something else."""
_PHASES = (
    ("eval", r"\beval(?:uat|_(?!frame)|\b(?!\())|\bvalidat"),
    ("save", r"save_checkpoint|\bsav(?:e|ing)\b.{0,30}(?:checkpoint|model|state)|checkpoint.{0,20}\bsav|torch\.save|"
        r"dist_checkpointing|safetensors.*save"),
    ("wake", r"wake_?up|resume_memory|onload|func=resume|cumem_?allocator"),
    ("sleep", r"\.sleep\(|\bsleep_mode|release_memory|offload_(?:model|optim|megatron)"),
    ("sync", r"update_weights?|weight[_ ]sync|sync_(?:weights|model)|broadcast_weights|load_weights.*rollout"),
    ("load", r"load_(?:checkpoint|model|weights)|from_pretrained|init_model|"
        r"Loading (?:model|weights|safetensors|checkpoint shards)"),
    ("step", r"optimizer\.step|optim(?:izer)?_step|adam\w*\.py|exp_avg|_init_group"),
    ("score", r"compute_log_?prob|ref_log_?prob|log_?probs?\b.*(?:compute|forward)|compute_values"),
    ("train", r"backward|forward_backward|train_step|update_(?:actor|policy)|loss\b|autograd|"
        r"\btrain(?:_one_step)?\b(?!\.py|/)"),
    ("rollout", r"\brollout(?!\w*\.py)|generate(?!\.py|_(?!" + "|".join(_GENERATED) + r"))|decode|prefill|"
        r"sampl(?:e|ing)"),
)  # fmt: skip


_SETTINGS = re.compile(r"\boverrides: \[|\bNamespace\(")
"""A line of settings, whose names tell of no phase."""
_TRAINED = re.compile(r"(?i)\btraining (?:is |was )?(?:completed?|finished|done|over)\b|['\"]train_runtime['\"]")
"""Words of a loop that is over: what comes later is no training."""
_FORK = re.compile(r"_fork_exec|popen_fork|\bos\.fork\b|\bfork\(\)|fork: Cannot allocate")
_SAVING = re.compile(
    r"(?i)\bsav(?:ing|ed?)\b.{0,40}\b(?:checkpoint|model|state)|\bcheckpoint.{0,30}\bsav(?:ing|ed)\b"
)
_SAVED = re.compile(r"(?i)\bsaved\b(?! in )|\bsuccessfully\b|\b(?:took|in) [\d.]+ ?s")
_RAISED = re.compile(r"\b(?:\w+\.)*\w+(?:Error|Exception): .+")
"""The last line of a traceback."""
MESSAGE = 12
"""Lines over which a message may be spread."""


def _goes_on(text: str) -> bool:
    """Whether a line is more of torch's message above it."""
    return refusal(text).asked is None and ("PyTorch" in text or "memory in use" in text)


class Case(Struct, frozen=True, dict=True):
    """One end of one run. `event` is the evidence that shows how it ended; None where nothing does. `tail` are the
    last lines of the logs."""

    mechanism: str
    event: Evidence | None
    evidence: Sequence[Evidence]
    settings: Settings = field(default_factory=Settings)
    memory: tuple[tuple[int, str], ...] = ()
    seen: Seen = field(default_factory=Seen)
    tail: tuple[str, ...] = ()

    def first(self, *kinds: str) -> Evidence | None:
        """The first evidence of a kind; kinds are tried in their order."""
        for kind in kinds:
            for each in self.evidence:
                if each.kind == kind:
                    return each
        return None

    def has(self, *kinds: str) -> bool:
        return self.first(*kinds) is not None

    def words(self, kind: str, pattern: str) -> Evidence | None:
        """The first evidence of a kind whose line matches."""
        search = re.compile(pattern, re.IGNORECASE).search
        return next((each for each in self.evidence if each.kind == kind and search(each.place.text)), None)

    @cached_property
    def around(self) -> tuple[Place, ...]:
        """The lines around the event, in their order: its own neighbours, and the other evidence near to it."""
        if self.event is None:
            return ()
        line = self.event.line
        file = line.place.file
        found = dict((*line.before, *line.after))
        near = (each.line for each in self.evidence if each.place.file == file)
        for each in near:
            if abs(each.place.line - line.place.line) <= 80:
                found |= dict(each.before) | dict(each.after) | {each.place.line: each.text}
        found[line.place.line] = line.text
        return tuple(Place(file, number, found[number]) for number in sorted(found))

    @cached_property
    def text(self) -> str:
        return "\n".join(place.text for place in self.around)

    def near(self, pattern: str) -> Place | None:
        """The nearest line around the event that matches."""
        search = re.compile(pattern, re.IGNORECASE).search
        places = [place for place in self.around if search(place.text)]
        at = self.event.place.line if self.event else 0
        return min(places, key=lambda place: abs(place.line - at), default=None)

    def frame(self, pattern: str, within: int = 30) -> Place | None:
        """The nearest line around the event that shows a call and matches; of prose it takes none."""
        search = re.compile(pattern, re.IGNORECASE).search
        at = self.event.place.line if self.event else 0
        places = [place for place in self._calls() if abs(place.line - at) <= within and search(place.text)]
        return min(places, key=lambda place: abs(place.line - at), default=None)

    def _calls(self) -> Iterator[Place]:
        for place in self.around:
            plain = without_prefix(place.text)
            if _FRAME.search(plain[:400]) and not re.search(r"Namespace\(|^\s*\{|\.{6,} ", plain):
                yield place

    @cached_property
    def refusal(self) -> Refusal:
        """The numbers of torch's message: of the event, else of the first one around it with what stands below."""
        own = refusal(self.event.place.text) if self.event else Refusal()
        if self.event is not None and own.asked is not None and (own.total is not None or own.impossible):
            rest = takewhile(_goes_on, (text for _, text in self.event.line.after[:MESSAGE]))
            return own if own.allocated is not None else refusal("\n".join((self.event.place.text, *rest)))
        texts = [place.text for place in self.around]
        first = next((number for number, text in enumerate(texts) if refusal(text).asked is not None), None)
        if first is None:
            return Refusal()
        rest = takewhile(lambda text: refusal(text).asked is None, texts[first + 1 : first + MESSAGE])
        return refusal("\n".join((texts[first], *rest)))

    @cached_property
    def frames(self) -> tuple[str, ...]:
        """The calls that led to the event ("file:line name"), of its own traceback or of the one that it ends."""
        if self.event is None:
            return ()
        own = [self.event, *(each for each in self.evidence if each.place == self.event.place)]
        return next((tuple(found.split("\n")) for each in own if (found := each.fields.get("frames"))), ())

    @cached_property
    def raised(self) -> Evidence | None:
        """The exception that an engine's own word about one announces: the next of the same process below it."""
        if self.event is None or self.event.kind != "engine-exception":
            return None
        at, pid = self.event.place.line, self.event.line.process.pid
        return next((
            each for each in self.evidence
            if each.place.file == self.event.place.file and 0 < each.place.line - at <= MESSAGE * 5
            and each.line.process.pid == pid and _RAISED.search(each.place.text)
        ), None)  # fmt: skip

    @property
    def forks(self) -> bool:
        """Whether the memory that was refused was for a copy of the process: a fork, as a subprocess starts with."""
        calls = " ".join((*self.frames, *(place.text for place in self.around)))
        return self.mechanism == "host-allocation-failure" and _FORK.search(calls) is not None

    @cached_property
    def saving(self) -> Place | None:
        """The last line before the event that says that a checkpoint is being written, and not that it is done."""
        at = self.event.place.line if self.event else 0
        found = None
        for place in self.around:
            if place.line < at and _SAVING.search(place.text):
                found = None if _SAVED.search(place.text) else place
        return found

    @cached_property
    def kill(self) -> MonitorKill | None:
        return monitor_kill([place.text for place in self.around])

    @cached_property
    def stopped(self) -> Evidence | None:
        """headway's own stop of the run before a limit, where that is how it ended; a black box tells of it."""
        return self.first("box-stop") if self.mechanism == "sigterm" else None

    @property
    def inner(self) -> Evidence | None:
        """A black box's word that a process of the run sent the signal that ended this one, Ray's own aside."""
        if self.event is None or self.event.kind != "box-signal":
            return None
        own = (self.event.fields["pid"], self.event.fields["signal"])
        found = (each for each in self.evidence if each.kind == "box-inner")
        return next((each for each in found if (each.fields["target"], each.fields["signal"]) == own), None)

    @property
    def pinned(self) -> Evidence | None:
        """A line around the event that asks for page-locked host memory."""
        found = self.first("pinned")
        return found if found is not None and found.place in self.around else None

    def slope(self, name: str) -> Slope | None:
        """How a measured value went through the log."""
        return slope(series(self.memory, name))

    @property
    def host_slope(self) -> Slope | None:
        """How the measured host memory went through the log."""
        return slope(host_series(self.memory))

    @cached_property
    def step(self) -> int | None:
        """The last step before the event; where its file counts none, as a kernel's log, the last of the others."""
        own = self.event.line.step if self.event else None
        if own is None and self.settings.step is None:
            return max((each.line.step for each in self.evidence if each.line.step is not None), default=None)
        return self.settings.step if own is None else own

    @cached_property
    def phase(self) -> str:
        """The phase by the calls around the event, else by what the run says of it; empty where nothing tells."""
        at = self.event.place.line if self.event else 0
        best = ("", 1 << 60)
        ended = any(place.line <= at and _TRAINED.search(place.text) for place in self.around)
        for place in self.around:
            for name, pattern in () if _SETTINGS.search(place.text) else _PHASES:
                if re.search(pattern, place.text, re.IGNORECASE):
                    if ended and name in ("train", "step"):
                        break
                    distance = abs(place.line - at)
                    if distance < best[1]:
                        best = (name, distance)
                    break
        return self.settings.phase or best[0]
