"""AdamW with fp32 state over parameters of any dtype, the gradient norm, and the learning-rate schedule.

Bytes per parameter element, all of it created in the first step (nothing exists before it):

| parameter | exp_avg | exp_avg_sq | master | sum |
|---|---|---|---|---|
| fp32 | 4 | 4 | - | 8 |
| bf16 | 4 | 4 | 4 | 12 |

and one 4-byte step count per parameter, on the CPU. Temporaries do not grow with the model: both passes go through
a parameter in blocks of n = min(2**20, its elements), so that of the largest parameter counts.

| | fp32 gradient | bf16 gradient |
|---|---|---|
| `step` | 8n (two results of Adam's denominator) | 12n (the same, and the gradient in fp32) |
| `clip_` | 0 | 4n (the gradient in fp32, where the kernel makes a copy to reduce it) |

that is at most 12 MiB. Each gradient is freed as soon as its parameter is updated, so in the first step the state
of a parameter appears when the gradients of those before it are gone.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from headway.config.sections import TrainSection
from headway.errors import InputError

BLOCK = 1 << 20
"""Elements of a parameter that are updated together."""


@dataclass
class State:
    """What AdamW keeps for one parameter; `master` only where the parameter is of half precision."""

    step: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor
    master: Tensor | None

    @classmethod
    def of(cls, parameter: Tensor) -> "State":
        """Zero moments, and a master equal to the parameter."""
        exact = _exact(parameter.dtype)
        return cls(
            step=torch.zeros(()),
            exp_avg=torch.zeros_like(parameter, dtype=exact, requires_grad=False),
            exp_avg_sq=torch.zeros_like(parameter, dtype=exact, requires_grad=False),
            master=None if parameter.dtype == exact else parameter.detach().to(exact),
        )

    def tensors(self) -> dict[str, Tensor]:
        """The state by field name, without what does not exist."""
        found = {"step": self.step, "exp_avg": self.exp_avg, "exp_avg_sq": self.exp_avg_sq}
        return found if self.master is None else {**found, "master": self.master}


class AdamW:
    """AdamW (Loshchilov & Hutter 2019) over named parameters; those that need no gradient are left out.

    The same numbers as torch.optim.AdamW, but a bf16 parameter is updated in an fp32 master and rounded back. Weight
    decay applies to parameters of two or more dimensions, embeddings included, not to norms and biases.
    """

    def __init__(
        self, parameters: Mapping[str, Tensor], *, betas: tuple[float, float], eps: float, weight_decay: float
    ) -> None:
        self._parameters = {name: value for name, value in parameters.items() if value.requires_grad}
        self._betas, self._eps, self._weight_decay = betas, eps, weight_decay
        self._states: dict[str, State] = {}

    @torch.no_grad()
    def clip_(self, max_norm: float) -> float:
        """Scale all gradients in place to a global norm of at most `max_norm`; returns the norm before.

        Gradients stay as they are at `max_norm` 0, and when the norm is not finite: it is for the caller to see that.
        """
        gradients = [p.grad for p in self._parameters.values() if p.grad is not None]
        norms = [
            torch.linalg.vector_norm(block, dtype=_exact(block.dtype)).double()
            for gradient in gradients
            for (block,) in _blocks(gradient)
        ]
        norm = float(torch.linalg.vector_norm(torch.stack(norms))) if norms else 0.0
        if max_norm > 0 and math.isfinite(norm) and norm > max_norm:
            for gradient in gradients:
                gradient.mul_(max_norm / norm)
        return norm

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Update every parameter that has a gradient, and free the gradient."""
        for name, parameter in self._parameters.items():
            if parameter.grad is None:
                continue
            if name not in self._states:
                self._states[name] = State.of(parameter)
            self._update(parameter, parameter.grad, self._states[name], lr)
            parameter.grad = None

    def _update(self, parameter: Tensor, gradient: Tensor, state: State, lr: float) -> None:
        decay = self._weight_decay if parameter.ndim >= 2 else 0.0
        beta1, beta2 = self._betas
        target = parameter if state.master is None else state.master
        for own, exact, grad, exp_avg, exp_avg_sq in _blocks(
            parameter, target, gradient, state.exp_avg, state.exp_avg_sq
        ):
            adamw(
                [exact], [grad.to(exact.dtype)], [exp_avg], [exp_avg_sq], [], [state.step.clone()],
                foreach=False, amsgrad=False, beta1=beta1, beta2=beta2, lr=lr, weight_decay=decay,
                eps=self._eps, maximize=False,
            )  # fmt: skip
            if state.master is not None:
                own.copy_(exact)
        state.step += 1

    def state_dict(self) -> dict[str, Tensor]:
        """The state as `<parameter>.<field>` -> tensor, not copied; empty before the first step."""
        return {
            f"{name}.{field}": tensor
            for name, state in self._states.items()
            for field, tensor in state.tensors().items()
        }

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over a saved state, bit for bit; each tensor is read once and copied to its parameter's device.

        A mapping that reads lazily therefore needs memory for one tensor beside the state. InputError, before
        anything is changed, names a tensor that is missing or of no parameter; or, on the way, one of another shape.
        """
        names = {key.rpartition(".")[0] for key in tensors}
        known = [name for name in self._parameters if name in names]
        expected = [f"{name}.{field}" for name in known for field in _fields(self._parameters[name])]
        odd = sorted(set(expected) ^ set(tensors))
        if odd:
            raise InputError(
                f"optimizer state does not belong to these parameters (for example {', '.join(odd[:3])})"
            )
        self._states = {}
        for name in known:
            state = State.of(self._parameters[name])
            for field, own in state.tensors().items():
                saved = tensors[f"{name}.{field}"]
                if saved.shape != own.shape or saved.dtype != own.dtype:
                    raise InputError(
                        f"optimizer state {name}.{field} is {saved.dtype} {tuple(saved.shape)}, "
                        f"the run has {own.dtype} {tuple(own.shape)}"
                    )
                own.copy_(saved)
            self._states[name] = state


def learning_rate(section: TrainSection, update: int, total_updates: int) -> float:
    """Learning rate of optimizer step `update` (from 0) of `total_updates`.

    Linear warm-up starts at lr / warmup and reaches lr at step warmup - 1; linear and cosine then fall towards 0,
    which the step after the last one would have.
    """
    if update < section.warmup:
        return section.lr * (update + 1) / section.warmup
    if section.schedule == "constant":
        return section.lr
    done = min(1.0, (update - section.warmup) / max(1, total_updates - section.warmup))
    if section.schedule == "linear":
        return section.lr * (1 - done)
    return section.lr * (1 + math.cos(math.pi * done)) / 2


def _exact(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _fields(parameter: Tensor) -> list[str]:
    fields = ["step", "exp_avg", "exp_avg_sq"]
    return fields if parameter.dtype == _exact(parameter.dtype) else [*fields, "master"]


def _blocks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The tensors, flattened alike, block by block; views, so that writing to a block writes to its tensor."""
    flat = [tensor.view(-1) for tensor in tensors]
    for start in range(0, flat[0].numel(), BLOCK):
        yield tuple(tensor[start : start + BLOCK] for tensor in flat)
