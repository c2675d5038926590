"""From the name of a checkpoint that nobody has listed to the shape of the model that it was made of."""

import csv
import re
from difflib import SequenceMatcher
from functools import cache
from importlib import resources

from msgspec.structs import replace

from headway.facts.context import published
from headway.facts.shapes import ModelShape, by_name, sources

PLAIN_WORDS = frozenset({
    "instruct", "base", "chat", "it", "pt", "hf", "meta", "coder", "math", "distill", "sft", "dpo", "rl", "thinking",
    "tulu", "dolphin", "hermes", "1.1", "rm", "reward", "orm", "prm", "critic", "value", "1m",
})  # fmt: skip
"""Words of a model's name that leave its shape as it is."""
_OTHER_SHAPE = re.compile(
    r"vl|vlm|vision|omni|audio|llava|moe|eagle\d?|mtp|draft|embedding|reranker|a\d+(\.\d+)?b|\d+x\d+b|\d+(\.\d+)?[bm]|"
    r"\d+layers?|pruned|depth|mini|nano|tiny|small|medium|large|xl|next|mergekit|frankenmerge"
)
"""Words that tell of another shape than the rest of the name does."""
_FORM = re.compile(
    r"v?\d[\d.]*|\d+bit|bnb|fp8|fp16|bf16|int[48]|nf4|awq|gptq|gguf|q\d.*|unsloth|dynamic|preview|deduped"
)
"""Words of a date, a version or a number format, which may stand beside a checkpoint's known name."""
NEAR = 0.86
"""How alike the letters of two names must be for a slip of the keyboard, by difflib's ratio."""


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
            if key is not None and not any(_of_another(word) for word in beside):
                return _taken(name, key)
    listed = _checkpoint(words)
    return None if listed is None else _taken(name, listed)


def misspelt(name: str) -> ModelShape | None:
    """The shape of the one model whose name differs from this one by a slip of the keyboard, never by a number.

    >>> misspelt("lama3-8b").name, misspelt("qwen3-7B"), misspelt("my-model")
    ('llama3-8B', None, None)
    """
    words = _telling(_words(name.rstrip("/").rpartition("/")[2]))
    written, numbers = "".join(words), _numbers(words)
    if not numbers:
        return None
    alike = {
        model: ratio for stem, model in _stems().items()
        if _numbers([stem]) == numbers and (ratio := SequenceMatcher(None, written, stem).ratio()) >= NEAR
    }  # fmt: skip
    return _taken(name, max(alike, key=lambda model: alike[model])) if alike else None


def _taken(name: str, key: str) -> ModelShape:
    shape = by_name(key)
    assert shape is not None
    told = f"{name}: taken to have the shape of {shape.name}"
    return replace(shape, assumed=(*shape.assumed, told), context=published(name))


def _of_another(word: str) -> bool:
    return word not in PLAIN_WORDS and _OTHER_SHAPE.fullmatch(word) is not None


def _numbers(words: list[str]) -> str:
    """The digits, with a letter that makes another model of a number (gemma-3n); the b of a size says nothing.

    >>> _numbers(["gemma", "3n", "4b"]), _numbers(["gemma3", "4b", "it"]), _numbers(["8x7b"])
    ('3n4', '34', '87')
    """
    return "".join(re.findall(r"\d(?:[ac-ln-z](?![a-z0-9]))?", "-".join(words)))


def _checkpoint(words: list[str]) -> str | None:
    """The row of a checkpoint that is listed by its own name; only words of form may stand beside it."""
    for end in range(len(words), 0, -1):
        model = _checkpoints().get("".join(words[:end]))
        if model is not None and all(word in PLAIN_WORDS or _FORM.fullmatch(word) for word in words[end:]):
            return model
    return None


@cache
def _checkpoints() -> dict[str, str]:
    """Names of checkpoints that do not say their model, and short names -> the row's name."""
    text = resources.files("headway.facts").joinpath("tables/checkpoints.csv").read_text()
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return {"".join(_words(row["name"])): row["model"] for row in rows}


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
    return [word for word in re.split(r"[-_:\s]+", name.lower()) if word]


def _telling(words: list[str]) -> list[str]:
    return [word for word in words if word not in PLAIN_WORDS]
