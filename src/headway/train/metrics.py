"""One flat record per step, and where it is written: metrics.jsonl, TensorBoard, Weights & Biases."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import fmean, pstdev
from typing import Any

from headway.config.sections import OutputSection
from headway.errors import InputError
from headway.plan.ledger import Phase
from headway.rollout.samples import Sample, share_correct
from headway.train.advantage import group_rewards, spread
from headway.train.loss import LossStats
from headway.train.output import RunFolder, append


class StepClock:
    """Seconds spent in each part of a step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._start = time.monotonic()

    @contextmanager
    def time(self, part: str) -> Iterator[None]:
        """Add the time inside to `part`."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.seconds[part] = self.seconds.get(part, 0.0) + time.monotonic() - start

    def total(self) -> float:
        """Seconds since the step began: all parts, and what is between them."""
        return time.monotonic() - self._start


def step_record(
    step: int,
    samples: Sequence[Sample],
    group: int,
    stats: LossStats,
    clock: StepClock,
    trained: int,
    peaks: Mapping[Phase, int],
) -> dict[str, float]:
    """The documented metrics of a step (docs/train.md lists them). Means are over samples unless they say tokens.

    Each prompt has a `group` of samples. `trained` counts the prompt and response tokens that went through the
    backward pass.
    """
    answers = [len(sample.response_ids) for sample in samples]
    per_token = 1.0 / max(1.0, stats.tokens)
    return {
        "step": float(step),
        **_rewards(samples, group),
        "answer_tokens": fmean(answers),
        "answer_tokens_max": float(max(answers)),
        "answer_truncated": fmean(sample.finish == "length" for sample in samples),
        "loss": stats.loss,
        "kl": stats.kl * per_token,
        "entropy": stats.entropy * per_token,
        "clip_fraction": stats.clipped * per_token,
        "sampler_logprob": fmean(fmean(s.sampler_logprobs) for s in samples if s.sampler_logprobs),
        "trained_tokens": float(trained),
        "splits": stats.splits,
        "seconds": clock.total(),
        **{f"seconds_{part}": seconds for part, seconds in clock.seconds.items()},
        **_rate("rollout_tokens_per_s", sum(answers), clock.seconds.get("rollout", 0.0)),
        **_rate("train_tokens_per_s", trained, clock.seconds.get("train", 0.0)),
        **{f"memory_{phase}": float(peak) for phase, peak in peaks.items()},
        "memory_peak": float(max(peaks.values(), default=0)),
    }


def _rewards(samples: Sequence[Sample], group: int) -> dict[str, float]:
    """What the samples earned, those that could not be scored left out; how many those are, by reason."""
    rewards = [sample.reward for sample in samples if sample.reward is not None]
    correct = share_correct(samples)
    failures = Counter(sample.reason for sample in samples if sample.reason is not None)
    return {
        **({"reward": fmean(rewards), "reward_std": pstdev(rewards)} if rewards else {}),
        **({} if correct is None else {"correct": correct}),
        "frac_reward_zero_std": 1 - fmean(spread(group_rewards(samples, group)).tolist()),
        "reward_failures": float(failures.total()),
        **{f"reward_failures/{reason}": float(count) for reason, count in failures.items()},
    }


def _rate(name: str, tokens: int, seconds: float) -> dict[str, float]:
    """Tokens in a second; none where the phase took no time, as after a resume of a step that was partly done.

    >>> _rate("rollout_tokens_per_s", 256, 2.0), _rate("rollout_tokens_per_s", 256, 0.0)
    ({'rollout_tokens_per_s': 128.0}, {})
    """
    return {name: tokens / seconds} if seconds > 0 else {}


COLUMNS = ("prompt", "label", "response", "reward", "score", "correct", "failure", "finish")
"""What trackers show of a sample; the keys are those of rollouts.jsonl."""


class Writers:
    """Where records go. metrics.jsonl always; TensorBoard and Weights & Biases when asked."""

    def __init__(self, folder: RunFolder, section: OutputSection) -> None:
        self.folder = folder
        self.tensorboard = _tensorboard(folder) if section.tensorboard else None
        self.wandb = _wandb(folder) if section.wandb else None

    def step(self, record: Mapping[str, float]) -> None:
        """Write the record of a step."""
        append(self.folder.metrics, record)
        self._send("train", record)

    def evaluation(self, step: int, result: Mapping[str, float]) -> None:
        """Write an evaluation."""
        self._send("eval", {"step": float(step)} | dict(result))

    def samples(self, phase: Phase, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Send answers with their prompts and labels, as text to TensorBoard and as a table to Weights & Biases."""
        if self.tensorboard is not None:
            self.tensorboard.add_text(f"samples/{phase}", "\n\n---\n\n".join(map(_as_text, rows)), step)
        if self.wandb is not None:
            import wandb

            table = wandb.Table(columns=list(COLUMNS), data=[[row[name] for name in COLUMNS] for row in rows])
            self.wandb.log({f"samples/{phase}": table}, step=step)

    def _send(self, group: str, record: Mapping[str, float]) -> None:
        step = int(record["step"])
        values = {f"{group}/{key}": value for key, value in record.items() if key not in ("step", "time")}
        if self.tensorboard is not None:
            for key, value in values.items():
                self.tensorboard.add_scalar(key, value, step)
            self.tensorboard.flush()
        if self.wandb is not None:
            self.wandb.log(values, step=step)

    def close(self) -> None:
        """Flush and close."""
        if self.tensorboard is not None:
            self.tensorboard.close()
        if self.wandb is not None:
            self.wandb.finish()


def _as_text(row: Mapping[str, Any]) -> str:
    """A sample in Markdown; texts of others are indented, so that nothing in them is taken for markup."""
    parts = []
    for name in COLUMNS:
        if row[name] is not None:
            lines = "\n".join(f"    {line}" for line in str(row[name]).splitlines()) or "    "
            parts.append(f"**{name}**\n\n{lines}")
    return "\n\n".join(parts)


def _tensorboard(folder: RunFolder) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder.tensorboard))


def _wandb(folder: RunFolder) -> Any:
    try:
        import wandb
    except ImportError:
        raise InputError("output.wandb = true: the package wandb is not installed; pip install wandb") from None
    return wandb.init(project="headway", name=folder.root.name, dir=str(folder.root), resume="allow")
