"""`memory.limit` as a wall: what would go beyond it fails, is split, and gives the same gradient."""

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from headway.config.sections import ModelSection, ObjectiveSection
from headway.config.source import resolve
from headway.guard.read import process_status
from headway.rollout.allocation import out_of_memory
from headway.rollout.samples import Sample
from headway.train import memory
from headway.train.failures import Failure
from headway.train.model import load
from headway.train.update import Pass, accumulate, make_update
from headway.train.wall import LEAST, Wall

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts mappings on Linux alone")
MIB = 1 << 20
TAKE = (
    lambda size: torch.empty(size, dtype=torch.uint8),
    lambda size: np.empty(size, dtype=np.uint8),
    bytearray,
)


def held() -> int:
    status = process_status(os.getpid())
    assert status is not None
    return status.rss


@pytest.mark.parametrize("take", TAKE)
def test_what_would_go_beyond_the_limit_fails_while_inside(take) -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    wall = Wall(held() + 300 * MIB, lambda: 100 * MIB)
    with wall.around():
        assert len(take(150 * MIB)) == 150 * MIB
        with pytest.raises((RuntimeError, MemoryError)) as error:
            take(250 * MIB)
        assert out_of_memory(error.value)
    assert len(take(250 * MIB)) == 250 * MIB
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_a_process_that_is_over_the_limit_keeps_a_little_to_end_in() -> None:
    with Wall(1, lambda: 0).around():
        assert len(bytearray(LEAST // 2)) == LEAST // 2
        with pytest.raises(MemoryError):
            bytearray(2 * LEAST)


def test_torch_s_threads_are_started_before_it_stands() -> None:
    """Of 16 threads the stacks alone are more than what is left: libgomp would end the process with exit code 1."""
    code = (
        "import torch; from headway.train.wall import Wall\n"
        "torch.set_num_threads(16); numbers = torch.empty(1 << 20)\n"
        "with Wall(1, lambda: 0).around(): print(float(numbers.fill_(2).sum()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"{2 << 20}.0\n"), done.stderr


def test_a_reward_s_process_may_not_map_more_than_the_limit() -> None:
    code = "input(); bytearray(100 << 20); print('100', flush=True); bytearray(400 << 20)"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, stderr=-1, text=True)
    with child, Wall(300 * MIB, lambda: 0, lambda: (child.pid,)).around():
        out, err = child.communicate("go\n")
    assert (out, err.splitlines()[-1]) == ("100\n", "MemoryError")


def test_there_is_no_wall_without_a_limit() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    wall = Wall(None, lambda: 0)
    with wall.around():
        wall.move()
        assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_a_micro_batch_beyond_the_limit_is_split_and_has_the_same_gradient() -> None:
    """In a process of its own: what other tests gave back to the heap would be taken again without asking."""
    check = [sys.executable, "-c", "import test_wall; test_wall.check_split()"]
    subprocess.run(check, cwd=Path(__file__).parent, check=True, timeout=120)


def check_split() -> None:
    memory.configure()
    section = ModelSection(path="tiny-qwen3", init="random", dtype="fp32")
    model = load(resolve(section), section, torch.device("cpu"), 0).model.double()
    response = tuple(range(1, 150))
    samples = [Sample(0, n, (5, 6), response, (-1.0,) * len(response), "", "stop", 0.0, 0.0) for n in range(16)]
    advantages = [1.0 if n % 2 else -0.5 for n in range(16)]
    update = make_update(samples, range(16), advantages, None, None, ObjectiveSection(), 150)
    how = Pass(1.0, 100_000, 100_000, 0, torch.device("cpu"))

    def gradients(wall: Wall) -> tuple[torch.Tensor, list[Failure]]:
        failures: list[Failure] = []
        with wall.around():
            accumulate(model, update, ObjectiveSection(), how, wall.move, failures.append)
        found = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        model.zero_grad(set_to_none=True)
        return found, failures

    whole, failures = gradients(Wall(None, lambda: 0))
    assert not failures
    parts, failures = gradients(Wall(held() + 40 * MIB, lambda: 0))
    assert failures
    assert all(each.left for each in failures)
    torch.testing.assert_close(parts, whole, rtol=1e-9, atol=1e-12)


def test_moving_it_costs_nothing_beside_a_micro_batch() -> None:
    wall = Wall(1 << 50, lambda: 0)
    with wall.around():
        start = time.perf_counter()
        for _ in range(1000):
            wall.move()
        assert time.perf_counter() - start < 0.1
