"""Ray's rules of memory, with numbers worked by hand from its documented settings."""

import pytest

from headway.errors import InputError
from headway.facts.machine import ray_limits
from headway.facts.ray_memory import RayMemory, from_environment

GB = 10**9


@pytest.mark.parametrize(
    ("available", "shm", "expected"),
    [
        (100 * GB, None, 30 * GB),
        (100 * GB, 64 * GB, 30 * GB),
        (1000 * GB, None, 200 * GB),
        (1000 * GB, 400 * GB, 200 * GB),
        (1000 * GB, 100 * GB, 95 * GB),
        # a container's /dev/shm of 64 MB does not push it below 10^10
        (1000 * GB, 64 * 10**6, 10 * GB),
        (20 * GB, 64 * 10**6, 6 * GB),
    ],
)
def test_the_default_store_is_30_percent_capped(available: int, shm: int | None, expected: int) -> None:
    assert RayMemory().object_store(available, shm) == expected


@pytest.mark.parametrize(
    ("threshold", "free", "expected"),
    [(0.5, 0, 100), (0.5, 60, 50), (1.0, 10, 100), (0.1, 100, 10), (0.0, 10, 90), (0.5, None, 50)],
)
def test_the_monitor_takes_the_larger_of_its_two_limits(threshold: float, free: int | None, expected: int) -> None:
    """Rows of Ray's own unit test, TestGetMemoryThresholdTakeGreaterOfTheTwoValues."""
    (limit,) = ray_limits(100, threshold, free)
    assert limit.bytes == expected


def test_a_monitor_that_is_off_has_no_limit() -> None:
    assert from_environment({"RAY_memory_monitor_refresh_ms": "0"}).limits(100) == ()
    assert from_environment({}) == RayMemory()


@pytest.mark.parametrize("value", ["-0.1", "1.5", "", "nan", "much"])
def test_a_threshold_that_is_none(value: str) -> None:
    with pytest.raises(InputError, match="0 to 1"):
        from_environment({"RAY_memory_usage_threshold": value})
