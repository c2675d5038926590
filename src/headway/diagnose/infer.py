"""From evidence to findings: which end came first, why, what speaks against the rest, and what would settle it."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import TypeVar

from msgspec.structs import replace

from headway.diagnose.applied import asked, here
from headway.diagnose.case import Case
from headway.diagnose.causes import ASKED, NOT_ESTABLISHED, UNKNOWN, family
from headway.diagnose.engines import engine_advice, engine_of, is_late, late_advice, owner_of
from headway.diagnose.evidence import RANK, Evidence, Grade, Place
from headway.diagnose.finding import Candidate, Finding, RuledOut
from headway.diagnose.incidents import REFUSED, Incident, incidents, is_interrupt
from headway.diagnose.numbers import refusal
from headway.diagnose.readers import REFUSALS
from headway.diagnose.rules import rules
from headway.diagnose.rules.rule import Advice, Claim, Rule
from headway.diagnose.seen import look
from headway.diagnose.sentence import sentence
from headway.diagnose.settings import Settings
from headway.units import format_bytes

Item = TypeVar("Item")

PREFERENCE = (
    "gpu-hardware", "numerics", "device-oversize-sample", "device-graph-capture", "device-communication-buffers",
    "host-memory-pinned", "device-wakeup", "device-weight-sync", "device-checkpoint", "device-fragmentation",
    "device-logits", "device-growth", "device-imbalance", "device-other-process", "engine-start-budget",
    "unified-memory-full",
    "host-memory-growth", "host-memory-checkpoint-spike", "host-memory-data-spike", "host-memory-capacity",
)  # fmt: skip
"""Between causes of the same grade: the narrower first. Those not listed come after, in the table's order."""

MEMORY_KILLS = ("ray-memory-monitor", "cgroup-oom-kill", "kernel-oom-kill")
MOST_PLACES = 12
COMMAND = 60
"""Characters of a command that name a process."""
BOX = "black-box"
"""The name of the source that a black box's own lines stand in."""
_COMPONENTS = (
    ("engine", r"sglang|vllm|enginecore|rolloutengine|scheduler_TP|detokenizer|asyncllm"),
    ("trainer", r"(?<!cons)train(?!ing progress)|megatron|fsdp|actor.?worker|workerdict|policy|critic|reference"),
    ("reward", r"reward|verifier|judge"),
    ("data", r"dataloader|data_?source|buffer"),
    ("rollout", r"rollout|generate|agent_?loop"),
    ("driver", r"driver|taskrunner|main_task|job supervisor"),
)  # fmt: skip


def infer(
    evidence: Sequence[Evidence], settings: Settings, memory: Sequence[tuple[int, str]] = (),
    progress: Sequence[tuple[int, int]] = (), heads: Sequence[str] = (), tails: Sequence[str] = (),
) -> tuple[Finding, ...]:  # fmt: skip
    """The findings of one run in the order of time; one that says "unknown" where no end was found. `heads` are the
    first lines of its logs, `tails` the last."""
    seen = look(evidence, settings, heads)
    whole = Case(UNKNOWN, None, evidence, settings, tuple(memory), seen, tuple(tails))
    found = [_finding(each, whole) for each in incidents(evidence, progress)]
    return tuple(found) or (_nothing(replace(whole, memory=())),)


def _finding(incident: Incident, whole: Case) -> Finding:
    evidence, seen, root = whole.evidence, whole.seen, incident.root
    event, name, grade = root.evidence, root.name, root.grade
    for end in incident.ends:
        if end.name == name and RANK[end.grade] < RANK[grade]:
            grade = end.grade
    name, grade, more = _weighed(name, grade, event, evidence)
    case = replace(whole, mechanism=name, event=event)
    if name == "device-allocation-failure" and grade != "proven" and case.pinned is not None:
        case = replace(case, mechanism="host-allocation-failure")
        name, grade = case.mechanism, "supported"
    claims = _claims(case)
    cause, claim = claims[0] if claims else (NOT_ESTABLISHED, Claim("open", ""))
    rule = rules("mechanism")[name]
    why = rules("cause")[cause]
    ends = [end.evidence.place for end in incident.ends if end.name == name]
    places = _unique([event.place, *ends[:4], *more, *claim.places, *_details(case), *_saving(case), *_raised(case)])[
        :MOST_PLACES
    ]
    own = family("cause", cause) if cause != NOT_ESTABLISHED else family("mechanism", name)
    candidates = tuple(Candidate(other, each.because, each.grade) for other, each in claims if other != cause)
    settle = rule.settle if cause == NOT_ESTABLISHED or claim.grade == "open" else ()
    if RANK[claim.grade] > 0 and cause != NOT_ESTABLISHED:
        settle = (*settle, *why.settle)
    advice = _advice(case, claim, why, rule)
    made = Finding(
        mechanism=name, mechanism_grade=grade, cause=cause, cause_grade=claim.grade, family=own, phase=case.phase,
        step=case.step, component=_component(case), process=_process(case), because=claim.because,
        evidence=places, ruled_out=tuple(_ruled_out(case)),
        candidates=(*candidates, *_senders(name, cause, case), *_limits(case)),
        would_settle=asked(settle, seen), advice=here((*advice, *_warnings(advice, rule)), seen),
        clock=event.line.clock, run=event.line.run, survived=incident.survived,
        outcome="stopped" if name == ASKED or is_interrupt(event) else "died",
        kill=case.kill if name in MEMORY_KILLS else None,
        asked=case.refusal.asked if name == "device-allocation-failure" else None,
        in_use=case.refusal.used if name == "device-allocation-failure" else None,
    )  # fmt: skip
    return _with_sentence(made if made.outcome == "died" else _asked(made), case)


def _asked(made: Finding) -> Finding:
    """A stop that was asked for needs no change, and no question is left but who asked."""
    if made.cause == NUMERICS:
        return made
    return replace(made, advice=(), would_settle=(), candidates=(), ruled_out=())


def _saving(case: Case) -> tuple[Place, ...]:
    """The line of a save that was running when a collective waited too long."""
    return (case.saving,) if case.mechanism == "collective-timeout" and case.saving is not None else ()


def _raised(case: Case) -> tuple[Place, ...]:
    """The exception of an engine that only said that it has one."""
    return () if case.raised is None else (case.raised.place,)


FORKS = Advice(
    "start helpers before the model is loaded, or with spawn or forkserver; vm.overcommit_memory=1 lets a fork pass",
    "a large process is not copied", "with overcommit the kernel may kill later",
)  # fmt: skip
SAVES = Advice(
    "write the checkpoint asynchronously, sharded, or to faster storage; else raise the timeout above a save's time",
    "no rank waits for one that writes", "a true hang is seen later", "save-async",
)  # fmt: skip
NUMERICS = "numerics"
OF_THE_DEVICE = ("device-other-process", "device-wakeup", "unified-memory-full")
"""Causes whose advice holds for an engine as it stands."""


def _advice(case: Case, claim: Claim, why: Rule, rule: Rule) -> tuple[Advice, ...]:
    """What to change, the case's own first; the mechanism's where the cause is open. An engine's end is answered with
    the engine's settings in place of the trainer's."""
    engine = engine_of(case)
    if why.name == NUMERICS:
        return (*why.advice[:1], *claim.advice, *why.advice[1:])
    if is_late(case):
        return (*claim.advice, *late_advice(engine, case.seen))
    if case.forks:
        return (*claim.advice, FORKS, *why.advice, *rule.advice)
    if case.mechanism == "collective-timeout" and case.saving is not None:
        return (*claim.advice, SAVES, *why.advice, *rule.advice)
    room = engine_advice(engine, case.seen) if engine else ()
    if room and case.mechanism == "device-allocation-failure":
        if case.refusal.impossible:
            return (*claim.advice, room[1], *why.advice)
        if why.name == "device-graph-capture":
            return (*claim.advice, *room[::-1])
        return (*claim.advice, *(why.advice if why.name in OF_THE_DEVICE else ()), *room)
    if room and case.mechanism == "engine-exit" and why.name == "unified-memory-full":
        return (*claim.advice, *room[1:])
    settled = why.name != NOT_ESTABLISHED and claim.grade != "open"
    return (*claim.advice, *why.advice, *(() if settled else rule.advice))


def _warnings(advice: Sequence[Advice], rule: Rule) -> tuple[Advice, ...]:
    """What the mechanism's rule advises against, where nothing of the kind is said yet."""
    if any("do not" in each.text for each in advice):
        return ()
    return tuple(each for each in rule.advice if "do not" in each.text)


def _with_sentence(made: Finding, case: Case) -> Finding:
    return replace(made, sentence=sentence(made, case))


def _nothing(case: Case) -> Finding:
    """No line says how anything ended; symptoms and what was there are shown."""
    evidence, settings, seen = case.evidence, case.settings, case.seen
    symptoms = [each for each in evidence if each.role == "symptom"] or [
        each for each in evidence if each.role == "why"
    ]
    claims = _claims(case)
    cause, claim = claims[0] if claims else (NOT_ESTABLISHED, Claim("open", ""))
    if claim.grade == "proven" and cause != "gpu-hardware":
        claim = Claim("supported", claim.because, claim.places)
    own = family("cause", cause) if cause != NOT_ESTABLISHED else "open"
    more = rules("cause")[cause].settle if cause == NUMERICS else ()
    made = Finding(
        mechanism=UNKNOWN, mechanism_grade="open", cause=cause, cause_grade=claim.grade, family=own,
        phase=settings.phase,
        step=next((each.line.step for each in symptoms if each.line.step is not None), settings.step),
        component="", process=str(symptoms[0].line.process) if symptoms else "", because=claim.because,
        evidence=tuple(_unique([*claim.places, *(each.place for each in symptoms[:6])])),
        ruled_out=tuple(_ruled_out(case)), candidates=(),
        would_settle=asked((*rules("mechanism")[UNKNOWN].settle, *more), seen),
        advice=here(_advice(case, claim, rules("cause")[cause], rules("mechanism")[UNKNOWN]), seen),
    )  # fmt: skip
    return _with_sentence(made, case)


def _claims(case: Case) -> list[tuple[str, Claim]]:
    """What every cause rule says, the best first."""
    found = []
    for index, (name, rule) in enumerate(rules("cause").items()):
        claim = rule.find(case) if rule.find is not None and name != NOT_ESTABLISHED else None
        if claim is not None:
            prefer = PREFERENCE.index(name) if name in PREFERENCE else len(PREFERENCE) + index
            found.append((RANK[claim.grade], prefer, name, claim))
    return [(name, claim) for _, _, name, claim in sorted(found, key=lambda each: each[:2])]


def _weighed(
    name: str, grade: Grade, event: Evidence, evidence: Sequence[Evidence]
) -> tuple[str, Grade, list[Place]]:
    """A mechanism after what a black box's kernel lines and a group's own counters say of it."""
    victims = (each for each in evidence if each.kind == "kernel-victim" and PurePath(each.place.file).name == BOX)
    named = [each for each in victims if re.search(rf"\b{each.fields['pid']}\b", event.place.text)]
    limit = next((each.place for each in named if re.search("Memory cgroup|CONSTRAINT_MEMCG", each.place.text)), None)
    if name == "sigkill-class" and limit is not None:
        return "cgroup-oom-kill", "proven", [limit]
    counted = [each for each in evidence if each.kind == "cgroup-kills"]
    kills = [each for each in counted if (each.number("count") or 0) > 0]
    if name == "sigkill-class" and kills:
        return "cgroup-oom-kill", "supported", [kills[0].place]
    if name == "cgroup-oom-kill" and counted and not kills and grade != "proven":
        return name, "open", [counted[0].place]
    return name, grade, []


def _details(case: Case) -> Iterator[Place]:
    """Lines with the numbers of the event, and those of what misleads."""
    for kind in (
        "ray-memory-numbers",
        "ray-victim",
        "ray-top",
        "ray-threshold-advice",
        "kernel-victim",
        "tms-margin",
    ):
        each = _victim(case) if kind == "kernel-victim" else case.first(kind)
        if each is not None and each.place in case.around:
            yield each.place


def _ruled_out(case: Case) -> Iterator[RuledOut]:
    kills = case.first("cgroup-kills")
    if case.mechanism == "sigterm":
        at = case.event.place if case.event else None
        yield RuledOut(
            "a memory-limit kill (cgroup-oom-kill, kernel-oom-kill, ray-memory-monitor)",
            "a memory-limit kill is SIGKILL and cannot print it", at,
        )  # fmt: skip
    if kills is not None and (kills.number("count") or 0) == 0:
        yield RuledOut("cgroup-oom-kill", "the cgroup counted no kill (oom_kill 0)", kills.place)
    sentence_ = case.first("ray-k8s-sentence")
    if sentence_ is not None:
        because = "Ray adds this sentence to every non-zero exit inside Kubernetes; it says nothing about memory"
        yield RuledOut("K8s pod memory limits", because, sentence_.place)
    advice = case.first("oom-advice")
    if advice is not None and case.mechanism == "device-allocation-failure" and not case.frame("fragment"):
        found = case.refusal
        if found.in_pieces is None:
            because = "torch prints its hint at every refusal; no number here shows pieces"
            if found.spare is not None and found.reserved and found.asked is not None and found.spare >= found.asked:
                share = 100 * found.spare / found.reserved
                because = f"{format_bytes(found.spare)} in pieces are {share:.1f} % of what is reserved: it is full"
            yield RuledOut("device-fragmentation", because, advice.place)
    if case.mechanism in MEMORY_KILLS and not case.has("cuda-oom", "tms-fatal", "cumem", "nv-no-memory"):
        yield RuledOut(
            "device-allocation-failure", "the log holds no CUDA out-of-memory error: the node ran out, not a GPU"
        )
    if case.mechanism == "sigkill-class" and not case.has("crash-signal", "terminate-called"):
        yield RuledOut("native-crash (unless in another file)", "no banner of a crash is in what was read")
    warned = case.first("ray-disk-warning")
    if warned is not None and (warned.number("left") or 0) > 0 and not case.has("disk-full"):
        yield RuledOut("disk-full", "the disk warning counts per cent, and there is space left", warned.place)
    wrong = next((each for each in case.evidence if each.kind in REFUSALS and _impossible(each)), None)
    if wrong is not None and case.mechanism not in REFUSED:
        because = "no machine could have served that request: its size is wrong, and it follows from what came before"
        pool = "host" if wrong.kind.startswith("host-") else "device"
        yield RuledOut(f"{pool}-allocation-failure", because, wrong.place)
    benign = case.first("tms-benign")
    if benign is not None and case.mechanism != "device-allocation-failure":
        yield RuledOut(
            "device-allocation-failure", "that line is printed on a retry that may well succeed", benign.place
        )


def _impossible(each: Evidence) -> bool:
    return refusal(each.place.text).impossible


SENDERS: Mapping[str, tuple[str, str, str]] = {
    "pod deleted, drained or preempted": (
        "k8s-deleted", "Kubernetes sends SIGTERM to the pod's first process", "kubernetes",
    ),
    "pod-eviction": (
        "k8s-evicted", "the kubelet sends SIGTERM, then SIGKILL after a second; this one may be memory", "kubernetes",
    ),
    "container stopped": ("", "docker stop sends SIGTERM to the container's first process", "docker"),
    "oom-daemon": ("oom-daemon", "earlyoom sends SIGTERM first; this one is memory", ""),
    "a raylet that was told to go": (
        "raylet-sigterm", "newer Ray signals its workers when its raylet gets SIGTERM", "ray",
    ),
    "ray stop, or another launch script on the node": (
        "ray-stop-command", "ray stop signals the raylet, then all ray:: processes", "ray",
    ),
    "scheduler-cancel": ("slurm-cancel", "a cancel, a time limit or a preemption begins with SIGTERM", ""),
    "outside-signal": ("", "a person or a script", ""),
}  # fmt: skip
"""Who can send SIGTERM -> the evidence that would show it, how, and the platform that it belongs to."""


def _senders(mechanism: str, cause: str, case: Case) -> Iterator[Candidate]:
    if mechanism != "sigterm" or cause != NOT_ESTABLISHED or case.stopped is not None:
        return
    for name, (kind, how, platform) in SENDERS.items():
        if case.seen.on(platform):
            shown = case.first(kind) if kind else None
            yield Candidate(name, how + (f" (seen: {shown.place})" if shown else ""))


def _limits(case: Case) -> Iterator[Candidate]:
    """The other pool of a kernel's kill, where the line says that it killed and not for which."""
    if case.event is not None and case.event.kind == "kernel-killed":
        yield Candidate("cgroup-oom-kill", "this line says that the kernel killed, not whether a limit was reached")


KERNEL_KILLS = ("cgroup-oom-kill", "kernel-oom-kill")
"""Ends of which the kernel's log names the process."""


def _component(case: Case) -> str:
    """Which part of the run the event is in, by its process's name, else by the line and its calls."""
    if case.event is None:
        return ""
    if case.mechanism in ("raylet-lost", "node-lost", "gcs-lost"):
        return {"raylet-lost": "raylet", "node-lost": "node", "gcs-lost": "head"}[case.mechanism]
    if case.mechanism == "engine-exit" or engine_of(case):
        return "engine"
    killed = case.kill.killed if case.kill else ""
    frames = case.event.fields.get("frames", "").split("\n")[-1]
    told = case.event.kind.startswith(("ray-", "box-")) or case.mechanism in KERNEL_KILLS
    own = _process(case) if told else case.event.line.process.name
    created = case.first("ray-creation-error")
    said = (case.event.place.text, created.place.text if created is not None and created.place in case.around else "")
    framework = next((call for call in reversed(case.frames) if owner_of(call) == "trainer"), "")
    for text in (own, killed, frames, framework, *(each[:200] for each in said)):
        for name, pattern in _COMPONENTS:
            if text and re.search(pattern, text, re.IGNORECASE):
                return name
    return ""


_REPORTED = re.compile(r"class_name: (?:.*\.)?(\w+)|\bname: (\S+)|\b(?:Worker PID|pid): ?(\d+)")


def _process(case: Case) -> str:
    """Who ended. Ray's death texts are printed by others, so they count only for what they say of the dead one."""
    event = case.event
    if event is None:
        return ""
    victim = _victim(case) if case.mechanism in KERNEL_KILLS else None
    if victim is not None:
        return f"{victim.fields['name']} pid {victim.fields['pid']}"
    if event.kind in ("box-signal", "box-raylet", "box-gcs"):
        return f"{event.fields['name']} pid {event.fields['pid']}"
    if event.kind == "elastic-exit" and {"rank", "pid"} & set(event.fields):
        told = (("local rank", "rank"), ("pid", "pid"))
        return " ".join(f"{name} {event.fields[key]}" for name, key in told if key in event.fields)
    if event.kind in ("killed", "terminated") and (pid := event.fields.get("pid")):
        return f"{event.fields.get('command', '')[:COMMAND]} pid {pid}".strip()
    if not event.kind.startswith("ray-"):
        return str(event.line.process)
    names = {"name": "", "pid": ""}
    at = event.place.line
    for place in case.around:
        if abs(place.line - at) <= 12:
            for actor, given, pid in _REPORTED.findall(place.text):
                names["name"] = names["name"] or actor or given
                names["pid"] = names["pid"] or pid
    names["name"] = names["name"] or _actor(case, names["pid"])
    return " ".join(each for each in (names["name"], names["pid"] and f"pid {names['pid']}") if each)


def _actor(case: Case, pid: str) -> str:
    """The class of the actor with that pid, where a death text further away tells of it."""
    name = ""
    for place in case.around:
        for actor, given, number in _REPORTED.findall(place.text):
            if number == pid and name:
                return name
            name = actor or (name if number or given else "")
    return ""


def _victim(case: Case) -> Evidence | None:
    """Whom the kernel killed at the event: of its file the next line that names one, else the first of any file."""
    said = [each for each in case.evidence if each.kind == "kernel-victim"]
    at = case.event.line.order if case.event else 0
    same = [each for each in said if case.event and each.place.file == case.event.place.file]
    return next((each for each in same if each.line.order >= at), next(iter([*same[-1:], *said]), None))


def _unique(items: Sequence[Item]) -> tuple[Item, ...]:
    return tuple(dict.fromkeys(items))
