"""The replay of a tape against the live bytes of the same operations in torch."""

import pytest
import torch
from torch import Tensor, nn

from headway.plan.tape import Peak, Size, Tape

from ..train.live_bytes import LiveBytes

N, H, F = 64, 32, 96
ONE = Size(fixed=1)


def fixed(size: int) -> Size:
    """A size that no batch changes."""
    return Size(fixed=size)


def mlp_tape() -> Tape:
    """silu(gate(x)) * up(x) -> down, in fp32 with trained weights."""
    tape = Tape("x", fixed(4 * N * H))
    tape.add("gate", fixed(4 * N * F), "x", keeps=["x"], weight=fixed(4 * H * F))
    tape.add("active", fixed(4 * N * F), "gate", keeps=["gate"])
    tape.add("up", fixed(4 * N * F), "x", keeps=["x"], weight=fixed(4 * H * F))
    tape.add("product", fixed(4 * N * F), "active", "up", keeps=["active", "up"])
    tape.drop("active", "up")
    tape.add("down", fixed(4 * N * H), "product", keeps=["product"], weight=fixed(4 * H * F))
    tape.drop("product")
    return tape


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(H, F, bias=False), nn.Linear(H, F, bias=False)
        self.down = nn.Linear(F, H, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


@pytest.mark.parametrize("grad", [True, False])
def test_the_forward_replay_counts_what_torch_holds(grad: bool) -> None:
    mlp = Mlp()
    with LiveBytes(*mlp.parameters()) as live:
        x = torch.randn(N, H)
        with torch.set_grad_enabled(grad):
            result = mlp(x)
    assert result.shape == (N, H)
    tape = mlp_tape()
    if not grad:  # the gate is an argument of silu, so Python lets it go only then
        tape.events.insert(2, "gate")
    assert tape.forward(grad=grad).at(ONE) == live.peak


@pytest.mark.parametrize("accumulate", [False, True])
def test_the_backward_replay_counts_what_torch_holds(accumulate: bool) -> None:
    mlp, x = Mlp(), torch.randn(N, H)
    known = [*mlp.parameters()]
    if accumulate:
        mlp(x).sum().backward()
        known += [parameter.grad for parameter in mlp.parameters()]
    with LiveBytes(*known) as live:
        source = x + 0
        source.requires_grad_()
        result = mlp(source)
        gradient = torch.ones_like(result)
        live.peak = 0
        result.backward(gradient)
    tape = mlp_tape()
    assert tape.kept().fixed == 4 * N * (H + 4 * F)
    # the caller holds the result and its gradient all along, which the tape does not
    assert tape.backward(accumulate=accumulate).at(ONE) == pytest.approx(live.peak - 2 * result.nbytes, rel=0.03)


def test_a_second_gradient_is_added_to_the_first() -> None:
    """x is used twice: while the second gradient exists, so does the first."""
    tape = Tape("x", fixed(100))
    tape.add("a", fixed(10), "x", keeps=["x"])
    tape.add("b", fixed(10), "x", keeps=["x"])
    tape.add("c", fixed(10), "a", "b", passes=True)
    # kept x 100, shared gradient 10, gradient of x 100, a fresh one 100
    assert tape.backward(accumulate=True).at(ONE) == 310


def test_a_shared_gradient_is_not_added_in_place() -> None:
    """The residual's gradient is also that of the branch; the sum is a new tensor."""
    tape = Tape("x", fixed(100))
    tape.add("branch", fixed(100), "x", keeps=["x"])
    tape.add("out", fixed(100), "x", "branch", passes=True)
    # kept x 100, shared gradient 100, the branch's 100 and the sum 100
    assert tape.backward(accumulate=True).at(ONE) == 400


def test_weight_gradients_stay_only_without_earlier_ones() -> None:
    tape = Tape("x", fixed(1))
    for number in range(3):
        tape.add(f"y{number}", fixed(1), "x" if number == 0 else f"y{number - 1}", weight=fixed(1000))
    assert tape.weights().fixed == 3000
    assert tape.backward(accumulate=False).at(ONE) - tape.backward(accumulate=True).at(ONE) == 2000


def test_recomputing_ends_with_the_last_operation_that_keeps() -> None:
    tape = Tape("x", fixed(1))
    tape.add("kept", fixed(10), "x", keeps=["kept"])
    tape.add("out", fixed(1000), "kept")
    assert tape.forward(grad=True).at(ONE) == 1011
    assert tape.recompute().at(ONE) == 11 + 1000 - 1000 + 10  # gradient of "out" is gone, that of "kept" is there


def test_a_peak_is_the_largest_candidate_of_each_batch() -> None:
    sizes = [Size(tokens=3), Size(tokens=1, fixed=50), Size(pairs=1), Size(tokens=2), Size(fixed=50)]
    peak = Peak.of(sizes)
    assert len(peak.candidates) == 3
    for tokens, pairs in ((1, 1), (20, 4), (40, 10), (40, 900)):
        counts = Size(tokens, pairs, 0, 1)
        assert peak.at(counts) == max(size.at(counts) for size in sizes)
