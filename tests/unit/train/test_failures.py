"""Memory that runs out in the middle of an optimizer step: split, tried again, dropped; never half-stepped."""

import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from headway.config.sections import ModelSection, ObjectiveSection
from headway.config.source import resolve
from headway.errors import LimitReachedError
from headway.facts.machine import Limit, Machine, Pool
from headway.plan.ledger import Phase
from headway.rollout.allocation import asked_bytes, out_of_memory
from headway.rollout.samples import Sample
from headway.train.failures import Failure, PoolState, naming_failures, pool_state, with_retries
from headway.train.model import load
from headway.train.optim import AdamW
from headway.train.update import Accumulated, Pass, Update, accumulate, make_update, score

CPU = torch.device("cpu")
ANSWERS = 12
SAMPLES = 16


@pytest.fixture(scope="module")
def model() -> nn.Module:
    section = ModelSection(path="tiny-qwen3", init="random", dtype="fp32")
    return load(resolve(section), section, CPU, 0).model.double()


def samples(count: int = SAMPLES) -> tuple[Sample, ...]:
    """Each sample's first token is its position, so that a hook can tell who is in a micro-batch."""
    generator = torch.Generator().manual_seed(3)

    def ids(low: int, high: int) -> tuple[int, ...]:
        size = int(torch.randint(low, high, (), generator=generator))
        return tuple(torch.randint(100, 250, (size,), generator=generator).tolist())

    return tuple(
        Sample(n // 4, n % 4, (n, *ids(2, 9)), response, (-1.0,) * len(response), "", "stop", 0.0, 0.0)
        for n in range(count)
        for response in [ids(1, ANSWERS)]
    )


def exhaust() -> None:
    """A real failure of torch's allocator: no machine has an exbibyte."""
    torch.empty(1 << 60)


@contextmanager
def failing(
    model: nn.Module, forward: Callable[[list[int]], bool], backward: Callable[[list[int]], bool]
) -> Iterator:
    """Let memory run out in the forward or the backward pass over a micro-batch of the samples that are given."""

    def before(_module: nn.Module, _args: object, kwargs: dict[str, Tensor]) -> None:
        if forward(kwargs["input_ids"][:, 0].tolist()):
            exhaust()

    def after(_module: nn.Module, _args: object, kwargs: dict[str, Tensor], output: object) -> None:
        if backward(kwargs["input_ids"][:, 0].tolist()):
            # the gradient reaches the middle layers when the last ones have theirs already
            middle[0].register_hook(lambda _gradient: exhaust())

    def keep(_module: nn.Module, _args: object, output: object) -> None:
        middle[:] = [output[0] if isinstance(output, tuple) else output]  # type: ignore[list-item]

    middle: list[Tensor] = []
    inner = model.get_submodule("model")
    layers = inner.get_submodule("layers")
    hooks = [
        inner.register_forward_pre_hook(before, with_kwargs=True),
        layers.get_submodule("0").register_forward_hook(keep),
        inner.register_forward_hook(after, with_kwargs=True),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def never(_members: list[int]) -> bool:
    return False


class Once:
    """True the first time that a micro-batch fulfils a condition, `times` times in all."""

    def __init__(self, condition: Callable[[list[int]], bool], times: int = 1) -> None:
        self.condition, self.left = condition, times

    def __call__(self, members: list[int]) -> bool:
        hit = self.left > 0 and self.condition(members)
        self.left -= hit
        return hit


def update_of() -> Update:
    advantages = [(-1.0) ** n * (1 + n / 10) for n in range(SAMPLES)]
    return make_update(samples(), range(SAMPLES), advantages, None, None, ObjectiveSection(), ANSWERS)


def passes(model: nn.Module, cap: int = 60) -> tuple[Tensor, Accumulated, list[Failure]]:
    """The gradient of one optimizer step, its statistics, and what failed on the way."""
    seen: list[Failure] = []
    how = Pass(1.0, 4, cap, 0, CPU)
    done = accumulate(model, update_of(), ObjectiveSection(), how, lambda: None, seen.append)
    gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    model.zero_grad(set_to_none=True)
    return gradient, done, seen


def assert_same(found: Tensor, expected: Tensor) -> None:
    """Equal up to the order of sums: 1e-9 of each entry, or of the largest where an entry is next to nothing."""
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12 * float(expected.abs().max()))


@pytest.mark.parametrize("stage", ["forward", "backward"])
@pytest.mark.parametrize("member", [0, 5, 11])
def test_a_micro_batch_that_fails_is_split_and_gives_the_same_gradient(
    model: nn.Module, stage: str, member: int
) -> None:
    expected, calm, none = passes(model)
    assert expected.abs().max() > 1e-4
    assert (calm.failed, calm.stats.splits, none) == (None, 0, [])
    once = Once(lambda members: member in members and len(members) > 1)
    with failing(model, *((once, never) if stage == "forward" else (never, once))):
        found, done, seen = passes(model)
    assert_same(found, expected)
    (failure,) = seen
    assert (failure.stage, failure.phase, done.stats.splits, done.stats.dropped) == (stage, Phase.TRAIN, 1, 0)
    assert done.trained == calm.trained
    assert done.failed == failure.tokens == failure.samples * failure.longest
    assert done.stats.tokens == calm.stats.tokens
    assert done.stats.loss == pytest.approx(calm.stats.loss, rel=1e-9)


@pytest.mark.parametrize("stage", ["forward", "backward"])
def test_batches_that_are_too_large_are_split_until_they_are_not(model: nn.Module, stage: str) -> None:
    expected, _, _ = passes(model, 10_000)

    def large(members: list[int]) -> bool:
        return len(members) > 2

    with failing(model, *((large, never) if stage == "forward" else (never, large))):
        found, done, seen = passes(model, 10_000)
    assert_same(found, expected)
    assert [failure.samples for failure in seen] == [16, 8, 4, 4, 8, 4, 4]
    assert (done.stats.splits, done.stats.dropped, done.failed) == (7, 0, min(each.tokens for each in seen))


def test_the_sample_that_never_fits_is_dropped_and_the_others_keep_their_weight(model: nn.Module) -> None:
    whole, calm, _ = passes(model)
    alone = update_of()
    part = Update(alone.samples[3:4], alone.advantages[3:4], alone.weights[3:4], None, None)
    accumulate(model, part, ObjectiveSection(), Pass(1.0, 4, 60, 0, CPU), lambda: None, pytest.fail)
    its_own = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    model.zero_grad(set_to_none=True)
    with failing(model, lambda members: 3 in members, never):
        found, done, seen = passes(model)
    torch.testing.assert_close(found, whole - its_own, rtol=1e-9, atol=1e-12)
    assert done.stats.dropped == 1
    assert [failure.samples for failure in seen][-3:] == [1, 1, 1]
    assert seen[-1].left == ""
    assert "The sample is dropped" in seen[-1].text(None)
    assert done.trained == calm.trained - samples()[3].tokens


def test_a_sample_alone_is_tried_again_with_fewer_logits_at_a_time(model: nn.Module) -> None:
    expected, _, _ = passes(model)
    twice = Once(lambda members: members == [7], times=2)
    with failing(model, lambda members: 7 in members and len(members) > 1, twice):
        found, done, seen = passes(model)
    assert_same(found, expected)
    assert done.stats.dropped == 0
    alone = [failure.left for failure in seen if failure.samples == 1]
    assert len(alone) == 2
    assert all("tokens of logits at a time" in left for left in alone)


def test_no_sample_at_all_names_everything(model: nn.Module) -> None:
    with (
        failing(model, lambda _members: True, never),
        pytest.raises(LimitReachedError, match=r"phase train: .*every sample.* has \d+ tokens .*train\.cap"),
    ):
        passes(model)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_other_errors_are_not_taken_for_memory(model: nn.Module) -> None:
    def mismatch(_members: list[int]) -> bool:
        torch.zeros(2) + torch.zeros(3)
        return False

    with failing(model, mismatch, never), pytest.raises(RuntimeError, match="must match"):
        passes(model)


def test_random_failures_leave_the_same_weights() -> None:
    """One micro-batch in twenty fails, forward or backward, over ten optimizer steps."""
    section = ModelSection(path="tiny-qwen3", init="random", dtype="fp32")
    ended, failed, counted = [], 0, 0.0
    for rate in (0.0, 0.05):
        model = load(resolve(section), section, CPU, 0).model.double()
        optimizer = AdamW(dict(model.named_parameters()), betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
        draw = random.Random(1)

        def unlucky(_members: list[int], rate: float = rate, draw: random.Random = draw) -> bool:
            return draw.random() < rate / 2

        seen: list[Failure] = []
        with failing(model, unlucky, unlucky):
            for _ in range(10):
                how = Pass(1.0, 4, 60, 0, CPU)
                done = accumulate(model, update_of(), ObjectiveSection(), how, lambda: None, seen.append)
                counted += done.stats.splits + done.stats.dropped
                optimizer.step(1e-3)
        failed += len(seen)
        ended.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    assert failed >= 3
    assert counted == failed
    # Adam divides by the root of the squared gradient, which magnifies rounding where a gradient is next to nothing
    torch.testing.assert_close(ended[1], ended[0], rtol=1e-6, atol=1e-8)


def test_scores_after_a_failure_are_the_same_and_a_sample_that_never_fits_has_none(model: nn.Module) -> None:
    how, kept = Pass(1.0, 4, 60, 0, CPU), tuple(range(SAMPLES))
    expected = score(model, samples(), kept, how, lambda: None, pytest.fail)
    seen: list[Failure] = []
    with failing(model, lambda members: len(members) > 4 or 9 in members, never):
        found = score(model, samples(), kept, how, lambda: None, seen.append)
    assert found[9] == ()
    assert {failure.phase for failure in seen} == {Phase.SCORE}
    for place in set(kept) - {9}:
        assert found[place] == pytest.approx(expected[place], rel=1e-9)


REAL_LIMIT = """
import resource, torch
from pathlib import Path
from headway.config.sections import ModelSection, ObjectiveSection
from headway.config.source import resolve
from headway.rollout.allocation import asked_bytes, out_of_memory
from headway.rollout.samples import Sample
from headway.train import memory
from headway.train.model import load
from headway.train.update import Pass, accumulate, make_update

def limit(more):
    size = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmSize"))
    resource.setrlimit(resource.RLIMIT_AS, (int(size.split()[1]) * 1024 + more, -1))

def gradient():
    done = accumulate(model, update, ObjectiveSection(), how, lambda: None, failures.append)
    found = torch.cat([p.grad.flatten() for p in model.parameters()])
    model.zero_grad(set_to_none=True)
    return found, done

memory.configure()
section = ModelSection(path="tiny-qwen3", init="random", dtype="fp32")
model = load(resolve(section), section, torch.device("cpu"), 0).model.double()
draw = torch.Generator().manual_seed(0)
ids = [tuple(torch.randint(0, 250, (250,), generator=draw).tolist()) for _ in range(8)]
samples = [Sample(n, 0, row[:4], row[4:], (-1.0,) * 246, "", "stop", 0.0, 0.0) for n, row in enumerate(ids)]
update = make_update(samples, range(8), [(-1.0) ** n for n in range(8)], None, None, ObjectiveSection(), 250)
how, failures = Pass(1.0, 64, 10_000, 0, torch.device("cpu")), []
expected, calm = gradient()
assert failures == []
limit(24 << 20)
found, done = gradient()
torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12 * float(expected.abs().max()))
print("splits", done.stats.splits == len(failures) > 0, "dropped", done.stats.dropped, all(f.asked for f in failures))
for attempt in (lambda: torch.empty(100 << 20), lambda: bytearray(400 << 20)):
    try:
        attempt()
    except (RuntimeError, MemoryError) as error:
        print(type(error).__name__, out_of_memory(error), asked_bytes(error))
"""


@pytest.mark.slow
def test_under_a_real_limit_micro_batches_are_really_split_and_the_gradient_is_the_same() -> None:
    """8 samples of 250 tokens need more at once than the 24 MiB of address space that are left."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ran = subprocess.run([sys.executable, "-c", REAL_LIMIT], capture_output=True, text=True, env=environment)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [
        "splits True dropped 0.0 True",
        f"RuntimeError True {400 << 20}",
        "MemoryError True None",
    ]


def test_every_kind_of_failure_is_recognised_with_its_size() -> None:
    cuda = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of ...")
    assert (out_of_memory(cuda), asked_bytes(cuda)) == (True, 3 << 29)
    with pytest.raises(MemoryError) as caught:
        np.empty(1 << 60, dtype=np.uint8)
    assert (out_of_memory(caught.value), asked_bytes(caught.value)) == (True, 1 << 60)
    for text in ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "std::bad_alloc"):
        assert out_of_memory(RuntimeError(text))
        assert asked_bytes(RuntimeError(text)) is None
    assert not out_of_memory(RuntimeError("CUDA error: an illegal memory access was encountered"))
    assert not out_of_memory(ValueError("DefaultCPUAllocator"))


def test_a_message_has_the_pool_and_the_key() -> None:
    pool = Pool("node[0].host", "host", 8 << 30, (Limit("memory.limit", 6 << 30, "the run stops", "the RunSpec"),))
    state = pool_state(Machine("here", (pool,), 2), CPU)
    assert state is not None
    assert (state.name, state.limit) == ("node[0].host", 6 << 30)
    assert state.used > 50 << 20
    with (
        pytest.raises(LimitReachedError, match=r"phase step: .*8\.00 GiB was.*1\.00 GiB used, limit 2\.00.*\[lora\]"),
        naming_failures(Phase.STEP, lambda: PoolState("node[0].host", 1 << 30, 2 << 30)),
    ):
        raise torch.OutOfMemoryError("Tried to allocate 8.00 GiB.")
    with (
        pytest.raises(LimitReachedError, match="phase load: memory ran out \\(MemoryError; node"),
        naming_failures(Phase.LOAD, lambda: state),
    ):
        raise MemoryError


def test_an_optimizer_step_that_fails_half_way_goes_on_where_it_stood(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state of the second parameter cannot be made at first: the first one must not be updated twice."""
    from headway.train import optim

    def parameters() -> dict[str, Tensor]:
        torch.manual_seed(0)
        made = {name: torch.randn(5, 3, requires_grad=True) for name in "abc"}
        for value in made.values():
            value.grad = torch.randn(5, 3)
        return made

    def optimizer(values: dict[str, Tensor]) -> AdamW:
        return AdamW(values, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)

    expected = parameters()
    optimizer(expected).step(1e-2)
    make, calls = optim.State.of, iter(range(100))

    def unlucky(parameter: Tensor) -> optim.State:
        if next(calls) == 1:
            exhaust()
        return make(parameter)

    monkeypatch.setattr(optim.State, "of", unlucky)
    found = parameters()
    stepped = optimizer(found)
    with_retries(lambda: stepped.step(1e-2))
    assert next(calls) == 4
    for name, value in expected.items():
        assert torch.equal(found[name], value)
        assert found[name].grad is None
