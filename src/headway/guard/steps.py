"""The step that a log line names, as slime, Miles, verl, TRL, OpenRLHF, NeMo RL, Megatron and headway write it."""

import re

import re2

_STEP = re.compile(
    r"(?:\b(?:global[_ ]?steps?|train(?:er)?[/_ ]step|training/global_step|rollout/step|training step|iteration|step)"
    r"[\"']?(?:\s*[:=]\s*|\s+)\[?(\d{1,9})\b"
    r"|\brollout(?:[_ ]?id)?[\"']?(?:\s*[:=]\s*|\s+)(\d{1,9})\b"
    r"|\b(?:Training Progress|Train(?:ing)?|steps?)[^\n]{0,80}?\|\s*(\d{1,9})/\d{1,9} \[)",
    re.IGNORECASE,
)


_WINDOWS = (1 << 12, 1 << 16, 1 << 19)
"""Bytes of a piece's end that are searched for a step, one after the other."""
_OPTIONS = re2.Options()
_OPTIONS.case_sensitive = False
_OPTIONS.encoding = re2.Options.Encoding.LATIN1
_FAST = re2.compile(_STEP.pattern.encode(), _OPTIONS)


def latest_step_of(data: bytes, start: int, end: int) -> int | None:
    """The last step that a piece of a log names, as far as its end tells."""
    for size in _WINDOWS:
        last = None
        for match in _FAST.finditer(data, max(start, end - size), end):
            last = match
        if last is not None:
            return int(next(group for group in last.groups() if group is not None))
        if end - size <= start:
            break
    return None


def latest_step(text: str) -> int | None:
    """The last step that a text names.

    >>> latest_step("rollout 3: {'reward': 0.5}\\nstep 74: {'train/loss': 0.1}\\nsaving")
    74
    >>> latest_step("iteration      12/     500 | consumed samples: 96"), latest_step("step by step")
    (12, None)
    """
    found = None
    for match in _STEP.finditer(text):
        found = match
    if found is None:
        return None
    return next(int(group) for group in found.groups() if group is not None)
