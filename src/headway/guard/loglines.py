"""Where a run stands, from the lines that its trainer prints: the phase that began, and the step.

Read from the sources of slime and Miles (`utils/timer.py`, `memory_utils.py`), verl, TRL with transformers' Trainer,
OpenRLHF, Megatron-LM. A line of any other wording says nothing, and the phase stays unknown: it is never guessed.
"""

from typing import Any

import re2

from headway.guard.steps import latest_step_of

TIMERS = {
    "train_wait": "rollout", "rollout": "rollout", "generate": "rollout", "generate_rollout": "rollout",
    "log_probs": "score", "ref_log_probs": "score", "teacher_log_probs": "score", "values": "score",
    "actor_train": "train", "critic_train": "train", "train": "train", "update_weights": "sync",
    "save_model": "save", "save": "save", "eval": "eval", "sleep": "sleep", "offload": "sleep", "wake_up": "wake",
    "onload": "wake",
}  # fmt: skip
"""Names of slime's and Miles's timers -> the phase."""
WORDINGS: tuple[tuple[str, str], ...] = (
    (r"Memory-Usage before offload model", "sleep"),
    (r"Memory-Usage before wake_up model", "wake"),
    (r"Memory-Usage before update_weights", "sync"),
    (r"saving checkpoint at iteration|Saving model checkpoint to|local_global_step_folder:|Saving the whole model",
     "save"),
    (r"\*{5} Running (?:E|e)valuation \*{5}|test_gen_batch meta info|Evaluation start", "eval"),
    (r"\*{5} Running training \*{5}|Train epoch \[\d", "train"),
    (r"Starting experience making|make_experience", "rollout"),
    (r"loading (?:distributed )?checkpoint from|Loading checkpoint shards|Loading safetensors checkpoint", "load"),
    (r"[Bb]efore (?:compute_log_prob|compute_ref_log_prob|compute log_?prob)", "score"),
    (r"[Bb]efore (?:update_actor|update_policy|update policy)", "train"),
    (r"[Bb]efore (?:resume weights|update weights|vllm load weights|sync)", "sync"),
)  # fmt: skip
"""What else says that a phase begins."""
MOST_LINE = 4096
"""Bytes of an unfinished line that are remembered."""

_OPTIONS = re2.Options()
_OPTIONS.encoding = re2.Options.Encoding.LATIN1
_PHASE = re2.compile(
    ("|".join([r"Timer (\w+) (start|end)\b", *(f"({pattern})" for pattern, _ in WORDINGS)])).encode(), _OPTIONS
)


class LogReader:
    """Takes a command's output in pieces, and keeps where the run stands by it.

    >>> reader = LogReader()
    >>> reader.feed(b"(Actor pid=7) Timer train start\\n")
    True
    >>> reader.feed(b"(Actor pid=7) Timer ref_log_probs start\\nstep 3: {'lr': 1}\\n")
    True
    >>> reader.phase, reader.step
    ('score', 3)
    >>> reader.feed(b"Timer ref_log_probs end (elapsed: 1.0s)\\n"), reader.phase
    (True, 'train')
    """

    def __init__(self) -> None:
        self.phase: str | None = None
        self.step: int | None = None
        self._rest = b""
        self._timers: list[str] = []

    def feed(self, data: bytes) -> bool:
        """Take a piece; True where the phase or the step changed. A line counts when it is finished."""
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if not end:
            self._rest = (self._rest + data)[-MOST_LINE:]
            return False
        lines, self._rest = self._rest + data[:end], data[end:][-MOST_LINE:]
        before = self.phase, self.step
        for match in _PHASE.finditer(lines):
            self._take(match)
        step = latest_step_of(lines, 0, len(lines))
        self.step = self.step if step is None else step
        return (self.phase, self.step) != before

    def _take(self, match: Any) -> None:
        name, event, *others = match.groups()
        if name is None:
            found = next(index for index, group in enumerate(others) if group is not None)
            self.phase = WORDINGS[found][1]
            return
        timer = name.decode()
        if timer not in TIMERS:
            return
        if event == b"start":
            self._timers = [*(each for each in self._timers if each != timer), timer][-16:]
        elif timer in self._timers:
            self._timers.remove(timer)
        else:
            return  # one that began before we looked
        self.phase = TIMERS[self._timers[-1]] if self._timers else None
