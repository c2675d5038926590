"""A run as it goes: a live view in a terminal, and plain lines anywhere else.

Both are context managers and take the same calls: `phase`, `step`, `evaluation`, `memory`, `message`, `notice`. Steps
count from 1; metrics have the names of metrics.jsonl. `memory` and `notice` may be called from another thread.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self, TextIO

from msgspec import Struct, field
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headway.plan.ledger import Phase
from headway.reports.scores import scores
from headway.reports.widgets import NARROW, Bar, Unit, duration
from headway.units import format_bytes

HISTORY = 40
"""Steps in the sparkline."""

RECENT = 10
"""Steps whose mean time the estimate of the time left goes by."""

_LEVELS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float]) -> str:
    """The course of some values, lowest to highest.

    >>> sparkline([0.0, 0.5, 1.0, 0.25])
    '▁▅█▃'
    """
    if not values:
        return ""
    low, high = min(values), max(values)
    if high == low:
        return _LEVELS[0] * len(values)
    return "".join(_LEVELS[round((value - low) / (high - low) * (len(_LEVELS) - 1))] for value in values)


class Progress(Struct):
    """What a view knows of its run. `limit` and `predicted` are bytes of the process tree's pool."""

    total_steps: int
    limit: int | None
    predicted: int
    phase: Phase = Phase.LOAD
    step: int = 0
    done: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    rewards: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY))
    finished_at: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT + 1))
    evaluation: tuple[int, float] | None = None
    used: int | None = None
    peak: int = 0

    def take_phase(self, phase: Phase, step: int, now: float) -> None:
        """A phase begins. The first step's starts the clock, and tells a resumed run how many are done."""
        self.phase, self.step = phase, step
        if phase in (Phase.ROLLOUT, Phase.SCORE, Phase.TRAIN) and not self.finished_at:
            self.finished_at.append(now)
            self.done = step - 1

    def take_step(self, metrics: Mapping[str, float], now: float) -> None:
        """A step is done."""
        self.done, self.metrics = int(metrics["step"]), metrics
        if "reward" in metrics:
            self.rewards.append(metrics["reward"])
        self.finished_at.append(now)
        self.peak = max(self.peak, int(metrics.get("memory_peak", 0)))

    def take_memory(self, used: int) -> None:
        """The process tree holds `used` bytes now."""
        self.used, self.peak = used, max(self.peak, used)

    def seconds_left(self) -> float | None:
        """Time to the last step at the pace of the last ones, their evaluations and saves included."""
        if len(self.finished_at) < 2:
            return None
        pace = (self.finished_at[-1] - self.finished_at[0]) / (len(self.finished_at) - 1)
        return pace * (self.total_steps - self.done)


def render(progress: Progress, width: int) -> Table:
    """The live view at one moment: six rows in `width` cells, made for 80 and for 120; longer ones fold."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), show_header=False, expand=True)
    table.add_column(style="dim", no_wrap=True, min_width=7)
    table.add_column(ratio=1, overflow="fold")
    bar_width = 8 if width < NARROW else 24 if width < 100 else HISTORY
    metrics = progress.metrics
    table.add_row("step", _step_row(progress, bar_width))
    if metrics:
        table.add_row("reward", _reward_row(progress, bar_width))
        table.add_row("answers", ", ".join(_answers(metrics)))
        table.add_row("speed", ", ".join(_speed(metrics)))
        table.add_row("policy", ", ".join(_policy(metrics)))
    table.add_row("memory", _memory_row(progress, bar_width))
    return table


def _step_row(progress: Progress, width: int) -> Text:
    bar = Bar(progress.done, progress.done, None, max(1, progress.total_steps), "cyan").text(width)
    bar.no_wrap = None  # what follows it may fold
    left = progress.seconds_left()
    ahead = f", {duration(left)} left" if left else ""
    after = progress.phase in (Phase.EVAL, Phase.SAVE)
    where = f" {'after' if after else 'of'} step {progress.step}" if progress.step else ""
    now = f" done, {progress.phase}{where}{ahead}"
    return bar.append(" ").append(f"{progress.done}/{progress.total_steps}", "bold").append(now)


def _reward_row(progress: Progress, width: int) -> Text:
    line = sparkline(list(progress.rewards)[-width:]).ljust(width)
    parts = [f", {part}" for part in (_correct(progress.metrics), _without_spread(progress.metrics)) if part]
    if progress.evaluation is not None:
        parts.append(", held out {1:.3f} at {0}".format(*progress.evaluation))
    return Text.assemble((line, "cyan"), " ", (_reward(progress.metrics), "bold"), "".join(parts))


def _reward(metrics: Mapping[str, float]) -> str:
    return f"{metrics['reward']:.3f}" if "reward" in metrics else "-"


def _correct(metrics: Mapping[str, float]) -> str:
    """The share of right answers, where it is not the reward itself."""
    return f"correct {metrics['correct']:.3f}" if "correct" in metrics else ""


def _without_spread(metrics: Mapping[str, float]) -> str:
    """The share of groups in which no answer is better than another."""
    share = metrics.get("frac_reward_zero_std", 0.0)
    return f"{share:.0%} of groups with equal rewards" if share else ""


def _why_nothing(metrics: Mapping[str, float]) -> str:
    """Why no token was trained, in brackets; nothing where some were."""
    if metrics.get("trained_tokens") != 0 or metrics.get("frac_reward_zero_std") != 1:
        return ""
    if metrics.get("reward_failures"):
        return " (no group has two different rewards: nothing to learn from)"
    return " (all groups had equal rewards: nothing to learn from)"


def _memory_row(progress: Progress, width: int) -> Text:
    """Solid: now; shaded: the peak so far; mark: the predicted peak; full width: the limit."""
    used, limit = progress.used, progress.limit
    scale = max(limit or 0, progress.predicted, progress.peak)
    style = "red" if limit is not None and progress.peak > limit else "green"
    unit = Unit.for_size(scale)
    now = "-" if used is None else unit.text(used)
    of = "" if limit is None else f" of {unit.text(limit)}"
    rest = f"{of} {unit.name}, peak {unit.text(progress.peak)}, predicted {unit.text(progress.predicted)}"
    bar = Bar(used or 0, progress.peak, progress.predicted, scale, style, "bold").text(width)
    bar.no_wrap = None  # what follows it may fold
    return bar.append(" ").append(now, "bold").append(rest)


def _answers(metrics: Mapping[str, float]) -> list[str]:
    """Phrases about the answers; only what the metrics have."""
    parts = [f"{metrics['answer_tokens']:.1f} tokens"] if "answer_tokens" in metrics else []
    parts += [f"{metrics['answer_truncated']:.0%} cut off"] if metrics.get("answer_truncated") else []
    parts += [f"{metrics['dropped']:.0f} dropped for memory"] if metrics.get("dropped") else []
    parts += [f"{metrics['splits']:.0f} splits"] if metrics.get("splits") else []
    if failed := int(metrics.get("reward_failures", 0)):
        parts.append(f"{failed:,} reward{'' if failed == 1 else 's'} failed")
    return parts


def _speed(metrics: Mapping[str, float]) -> list[str]:
    names = (("rollout_tokens_per_s", "rollout"), ("train_tokens_per_s", "train"))
    parts = [f"{about} {metrics[name]:,.0f} tok/s" for name, about in names if name in metrics]
    if "train_tokens_per_s" in metrics:
        parts[-1] += _why_nothing(metrics)
    return [*parts, f"{duration(metrics['seconds'])} a step"] if "seconds" in metrics else parts


def _policy(metrics: Mapping[str, float]) -> list[str]:
    """Phrases about the update; KL, clip fraction and entropy only where the objective makes them."""
    formats = (("loss", "loss {:.4f}"), ("grad_norm", "grad {:.2f}"), ("lr", "lr {:.1e}"))
    optional = (("kl", "kl {:.4f}"), ("clip_fraction", "clip {:.1%}"), ("entropy", "entropy {:.2f}"))
    parts = [text.format(metrics[name]) for name, text in formats if name in metrics]
    return parts + [text.format(metrics[name]) for name, text in optional if metrics.get(name)]


def step_line(progress: Progress) -> str:
    """The plain line of a step that is done."""
    metrics = progress.metrics
    width = len(str(progress.total_steps))
    parts = [f"step {progress.done:>{width}}/{progress.total_steps}", f"reward {_reward(metrics)}"]
    parts += [part for part in (_correct(metrics), *_answers(metrics), _without_spread(metrics)) if part]
    parts += [text.replace(" tok/s", "/s") for text in _speed(metrics) if " tok/s" in text]
    parts += [part for part in _policy(metrics) if part.startswith(("kl", "clip"))]
    parts += [f"{metrics['seconds']:.1f} s"] if "seconds" in metrics else []
    parts += [format_bytes(int(metrics["memory_peak"]))] if metrics.get("memory_peak") else []
    left = progress.seconds_left()
    return "  ".join([*parts, f"{duration(left)} left"] if left else parts)


def evaluation_line(step: int, result: Mapping[str, float]) -> str:
    """The plain line of an evaluation."""
    found = ", ".join(f"{name} {value:.3f}" for name, value in scores(result).items())
    parts = [f"evaluation after {step} steps: {found or 'no answer could be scored'}"]
    parts += [f"{result['problems']:.0f} problems"] if "problems" in result else []
    return ", ".join(parts + _answers(result))


class LiveView:
    """Shows a run in a terminal, redrawn a few times a second; evaluations and messages scroll by above."""

    def __init__(self, console: Console, total_steps: int, limit: int | None, predicted: int) -> None:
        self._progress = Progress(total_steps, limit, predicted)
        self._lock = threading.Lock()
        self._console = console
        self._live = Live(console=console, refresh_per_second=4, get_renderable=self._render)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def phase(self, phase: Phase, step: int) -> None:
        """A phase of a step begins."""
        with self._lock:
            self._progress.take_phase(phase, step, time.monotonic())

    def step(self, metrics: Mapping[str, float]) -> None:
        """A step is done."""
        with self._lock:
            self._progress.take_step(metrics, time.monotonic())

    def evaluation(self, step: int, result: Mapping[str, float]) -> None:
        """An evaluation is done."""
        with self._lock:
            found = list(scores(result).values())
            self._progress.evaluation = (step, found[0]) if found else self._progress.evaluation
        self.message(evaluation_line(step, result))

    def memory(self, used: int) -> None:
        """The process tree holds `used` bytes now."""
        with self._lock:
            self._progress.take_memory(used)

    def message(self, text: str) -> None:
        """Something to be told once."""
        self._console.print(Text(text))

    def notice(self, text: str) -> None:
        """Something that cannot wait, from any thread."""
        self.message(text)

    def _render(self) -> Table:
        with self._lock:
            return render(self._progress, self._console.width)


class PlainView:
    """Writes one line a step and one an evaluation, for files, pipes and other programs."""

    def __init__(self, stream: TextIO, total_steps: int, limit: int | None, predicted: int) -> None:
        self._progress = Progress(total_steps, limit, predicted)
        self._stream = stream

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def phase(self, phase: Phase, step: int) -> None:
        """A phase of a step begins."""
        self._progress.take_phase(phase, step, time.monotonic())

    def step(self, metrics: Mapping[str, float]) -> None:
        """A step is done."""
        self._progress.take_step(metrics, time.monotonic())
        self.message(step_line(self._progress))

    def evaluation(self, step: int, result: Mapping[str, float]) -> None:
        """An evaluation is done."""
        self.message(evaluation_line(step, result))

    def memory(self, used: int) -> None:
        """The process tree holds `used` bytes now; a step's line has its peak."""

    def message(self, text: str) -> None:
        """A line, at once."""
        self._stream.write(text + "\n")
        self._stream.flush()

    def notice(self, text: str) -> None:
        """Something that cannot wait, from any thread: a line on standard error, past every buffer."""
        os.write(2, f"{text}\n".encode())
