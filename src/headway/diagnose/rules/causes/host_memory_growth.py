"""Host memory rises."""

from headway.diagnose.case import Case
from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Claim, Rule, of_growth, of_stop
from headway.units import GIB

REFUSED = "host-allocation-failure"
HOST = {"ray-memory-monitor", "cgroup-oom-kill", "kernel-oom-kill", "oom-daemon", "host-allocation-failure"}
AT_ONCE = 8 * GIB
"""A request so large is no small one that met a limit."""


def _find(case: Case) -> Claim | None:
    if (stopped := of_stop(case, ".host", "forecast", "fast rise", "steady rise")) is not None:
        return stopped
    if (own := _own(case)) is not None:
        return own
    if case.mechanism in HOST - {REFUSED} and (growth := of_growth(case, ".host")) is not None:
        return growth
    if case.mechanism not in HOST and case.mechanism != "sigkill-class":
        return None
    found = case.host_slope
    if found is None or not found.grows:
        return None
    because = f"used host memory rose from {found.first:.0f} to {found.last:.0f} GB over {found.points} readings"
    return Claim("supported" if case.mechanism in HOST - {REFUSED} else "open", because)


def _own(case: Case) -> Claim | None:
    """The even rise of the process whose request was refused, or of the control group whose process was killed, up to
    the end. A node's use is somebody else's too, so it says nothing of a limit on one process."""
    of = {REFUSED: "process", "cgroup-oom-kill": "cgroup", "sigkill-class": "cgroup"}.get(case.mechanism)
    said = next((each for each in case.evidence if each.kind == "own-growth" and each.fields["of"] == of), None)
    if said is None or (case.mechanism == REFUSED and _at_once(case)):
        return None
    start = said.fields["how"] == "short" and case.phase == "load"
    sure = case.mechanism != "sigkill-class" and said.fields["how"] != "no limit" and not start
    return Claim("supported" if sure else "open", said.fields["reason"], (said.place,))


def _at_once(case: Case) -> bool:
    """Whether the refused request alone was of a size that no even growth explains."""
    return (case.refusal.asked or 0) >= AT_ONCE


RULE = Rule(
    name="host-memory-growth",
    level="cause",
    sees="A measured host memory that rises through the log, ending in a kill, or in a stop by headway's guard; a "
    "growth that headway warned of shortly before a kill for memory. In a recording the even rise of the process "
    "itself up to its own limit (ulimit -v, -d), or of its control group.",
    why="A leak, a cache, staging copies of saves that are not given back, or glibc that keeps freed pages.",
    sure="Supported by a steady rise; a jump at each save points to the save. Proven where headway measured it and "
    "stopped the run for it.",
    look_alikes="Page cache is not use; the first steps always rise. A process that asks for much at once is far "
    "from its limit before; where it is flat and another one grows, the growth is not its own.",
    example="Memory-Usage after train: {'host_used_GB': 400}\nMemory-Usage after train: {'host_used_GB': "
    "460}\nMemory-"
    "Usage after train: {'host_used_GB': 520}\nMemory-Usage after train: {'host_used_GB': 580}\nMemory-Usage "
    "after train: {'host_used_GB': 640}\nMemory-Usage after train: {'host_used_GB': 700}\nMemory-Usage after "
    "train: {'host_used_GB': 760}\nMemory-Usage after train: {'host_used_GB': 820}\nMemory-Usage after train: "
    "{'host_used_GB': 880}\nray.exceptions.OutOfMemoryError: 1 worker(s) were killed due to the node running low"
    " on memory. Memory on the node was 996.00GB / 1007.51GB (0.988576)",
    near_miss="Memory-Usage after train: {'host_used_GB': 900}\nMemory-Usage after train: {'host_used_GB': "
    "901}\nMemory-"
    "Usage after train: {'host_used_GB': 900}\nMemory-Usage after train: {'host_used_GB': 901}\nMemory-Usage "
    "after train: {'host_used_GB': 900}\nMemory-Usage after train: {'host_used_GB': 901}\nMemory-Usage after "
    "train: {'host_used_GB': 900}\nMemory-Usage after train: {'host_used_GB': 901}\nMemory-Usage after train: "
    "{'host_used_GB': 900}\nray.exceptions.OutOfMemoryError: 1 worker(s) were killed due to the node running low"
    " on memory. Memory on the node was 996.00GB / 1007.51GB (0.988576)",
    advice=(
        Advice(
            "save often, and restart from the last checkpoint before the limit",
            "the growth starts anew",
            "a mitigation",
            "save-often",
        ),
        Advice("compare RSS before and after each phase and save", "names the phase", "none"),
    ),
    settle=(
        settle.MEMORY,
        settle.EVENTS,
    ),
    find=_find,
)
