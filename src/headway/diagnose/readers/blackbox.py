"""A black box of `headway watch`: what it saw of the run's end, as lines that the rules weigh like any other.

Only what was recorded is said. How a process ended counts as an end only where it was among the first that ended
badly: what comes after may be teardown. A count of kills speaks against a kill only where it was read after the end.
"""

import signal
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from math import inf
from pathlib import Path

from headway.diagnose.finding import Outcome
from headway.diagnose.lines import Source
from headway.diagnose.readers import own_growth
from headway.diagnose.readers.recordings import Recorded, stopped_by_guard
from headway.diagnose.sign import Sign
from headway.diagnose.sources import opener, text_source
from headway.diagnose.text import clean
from headway.guard.blackbox import Box, is_written, read_blackbox
from headway.guard.boxlog import logs_of
from headway.guard.boxplan import plan_of
from headway.guard.boxrecords import Ended, Sent
from headway.guard.frame import NO_HANDLE, Action
from headway.guard.raylogs import kept
from headway.guard.senders import signal_name
from headway.units import format_bytes

NAME = "black-box"
"""The file that the lines seem to stand in."""
KERNEL = "kernel: "
"""Begins a note that is a line of the kernel's log about a process of the run."""
SMALL = 32 << 20
"""Bytes below which a process is a helper, such as a `grep` that found nothing."""
MOST_ACTIONS = 6
"""The last decisions of the guard that are told."""
TOGETHER_S, LAST_S = 1.5, 120.0
"""Seconds within which ends belong together; seconds before the run's end in which they belong to it."""
FIRST = r"black box: process (?P<pid>\d+) \((?P<name>.*)\) ended first, by signal (?P<signal>\d+)\b"
SAID_LINES, LONGEST_SAID, MOST_SAID = 10, 200, 16 << 10
"""Lines of a command's last words, characters of each, and characters of a recording in which they are looked for."""
INTERRUPTED = (0, 1, 130)
"""Exit codes of a command that SIGINT has reached."""
DAEMONS = r"earlyoom|systemd-oomd|oomd|nohang"

SIGNS = (
    Sign(
        "box-signal",
        "end",
        ("black box: process ",),
        rf"{FIRST}",
        unless=r"\((?:raylet|gcs_server)\) ended first",
        says="the kernel's own word on how the process ended, and no process had ended badly before it",
    ),
    Sign(
        "box-raylet",
        "end",
        ("black box: process ",),
        FIRST.replace(".*", "raylet"),
        says="a signal ended the node manager, and no process of the run had ended badly before it",
    ),
    Sign(
        "box-gcs",
        "end",
        ("black box: process ",),
        FIRST.replace(".*", "gcs_server"),
        says="a signal ended the control service, and no process of the run had ended badly before it",
    ),
    Sign(
        "box-cut",
        "end",
        ("black box: the recording stops",),
        r"stops without an end",
        says="headway itself was ended without a word: SIGKILL of everything, or the machine went down",
    ),
    Sign(
        "box-stop",
        "end",
        (": headway's guard stopped the run (",),
        r"(?:black box|recording): headway's guard stopped the run "
        r"\((?P<detector>[a-z_ ]+), (?P<pool>\S+)\): (?P<reason>.+)$",
        says="headway itself stopped the run, before memory reached a limit",
    ),
    Sign(
        "box-code",
        "symptom",
        ("black box: the command's exit code: ",),
        r"exit code: [1-9]",
        says="how the command ended, which tells of no reason",
    ),
    Sign(
        "box-growth",
        "context",
        ("black box: growth seen",),
        r"black box: growth seen \((?P<pool>\S+), (?P<gauge>\S+)\): (?P<reason>.+)$",
        says="headway measured that memory grew, and told when it would reach the limit",
    ),
    Sign(
        "box-sender",
        "context",
        ("black box: sent ",),
        r"black box: sent \w+ \(number (?P<signal>\d+)\) to .*, by (?P<sender>process (?P<pid>\d+) \((?P<name>.*)\)|"
        r"a process outside of the container)$",
        unless=rf"\((?:{DAEMONS})\)$|, of the run$|by the kernel|by headway's guard$",
        says="who sent the signal: the kernel names the sender",
    ),
    Sign(
        "box-inner",
        "context",
        ("black box: sent ",),
        r"black box: sent \w+ \(number (?P<signal>\d+)\) to process (?P<target>\d+) \(.*\), "
        r"by (?P<sender>process (?P<pid>\d+) \(.*\)), of the run$",
        unless=r"\((?:ray|gcs_server)[^()]*\), of the run$",
        says="a process of the run sent the signal, itself or another: the kernel names the sender",
    ),
    Sign(
        "oom-daemon",
        "end",
        ("black box: sent ",),
        rf"black box: sent (?:TERM|KILL) .*, by process \d+ \((?:{DAEMONS})\)$",
        says="a user-space guard ended the process under memory pressure",
    ),
)
"""Only what these match is evidence: the other lines are worded so that no other program's text is in them."""


def read_box(folder: Path) -> tuple[Box, Recorded]:
    """A black box, and what it tells. InputError where it cannot be read."""
    box = read_blackbox(folder)
    last = box.last
    lines = tuple(f"{folder.name}: {line}" for line in _about(box))
    phase, step = (last and last.phase) or "", last.step if last else None
    outcome, sentence = _how(box)
    said = last_words(box) if box.over is not None and box.over.code else ()
    return box, Recorded(phase, step, lines, sentence, box.begun.spec, box.begun.ledger, outcome, said)


def last_words(box: Box) -> tuple[str, ...]:
    """The last lines that the command wrote to standard error, or of its output where it has only one; few, short and
    without control characters, whatever the recording holds."""
    errors = box.over.errors[-MOST_SAID:] if box.over is not None else ""
    lines = errors.splitlines() if errors.strip() else list(box.log[-SAID_LINES * 4 :])
    shown = [text for line in lines if (text := clean(line[-LONGEST_SAID * 4 :].encode(errors="replace")).strip())]
    return tuple(text[:LONGEST_SAID] for text in shown[-SAID_LINES:])


def box_sources(folder: Path, run: int = 0) -> list[Source]:
    """The output that the box kept, and what it saw, as sources. InputError where it cannot be read."""
    box = read_blackbox(folder)
    logs = [Source(str(path), opener(path), run) for path in logs_of(folder) if path.stat().st_size]
    ray = [Source(str(path), opener(path), run) for path in _session_logs(box)]
    return [*logs, *ray, text_source(str(folder / NAME), "\n".join(told(box)) + "\n", run)]


def _session_logs(box: Box) -> Iterator[Path]:
    """What was kept of Ray's own logs; nothing of a run that ended well, in which they tell of a teardown only. A
    driver's log that the command has printed is left out."""
    over = box.over
    well = over is not None and over.code == 0 and not killed_from_outside(box)
    if well and not any(action.name == "stop" and not action.dry for action in box.actions):
        return
    printed = set(box.log)
    for path in kept(box.folder):
        if not path.name.startswith("job-driver-") or _last_line(path) not in printed:
            yield path


def _last_line(path: Path) -> str:
    """The last line of a file that holds anything; empty where there is none, or it cannot be read."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line for line in reversed(lines) if line.strip()), "")


def told(box: Box) -> Iterator[str]:
    """What was seen of the end, one moment a line, in the order of time."""
    first = {each.pid for each in first_ends(box)}
    lines = [(each.t, _ended(each, first=each.pid in first)) for each in box.ended if not _well(each)]
    lines += [(each.t, stopped_by_guard(each)) for each in box.actions if each.name == "stop" and not each.dry]
    lines += [(each.t, _grown(each)) for each in _growths(box)]
    lines += _own_growth(box)
    if (asked := asked_to_stop(box)) is not None:
        lines.append((asked[0], f"asked to stop by SIGINT ({asked[1]})"))
    lines += [(each.t, _sent(each, own=each.sender == box.begun.pid)) for each in box.sent]
    if box.over is not None:
        code = 128 + box.over.signal if box.over.signal is not None else box.over.code
        if code is not None:
            lines.append((box.over.t, f"the command's exit code: {code}"))
    elif not is_written(box.folder):
        t = box.last.t if box.last else box.begun.t
        lines.append((t, "the recording stops without an end: headway was killed too, or the machine went down"))
    for t, line in sorted(lines, key=lambda each: each[0]):
        yield f"{_clock(t + box.begun.zone)} black box: {line}"
    yield from (note.removeprefix(KERNEL) for note in box.notes if note.startswith(KERNEL))
    kills = kernel_kills(box)
    if kills is not None:
        yield f"memory.events: oom_kill {kills}"


def first_ends(box: Box) -> tuple[Ended, ...]:
    """The processes that a signal ended before any process of the run ended with a bad code, near the run's own end;
    none where that cannot be told. Of several the first, with those that may have come in any order."""
    until = box.over.t if box.over is not None else (box.last.t if box.last else box.begun.t)
    bad = [each for each in box.ended if not _well(each) and each.t >= until - LAST_S and not _torn_down(box, each)]
    times = {each.pid: _when(box, each) for each in bad}
    coded = min((times[each.pid][0] for each in bad if each.signal is None and _matters(box, each)), default=inf)
    first = [each for each in bad if each.signal is not None and times[each.pid][1] <= coded]
    start = min((times[each.pid][1] for each in first), default=inf)
    return tuple(each for each in first if times[each.pid][0] <= start + TOGETHER_S)


def _torn_down(box: Box, each: Ended) -> bool:
    """Whether a run that ended with code 0 ended one of its own processes itself, as when it takes an engine down."""
    if box.over is None or box.over.code != 0 or each.signal is None:
        return False
    sent = [sent for sent in box.sent if sent.pid == each.pid and sent.signal == each.signal]
    return bool(sent) and all(one.inside and one.sender != each.pid for one in sent)


def killed_from_outside(box: Box) -> bool:
    """Whether one of the first processes to end was killed by a process that is none of the run, or by the kernel."""
    first = {(each.pid, each.signal) for each in first_ends(box)}
    kills = (each for each in box.sent if each.signal == signal.SIGKILL and each.sender != box.begun.pid)
    return any((each.pid, each.signal) in first and not each.inside for each in kills)


def _when(box: Box, each: Ended) -> tuple[float, float]:
    """The earliest and latest moment at which a process can have ended. The command's own end is told at once."""
    sent = [sent.t for sent in box.sent if sent.pid == each.pid and sent.signal == each.signal]
    if sent:
        return sent[-1], sent[-1]
    if box.over is not None and each.pid == box.over.pid:
        return box.over.t, box.over.t
    return each.since if each.since is not None else -inf, each.t


def kernel_kills(box: Box) -> int | None:
    """How many processes of the control group the kernel killed for memory during the run; None where that cannot be
    told: nothing counts, or the count is from before the end."""
    before, after = (box.counters.get(when, {}).get("oom_kill") for when in ("before", "after"))
    last = box.last.events.get("oom_kill") if box.last else None
    first = before if before is not None else (box.recent[0].events.get("oom_kill") if box.recent else None)
    if first is None:
        return None
    if after is not None:
        return max(0, after - first)
    return last - first if last is not None and last > first else None


def _matters(box: Box, each: Ended) -> bool:
    """Whether a bad code can be the run's failing: the command's own, or that of more than a small helper."""
    return (each.rss or 0) >= SMALL or (box.over is not None and each.pid == box.over.pid)


def _well(each: Ended) -> bool:
    return each.code == 0 or (each.code is None and each.signal is None)


def _clock(t: float) -> str:
    return datetime.fromtimestamp(t, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def _ended(each: Ended, *, first: bool) -> str:
    who = f"process {each.pid} ({each.name})"
    if each.signal is None:
        return f"{who} ended with code {each.code}"
    held = f", holding {format_bytes(each.rss)}" if each.rss else ""
    if first:
        return f"{who} ended first, by signal {each.signal} ({signal_name(each.signal)}){held}"
    return f"{who} ended too ({_short(each.signal)}){held}"


def _short(number: int) -> str:
    """The name of a signal as `kill -l` has it, which no log of a death contains.

    >>> _short(15)
    'TERM'
    """
    return signal_name(number).removeprefix("SIG")


def _growths(box: Box) -> Iterator[Action]:
    """The last growth of each pool that the guard told of, where that was shortly before the end."""
    until = box.over.t if box.over is not None else (box.last.t if box.last else box.begun.t)
    last = {(each.pool, each.gauge): each for each in box.actions if each.detector in ("forecast", "steady rise")}
    return (each for each in last.values() if each.t >= until - LAST_S)


def _own_growth(box: Box) -> Iterator[tuple[float, str]]:
    """How the process that ended badly first, or its control group, grew up to its end."""
    until = box.over.t if box.over is not None else (box.last.t if box.last else box.begun.t)
    bad = [each for each in box.ended if not _well(each) and _matters(box, each)]
    ended = own_growth.first_bad(bad, until, LAST_S, TOGETHER_S)
    if ended is not None:
        yield from ((ended.t, text) for text in own_growth.of_box(box, ended))


def _grown(action: Action) -> str:
    """Without the name of the process that grows, which is another program's text."""
    return f"growth seen ({action.pool}, {action.gauge}): {action.reason.partition('; ')[0]}"


def _sent(each: Sent, *, own: bool) -> str:
    to = f"process {each.pid} ({each.name})" if each.pid is not None else "headway"
    said = f"sent {_short(each.signal)} (number {each.signal}) to {to}"
    if each.kernel:
        return f"{said}, by the kernel"
    if own and each.pid is not None:
        return f"{said}, by headway's guard"
    if each.sender is None:
        return f"{said}; by whom was not seen: {each.why}"
    if each.sender == 0:
        return f"{said}, by a process outside of the container"
    return f"{said}, by process {each.sender} ({each.sender_name}){', of the run' if each.inside else ''}"


def _how(box: Box) -> tuple[Outcome, str]:
    """Whether it was a death, and a sentence on how the command ended, as headway saw it; empty where it did not."""
    over = box.over
    if over is None or (over.signal is None and over.code is None):
        return "died", ""
    if over.code == 0 and _went_well(box):
        return "finished", "The command finished (exit code 0): nothing ended it early."
    if over.signal is not None:
        return "died", f"{signal_name(over.signal)} ended the command; why is not in what was read."
    said = last_words(box)
    told = f"; the last that it said: {said[-1]}" if said else ""
    return "died", f"The command ended with exit code {over.code}; why is not in what was read{told}."


def _went_well(box: Box) -> bool:
    """Whether nobody stopped the run, and none of its processes but small helpers ended badly shortly before the
    end."""
    if any(action.name == "stop" and not action.dry for action in box.actions) or asked_to_stop(box) is not None:
        return False
    until = box.over.t if box.over is not None else 0.0
    bad = (each for each in box.ended if not _well(each) and _matters(box, each) and not _torn_down(box, each))
    return not any(each.t >= until - LAST_S for each in bad)


def asked_to_stop(box: Box) -> tuple[float, str] | None:
    """When SIGINT reached a command that then ended as one does that is asked to, and how: by that signal, or with
    one of the codes of such an end shortly after a Ctrl-C that headway passed on."""
    over = box.over
    if over is None or not (over.signal == signal.SIGINT or over.code in INTERRUPTED):
        return None
    sent = (each for each in box.sent if each.signal == signal.SIGINT and each.pid is None)
    passed = next((each for each in sent if 0 <= over.t - each.t <= LAST_S), None)
    if passed is not None:
        return passed.t, "Ctrl-C" if passed.kernel else "sent to headway"
    return (over.t, "which ended the command") if over.signal == signal.SIGINT else None


def _over_plan(box: Box) -> Iterator[str]:
    """The pools of which the run held more than was planned at most."""
    plan = plan_of(box.begun.ledger)
    for pool in () if plan is None else plan.pools:
        held = box.uses.get(pool.pool)
        if held is not None and held.bytes > pool.upper_bytes > 0:
            where = f" in {held.phase}" if held.phase else ""
            where += f" of step {held.step}" if held.step is not None else ""
            yield (
                f"{pool.pool} held {held.bytes / pool.upper_bytes:.2g}x what was planned at most: "
                f"{format_bytes(held.bytes)}{where}, planned {format_bytes(pool.upper_bytes)}"
            )


def _guarded(actions: Sequence[Action]) -> Iterator[str]:
    """What the guard did last, by its reason: several steps that came at once have the same."""
    steps = dict[str, list[str]]()
    for each in actions[-MOST_ACTIONS:]:
        done = each.name if each.name == "warn" or not each.dry else f"{each.name} (not done)"
        steps.setdefault(each.reason.removesuffix(NO_HANDLE), []).append(done)
    yield from (f"the guard ({', '.join(names)}): {reason}" for reason, names in steps.items())


def _about(box: Box) -> Iterator[str]:
    """What the box says of the run, for people."""
    if box.over is not None and box.over.signal is not None:
        yield f"the command was ended by signal {box.over.signal} ({signal_name(box.over.signal)})"
    elif box.over is not None and box.over.code is not None:
        yield f"the command ended with exit code {box.over.code}"
    for name, top in sorted(box.peaks.items(), key=lambda each: -each[1].bytes):
        where = " ".join(
            each for each in (top.phase and f"in {top.phase}", top.step is not None and f"of step {top.step}") if each
        )
        yield f"{name} counted {format_bytes(top.bytes)} at most{' ' + where if where else ''}"
    yield from _over_plan(box)
    last = box.last
    if last is not None:
        ended = box.over.t if box.over is not None else None
        when = f", {max(0.0, ended - last.t):.1f} s before the end" if ended is not None else ""
        full = [f"{each.pool} {each.name} {format_bytes(each.used)} of {format_bytes(each.limit)}"
                for each in last.gauges if each.limit]  # fmt: skip
        yield f"the last frame{when}: {'; '.join(full) or 'no gauge with a limit'}"
        for process in last.processes[:3]:
            yield f"the last frame: {process.name} (pid {process.pid}) held {format_bytes(process.rss)}"
    before, after = box.counters.get("before", {}), box.counters.get("after", {})
    for name in sorted(before.keys() & after.keys()):
        if after[name] > before[name]:
            yield f"the counter {name} rose from {before[name]} to {after[name]}"
    for sent in box.sent[-4:]:
        if sent.sender_command:
            yield f"process {sent.sender}, which sent {signal_name(sent.signal)}, was: {sent.sender_command}"
    yield from (each.text for each in box.forecasts[-2:])
    yield from _guarded(box.actions)
    yield from (note for note in box.notes if not note.startswith(KERNEL))
