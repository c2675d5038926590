"""The replay of a tape against the live bytes of the same operations in torch."""

import pytest
import torch
from torch import Tensor, nn

from headway.plan.tape import Tape

from ..train.live_bytes import LiveBytes

N, H, F = 64, 32, 96


def mlp_tape() -> Tape:
    """silu(gate(x)) * up(x) -> down, in fp32 with trained weights."""
    tape = Tape("x", 4 * N * H)
    tape.add("gate", 4 * N * F, "x", keeps=["x"], weight=4 * H * F)
    tape.add("active", 4 * N * F, "gate", keeps=["gate"])
    tape.add("up", 4 * N * F, "x", keeps=["x"], weight=4 * H * F)
    tape.add("product", 4 * N * F, "active", "up", keeps=["active", "up"])
    tape.drop("active", "up")
    tape.add("down", 4 * N * H, "product", keeps=["product"], weight=4 * H * F)
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
    assert tape.forward(grad=grad) == live.peak


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
    assert tape.kept() == 4 * N * (H + 4 * F)
    # the caller holds the result and its gradient all along, which the tape does not
    assert tape.backward(accumulate=accumulate) == pytest.approx(live.peak - 2 * result.nbytes, rel=0.03)


def test_a_second_gradient_is_added_to_the_first() -> None:
    """x is used twice: while the second gradient exists, so does the first."""
    tape = Tape("x", 100)
    tape.add("a", 10, "x", keeps=["x"])
    tape.add("b", 10, "x", keeps=["x"])
    tape.add("c", 10, "a", "b", passes=True)
    # kept x 100, shared gradient 10, gradient of x 100, a fresh one 100
    assert tape.backward(accumulate=True) == 310


def test_a_shared_gradient_is_not_added_in_place() -> None:
    """The residual's gradient is also that of the branch; the sum is a new tensor."""
    tape = Tape("x", 100)
    tape.add("branch", 100, "x", keeps=["x"])
    tape.add("out", 100, "x", "branch", passes=True)
    # kept x 100, shared gradient 100, the branch's 100 and the sum 100
    assert tape.backward(accumulate=True) == 400


def test_weight_gradients_stay_only_without_earlier_ones() -> None:
    tape = Tape("x", 1)
    for number in range(3):
        tape.add(f"y{number}", 1, "x" if number == 0 else f"y{number - 1}", weight=1000)
    assert tape.weights() == 3000
    assert tape.backward(accumulate=False) - tape.backward(accumulate=True) == 2000


def test_recomputing_ends_with_the_last_operation_that_keeps() -> None:
    tape = Tape("x", 1)
    tape.add("kept", 10, "x", keeps=["kept"])
    tape.add("out", 1000, "kept")
    assert tape.forward(grad=True) == 1011
    assert tape.recompute() == 11 + 1000 - 1000 + 10  # gradient of "out" is gone, that of "kept" is there
