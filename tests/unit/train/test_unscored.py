import pytest

from headway.config.sections import RewardSection
from headway.errors import RewardsFailedError
from headway.rollout.samples import Sample
from headway.train.unscored import heed_failures

OWN = RewardSection(kind="function", function="mine:score")
ZERO_DIVISION = "exception: ZeroDivisionError: division by zero (mine.py:2)"


def samples(*failures: str | None, reward: float | None = None) -> list[Sample]:
    return [
        Sample(0, at, (1,), (2,), (-1.0,), "4", "stop", 0.5 if told is None else reward, 0.5, told)
        for at, told in enumerate(failures)
    ]


def test_more_than_half_for_one_reason_end_a_first_step_with_the_exception_and_what_to_do() -> None:
    with pytest.raises(RewardsFailedError) as raised:
        heed_failures(samples(*[ZERO_DIVISION] * 3, None, None), "step 1", OWN, "most")
    assert str(raised.value).startswith(
        'reward.function = "mine:score": 3 of 5 answers of step 1 could not be scored'
    )
    assert ZERO_DIVISION in str(raised.value)
    assert raised.value.exit_code == 6


def test_a_slow_function_is_told_of_the_time_limit() -> None:
    with pytest.raises(RewardsFailedError, match=r"set reward\.timeout_s higher"):
        heed_failures(samples(*["timeout: took longer than 2 s"] * 2), "step 1", OWN, "most")


@pytest.mark.parametrize(
    ("failures", "stops"),
    [
        ([ZERO_DIVISION, ZERO_DIVISION, None, None], "most"),  # exactly half
        ([ZERO_DIVISION, "timeout: took longer than 2 s", None], "most"),  # most, but for two reasons
        ([ZERO_DIVISION, ZERO_DIVISION, None], "all"),  # most of an evaluation
        ([ZERO_DIVISION] * 4, "never"),  # a later step
    ],
)
def test_what_is_less_is_a_warning(failures: list[str | None], stops: str) -> None:
    warning = heed_failures(samples(*failures), "step 3", OWN, stops)
    assert warning is not None
    assert warning.startswith("step 3: ")
    assert ZERO_DIVISION in warning


def test_all_failing_for_several_reasons_end_it_too() -> None:
    with pytest.raises(RewardsFailedError):
        heed_failures(samples(ZERO_DIVISION, "died: died (SIGKILL)"), "step 1", OWN, "most")


def test_few_failures_are_no_matter() -> None:
    assert heed_failures(samples(ZERO_DIVISION, *[None] * 63), "step 1", OWN, "most") is None


def test_a_scorer_that_cannot_read_an_untrained_models_answers_ends_nothing_until_it_reads_none() -> None:
    task = RewardSection(kind="task")
    told = ["exception: ValueError: bad (countdown.py:80)"] * 3
    assert "3 of 4" in str(heed_failures(samples(*told, None, reward=0.0), "step 1", task, "most"))
    with pytest.raises(RewardsFailedError, match=r'reward\.kind = "task"'):
        heed_failures(samples(*told, reward=0.0), "step 1", task, "most")
