"""Answers that could not be scored: what is said of them, and when they end a run."""

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from headway.config.sections import RewardSection
from headway.errors import RewardsFailedError
from headway.rollout.samples import Sample

REMEDIES = {
    "exception": "mend the code that scores",
    "result": "let it return a finite number",
    "timeout": "make it faster, or set reward.timeout_s higher",
    "died": "mend what ends its process, or set reward.memory higher",
    "label": 'mend the labels, or set reward.kind = "exact"',
}
"""What to do about each kind of failure; the kinds are those of `Scorer.failures`."""


def heed_failures(
    samples: Sequence[Sample], where: str, reward: RewardSection, stops: Literal["never", "all", "most"]
) -> str | None:
    """A warning where half of the answers or more could not be scored, else None. `where` names step or evaluation.

    RewardsFailedError where it `stops` the run: all failed, or "most", which is more than half for one reason. Such
    a run would go on to its end and learn nothing. A scorer that is not the user's may be unable to read what an
    untrained model writes, and gives it 0: there it needs all of them.
    """
    reasons = Counter(sample.reason for sample in samples if sample.reason is not None)
    failed = reasons.total()
    if 2 * failed < len(samples):
        return None
    reason, count = reasons.most_common(1)[0]
    example = next(sample.failure for sample in samples if sample.reason == reason)
    unrewarded = all(sample.reward is None for sample in samples if sample.reason == reason)
    most = stops == "most" and unrewarded and 2 * count > len(samples)
    if most or (stops != "never" and failed == len(samples)):
        setting = f'reward.function = "{reward.function}"' if reward.function else f'reward.kind = "{reward.kind}"'
        raise RewardsFailedError(
            f"{setting}: {count:,} of {len(samples):,} answers of {where} could not be scored, so the run stops here "
            f"instead of learning nothing. The first: {example}. To go on, {REMEDIES[reason]}, and start the same "
            "command again; reward.log has answers and tracebacks"
        )
    return f"{where}: {failed:,} of {len(samples):,} answers could not be scored; mostly {example}"
