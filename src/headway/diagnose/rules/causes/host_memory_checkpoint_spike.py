"""A save needs an extra copy."""

import re

from headway.diagnose.case import Case
from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Claim, Rule

HOST = {"ray-memory-monitor", "cgroup-oom-kill", "kernel-oom-kill", "oom-daemon", "host-allocation-failure"}
CALLS = (
    r"sav(?:e|ing)[ _](?:the )?(?:model |distributed |global |actor )?(?:checkpoint|state)|save_checkpoint|"
    r"dist_checkpointing\.save|load_checkpoint|loading (?:distributed )?checkpoint(?! shards)"
)
DONE = re.compile(
    r"success\w* (?:saved|loaded)|saved checkpoint|checkpoint saved|save\w* (?:done|finished|complete)|"
    r"sync_loss|train step",
    re.I,
)


SAVES = re.compile(r"[.:](?:\w*_)?save(?:_\w*)?$", re.IGNORECASE)
"""A task of Ray's by the method that it runs, such as `ray::WorkerDict.actor_rollout_save_checkpoint`."""


def _find(case: Case) -> Claim | None:
    if (saving := _saving(case)) is not None:
        return saving
    place = case.near(CALLS)
    if place is None or case.event is None or case.mechanism not in HOST | {"sigkill-class"}:
        return None
    if place.line > case.event.place.line or case.event.place.line - place.line > 25:
        return None
    if DONE.search(case.text.split(place.text)[-1]):
        return None
    what = "load of a checkpoint" if re.search(r"load(?:ing)?[ _]", place.text, re.I) else "save"
    because = f"a {what} had begun and not ended when the process was killed"
    return Claim("supported" if case.mechanism in HOST else "open", because, (place,))


def _saving(case: Case) -> Claim | None:
    """A kill while the processes that Ray lists were in a save, by most of the memory that they held."""
    kill = case.kill
    if case.mechanism != "ray-memory-monitor" or kill is None or case.event is None:
        return None
    held = sum(size for _, size, _ in kill.top)
    saves = [(size, name) for _, size, name in kill.top if SAVES.search(name.split(" ")[0])]
    if not saves or 2 * sum(size for size, _ in saves) < held:
        return None
    because = f"{saves[0][1]} ran in {len(saves)} of the {len(kill.top)} processes that Ray lists"
    return Claim("supported", because, (case.event.place,))


RULE = Rule(
    name="host-memory-checkpoint-spike",
    level="cause",
    sees="A kill for host memory between the start and the end of a save or load of a checkpoint.",
    why="A synchronous save stages all shards in host memory before it writes; loading reads a full state beside "
    "the model.",
    sure="Supported where the save's start stands before the kill and its end does not.",
    look_alikes="A kill some minutes after a save is another matter: staging memory that stayed.",
    example="saving checkpoint at iteration 50 to /ckpt\nray.exceptions.OutOfMemoryError: 1 worker(s) were killed "
    "due to"
    " the node running low on memory. Memory on the node was 780.00GB / 800.00GB (0.975000)",
    near_miss="saving checkpoint at iteration 50 to /ckpt\nsuccessfully saved checkpoint at iteration 50\nstep 51\n"
    "ray.exceptions.OutOfMemoryError: 1 worker(s) were killed due to the node running low on memory. Memory on "
    "the node was 780.00GB / 800.00GB (0.975000)",
    advice=(
        Advice(
            "save in parts, so that not all is copied at once", "a smaller copy", "a slower save", "save-in-parts"
        ),
        Advice("leave room: one shard of weights and states a rank", "the spike fits", "memory"),
    ),
    settle=(settle.MEMORY,),
    find=_find,
)
