"""The one sentence that is read first: what ended it, why or why not known, and the number that matters."""

import re

from headway.diagnose.case import Case
from headway.diagnose.causes import NOT_ESTABLISHED, table
from headway.diagnose.finding import Finding
from headway.diagnose.numbers import format_request
from headway.diagnose.text import REPEATED, without_prefix
from headway.units import format_bytes

_HOW = {
    "cgroup-oom-kill": "The kernel killed {who} because its memory cgroup reached its limit",
    "kernel-oom-kill": "The kernel killed {who} because the whole machine ran out of memory",
    "pod-eviction": "The kubelet evicted the pod because its node was short of a resource",
    "oom-daemon": "A user-space guard ended {who} under memory pressure",
    "sigkill-class": "The connection to {who} broke without a word: SIGKILL or _exit, if no crash banner is in "
        "its own output",
    "native-crash": "Native code crashed {who}",
    "host-allocation-failure": "A request for host memory was refused; nobody killed {who}",
    "python-exception": "An exception of Python ended {who}",
    "python-exit": "Python code in {who} called exit; no signal is in the text",
    "ray-kill": "Ray was asked to kill {who}: teardown, so the reason came earlier and is not in these lines",
    "raylet-lost": "The node manager (raylet) of a machine ended or was declared dead, and its workers went along",
    "node-lost": "A machine stopped being a member of the cluster",
    "gcs-lost": "The control service on the head could not be reached for longer than its timeout",
    "scheduler-cancel": "The scheduler ended the job and said so",
    "collective-timeout": "A collective waited too long for some rank, and the watchdog ended {who}",
    "peer-lost": "A collective of {who} failed at once because a remote rank was gone; that one went first",
    "engine-exit": "The inference engine ended or raised, and the run with it",
    "hang": "Nothing ended: progress stopped, and somebody waits in vain",
    "unknown": "The text does not show how it ended",
}  # fmt: skip


_BOXED = re.compile(r"black box: process \d+ \(.*\) ended first, by signal \d+ \((?P<name>SIG[A-Z0-9]+)\)")
"""What a black box says of a process that a signal ended."""
_SIGNALS = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}
_CODES = {"exit-137": "137", "exit-143": "143"}
"""Evidence that is an exit code by its kind."""
_CODED = ("elastic-exit", *_CODES, "engine-scheduler-code", "crash-signal")
"""Evidence whose exit code tells the signal."""
_WATCHED = {
    "box-cut": "Everything ended without a word, the recording too: SIGKILL of all, or the machine went down",
}
"""The same of what a black box saw itself."""


def sentence(finding: Finding, case: Case) -> str:
    """One or two clauses for the mechanism, one for the cause."""
    if finding.outcome == "stopped":
        said = case.event if case.event is not None and case.event.kind == "run-asked-to-stop" else None
        own = "" if said is None else said.fields.get("name", "")
        told = stop_sentence(own or "SIGINT", finding.step, GOES_ON if own else "")
        return f"{told.removesuffix('.')}{_cause(finding, case)}." if finding.advice else told
    how = _mechanism(finding, case)
    step = f" (step {finding.step})" if finding.step is not None else ""
    went = "; the run went on after it" if finding.survived else ""
    return f"{how}{step}{_cause(finding, case)}{went}."


GOES_ON = "it saved a checkpoint, and the same command goes on from it"
"""What a stop of headway's own trainer leaves."""


def stop_sentence(signal: str, step: int | None, then: str = "") -> str:
    """What is said of a run that was asked to stop; `then` is how it goes on.

    >>> stop_sentence("SIGTERM", 3, "the same command goes on")
    'The run was asked to stop (SIGTERM, step 3), and did: no death; the same command goes on.'
    """
    name = "Ctrl-C or SIGINT" if signal == "SIGINT" else signal
    step_ = "" if step is None else f", step {step}"
    then = then or "the same command starts it again, from its last checkpoint where the trainer is told to load it"
    return f"The run was asked to stop ({name}{step_}), and did: no death; {then}."


_PARTS = {"data": "the data loader", "reward": "the reward's process", "rollout": "the rollout's process"}
"""A component -> what of it a signal or an exception ends, where it is not the component itself."""


def _who(finding: Finding) -> str:
    part = finding.component and _PARTS.get(finding.component, f"the {finding.component}")
    return finding.process or part or "the process"


def _signalled(finding: Finding) -> str:
    """Whom a SIGTERM reached, by the line that tells of it: Ray tells of workers, but also of its node managers."""
    if finding.process or not finding.evidence:
        return finding.process or "this worker"
    text = finding.evidence[0].text
    if "death reason" in text or "(raylet)" in text:
        return "the node's raylet"
    return "this process" if "*** SIGTERM received" in text else "this worker"


def _mechanism(finding: Finding, case: Case) -> str:
    if finding.mechanism == "ray-memory-monitor":
        return _monitor(case)
    if case.stopped is not None:
        own = case.stopped.place.text.startswith("recording: ")
        return f"headway's guard stopped the run before a limit, {'with a checkpoint' if own else 'with SIGTERM'}"
    watched = _BOXED.search(case.event.place.text) if case.event is not None else None
    if watched is not None and finding.mechanism in ("sigterm", "sigkill-class"):
        kill = "; a memory-limit kill is SIGKILL" if watched["name"] != "SIGKILL" else ""
        return f"{watched['name']} ended {_who(finding)}{kill}"
    if finding.mechanism == "sigterm":
        eviction = ", an eviction could" if case.seen.on("kubernetes") else ""
        return f"{_asked_to_go(finding, case)}; a memory-limit kill cannot print this{eviction}"
    if finding.mechanism == "device-allocation-failure":
        return _refusal(case)
    if finding.mechanism == "kernel-oom-kill":
        return _machine(finding, case)
    if finding.mechanism == "sigkill-class" and case.event is not None and case.event.kind in _WATCHED:
        return _WATCHED[case.event.kind].format(who=_who(finding))
    name, shown = _signal(case)
    if finding.mechanism == "sigkill-class" and name:
        return f"{name} ended {_who(finding)}{shown}: it was killed from outside and could not say a word"
    if finding.mechanism == "native-crash" and name:
        return f"{name} ended {_who(finding)}{shown}: native code crashed or gave up"
    text = _HOW[finding.mechanism].format(who=_who(finding))
    if finding.mechanism == "collective-timeout" and case.saving is not None:
        return f"{text}, while a checkpoint was being written"
    if finding.mechanism == "engine-exit" and case.raised is not None:
        message = REPEATED.sub("", without_prefix(case.raised.place.text)).strip()
        return f"The inference engine raised ({message[:160]}), and the run ended with it"
    if case.forks:
        return f"The kernel refused to fork {_who(finding)}: a copy of all its memory could not be promised"
    if finding.mechanism == "python-exception" and case.event is not None:
        message = ": ".join(case.event.fields[key] for key in ("type", "message") if case.event.fields.get(key))
        return f"{text} ({(message or without_prefix(case.event.place.text).strip())[:160]})"
    return text


def _signal(case: Case) -> tuple[str, str]:
    """The signal that an exit code of the event tells, and the code for the sentence; empty where it tells none."""
    if case.event is not None and case.event.kind == "killed":
        return "SIGKILL", ""
    if case.event is None or case.event.kind not in _CODED:
        return "", ""
    code = case.event.fields.get("code", _CODES.get(case.event.kind, ""))
    number = case.event.number("code") or float(code or 0)
    signal = -number if number < 0 else max(0.0, number - 128) or case.event.number("signal") or 0.0
    name = _SIGNALS.get(int(signal), "")
    return name, f" (exit code {code})" if name and code else ""


def _asked_to_go(finding: Finding, case: Case) -> str:
    name, shown = _signal(case)
    return (
        f"{name} ended {_who(finding)}{shown}" if name else f"Something outside {_signalled(finding)} sent it SIGTERM"
    )


def _machine(finding: Finding, case: Case) -> str:
    """What ran out when the kernel killed for no group's limit, as far as its lines say."""
    nodes = next((each.fields["nodes"] for each in case.evidence if "nodes" in each.fields), "")
    if nodes:
        bound = nodes.lower().replace("_", " ")
        return f"The kernel killed {_who(finding)} because the memory nodes that its {bound} allows ran out"
    if case.event is not None and case.event.kind == "kernel-killed":
        return f"The kernel killed {_who(finding)} for memory; these lines do not say whether a limit or the machine"
    return _HOW["kernel-oom-kill"].format(who=_who(finding))


def _monitor(case: Case) -> str:
    kill = case.kill
    if kill is None:
        return "Ray's memory monitor killed a worker because its node, not a GPU, was nearly full"
    share = f"{100 * kill.share:.1f} %"
    threshold = f" against a threshold of {kill.threshold:g}" if kill.threshold is not None else ""
    return (
        f"Ray's memory monitor killed a worker because the node, not a GPU, held {format_bytes(kill.used)} of "
        f"{format_bytes(kill.total)} ({share}{threshold})"
    )


def _refusal(case: Case) -> str:
    found = case.refusal
    if found.asked is None:
        return "A request for device memory was refused"
    free = (
        f" with {format_bytes(found.free)} free of {format_bytes(found.total)}"
        if found.free is not None and found.total
        else ""
    )
    return f"A request for {format_request(found.asked)} of device memory was refused{free}"


def _cause(finding: Finding, case: Case) -> str:
    if finding.cause == NOT_ESTABLISHED:
        if finding.mechanism in ("unknown", "ray-kill"):
            return ""
        if case.stopped is not None:
            return f": {case.stopped.fields['reason']}"
        return (
            "; nothing here shows which"
            if finding.mechanism == "sigterm"
            else "; why is not established by these lines"
        )
    word = {"proven": "Proven", "supported": "Supported", "open": "Not established, likeliest"}[finding.cause_grade]
    return f". {word}: {finding.cause}, {finding.because or table('cause')[finding.cause].meaning.rstrip('.')}"
