"""The step that a log line names, as slime, Miles, verl, TRL, OpenRLHF, NeMo RL, Megatron and headway write it."""

import re

_STEP = re.compile(
    r"(?:\b(?:global[_ ]?steps?|train(?:er)?[/_ ]step|training/global_step|rollout/step|training step|iteration|step)"
    r"[\"']?(?:\s*[:=]\s*|\s+)\[?(\d{1,9})\b"
    r"|\brollout(?:[_ ]?id)?[\"']?(?:\s*[:=]\s*|\s+)(\d{1,9})\b"
    r"|\b(?:Training Progress|Train(?:ing)?|steps?)[^\n]{0,80}?\|\s*(\d{1,9})/\d{1,9} \[)",
    re.IGNORECASE,
)


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
