"""The steady host footprint does not fit."""

import re

from headway.diagnose.case import Case
from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Claim, Rule, of_stop
from headway.units import format_bytes

HOST = {"ray-memory-monitor", "cgroup-oom-kill", "kernel-oom-kill", "oom-daemon", "host-allocation-failure"}
SHARDS = r"Loading (?:safetensors |pt )?checkpoint shards: +(?P<share>\d+)% ?(?:\||Completed)"
"""How transformers and vLLM show that they load a model's weights."""
LOADS = Advice(
    "load the weights in the precision in which they are used, and one rank after the other",
    "fewer copies in host memory while loading", "a slower start",
)  # fmt: skip


def _find(case: Case) -> Claim | None:
    if (stopped := of_stop(case, ".host", "near the limit")) is not None:
        return stopped
    limit, used = case.settings.limit_gb, case.settings.used_gb
    if limit is not None and used is not None and used > limit and case.mechanism in HOST | {"sigkill-class"}:
        return Claim("open", f"{used:.0f} GB are used where {limit:.0f} GB are asked for")
    if (loading := _loading(case)) is not None:
        return loading
    kill = case.kill
    if case.mechanism not in HOST or kill is None or case.event is None:
        return None
    sizes = sorted((size for _, size, _ in kill.top), reverse=True)
    equal = [size for size in sizes if sizes and size >= 0.85 * sizes[0]]
    if len(equal) < 2 or sum(equal) < 0.5 * kill.total:
        return None
    because = f"{len(equal)} processes hold alike, {format_bytes(sum(equal))} of {format_bytes(kill.total)} together"
    early = case.step is not None and case.step <= 1
    return Claim(
        "supported" if early else "open", because + (", in the first step" if early else ""), (case.event.place,)
    )


def _loading(case: Case) -> Claim | None:
    """A kill before the last shard of a model's weights was loaded."""
    place = case.near(SHARDS)
    if place is None or case.event is None or case.mechanism not in HOST | {"sigkill-class"}:
        return None
    found = re.search(SHARDS, place.text, re.IGNORECASE)
    if not 0 <= case.event.place.line - place.line <= 25 or found is None or int(found["share"]) >= 100:
        return None
    because = "the process was killed while it loaded the model's weights"
    return Claim("supported" if case.mechanism in HOST else "open", because, (place,), (LOADS,))


RULE = Rule(
    name="host-memory-capacity",
    level="cause",
    sees="Equal shares of all ranks that together fill the node, or use above what the container asks for.",
    why="Offloaded optimizer states (12 bytes a parameter), pinned copies of the weights and buffers, times the "
    "ranks of a node.",
    sure="Supported in the first step, where nothing can have grown; open later, where all ranks may have grown "
    "alike.",
    look_alikes="One process far above the others is that process.",
    example="step 1\nray.exceptions.OutOfMemoryError: 1 worker(s) were killed due to the node running low on memory. "
    "Memory on the node was 999.92GB / 1007.51GB (0.992466)\nTop 10 memory users: PID\tMEM(GB)\tCOMMAND\n300\t102.00"
    "\tray::MegatronTrainRayActor.train\n301\t102.10\tray::MegatronTrainRayActor.train\n302\t102.20\t"
    "ray::MegatronTrainRayActor.train\n303\t102.30\tray::MegatronTrainRayActor.train\n304\t102.40\t"
    "ray::MegatronTrainRayActor.train\n305\t102.50\tray::MegatronTrainRayActor.train\n306\t102.60\t"
    "ray::MegatronTrainRayActor.train\n307\t102.70\tray::MegatronTrainRayActor.train",
    near_miss="step 1\nray.exceptions.OutOfMemoryError: 1 worker(s) were killed due to the node running low on "
    "memory. "
    "Memory on the node was 999.92GB / 1007.51GB (0.992466)\nTop 10 memory users: PID\tMEM(GB)\tCOMMAND\n300\t700.00"
    "\tray::RolloutManager\n301\t20.00\tray::Trainer",
    advice=(
        Advice(
            "fewer copies in host memory: no optimizer offload, or none of the reference",
            "less on the node",
            "device memory",
            "less-offload",
        ),
        Advice("more nodes, or a larger limit", "fewer ranks a node, or room", "cost"),
    ),
    settle=(settle.MEMORY,),
    find=_find,
)
