"""Ray's object store is full."""

from headway.diagnose.case import Case
from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Claim, Rule


def _find(case: Case) -> Claim | None:
    found = case.first("ray-object-store")
    if found is None:
        return None
    return Claim("proven", "the store could neither spill nor fall back", (found.place,))


RULE = Rule(
    name="object-store-full",
    level="cause",
    sees="ObjectStoreFullError, OutOfDiskError.",
    why="Objects that are still referenced fill /dev/shm, and the disk for spilling is full or off.",
    sure="Proven by Ray's exception.",
    look_alikes="Spilling lines alone are normal.",
    example="ray.exceptions.OutOfDiskError: Local disk is full. The object cannot be created because the local "
    "object "
    "store is full and the local disk's utilization is over capacity (95%).",
    near_miss="(raylet) Spilled 5120 MiB, 12 objects, write throughput 812 MiB/s.",
    advice=(
        Advice("drop references to old rollouts, smaller batches", "the store empties", "none"),
        Advice("a larger object_store_memory, or disk for spilling", "room", "memory of the node", on="ray"),
    ),
    settle=(settle.RAYLET,),
    find=_find,
)
