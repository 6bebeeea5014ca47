"""Sets of indexes as text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.operator.model import replicas


@pytest.mark.parametrize(
    ("given_", "text"),
    [([], ""), ([0], "0"), ([1, 0], "0-1"), ([0, 2, 3, 4, 9], "0,2-4,9"), ([7, 7], "7")],
)
def test_runs_are_shortened(given_, text):
    assert replicas.format_indexes(given_) == text


@given(st.frozensets(st.integers(0, 300)))
def test_what_is_written_is_read_again(numbers):
    assert replicas.parse_indexes(replicas.format_indexes(numbers)) == numbers


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("", []), ("x", []), ("1,x,3", [1, 3]), ("3-1", []), ("-2", []), ("1-", [1])],
)
def test_what_makes_no_sense_is_left_out(text, numbers):
    assert replicas.parse_indexes(text) == frozenset(numbers)


def test_an_absurd_range_does_not_fill_the_memory():
    assert len(replicas.parse_indexes("0-99999999999999")) <= 1_000_001
