"""Settings that ran into a limit and were made smaller: kept with each checkpoint, so that a resume begins with them.

A micro-batch of fewer tokens has the same gradient, and fewer answers at once are the same answers: neither changes
what is learned. The user's word is stronger: another value of such a key in the RunSpec, or another `memory.limit`,
ends it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from headway.config.resume import flat
from headway.config.sections import RunSpec
from headway.units import format_bytes

CAP, KV_BUDGET = "train.cap", "rollout.kv_budget"
SAID = {CAP: "micro-batches now have at most {}", KV_BUDGET: "the KV cache now has at most {}"}


@dataclass(frozen=True)
class Smaller:
    """A setting that is now smaller than the RunSpec's `set`, which had a `memory.limit` of `limit` bytes.

    >>> Smaller(now=2048, set=4096, limit=None)
    Smaller(now=2048, set=4096, limit=None)
    """

    now: int
    set: int
    limit: int | None


def smaller(spec: RunSpec, key: str, now: int) -> Smaller:
    """The record of one key."""
    return Smaller(now, flat(spec)[key], spec.memory.limit)


def still(saved: Mapping[str, Smaller], spec: RunSpec) -> dict[str, Smaller]:
    """Those that hold in a resume: neither the key nor `memory.limit` has another value than when it was shrunk."""
    rows = flat(spec)
    return {key: each for key, each in saved.items() if (each.set, each.limit) == (rows[key], spec.memory.limit)}


def value_of(key: str, spec: RunSpec, saved: Mapping[str, Smaller]) -> int:
    """What a key is in this run: made smaller, or as the RunSpec has it."""
    value: int = saved[key].now if key in saved else flat(spec)[key]
    return value


def sentence(key: str, now: int) -> str:
    """What is shown of it.

    >>> sentence("train.cap", 2048)
    'micro-batches now have at most 2,048 tokens'
    """
    return SAID[key].format(f"{now:,} tokens" if key == CAP else format_bytes(now))
