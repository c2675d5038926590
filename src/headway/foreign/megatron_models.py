"""Models of Megatron that are no plain decoder, by their flags: BERT, T5 and hybrids of Mamba layers.

Flags and defaults: NVIDIA/Megatron-LM core_r0.16, `megatron/training/arguments.py` and `TransformerConfig`.
"""

import re
from typing import Any

from headway.facts.blocks import Mamba
from headway.foreign.found import Found

T5, BERT = re.compile(r"(?:^|[_\-/])t5(?:[_\-.]|$)"), re.compile(r"(?:^|[_\-/])bert(?:[_\-.]|$)")
"""A program's name that says what it trains."""
PATTERNS = ("hybrid-layer-pattern", "hybrid-override-pattern")


def letters(found: Found) -> str:
    """A hybrid's layers by letters, without those of multi-token prediction; empty where the model is none, or where
    its layers are given as shares.

    >>> letters(Found("megatron", {}, flags={"hybrid-layer-pattern": ("M-|M*/MM",)}))
    'M-|M*'
    """
    for name in PATTERNS:
        text = (found.flags.get(name) or (None,))[0]
        if text:
            return text.strip("'\"").partition("/")[0]
    return ""


def layers(found: Found) -> int:
    """How many layers a hybrid's letters or T5's own flag say; 0 where they are said as for any decoder."""
    return len(letters(found).replace("|", "")) or _integer(found, "decoder-num-layers")


def is_encoder_decoder(found: Found) -> bool:
    """Whether a script trains T5."""
    return T5.search(found.program) is not None or "decoder-num-layers" in found.flags


def fields(found: Found, hidden: int, plain: int) -> dict[str, Any]:
    """What the shape of such a model has beside a decoder's sizes; empty for a plain decoder. `plain`: the
    layers that `--num-layers` says."""
    pattern = letters(found)
    if pattern:
        return {"layers": layers(found), "letters": pattern, "mamba": _mamba(found, hidden)}
    if is_encoder_decoder(found):
        decoder = _integer(found, "decoder-num-layers") or plain
        own = {"layers": decoder, "encoder_layers": _integer(found, "encoder-num-layers") or plain}
        return own | {"head_bias": True}
    if BERT.search(found.program):
        return {"masked_head": True, "head_bias": True}
    return {}


def _mamba(found: Found, hidden: int) -> Mamba:
    """Inner width twice the model's unless heads are given; heads of 64, 8 groups, states of 128."""
    width = _integer(found, "mamba-head-dim") or 64
    heads = _integer(found, "mamba-num-heads") or max(1, 2 * hidden // width)
    return Mamba(heads, width, _integer(found, "mamba-num-groups") or 8, _integer(found, "mamba-state-dim") or 128)


def _integer(found: Found, name: str) -> int:
    value = (found.flags.get(name) or (None,))[0]
    return int(value) if value is not None and re.fullmatch(r"\d{1,9}", value) else 0
