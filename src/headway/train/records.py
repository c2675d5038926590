"""The records that a step passes from stage to stage. T response tokens, B samples, S tokens of the longest."""

from dataclasses import dataclass

import torch
from torch import Tensor

from headway.rollout.samples import Sample

__all__ = ["MicroBatch", "Sample"]


@dataclass(frozen=True)
class MicroBatch:
    """Samples that go through the model together, padded on the right.

    Causal attention never looks right, so padding needs no mask and changes no result. The flat arrays have one
    entry per response token, sample after sample: `rows`/`columns` [T] is the position in `ids` [B, S] whose
    hidden state predicts `targets` [T]. `weights` [T] is what each token's loss counts in the optimizer step
    (the weights of all micro-batches of a step sum to 1 under token-mean and sample-mean).

    >>> # a prompt of 2 tokens and a response of 2: the states at columns 1 and 2 predict tokens 2 and 3
    """

    ids: Tensor
    rows: Tensor
    columns: Tensor
    targets: Tensor
    advantages: Tensor
    weights: Tensor
    old_logprobs: Tensor | None
    ref_logprobs: Tensor | None
    samples: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """Tokens that the model computes, padding included."""
        return self.ids.numel()

    def to(self, device: torch.device) -> "MicroBatch":
        """The same batch on another device."""

        def move(value: Tensor | None) -> Tensor | None:
            return None if value is None else value.to(device)

        return MicroBatch(
            ids=self.ids.to(device), rows=self.rows.to(device), columns=self.columns.to(device),
            targets=self.targets.to(device), advantages=self.advantages.to(device),
            weights=self.weights.to(device), old_logprobs=move(self.old_logprobs),
            ref_logprobs=move(self.ref_logprobs), samples=self.samples,
        )  # fmt: skip
