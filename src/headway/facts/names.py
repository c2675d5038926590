"""From the name of a checkpoint that nobody has listed to the shape of the model that it was made of."""

import re
from functools import cache

from msgspec.structs import replace

from headway.facts.context import published
from headway.facts.shapes import ModelShape, by_name, sources

PLAIN_WORDS = frozenset({
    "instruct", "base", "chat", "it", "pt", "hf", "meta", "coder", "math", "distill", "sft", "dpo", "rl", "thinking",
    "tulu", "dolphin", "hermes", "1.1", "rm", "reward", "orm", "prm", "critic", "value",
})  # fmt: skip
"""Words of a model's name that leave its shape as it is."""
_OTHER_SHAPE = re.compile(
    r"vl|vlm|vision|omni|audio|llava|moe|eagle\d?|mtp|draft|embedding|reranker|a\d+(\.\d+)?b|\d+x\d+b|\d+(\.\d+)?[bm]|"
    r"\d+layers?|pruned|depth|mini|nano|tiny|small|medium|large|xl|next|mergekit|frankenmerge"
)
"""Words that tell of another shape than the rest of the name does."""


def like(name: str) -> ModelShape | None:
    """The shape of the model that a checkpoint is made of, as its name tells: that of the table whose name stands in
    it as a whole, with nothing beside it that tells of another shape. `assumed` says where it comes from.

    >>> like("unsloth/Qwen3-4B-unsloth-bnb-4bit").name, like("Llama-3-8b-sft-mixture").name, like("Qwen9-4B")
    ('qwen3-4B', 'llama3-8B', None)
    """
    words = _words(name.rstrip("/").rpartition("/")[2].replace("___", "."))
    known = _stems()
    for kept in (words, _telling(words)):
        spans = sorted(
            ((start, end) for start in range(len(kept)) for end in range(start + 1, min(start + 7, len(kept)) + 1)),
            key=lambda span: span[0] - span[1],
        )
        for start, end in spans:
            key = known.get("".join(kept[start:end]))
            beside = (*kept[:start], *kept[end:])
            if key is not None and not any(_OTHER_SHAPE.fullmatch(word) for word in beside):
                shape = by_name(key)
                assert shape is not None
                told = f"{name}: taken to have the shape of {shape.name}"
                return replace(shape, assumed=(*shape.assumed, told), context=published(name))
    return None


@cache
def _stems() -> dict[str, str]:
    """Names of the table, with and without the words that leave the shape as it is -> the row's name."""
    found: dict[str, str] = {}
    for model, source in sources().items():
        for text in (model, source.rpartition("/")[2]):
            words = _words(text)
            for kept in (words, _telling(words)):
                found.setdefault("".join(kept), model)
    return found


def _words(name: str) -> list[str]:
    return [word for word in re.split(r"[-_\s]+", name.lower()) if word]


def _telling(words: list[str]) -> list[str]:
    return [word for word in words if word not in PLAIN_WORDS]
