"""The step that a log line names, as slime, Miles, verl, TRL, OpenRLHF, NeMo RL, Megatron and headway write it."""

import re
from typing import Any, AnyStr

import re2

_STEP = re.compile(
    r"(?:\bfrom step \d"  # a plan's words: no step that the run has reached
    r"|(?:^|[^-\w])(?:step|rollout)[ \t]+[\d,]+[ \t]+[\d,]+[ \t]+[\d,+-]"  # phases in headway's tables
    r"|(?:^|[^-\w])rollout[ \t]+[\d,.]+/s\b"  # and how fast one is
    r"|(?:^|[^-\w])step[ \t]+\d{1,9}\.\d+[ \t]+on[ \t]|\bjob step \d"  # Slurm's steps of a job
    r"|\b(?:\w*(?:tim(?:e|ing)|duration|latency|elapsed|tokens|samples)\w*|perf|s|ms|sec|seconds)/step\b"
    r"[\"']?[ \t]*[:=]?[ \t]*[\d.]+"  # how long one took, or how much it has
    r"|(?:^|[^-\w])step[\"']?(?:[ \t]*[:=][ \t]*|[ \t]+)\d{1,9}\.\d*[1-9]"  # no count
    r"|(?:^|[^-\w])(?:global[_ ]?steps?|train(?:er)?[/_ ]step|training/global_step|rollout/step|training step|"
    r"iteration|step)"
    r"[\"']?(?:[ \t]*[:=][ \t]*|[ \t]+)\[?(\d{1,9})\b"
    r"|(?:^|[^-\w])rollout(?:[_ ]?id)?[\"']?(?:[ \t]*[:=][ \t]*|[ \t]+)(\d{1,9})\b"
    r"|(?:^|[^-\w])(?:Training Progress|Train(?:ing)?|steps?)[^\n]{0,80}?\|\s*(\d{1,9})/\d{1,9} \[)",
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
            last = _number(match.groups()) or last
        if last is not None:
            return int(last)
        if end - size <= start:
            break
    return None


def latest_step(text: str) -> int | None:
    """The last step that a text names.

    >>> latest_step("rollout 3: {'reward': 0.5}\\nstep 74: {'train/loss': 0.1}\\nsaving")
    74
    >>> latest_step("iteration      12/     500 | consumed samples: 96"), latest_step("step by step")
    (12, None)
    >>> latest_step("python3 train.py --num-rollout 100 --steps 7")
    >>> latest_step("fits: eval, from step 1000"), latest_step("ray::Trainer.rollout\\n707378 0.07 ray::Agent")
    (None, None)
    >>> latest_step("step   7/9  reward 0.5  rollout 4,533/s\\nrollout  422  393  +7.4%\\nstep  1,023  1,025   -0.2%")
    7
    >>> latest_step("step 100 loss 1.2\\nslurmstepd: error: *** STEP 4242.0 ON n1 CANCELLED AT 2026-01-01 ***")
    100
    >>> latest_step("step:42 - perf/time_per_step:309.9 - timing_s/step:309.9"), latest_step("time/step: 31")
    (42, None)
    >>> latest_step("train/step: 7, latency/step: 12, tokens/step: 4096"), latest_step("rollout/step: 12")
    (7, 12)
    >>> latest_step("stopped after step 74. 3 more"), latest_step("step: 12.0")
    (74, 12)
    """
    found = None
    for match in _STEP.finditer(text):
        found = _number(match.groups()) or found
    return None if found is None else int(found)


def _number(groups: tuple[AnyStr | Any, ...]) -> AnyStr | None:
    return next((group for group in groups if group is not None), None)
