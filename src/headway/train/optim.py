"""AdamW with fp32 state over parameters of any dtype, the gradient norm, and the learning-rate schedule.

Bytes per parameter element, all of it created in the first step (nothing exists before it):

| parameter | exp_avg | exp_avg_sq | master | sum |
|---|---|---|---|---|
| fp32 | 4 | 4 | - | 8 |
| bf16 | 4 | 4 | 4 | 12 |

and one 4-byte step count per parameter, on the CPU. Temporaries do not grow with the model: both passes go through
a parameter in blocks of n = min(2**20, elements of the largest parameter), in buffers allocated once per pass (small
allocations between large ones would leave holes that a C allocator cannot reuse).

| | fp32 | bf16 |
|---|---|---|
| `step` | 4n: the denominator | 8n: the denominator, the gradient in fp32 |
| `clip_` | 0 | 4n: the gradient in fp32 |

that is at most 8 MiB. Each gradient is freed as soon as its parameter is updated, so in the first step the state of
a parameter appears when the gradients of those before it are gone.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

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
        blocks = [block for gradient in gradients for (block,) in _blocks(gradient)]
        if not blocks:
            return 0.0
        norms = blocks[0].new_empty(len(blocks), dtype=_exact(blocks[0].dtype))
        cast = _Cast(gradients)
        for block, norm in zip(blocks, norms, strict=True):
            torch.linalg.vector_norm(cast(block), dtype=norm.dtype, out=norm)
        total = float(torch.linalg.vector_norm(norms.double()))
        if max_norm > 0 and math.isfinite(total) and total > max_norm:
            for gradient in gradients:
                gradient.mul_(max_norm / total)
        return total

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Update every parameter that has a gradient, and free the gradient."""
        ready = {name: value for name, value in self._parameters.items() if value.grad is not None}
        if not ready:
            return
        cast = _Cast([value.grad for value in ready.values() if value.grad is not None])
        denominator = _block(list(ready.values()))
        for name, parameter in ready.items():
            if name not in self._states:
                self._states[name] = State.of(parameter)
            self._update(parameter, self._states[name], lr, cast, denominator)
            parameter.grad = None

    def _update(self, parameter: Tensor, state: State, lr: float, cast: "_Cast", denominator: Tensor) -> None:
        """One parameter, in torch.optim.AdamW's order of operations, so that fp32 rounds alike."""
        assert parameter.grad is not None
        beta1, beta2 = self._betas
        state.step += 1
        step = state.step.item()
        rate, root = lr / (1 - beta1**step), (1 - beta2**step) ** 0.5
        decay = 1 - lr * self._weight_decay if parameter.ndim >= 2 else 1.0
        target = parameter if state.master is None else state.master
        for own, exact, gradient, exp_avg, exp_avg_sq in _blocks(
            parameter, target, parameter.grad, state.exp_avg, state.exp_avg_sq
        ):
            gradient = cast(gradient)
            if decay != 1:
                exact.mul_(decay)
            exp_avg.lerp_(gradient, 1 - beta1)
            exp_avg_sq.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
            divisor = torch.sqrt(exp_avg_sq, out=denominator[: len(exact)]).div_(root).add_(self._eps)
            exact.addcdiv_(exp_avg, divisor, value=-rate)
            if state.master is not None:
                own.copy_(exact)

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


class _Cast:
    """Casts half-precision blocks to fp32 in one buffer; what is exact already passes through."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        half = [tensor for tensor in tensors if tensor.dtype != _exact(tensor.dtype)]
        self._buffer = _block(half) if half else None

    def __call__(self, block: Tensor) -> Tensor:
        if self._buffer is None or block.dtype == _exact(block.dtype):
            return block
        return self._buffer[: len(block)].copy_(block)


def _block(tensors: Sequence[Tensor]) -> Tensor:
    """An exact buffer for the largest block of the tensors."""
    size = min(BLOCK, max(tensor.numel() for tensor in tensors))
    return tensors[0].new_empty(size, dtype=_exact(tensors[0].dtype))


def _blocks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The tensors, flattened alike, block by block; views, so that writing to a block writes to its tensor."""
    flat = [tensor.view(-1) for tensor in tensors]
    for start in range(0, flat[0].numel(), BLOCK):
        yield tuple(tensor[start : start + BLOCK] for tensor in flat)
