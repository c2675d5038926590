"""How a run ended, and the numbers at the head of its page."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from headway.reports.page.curves import Metrics
from headway.reports.page.files import number, size_of
from headway.reports.page.records import Comparison, Doctor, Ending, History, PoolChart, Tile, Tone
from headway.reports.widgets import duration
from headway.units import format_bytes

MOST_SAID = 1000
"""Characters of a run's own words on its end."""
DISK = "disk"
"""How the names of pools begin that are no memory."""
CLOSE = 0.9
"""The share of a limit above which a peak is said to be close to it."""


def train_ending(
    history: History | None,
    summary: Mapping[str, Any] | None,
    metrics: Metrics,
    doctor: Doctor | None,
    *,
    running: bool,
) -> Ending:
    """How a run of `headway train` ended. `summary` is None where there is none of the last process."""
    steps = metrics.steps if summary is None else size_of(summary.get("steps")) or metrics.steps
    done = f"{steps} {'step' if steps == 1 else 'steps'}"
    seconds = None if history is None else history.seconds
    time = "" if not seconds else f" in {duration(seconds)}"
    memory, gain = memory_words(history), gain_words(metrics)
    if running:
        return Ending(
            "running", "plain", f"The run is going on: {done} so far{time}. {memory}{gain}".strip(), bad=False
        )
    if summary is not None:
        reason = str(summary.get("exit_reason"))[:80]
        if reason == "finished":
            sentence = f"Finished: {done}{time}. {memory}{guard_words(history)}{gain}"
            return Ending("finished", "good", sentence.strip(), bad=False)
        if summary.get("problem") is not None:
            sentence = f"Stopped after {done}{time}: {str(summary['problem'])[:MOST_SAID]}"
            return Ending("failed", "bad", sentence, bad=True)
        known = reason in ("guard", "SIGINT")  # the guard's reason is in its actions, and Ctrl-C is the user's own
        reason = "the guard" if reason == "guard" else reason
        stopped = f"Stopped by {reason} after {done}{time}; the same command resumes it. "
        return Ending("stopped", "warn", f"{stopped}{memory}{guard_words(history)}".strip(), bad=not known)
    if history is None:
        return Ending("unknown", "warn", f"How it ended is not known: no recording. {done} were finished.", bad=True)
    told = _told(doctor)
    if "left by" in history.stopped:
        sentence = f"{_capital(history.stopped)}, after {done}{time}. {memory}"
        return Ending("failed", "bad", f"{told}{sentence}".strip(), bad=True)
    where = f"The recording stops {history.stopped}" if history.stopped else "The recording ends between two phases"
    sentence = f"{where}, after {done}{time}: the process was killed there, or its end was not recorded. {memory}"
    return Ending("broke off", "bad", f"{told}{sentence}".strip(), bad=True)


def watch_ending(history: History, doctor: Doctor | None, *, running: bool) -> Ending:
    """How a command under `headway watch` ended."""
    time = duration(history.seconds)
    memory = memory_words(history)
    if running:
        return Ending("running", "plain", f"The command has been running for {time}. {memory}".strip(), bad=False)
    last = history.starts[-1].t if history.starts else 0.0
    guard = next((each for each in history.actions if each.name == "stop" and not each.dry and each.t >= last), None)
    if history.exit_code == 0 and guard is not None:
        sentence = f"Stopped by the guard after {time} (exit code 0): {guard.reason}. {memory}"
        return Ending("stopped", "warn", sentence.strip(), bad=True)
    if history.exit_code == 0:
        return Ending("finished", "good", f"The command finished in {time}. {memory}".strip(), bad=False)
    told = _told(doctor)
    if history.exit:
        where = f", {history.stopped}" if history.stopped else ""
        return Ending(
            "failed", "bad", f"{told}The command: {history.exit}, after {time}{where}. {memory}".strip(), bad=True
        )
    where = f" {history.stopped}" if history.stopped else ""
    sentence = (
        f"The recording stops{where} after {time}: its end was not recorded, so headway itself was killed. {memory}"
    )
    return Ending("broke off", "bad", f"{told}{sentence}".strip(), bad=True)


def _told(doctor: Doctor | None) -> str:
    """The doctor's sentence, where it has established something."""
    if doctor is None or doctor.answer is None or doctor.answer.get("mechanism_grade") == "open":
        return ""
    sentence = str(doctor.answer.get("sentence", ""))
    return f"{sentence}{'' if sentence.endswith(('.', '!', '?')) else '.'} " if sentence else ""


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def memory_words(history: History | None) -> str:
    """The peak beside the limit that counts it, in a sentence.

    >>> memory_words(History(peak=3 << 29))
    'It held 1.50 GiB at most. '
    """
    if history is None or history.peak is None:
        return ""
    lowest = tightest(history.pools)
    if lowest is None:
        return f"It held {format_bytes(history.peak)} at most. "
    name, used, limit = lowest
    held = f"It held {format_bytes(history.peak)} at most"
    return f"{held}; of the tightest limit, {name} ({format_bytes(limit)}), {share(used, limit)} was used. "


def guard_words(history: History | None) -> str:
    """What the guard did in all processes of the run, and how often it began again."""
    if history is None:
        return ""
    done = Counter(each.name for each in history.actions if not each.dry)
    acted = ", ".join(name if count == 1 else f"{name} {count} times" for name, count in done.items())
    words = f"The guard acted ({acted}). " if done else ""
    again = len(history.starts) - 1
    return words + (f"The run began again {'once' if again == 1 else f'{again} times'}. " if again > 0 else "")


def gain_words(metrics: Metrics) -> str:
    """What evaluations say of the gain."""
    found = _held_out(metrics)
    if found is None:
        return ""
    name, before, after = found
    about = "answers correct" if name == "correct" else "answers, mean reward"
    return f"Held-out {about}: {_shown(name, before)} before, {_shown(name, after)} after."


def _held_out(metrics: Metrics) -> tuple[str, float, float] | None:
    """What the first and the last evaluation both have, and its two values: `correct`, else `reward`."""
    if len(metrics.evaluations) < 2:
        return None
    first, last = metrics.evaluations[0], metrics.evaluations[-1]
    for name in ("correct", "reward"):
        before, after = number(first.get(name)), number(last.get(name))
        if before is not None and after is not None:
            return name, before, after
    return None


def _shown(name: str, value: float) -> str:
    return f"{value:.1%}" if name == "correct" else f"{value:.3f}"


def share(used: int, limit: int) -> str:
    """A part of a limit, with a digit more where it is nearly all.

    >>> share(1, 3), share(9949, 10_000)
    ('33%', '99.5%')
    """
    part = used / limit
    return f"{part:.1%}" if 0.95 <= part < 1.05 else f"{part:.0%}"


def tightest(pools: Sequence[PoolChart]) -> tuple[str, int, int] | None:
    """Of all limits the one of which the largest share was used: its name, the most that counted, its size."""
    best: tuple[float, str, int, int] | None = None
    for pool in (pool for pool in pools if not pool.pool.startswith(DISK)):
        tops = {curve.name: curve.top for curve in pool.curves if not curve.planned}
        for limit in pool.ceilings:
            used = tops.get(limit.curve)
            if used is None or limit.bytes <= 0:
                continue
            found = (used / limit.bytes, limit.name, int(used), limit.bytes)
            best = found if best is None or found[0] > best[0] else best
    return None if best is None else best[1:]


def tiles(history: History | None, metrics: Metrics, compared: Sequence[Comparison]) -> tuple[Tile, ...]:
    """The numbers at the head: time, peak against plan and limit, progress."""
    found = []
    if metrics.steps:
        found.append(Tile("steps", f"{metrics.steps:,}", _per_step(metrics)))
    if history is not None and history.seconds:
        again = len(history.starts) - 1
        about = f"began again {'once' if again == 1 else f'{again} times'}" if again > 0 else "running time"
        found.append(Tile("time", duration(history.seconds), about))
    if history is not None and history.peak is not None:
        found.append(Tile("peak memory", format_bytes(history.peak), "processes of the run together"))
        if (limit := tightest(history.pools)) is not None:
            name, used, size = limit
            tone: Tone = "good" if used < CLOSE * size else "warn" if used < size else "bad"
            found.append(Tile(f"of {name}", share(used, size), f"{format_bytes(used)} of {format_bytes(size)}", tone))
    found += _planned(compared[0]) if compared else []
    found += _scores(metrics)
    speed = metrics.last.get("rollout_tokens_per_s")
    if speed is not None:
        found.append(Tile("generated", f"{speed:,.0f} tok/s", "in the last step"))
    return tuple(found)


def _per_step(metrics: Metrics) -> str:
    seconds = metrics.last.get("seconds")
    return "" if seconds is None else f"the last took {duration(seconds)}"


def _planned(compared: Comparison) -> list[Tile]:
    """Whether the plan held."""
    if not compared.measured:
        return []
    error = (compared.predicted - compared.measured) / compared.measured
    over = [row.phase for row in compared.rows if row.measured is not None and row.measured > row.upper]
    about = f"{format_bytes(compared.predicted)} expected, " + (
        f"{', '.join(over)} over the bound" if over else "all within the bound"
    )
    text = f"{error:+.1%}" if math.isfinite(error) and error < 100 else ">9999%"
    return [Tile("plan's error", text, about, "bad" if over else "good" if abs(error) <= 0.15 else "plain")]


def _scores(metrics: Metrics) -> list[Tile]:
    found = _held_out(metrics)
    if found is not None:
        name, before, after = found
        tone: Tone = "good" if after > before else "warn" if after < before else "plain"
        return [Tile(f"held out, {name}", _shown(name, after), f"{_shown(name, before)} before", tone)]
    reward = metrics.last.get("reward")
    return [] if reward is None else [Tile("reward", f"{reward:.3f}", "in the last step")]
