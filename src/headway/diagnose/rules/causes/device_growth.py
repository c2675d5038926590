"""Device memory rises over steps."""

from headway.diagnose.case import Case
from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Claim, Rule, of_growth, of_stop


def _find(case: Case) -> Claim | None:
    if (stopped := of_stop(case, ".device", "forecast", "fast rise", "steady rise")) is not None:
        return stopped
    if case.mechanism != "device-allocation-failure":
        return None
    if (growth := of_growth(case, ".device")) is not None:
        return growth
    for name in ("used_GB", "allocated_GB"):
        found = case.slope(name)
        if found is not None and found.grows:
            because = f"{name} rose from {found.first:.1f} to {found.last:.1f} over {found.points} readings"
            return Claim("supported", because)
    return None


RULE = Rule(
    name="device-growth",
    level="cause",
    sees="A measured device memory that rises through the log, ending in a refused request.",
    why="Something is kept from step to step: graphs, lists of tensors, caches of an engine, fragments.",
    sure="Supported by a steady rise; a restart that passes the same data supports it further.",
    look_alikes="A first step that is lower than all later ones is no growth: the moments did not exist.",
    example="Memory-Usage after train: {'used_GB': 40.0}\nMemory-Usage after train: {'used_GB': 44.0}\nMemory-Usage "
    "after"
    " train: {'used_GB': 48.0}\nMemory-Usage after train: {'used_GB': 52.0}\nMemory-Usage after train: "
    "{'used_GB': 56.0}\nMemory-Usage after train: {'used_GB': 60.0}\nMemory-Usage after train: {'used_GB': 64.0}\n"
    "Memory-Usage after train: {'used_GB': 68.0}\nMemory-Usage after train: {'used_GB': 72.0}\n"
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    near_miss="Memory-Usage after train: {'used_GB': 70.0}\nMemory-Usage after train: {'used_GB': "
    "71.0}\nMemory-Usage "
    "after"
    " train: {'used_GB': 70.0}\nMemory-Usage after train: {'used_GB': 71.0}\nMemory-Usage after train: "
    "{'used_GB': 70.0}\nMemory-Usage after train: {'used_GB': 71.0}\nMemory-Usage after train: {'used_GB': 70.0}\n"
    "Memory-Usage after train: {'used_GB': 71.0}\nMemory-Usage after train: {'used_GB': 70.0}\n"
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    advice=(
        Advice(
            "save more often, and restart from the last checkpoint now and then",
            "the growth starts anew",
            "a mitigation",
            "save-often",
        ),
        Advice(
            "record allocations (torch.cuda.memory._record_memory_history) over ten steps",
            "shows what is kept",
            "some time",
        ),
    ),
    settle=(settle.MEMORY,),
    find=_find,
)
