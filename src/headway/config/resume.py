"""What may change when a run is resumed: how much memory, what is written, how long. Never what is learned."""

from typing import Any

from headway.config.sections import RunSpec

FREE_SECTIONS = frozenset({"memory", "guard", "output"})
FREE_KEYS = frozenset(
    {
        "train.steps",
        "train.cap",
        "train.checkpointing",
        "train.logprob_chunk",
        "rollout.kv_budget",
        "eval.every",
    }
)
"""Keys outside those sections that only trade memory for time, or say how long the run is.

They change the order of sums at most, so a resumed run with other values is the same run up to rounding.
"""


def identity(spec: RunSpec) -> dict[str, Any]:
    """What a checkpoint belongs to: every key that decides what is learned, flat, as JSON values.

    >>> # identity(spec)["model.path"], identity(spec)["train.seed"]
    """
    return {key: value for key, value in flat(spec).items() if not _free(key)}


def changes(before: dict[str, Any], after: dict[str, Any]) -> tuple[str, ...]:
    """`key: old -> new` for each key that differs, in the order of the RunSpec."""
    keys = [*after, *(key for key in before if key not in after)]
    return tuple(
        f"{key}: {_text(before, key)} -> {_text(after, key)}"
        for key in keys
        if before.get(key, _ABSENT) != after.get(key, _ABSENT)
    )


def flat(spec: RunSpec) -> dict[str, Any]:
    """Every key of a RunSpec as `section.key` with its JSON value; an absent section is one key with None."""
    rows: dict[str, Any] = {}
    for section, content in spec.model_dump(mode="json").items():
        if content is None:
            rows[section] = None
        else:
            rows.update({f"{section}.{key}": value for key, value in content.items()})
    return rows


_ABSENT = object()


def _free(key: str) -> bool:
    return key in FREE_KEYS or key.split(".")[0] in FREE_SECTIONS


def _text(rows: dict[str, Any], key: str) -> str:
    return repr(rows[key]) if key in rows else "(not set)"
