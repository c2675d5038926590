"""How many tokens a model's positions are made for, prompt and answer together: its context length."""

import csv
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

WHOLE = ("default", "llama3", "longrope", "su", "mrope", "proportional")
"""Kinds of rope scaling whose `max_position_embeddings` is the scaled length already."""


def published(name: str) -> int:
    """The context of a published model by its hub repository, with or without the owner; 0 where it is not listed.

    >>> published("Qwen/Qwen3-4B"), published("qwen3-4b-instruct-2507"), published("unsloth/Qwen3-4B-bnb-4bit")
    (40960, 262144, 0)
    """
    plain = _plain(name)
    return _table().get(plain) or _table().get(plain.rpartition("/")[2], 0)


@cache
def _table() -> dict[str, int]:
    text = (Path(__file__).parent / "tables" / "contexts.csv").read_text()
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    found: dict[str, int] = {}
    for row in rows:
        plain = _plain(row["source"])
        found[plain] = found[plain.rpartition("/")[2]] = int(row["context"])
    return found


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def of_config(config: Mapping[str, Any], positions: Any) -> int:
    """The context of a `config.json` whose `max_position_embeddings` is `positions`; 0 where it does not say.

    As vLLM derives its max_model_len (vllm/config/model.py, `_get_and_verify_max_len`): rope scaling multiplies the
    positions by its factor, YaRN those of `original_max_position_embeddings`. Gemma 3 and the kinds in `WHOLE` name
    the scaled length. What the file names is never made shorter.

    >>> of_config({}, 8192), of_config({"rope_scaling": {"rope_type": "linear", "factor": 4.0}}, 4096)
    (8192, 16384)
    >>> yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    >>> of_config({"rope_scaling": yarn}, 40960), of_config({"rope_scaling": yarn}, None)
    (131072, 0)
    """
    if not isinstance(positions, int) or isinstance(positions, bool) or positions <= 0:
        return 0
    if "gemma3" in str(config.get("model_type")):
        return positions
    return max([positions, *(_scaled(each, positions) for each in _scalings(config))])


def _scalings(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """`rope_scaling` as published, or `rope_parameters` of transformers 5, which may have a table a kind of layer."""
    found: list[Mapping[str, Any]] = []
    for key in ("rope_scaling", "rope_parameters"):
        table = config.get(key)
        if isinstance(table, Mapping):
            found += [table, *(inner for inner in table.values() if isinstance(inner, Mapping))]
    return found


def _scaled(scaling: Mapping[str, Any], positions: int) -> int:
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    factor = scaling.get("factor", 1.0)
    if kind in WHOLE or not isinstance(factor, int | float) or not 1 <= factor <= 10_000:
        return 0
    original = scaling.get("original_max_position_embeddings")
    base = original if kind == "yarn" and isinstance(original, int) else positions
    return int(base * factor)


def too_long(model: str, context: int, prompt: int, answer: int) -> str | None:
    """What is wrong with samples of `prompt` and `answer` tokens on a model of that context; None where they fit, or
    where the context is not known (0).

    >>> too_long("gpt2", 1024, 24, 1000) is None
    True
    """
    if not context or prompt + answer <= context:
        return None
    has = {0: "a sample", 1: "even with a prompt of one token a sample"}
    sample = has.get(prompt, f"with prompts of {prompt:,} tokens a sample")
    room = context - prompt
    change = f"set rollout.max_answer = {room} or less" if room > 0 else "give shorter prompts"
    return (
        f"rollout.max_answer = {answer}: {sample} may have {prompt + answer:,} tokens, and {model} has positions for "
        f"{context:,} (max_position_embeddings); {change}, or take a model with a longer context"
    )
