"""Ray's memory monitor as a launch sets it: `RAY_memory_monitor_refresh_ms` and its threshold, where Ray reads them.

The monitor is a part of the raylet and reads its environment (docs.ray.io, "Out-Of-Memory Prevention": set "when Ray
starts"): that of `ray start`, or of the program where that starts Ray itself. A job's runtime environment reaches
workers, which are started later, and not the raylet.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise

from msgspec.structs import replace

from headway.facts.machine import Machine, Pool, is_ray, ray_limits
from headway.facts.ray_memory import RayMemory, from_environment
from headway.foreign.command import NO_STARTERS
from headway.foreign.found import Found
from headway.foreign.shell import Command, Script
from headway.foreign.shell.values import Origin, Word

REFRESH, THRESHOLD, LEAST = "RAY_memory_monitor_refresh_ms", "RAY_memory_usage_threshold", "RAY_min_memory_free_bytes"
NAMES = (REFRESH, THRESHOLD, LEAST)
_JSON = re.compile(
    r"\\?[\"']?(?:RAY_)?(memory_monitor_refresh_ms|memory_usage_threshold|min_memory_free_bytes)"
    r"\\?[\"']?\s*:\s*\\?[\"']?(-?[\d.]+)"
)


def of_launch(script: Script, found: Found) -> tuple[dict[str, str], tuple[str, ...]]:
    """The settings that the raylet of a launch gets, and in words those that are set where it does not read them.

    >>> from headway.foreign.shell import read_text
    >>> of_launch(read_text("RAY_memory_monitor_refresh_ms=0 ray start --head"), Found("verl"))
    ({'RAY_memory_monitor_refresh_ms': '0'}, ())
    """
    starts = [each for each in script.commands if _starts_ray(each)]
    trains = [each for each in script.commands if found.at is not None and each.at == found.at]
    submitted = any(_submits(each) for each in trains)
    first = (starts or ([] if submitted else trains))[:1]
    given: dict[str, str] = {}
    for name, value in script.variables.items():
        text = value.text if isinstance(value, Word) else None
        is_exported = name in NAMES and name in script.exports and first
        if is_exported and text and isinstance(value, Word) and _before(value.at, first[0].at):
            given[name] = text
    for command in first:
        given |= dict(_of_command(command))
        if command in starts:
            given |= dict(_in_json(command))
    elsewhere = {name for each in script.commands for name, _ in (*_in_json(each), *_of_command(each))}
    elsewhere |= {name for name in NAMES if name in script.exports}
    return given, tuple(
        f"{name} is set where Ray's monitor does not read it: the raylet has the environment of `ray start`, not "
        "that of a job or its runtime environment, so Ray's limit stays"
        for name in NAMES
        if name in elsewhere - given.keys()
    )


def _before(place: Origin | None, at: Origin) -> bool:
    return place is None or place.file != at.file or place.line <= at.line


def _texts(command: Command) -> list[str]:
    return [item.text or "" for item in command.argv if isinstance(item, Word)]


def _starts_ray(command: Command) -> bool:
    texts = _texts(command)
    return command.program not in NO_STARTERS and any(
        one.rpartition("/")[2] == "ray" and two == "start" for one, two in pairwise(texts)
    )


def _submits(command: Command) -> bool:
    """Whether a command goes to a cluster that is there: `ray job submit -- python3 train.py`."""
    texts = _texts(command)
    return any(texts[place : place + 2] == ["job", "submit"] for place in range(1, len(texts)))


def _of_command(command: Command) -> Iterator[tuple[str, str]]:
    """Variables of one command: before it, and as words of `env`."""
    for name, value in command.environment:
        if name in NAMES and value.text:
            yield name, value.text
    for text in _texts(command):
        name, _, given = text.partition("=")
        if given and name in NAMES:
            yield name, given


def _in_json(command: Command) -> Iterator[tuple[str, str]]:
    """Settings in JSON: of `--system-config`, which the raylet reads, or of a runtime environment."""
    for item in command.argv:
        if isinstance(item, Word):
            for match in _JSON.finditer(item.shown[:20_000]):
                yield f"RAY_{match[1]}", match[2]


def applied(machine: Machine, given: Mapping[str, str], where: str) -> tuple[Machine, tuple[str, ...]]:
    """The machine with Ray's limits as these settings move them, and what to say. `where` names who sets them.

    InputError where one is no number that Ray takes.

    >>> from headway.facts.machines import by_name
    >>> off, notes = applied(by_name("gb10"), {"RAY_memory_monitor_refresh_ms": "0"}, "run.sh")
    >>> [limit.name for limit in off.pools[0].limits], notes[0][:25]
    (['memory'], "run.sh switches Ray's mem")
    """
    settings = from_environment({name: value for name, value in given.items() if name in NAMES})
    if not settings.monitors:
        why = "Ray's limit is left out, and what ends the run then is the kernel or the container, without a word"
        return machine.without_ray(), (f"{where} switches Ray's memory monitor off with {REFRESH}=0: {why}",)
    if settings == RayMemory():
        return machine, ()
    pools = tuple(_moved(pool, settings) for pool in machine.pools)
    told = ", ".join(f"{name}={given[name]}" for name in (THRESHOLD, LEAST) if name in given)
    return replace(machine, pools=pools), (f"{where} moves Ray's limit with {told}",)


def _moved(pool: Pool, settings: RayMemory) -> Pool:
    """A pool with Ray's limits at another size; what is in use beside the run stays counted where it was."""
    (usual,), moved = ray_limits(pool.total_bytes), settings.limits(pool.total_bytes)
    limits = tuple(
        replace(moved[0], bytes=max(0, each.bytes + moved[0].bytes - usual.bytes)) if is_ray(each) else each
        for each in pool.limits
    )
    return replace(pool, limits=limits)
