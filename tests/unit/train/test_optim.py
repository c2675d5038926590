import math

import pytest
import torch
from safetensors.torch import load, save

from headway.config.sections import TrainSection
from headway.errors import InputError
from headway.train import optim
from headway.train.optim import AdamW, learning_rate

from .live_bytes import LiveBytes

SHAPES = {"embed.weight": (40, 12), "norm.weight": (12,), "layer.weight": (7, 12), "layer.bias": (7,)}
SETTINGS = {"betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}


def parameters(dtype=torch.float32, shapes=SHAPES):
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(shape, generator=generator).to(dtype).requires_grad_() for name, shape in shapes.items()
    }


def give_gradients(*sets, step, scale=1.0):
    """The same random gradients to every set of parameters."""
    generator = torch.Generator().manual_seed(100 + step)
    for name in sets[0]:
        gradient = scale * torch.randn(sets[0][name].shape, generator=generator)
        for some in sets:
            some[name].grad = gradient.to(some[name].dtype)


def torch_adamw(parameters, lr, settings=SETTINGS):
    decayed = [p for p in parameters.values() if p.ndim >= 2]
    rest = [p for p in parameters.values() if p.ndim < 2]
    groups = [{"params": decayed}, {"params": rest, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, **settings, foreach=False)


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks that do not divide the parameters; a multiple of the widest vector register, as the real one."""
    monkeypatch.setattr(optim, "BLOCK", 64)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.usefixtures("small_blocks")
def test_fp32_is_torch_adamw_bit_for_bit(weight_decay):
    settings = SETTINGS | {"weight_decay": weight_decay}
    ours, theirs = parameters(), parameters()
    optimizer, reference = AdamW(ours, **settings), torch_adamw(theirs, 1.0, settings)
    for step in range(20):
        give_gradients(ours, theirs, step=step)
        if step % 3 == 0:  # a parameter without a gradient is left as it is, and so is its step count
            ours["layer.weight"].grad = theirs["layer.weight"].grad = None
        lr = 1e-2 / (1 + step)
        for group in reference.param_groups:
            group["lr"] = lr
        optimizer.step(lr)
        reference.step()
        for name, own in ours.items():
            assert torch.equal(own, theirs[name])


@pytest.mark.usefixtures("small_blocks")
def test_a_bf16_parameter_is_its_fp32_master_rounded():
    ours, exact = parameters(torch.bfloat16), parameters(torch.bfloat16)
    exact = {name: p.detach().float().requires_grad_() for name, p in exact.items()}
    optimizer, reference = AdamW(ours, **SETTINGS), torch_adamw(exact, 1e-4)
    start = ours["embed.weight"].detach().clone()
    for step in range(20):
        give_gradients(ours, step=step)
        for name, own in ours.items():
            exact[name].grad = own.grad.float()
        optimizer.step(1e-4)
        reference.step()
    state = optimizer.state_dict()
    for name, own in ours.items():
        assert own.dtype == torch.bfloat16
        assert state[f"{name}.master"].dtype == state[f"{name}.exp_avg_sq"].dtype == torch.float32
        assert torch.equal(state[f"{name}.master"], exact[name])
        assert torch.equal(own, exact[name].bfloat16())
    assert not torch.equal(ours["embed.weight"], start)


def test_a_master_keeps_steps_that_bf16_would_lose():
    ours = {"w": torch.ones(4, dtype=torch.bfloat16, requires_grad=True)}
    optimizer = AdamW(ours, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    seen = []
    for _ in range(60):
        ours["w"].grad = torch.ones(4, dtype=torch.bfloat16)
        optimizer.step(1e-4)
        seen.append(ours["w"][0].item())
    # One step of 1e-4 is less than half of bf16's spacing below 1 (1/256); 60 of them are 1.5 spacings.
    assert seen[0] == 1.0
    assert seen[-1] == 1 - 2 / 256


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_live_bytes_are_those_of_the_table(dtype, monkeypatch):
    block, count = 256, 1000
    monkeypatch.setattr(optim, "BLOCK", block)
    ours = parameters(dtype, {f"w{n}": (count,) for n in range(4)})
    optimizer = AdamW(ours, **SETTINGS)
    give_gradients(ours, step=0)
    half = dtype == torch.bfloat16
    state, temporary = count * (12 if half else 8), block * (8 if half else 4)
    gradient, scalars = count * dtype.itemsize, 1024
    with LiveBytes(*tensors_of(ours)) as norm:
        optimizer.clip_(1.0)
    cast = 4 * block if half else 0
    assert cast <= norm.peak <= cast + scalars
    with LiveBytes(*ours.values()) as first:
        give_gradients(ours, step=0)
        optimizer.step(1e-3)
    assert first.live == 4 * (state + 4)
    # The last parameter's gradient is alone beside all the state: those before it are gone.
    assert 4 * state + gradient + temporary <= first.peak <= 4 * state + gradient + temporary + scalars
    give_gradients(ours, step=1)
    with LiveBytes(*tensors_of(ours), *optimizer.state_dict().values()) as later:
        optimizer.step(1e-3)
    assert temporary <= later.peak <= temporary + scalars
    assert later.live == 0


def tensors_of(parameters):
    return [tensor for p in parameters.values() for tensor in (p, p.grad)]


def test_gradients_are_freed_and_state_appears_at_the_first_step():
    ours = parameters()
    optimizer = AdamW(ours, **SETTINGS)
    assert optimizer.state_dict() == {}
    give_gradients(ours, step=0)
    optimizer.step(1e-3)
    assert all(p.grad is None for p in ours.values())
    before = {name: p.detach().clone() for name, p in ours.items()}
    optimizer.step(1e-3)
    assert all(torch.equal(p, before[name]) for name, p in ours.items())


def test_frozen_parameters_have_no_state():
    ours = parameters()
    ours["norm.weight"].requires_grad_(False)
    optimizer = AdamW(ours, **SETTINGS)
    give_gradients(ours, step=0)
    frozen = ours["norm.weight"].clone()
    optimizer.step(1e-3)
    assert not [name for name in optimizer.state_dict() if name.startswith("norm")]
    assert torch.equal(ours["norm.weight"], frozen)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_a_restored_optimizer_goes_on_bit_for_bit(dtype):
    ours = parameters(dtype)
    optimizer = AdamW(ours, **SETTINGS)
    for step in range(3):
        give_gradients(ours, step=step)
        optimizer.step(1e-2)
    saved = load(save(optimizer.state_dict()))
    resumed = {name: p.detach().clone().requires_grad_() for name, p in ours.items()}
    again = AdamW(resumed, **SETTINGS)
    again.load_state_dict(saved)
    saved_before = {name: tensor.clone() for name, tensor in saved.items()}
    for step in range(3, 6):
        give_gradients(ours, resumed, step=step)
        optimizer.step(1e-2)
        again.step(1e-2)
    assert all(torch.equal(p, resumed[name]) for name, p in ours.items())
    for name, tensor in optimizer.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor)
        assert torch.equal(saved[name], saved_before[name])
    assert again.state_dict()["layer.bias.step"].item() == 6


def test_a_foreign_state_is_refused_by_name():
    ours = parameters()
    optimizer = AdamW(ours, **SETTINGS)
    give_gradients(ours, step=0)
    optimizer.step(1e-2)
    state = optimizer.state_dict()
    for name in ("layer.bias.exp_avg", "norm.weight.step"):
        with pytest.raises(InputError, match=name):
            AdamW(parameters(), **SETTINGS).load_state_dict({k: v for k, v in state.items() if k != name})
    with pytest.raises(InputError, match=r"head\.weight\.step"):
        AdamW(parameters(), **SETTINGS).load_state_dict(state | {"head.weight.step": torch.zeros(())})
    with pytest.raises(InputError, match=r"layer\.bias\.exp_avg is torch.float32 \(8,\), the run has .*\(7,\)"):
        AdamW(parameters(), **SETTINGS).load_state_dict(state | {"layer.bias.exp_avg": torch.zeros(8)})
    with pytest.raises(InputError, match=r"master"):
        AdamW(parameters(torch.bfloat16), **SETTINGS).load_state_dict(state)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.usefixtures("small_blocks")
def test_the_norm_is_that_of_all_gradients_together(dtype):
    ours = parameters(dtype)
    give_gradients(ours, step=0, scale=3.0)
    ours["norm.weight"].grad = None
    optimizer = AdamW(ours, **SETTINGS)
    before = {name: p.grad.double() for name, p in ours.items() if p.grad is not None}
    expected = math.sqrt(sum(float((g**2).sum()) for g in before.values()))
    assert optimizer.clip_(0.0) == pytest.approx(expected, rel=1e-6)
    assert optimizer.clip_(2 * expected) == pytest.approx(expected, rel=1e-6)
    assert all(torch.equal(ours[name].grad.double(), gradient) for name, gradient in before.items())
    assert optimizer.clip_(0.5) == pytest.approx(expected, rel=1e-6)
    for name, gradient in before.items():
        torch.testing.assert_close(
            ours[name].grad.double(),
            gradient * 0.5 / expected,
            rtol=1e-2 if dtype == torch.bfloat16 else 1e-6,
            atol=0,
        )
    assert optimizer.clip_(0.0) == pytest.approx(0.5, rel=1e-2)


def test_a_norm_that_is_not_finite_is_reported_and_scales_nothing():
    ours = parameters()
    give_gradients(ours, step=0)
    ours["layer.bias"].grad[3] = float("inf")
    kept = ours["embed.weight"].grad.clone()
    optimizer = AdamW(ours, **SETTINGS)
    assert optimizer.clip_(1.0) == math.inf
    assert torch.equal(ours["embed.weight"].grad, kept)
    assert AdamW({}, **SETTINGS).clip_(1.0) == 0.0


def test_schedules():
    def rates(schedule, warmup, total):
        section = TrainSection(lr=1.0, warmup=warmup, schedule=schedule)
        return [learning_rate(section, update, total) for update in range(total)]

    assert rates("constant", 0, 3) == [1, 1, 1]
    assert rates("constant", 4, 5) == [0.25, 0.5, 0.75, 1, 1]
    assert rates("linear", 2, 6) == [0.5, 1, 1, 0.75, 0.5, 0.25]
    assert rates("cosine", 1, 5) == pytest.approx([1, 1, (2 + 2**0.5) / 4, 0.5, (2 - 2**0.5) / 4], rel=1e-12)
    assert rates("linear", 5, 3) == [0.2, 0.4, 0.6]
    # A run that goes on past the planned end has nothing left.
    assert learning_rate(TrainSection(lr=1.0, schedule="cosine"), 9, 4) == pytest.approx(0, abs=1e-15)
