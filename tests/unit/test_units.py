"""Bytes as text and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.units import format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (0, 0),
        ("17", 17),
        ("512MiB", 512 * 2**20),
        ("512 mib", 512 * 2**20),
        ("1.5G", 3 * 2**29),
        ("1.5GB", 1_500_000_000),
        ("2kB", 2000),
        ("2K", 2048),
        (" 1 TiB ", 2**40),
    ],
)
def test_binary_and_decimal_units_are_kept_apart(text, count):
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "-1GiB", "GiB", "1 parsec", "1e9", "1,5GiB", True, None, [1]])
def test_what_is_no_size(text):
    with pytest.raises(ValueError, match=r"is not a size: write for example 512MiB"):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["9" * 370, "9" * 5000 + "GiB", "4194305 TiB", 2**62 + 1])
def test_a_size_that_no_machine_has(text):
    with pytest.raises(ValueError, match="is too large for a size"):
        parse_bytes(text)


def test_large_sizes_are_exact():
    assert parse_bytes("4194304 TiB") == 2**62
    assert parse_bytes(2**53 + 1) == 2**53 + 1


@given(st.integers(0, 2**53))
def test_a_whole_number_of_bytes_is_exact(count):
    assert parse_bytes(count) == parse_bytes(f"{count}B") == count


@given(st.integers(0, 2**50))
def test_written_and_read_again_is_within_half_the_last_digit(count):
    text = format_bytes(count)
    unit = parse_bytes(f"1 {text.split()[1]}")
    half_digit = 0 if unit == 1 else unit * (0.005 if text.endswith("GiB") else 0.05)
    assert abs(parse_bytes(text) - count) <= half_digit + 1
    assert format_bytes(-count) == ("-" + text if count else text)
