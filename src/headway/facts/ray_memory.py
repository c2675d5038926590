"""What Ray does with memory: when its monitor kills a worker, and how large its object store is.

Rules of ray 2.60: python/ray/_private/utils.py (resolve_object_store_memory), ray_constants.py, and
src/ray/common/memory_monitor_utils.cc (GetMemoryThreshold), whose settings are in ray_config_def.h.
"""

import math
from collections.abc import Mapping

from msgspec import Struct

from headway.errors import InputError
from headway.facts.machine import RAY_THRESHOLD, Limit, ray_limits

_SHM_SHARE = 0.95
_SHM_CAP_LEAST = 10**10
"""However small /dev/shm is, it does not push the default store below this; the store then lies in /tmp."""


class RayMemory(Struct, frozen=True):
    """Ray's settings of memory; the defaults are Ray's own.

    `threshold` is the share of memory in use above which workers are killed, `min_free_bytes` the free memory that
    is enough all the same (None: not set), `monitors` False where the monitor is off.

    >>> RayMemory().object_store(available_bytes=100 * 10**9, shm_free_bytes=64 * 10**9)
    30000000000
    """

    threshold: float = RAY_THRESHOLD
    min_free_bytes: int | None = None
    monitors: bool = True
    store_share: float = 0.3
    store_most: int = 200 * 10**9

    def limits(self, total_bytes: int) -> tuple[Limit, ...]:
        """Where the monitor kills, in bytes in use of what Ray takes as its memory; () where it is off."""
        return ray_limits(total_bytes, self.threshold, self.min_free_bytes) if self.monitors else ()

    def object_store(self, available_bytes: int, shm_free_bytes: int | None = None) -> int:
        """The object store's default size in bytes: a share of what is available when Ray starts, capped.

        Caps: `store_most`, and 95 % of the free part of /dev/shm but no less than 10^10. Its pages are taken as
        objects come, so this is the most it holds, not what it holds.
        """
        most = self.store_most
        if shm_free_bytes is not None:
            most = min(most, max(_SHM_CAP_LEAST, int(shm_free_bytes * _SHM_SHARE)))
        return min(int(available_bytes * self.store_share), most)


def from_environment(environment: Mapping[str, str]) -> RayMemory:
    """Ray's settings as it reads them from environment variables. InputError where one is no such number.

    >>> from_environment({"RAY_memory_usage_threshold": "0.9"}).limits(1000)[0].name
    'Ray 0.9'
    """
    default, problems = RayMemory(), []

    def number(name: str, otherwise: float, most: float = math.inf) -> float:
        text = environment.get(name)
        if text is None:
            return otherwise
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if -1 <= value <= most:
            return value
        allowed = "a number" if most == math.inf else f"a number from 0 to {most:g}"
        problems.append(f"{name} = {text!r}: Ray does not start with it; unset it or set {allowed}")
        return otherwise

    threshold = number("RAY_memory_usage_threshold", default.threshold, 1.0)
    if threshold < 0:
        problems.append(f"RAY_memory_usage_threshold = {threshold:g}: is below 0; set a number from 0 to 1")
    min_free = int(number("RAY_min_memory_free_bytes", -1))
    settings = RayMemory(
        threshold=threshold,
        min_free_bytes=None if min_free < 0 else min_free,
        monitors=number("RAY_memory_monitor_refresh_ms", 250) > 0,
        store_share=number("RAY_DEFAULT_OBJECT_STORE_MEMORY_PROPORTION", default.store_share),
        store_most=int(number("RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES", default.store_most)),
    )
    if problems:
        raise InputError(*problems)
    return settings
