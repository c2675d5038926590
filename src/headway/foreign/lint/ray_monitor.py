"""Ray's memory monitor switched off or moved up."""

import re
from collections.abc import Iterator

from headway.facts.machine import RAY_THRESHOLD
from headway.foreign.lint.rule import Rule, Sighting, Subject
from headway.foreign.shell.values import Origin, Word

THRESHOLD, REFRESH = "RAY_memory_usage_threshold", "RAY_memory_monitor_refresh_ms"
IN_JSON = re.compile(
    rf"\\?[\"']?({THRESHOLD}|{REFRESH}|memory_usage_threshold|memory_monitor_refresh_ms)"
    r"\\?[\"']?\s*:\s*\\?[\"']?([\d.]+)"
)


def find(subject: Subject) -> Iterator[Sighting]:
    """Both settings as variables of the script, of one command, and in JSON for Ray."""
    for name in (THRESHOLD, REFRESH):
        value = subject.variables.get(name)
        if name in subject.script.exports and isinstance(value, Word):
            yield from _told(name, value.text, value.at)
    for command in subject.commands:
        words = dict(command.environment)
        for item in command.argv:
            if not isinstance(item, Word):
                continue
            name, equals, _ = item.shown.partition("=")
            if equals and name in (THRESHOLD, REFRESH) and item.text is not None:
                yield from _told(name, item.text.partition("=")[2], item.at or command.at)
            for match in IN_JSON.finditer(item.shown[:20_000]):
                yield from _told(f"RAY_{match[1].removeprefix('RAY_')}", match[2], item.at or command.at)
        for name in (THRESHOLD, REFRESH):
            if name in words:
                yield from _told(name, words[name].text, words[name].at or command.at)


def _told(name: str, text: str | None, at: Origin | None) -> Iterator[Sighting]:
    try:
        number = float(text or "")
    except ValueError:
        return
    if name == REFRESH and number == 0:
        yield Sighting(f"{name}=0: Ray's memory monitor is off", at)
    elif name == THRESHOLD and number > RAY_THRESHOLD:
        yield Sighting(f"{name}={text}: Ray kills at {number:.0%} of the memory instead of {RAY_THRESHOLD:.0%}", at)


RULE = Rule(
    name="ray-monitor",
    severity="warning",
    title="Ray's memory monitor off or moved up",
    sees=f"`{THRESHOLD}` above {RAY_THRESHOLD:g}, or `{REFRESH}=0`, exported, set for a command, or in JSON for Ray.",
    why="what ends then is not the largest worker with a message that says why: the kernel or the container's limit "
    "kills a process without a word, and on unified memory (GB10) the machine may hang before anything is killed",
    example="export RAY_memory_monitor_refresh_ms=0\nray start --head\npython3 train.py --rollout-batch-size 8",
    instead="leave the monitor as it is and lower what the run holds; never switch it off on unified memory. "
    "Ray reads both where `ray start` runs: in a job's runtime environment they do nothing",
    near_miss="export RAY_memory_usage_threshold=0.9\nexport RAY_memory_monitor_refresh_ms=100\nray start --head\n"
    "python3 train.py --rollout-batch-size 8",
    not_this="a lower threshold or another period is a choice that costs nothing of this.",
    find=find,
)
