"""A tape of differentiable operations and the bytes that replaying it forward and backward holds.

The tape lists what a piece of a model computes, with the size of every result and what autograd keeps of it. The
replay follows torch's rules: a result lives until Python's last reference and the last operation that keeps it are
gone; the backward pass goes through the operations in reverse, allocates the gradients of an operation's inputs,
then frees the gradient of its result and what it kept; a second gradient for the same tensor is added to the first.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Op:
    """One operation, in bytes.

    `keeps` names what it saves for its backward pass. `passes`: the gradient of the result is itself that of the
    inputs (an addition, a view). `extra` and `backward_extra` are temporaries; `weight` the gradient of the
    parameter it uses, 0 where that is frozen.
    """

    inputs: tuple[str, ...]
    output: str
    keeps: tuple[str, ...] = ()
    passes: bool = False
    extra: int = 0
    backward_extra: int = 0
    weight: int = 0


class Tape:
    """Operations in order. `sizes` are the bytes of tensors by name; a view has the name of its tensor."""

    def __init__(self, source: str, size: int) -> None:
        self.source = source
        self.sizes = {source: size}
        self.events: list[Op | str] = []

    def add(
        self,
        output: str,
        size: int,
        *inputs: str,
        keeps: Iterable[str] = (),
        passes: bool = False,
        extra: int = 0,
        backward_extra: int = 0,
        weight: int = 0,
    ) -> str:
        """Append an operation and return the name of its result."""
        assert output not in self.sizes, output
        self.sizes[output] = size
        self.events.append(Op(inputs, output, tuple(keeps), passes, extra, backward_extra, weight))
        return output

    def keep(self, name: str, size: int) -> str:
        """A by-product that only a later `keeps` may name, such as the statistics of a softmax."""
        self.sizes[name] = size
        return name

    def drop(self, *names: str) -> None:
        """Python's last reference to these tensors goes here."""
        self.events += names

    @property
    def ops(self) -> list[Op]:
        """The operations without the drops."""
        return [event for event in self.events if isinstance(event, Op)]

    def kept(self) -> int:
        """Bytes that the backward pass keeps from the forward pass, the source among them where it is kept."""
        return sum(self.sizes[name] for name in {name for op in self.ops for name in op.keeps})

    def weights(self) -> int:
        """Bytes of the gradients of all parameters."""
        return sum(op.weight for op in self.ops)

    def forward(self, *, grad: bool, stop_early: bool = False) -> int:
        """The most that is alive at a time while the tape runs, its source included.

        Without `grad` nothing is kept. `stop_early`: it ends with the last operation that keeps something.
        """
        kept = {name for op in self.ops for name in op.keeps} if grad else set()
        last = max((i for i, event in enumerate(self.events) if isinstance(event, Op) and event.keeps), default=-1)
        live = {self.source}
        peak = self.sizes[self.source]
        for index, event in enumerate(self.events):
            if stop_early and index > last:
                break
            if isinstance(event, str):
                live -= {event} - kept
                continue
            live |= {event.output, *(event.keeps if grad else ())}
            peak = max(peak, sum(self.sizes[name] for name in live) + event.extra)
        return peak

    def backward(self, *, accumulate: bool) -> int:
        """The most that is alive at a time in the backward pass, which starts with the gradient of the result.

        `accumulate`: parameters have gradients already, so that each new one lives only until it is added; else it
        stays.
        """
        uses = Counter(name for op in self.ops for name in set(op.keeps))
        kept = sum(self.sizes[name] for name in uses)
        gradients = _Gradients(self.sizes)
        gradients.give(self.ops[-1].output)
        weights = 0
        peak = kept + gradients.bytes
        for op in reversed(self.ops):
            fresh = gradients.receive(op)
            peak = max(peak, kept + weights + gradients.bytes + fresh + op.backward_extra + op.weight)
            gradients.release(op.output)
            weights += 0 if accumulate else op.weight
            for name in set(op.keeps):
                uses[name] -= 1
                kept -= 0 if uses[name] else self.sizes[name]
        return peak

    def recompute(self) -> int:
        """The most that is alive while a checkpointed tape runs again: its forward pass and the gradients by then.

        It runs again when the backward pass first needs something that it kept, and ends when it has all of that.
        """
        gradients = _Gradients(self.sizes)
        gradients.give(self.ops[-1].output)
        for op in reversed(self.ops):
            if op.keeps:
                break
            gradients.receive(op)
            gradients.release(op.output)
        return self.forward(grad=True, stop_early=True) + gradients.bytes


class _Gradients:
    """Gradients alive in a backward pass. Several tensors may share one; adding to a shared one makes a new one."""

    def __init__(self, sizes: dict[str, int]) -> None:
        self._sizes = sizes
        self._of: dict[str, int] = {}
        self._size: dict[int, int] = {}
        self._next = 0
        self.bytes = 0

    def give(self, name: str) -> None:
        """A gradient of its own for a tensor that has none."""
        self._of[name] = self._next
        self._size[self._next] = self._sizes[name]
        self.bytes += self._sizes[name]
        self._next += 1

    def receive(self, op: Op) -> int:
        """Allocate the gradients of an operation's inputs; returns bytes of those that are added and then freed."""
        fresh = 0
        for name in op.inputs:
            if name not in self._of:
                if op.passes:
                    self._of[name] = self._of[op.output]
                else:
                    self.give(name)
                continue
            if not op.passes:
                fresh += self._sizes[name]
            if self._shared(name):
                self.release(name)
                self.give(name)
        return fresh

    def release(self, name: str) -> None:
        """A gradient is no longer needed for this tensor."""
        key = self._of.pop(name)
        if key not in self._of.values():
            self.bytes -= self._size[key]

    def _shared(self, name: str) -> bool:
        return sum(key == self._of[name] for key in self._of.values()) > 1
