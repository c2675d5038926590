"""Finding the answer in a response."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.rollout.extract import equal_answers, extract


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("12 + 7 = 19.", "19"),
        ("costs 1,234, so buy", "1234"),
        ("$1,234,567.50 in all", "1234567.50"),
        ("1,2,3", "3"),
        ("10-3", "3"),
        ("x)-3", "3"),
        ("= -3", "-3"),
        ("\u22123 degrees", "-3"),
        ("+4", "4"),
        ("it is .5", "0.5"),
        ("it is -.5", "-0.5"),
        ("wait...5", "5"),
        ("1.5e-3 m", "1.5e-3"),
        ("50% of 8.", "8"),
        ("2024-01-05", "05"),
        ("no number", None),
        ("", None),
    ],
)
def test_last_number(text: str, answer: str | None) -> None:
    assert extract(text, "last-number") == answer


@given(st.integers(-(10**12), 10**12), st.sampled_from(["{}", "{:,}", "so {:,}.", "1 and 2, {:,} it is, yes"]))
def test_last_number_reads_back_what_was_written(number: int, text: str) -> None:
    assert extract(text.format(number), "last-number") == str(number)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"\boxed{1} then \boxed{ 2 }", "2"),
        (r"\boxed{1} then \boxed{2", "1"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed {7}", "7"),
        (r"\boxed{a\boxed{b}c}", "b"),
        (r"\boxed 5", None),
        (r"\boxed{}", None),
        ("boxed{3}", None),
    ],
)
def test_boxed(text: str, answer: str | None) -> None:
    assert extract(text, "boxed") == answer


@pytest.mark.parametrize(
    ("how", "answer"),
    [("whole", "a  b\n\n c"), ("first-line", "a  b"), ("last-line", "c")],
)
def test_lines(how: str, answer: str) -> None:
    assert extract("\n a  b\n\n c \n", how) == answer
    assert extract(" \n ", how) is None


def test_pattern_takes_the_first_group_of_the_last_match() -> None:
    text = "<answer>1</answer> or rather <answer> 2 </answer>"
    assert extract(text, "pattern", r"<answer>(.*?)</answer>") == "2"
    assert extract("none", "pattern", r"<answer>(.*?)</answer>") is None
    assert extract("ab", "pattern", r"a(x)?b") is None


def test_a_pattern_that_backtracks_without_end_is_stopped() -> None:
    start = time.monotonic()
    with pytest.raises(TimeoutError):
        extract("a" * 80 + "b", "pattern", r"((?:a|aa)+)$", timeout_s=0.2)
    assert time.monotonic() - start < 5


@pytest.mark.parametrize(
    ("answer", "label", "equal"),
    [
        ("07", "7", True),
        ("3.0", "3", True),
        ("1,000", "1000", True),
        (" Paris ", "Paris", True),
        ("paris", "Paris", False),
        ("3", "3 apples", False),
        ("-3", "3", False),
        ("1e400000000000000000000", "1", False),
        ("12", "112", False),
    ],
)
def test_equal_answers(answer: str, label: str, equal: bool) -> None:
    assert equal_answers(answer, label) is equal
