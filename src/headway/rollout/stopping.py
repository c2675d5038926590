"""When an answer ends: stop tokens and stop texts, found in text that is decoded a few tokens at a time."""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
HELD_TOKENS = 8
"""Tokens that may wait for the rest of a character; more are broken text, not a long character."""


def decode(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], *, special: bool = False) -> str:
    """Text of token ids, with or without special tokens, otherwise untouched."""
    text = tokenizer.decode(list(ids), skip_special_tokens=not special, clean_up_tokenization_spaces=False)
    assert isinstance(text, str)
    return text


class StopWatch:
    """Sees the tokens of one answer as they come and says when a stop text is complete.

    Only the newest tokens are decoded, together with the ones before them: a decoder may drop the first space of a
    text, and a character may span tokens. Special tokens count as text, so one may be a stop text.

    >>> watch = StopWatch(tokenizer, ("\\n\\n",))  # doctest: +SKIP
    >>> [watch.push(token) for token in tokenizer.encode("12\\n\\n")]  # doctest: +SKIP
    [False, False, False, True]
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stops: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops))
        self._tail = ""
        self._context: list[int] = []
        self._context_text = ""
        self._fresh: list[int] = []

    def push(self, token: int) -> bool:
        """Take the next token; True if the text now holds a stop text."""
        self._fresh.append(token)
        text = decode(self._tokenizer, self._context + self._fresh, special=True)
        fresh = text[len(self._context_text) :]
        seen = self._tail + fresh
        if not text.endswith(INCOMPLETE) or len(self._fresh) >= HELD_TOKENS:
            self._context, self._fresh = self._fresh, []
            self._context_text = decode(self._tokenizer, self._context, special=True)
            self._tail = seen[-self._longest :]
        return any(stop in seen for stop in self._stops)


def visible_text(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], stops: Sequence[str]) -> str:
    """Text of an answer without special tokens, up to the first stop text."""
    text = decode(tokenizer, ids)
    return text[: min((at for stop in stops if (at := text.find(stop)) >= 0), default=len(text))]
