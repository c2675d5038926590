"""What becomes of a trainer's state while an engine has its device: what stays there, and what waits in the host."""

from typing import NamedTuple

from headway.facts.workload import Offload
from headway.plan.item import Item
from headway.plan.placement.sides import Side

PARAMETERS = frozenset({"weights", "adapters"})
GRADIENTS = frozenset({"gradient buffer", "stale gradients"})

TO_HOST: dict[Offload, str] = {
    "none": "", "host": "pgo", "parameters": "p", "optimizer": "o", "parameters+optimizer": "po", "dropped": "o",
}  # fmt: skip
"""What is copied to host memory: parameters, gradients, the optimizer's part."""
FREED: dict[Offload, str] = {
    "none": "", "host": "", "parameters": "g", "optimizer": "", "parameters+optimizer": "g", "dropped": "pg",
}  # fmt: skip
"""What is freed without a copy. Sources: `sleep` of slime's and Miles's actors with torch_memory_saver; verl's
`offload_megatron_model_to_cpu`, which resizes gradient buffers to nothing."""


class Paused(NamedTuple):
    """Items on the device and in the host while the trainer waits.

    >>> Paused([], []).device
    []
    """

    device: list[Item]
    host: list[Item]


def _letter(item: Item) -> str:
    return "p" if item.item in PARAMETERS else "g" if item.item in GRADIENTS else "o"


def paused(side: Side, offload: Offload, *, stepped: bool, syncing: bool = False) -> Paused:
    """Where the state is. `syncing`: parameters are being sent to the engine.

    Parameters that were only moved away come back to the device to be sent; those that were dropped, and those of
    a whole state in the host, are sent from the copy.
    """
    items = side.states(stepped=stepped)
    if stepped and side.stale is not None:
        items = [*items, side.stale]
    away, freed = TO_HOST[offload], FREED[offload]
    if syncing and offload in ("parameters", "parameters+optimizer"):
        away = away.replace("p", "")
    host = [item for item in items if _letter(item) in away]
    device = [item for item in items if _letter(item) not in away + freed]
    return Paused(device + ([] if offload in ("host", "dropped") else side.runtime), host)
