"""A tape of differentiable operations and the bytes that replaying it forward and backward holds.

The tape lists what a piece of a model computes, with the size of every result and what autograd keeps of it. The
replay follows torch's rules: a result lives until Python's last reference and the last operation that keeps it are
gone; the backward pass goes through the operations in reverse, allocates the gradients of an operation's inputs,
then frees the gradient of its result and what it kept; a second gradient for the same tensor is added to the first.

Every size is linear in what a batch has of tokens, of pairs that attention looks at and of response tokens. So a
replay needs no batch: it returns the candidates for the peak, and a batch chooses the largest.
"""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from msgspec import Struct


class Size(NamedTuple):
    """Bytes per token, per pair of tokens, per response token, and bytes that no batch changes.

    >>> Size(tokens=4).plus(Size(fixed=100)).at(Size(tokens=10, fixed=1))
    140
    """

    tokens: int = 0
    pairs: int = 0
    responses: int = 0
    fixed: int = 0

    def plus(self, other: "Size") -> "Size":
        """The sum."""
        if other is NOTHING:
            return self
        tokens, pairs, responses, fixed = self
        more_tokens, more_pairs, more_responses, more_fixed = other
        return _new(Size, (tokens + more_tokens, pairs + more_pairs, responses + more_responses, fixed + more_fixed))

    def minus(self, other: "Size") -> "Size":
        """The difference."""
        tokens, pairs, responses, fixed = self
        less_tokens, less_pairs, less_responses, less_fixed = other
        return _new(Size, (tokens - less_tokens, pairs - less_pairs, responses - less_responses, fixed - less_fixed))

    def times(self, factor: int) -> "Size":
        """A multiple."""
        return Size(self.tokens * factor, self.pairs * factor, self.responses * factor, self.fixed * factor)

    def at(self, counts: "Size") -> int:
        """Bytes for a batch with these counts of tokens, pairs and responses; its `fixed` is 1."""
        tokens, pairs, responses, fixed = self
        of_tokens, of_pairs, of_responses, of_fixed = counts
        return tokens * of_tokens + pairs * of_pairs + responses * of_responses + fixed * of_fixed

    def covers(self, other: "Size") -> bool:
        """Whether no batch makes the other larger."""
        tokens, pairs, responses, fixed = self
        of_tokens, of_pairs, of_responses, of_fixed = other
        return tokens >= of_tokens and pairs >= of_pairs and responses >= of_responses and fixed >= of_fixed


NOTHING = Size()
_new = tuple.__new__
"""A tape is replayed for each model and precision with some 2,000 sums, most of the time of a first plan."""


class Peak(Struct, frozen=True):
    """The most of several sizes, each the largest for some batch.

    >>> Peak.of([Size(tokens=2), Size(tokens=1), Size(fixed=30)]).at(Size(tokens=10, fixed=1))
    30
    """

    candidates: tuple[Size, ...]

    @classmethod
    def of(cls, sizes: Iterable[Size]) -> "Peak":
        """Without those that another one covers."""
        kept: list[Size] = []
        for size in sorted(set(sizes), reverse=True):
            if not any(other.covers(size) for other in kept):
                kept.append(size)
        return cls(tuple(kept))

    def plus(self, size: Size) -> "Peak":
        """With something beside it all along."""
        return Peak(tuple(each.plus(size) for each in self.candidates))

    def at(self, counts: Size) -> int:
        """Bytes for a batch."""
        of_tokens, of_pairs, of_responses, of_fixed = counts
        return max([
            tokens * of_tokens + pairs * of_pairs + responses * of_responses + fixed * of_fixed
            for tokens, pairs, responses, fixed in self.candidates
        ])  # fmt: skip


class Op(Struct, frozen=True):
    """One operation.

    `keeps` names what it saves for its backward pass. `passes`: the gradient of the result is itself that of the
    inputs (an addition, a view). `extra` and `backward_extra` are temporaries; `weight` the gradient of the
    parameter it uses, nothing where that is frozen.
    """

    inputs: tuple[str, ...]
    output: str
    keeps: tuple[str, ...] = ()
    passes: bool = False
    extra: Size = NOTHING
    backward_extra: Size = NOTHING
    weight: Size = NOTHING


class Tape:
    """Operations in order. `sizes` are those of tensors by name; a view has the name of its tensor."""

    def __init__(self, source: str, size: Size) -> None:
        self.source = source
        self.sizes = {source: size}
        self.events: list[Op | str] = []
        self.ops: list[Op] = []
        """The operations without the drops."""

    def add(
        self,
        output: str,
        size: Size,
        *inputs: str,
        keeps: Iterable[str] = (),
        passes: bool = False,
        extra: Size = NOTHING,
        backward_extra: Size = NOTHING,
        weight: Size = NOTHING,
    ) -> str:
        """Append an operation and return the name of its result."""
        assert output not in self.sizes, output
        self.sizes[output] = size
        op = Op(inputs, output, tuple(keeps), passes, extra, backward_extra, weight)
        self.events.append(op)
        self.ops.append(op)
        return output

    def keep(self, name: str, size: Size) -> str:
        """A by-product that only a later `keeps` may name, such as the statistics of a softmax."""
        self.sizes[name] = size
        return name

    def drop(self, *names: str) -> None:
        """Python's last reference to these tensors goes here."""
        self.events += names

    def kept_names(self) -> set[str]:
        """What the backward pass needs of the forward pass."""
        return {name for op in self.ops for name in op.keeps}

    def kept(self) -> Size:
        """Size of what the backward pass keeps from the forward pass, the source among it where it is kept."""
        return self._sum(self.kept_names())

    def weights(self) -> Size:
        """Size of the gradients of all parameters."""
        total = NOTHING
        for op in self.ops:
            total = total.plus(op.weight)
        return total

    def _sum(self, names: Iterable[str]) -> Size:
        total = NOTHING
        for name in names:
            total = total.plus(self.sizes[name])
        return total

    def forward(self, *, grad: bool, stop_early: bool = False) -> Peak:
        """The most that is alive at a time while the tape runs, its source included.

        Without `grad` nothing is kept. `stop_early`: it ends with the last operation that keeps something.
        """
        kept = self.kept_names() if grad else set()
        last = max((i for i, event in enumerate(self.events) if isinstance(event, Op) and event.keeps), default=-1)
        live = {self.source}
        total = self.sizes[self.source]
        peaks = [total]
        for index, event in enumerate(self.events):
            if stop_early and index > last:
                break
            if isinstance(event, str):
                if event in live and event not in kept:
                    live.remove(event)
                    total = total.minus(self.sizes[event])
                continue
            for name in (event.output, *(event.keeps if grad else ())):
                if name not in live:
                    live.add(name)
                    total = total.plus(self.sizes[name])
            peaks.append(total.plus(event.extra))
        return Peak.of(peaks)

    def backward(self, *, accumulate: bool) -> Peak:
        """The most that is alive at a time in the backward pass, which starts with the gradient of the result.

        `accumulate`: parameters have gradients already, so that each new one lives only until it is added; else it
        stays.
        """
        return self.backwards()[accumulate]

    def backwards(self) -> tuple[Peak, Peak]:
        """`backward` of both kinds in one pass: where gradients stay, and where they are added."""
        uses = Counter(name for op in self.ops for name in set(op.keeps))
        kept = self._sum(uses)
        gradients = _Gradients(self.sizes)
        gradients.give(self.ops[-1].output)
        weights = NOTHING
        added = [kept.plus(gradients.total)]
        stayed = list(added)
        for op in reversed(self.ops):
            fresh = gradients.receive(op)
            held = kept.plus(gradients.total).plus(fresh).plus(op.backward_extra).plus(op.weight)
            added.append(held)
            stayed.append(held.plus(weights))
            gradients.release(op.output)
            weights = weights.plus(op.weight)
            for name in set(op.keeps):
                uses[name] -= 1
                if not uses[name]:
                    kept = kept.minus(self.sizes[name])
        return Peak.of(stayed), Peak.of(added)

    def recompute(self) -> Peak:
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
        return self.forward(grad=True, stop_early=True).plus(gradients.total)


class _Gradients:
    """Gradients alive in a backward pass. Several tensors may share one; adding to a shared one makes a new one."""

    def __init__(self, sizes: dict[str, Size]) -> None:
        self._sizes = sizes
        self._of: dict[str, int] = {}
        self._size: list[Size] = []
        self._sharers: list[int] = []
        self.total = NOTHING

    def give(self, name: str) -> None:
        """A gradient of its own for a tensor that has none."""
        size = self._sizes[name]
        self._of[name] = len(self._size)
        self._size.append(size)
        self._sharers.append(1)
        self.total = self.total.plus(size)

    def receive(self, op: Op) -> Size:
        """Allocate gradients of an operation's inputs; returns the size of those that are added and then freed."""
        fresh = NOTHING
        for name in op.inputs:
            if name not in self._of:
                if op.passes:
                    key = self._of[name] = self._of[op.output]
                    self._sharers[key] += 1
                else:
                    self.give(name)
                continue
            if not op.passes:
                fresh = fresh.plus(self._sizes[name])
            if self._sharers[self._of[name]] > 1:
                self.release(name)
                self.give(name)
        return fresh

    def release(self, name: str) -> None:
        """A gradient is no longer needed for this tensor."""
        key = self._of.pop(name)
        self._sharers[key] -= 1
        if not self._sharers[key]:
            self.total = self.total.minus(self._size[key])
