"""Quantities: parsed exactly, formatted as Kubernetes does."""

import contextlib
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.api.quantity import (
    Quantity,
    QuantityError,
    QuantityFormat,
    canonical_quantity,
    parse_quantity,
)

AMOUNTS = st.builds(
    Quantity,
    st.integers(min_value=-(2**63 - 1) * 10**9, max_value=(2**63 - 1) * 10**9),
    st.sampled_from(QuantityFormat),
)
NUMBERS = st.decimals(
    min_value=-(10**9), max_value=10**9, places=6, allow_nan=False, allow_infinity=False
)
SUFFIXES = {
    "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "": Fraction(1),
    "k": Fraction(1000), "M": Fraction(10**6), "Ki": Fraction(1024), "Mi": Fraction(1024**2),
    "e3": Fraction(1000), "E-3": Fraction(1, 1000),
}  # fmt: skip


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("1000m", "1"), ("0.1", "100m"), ("1.5", "1500m"), (".5", "500m"), ("5.", "5"),
        ("1500m", "1500m"), ("100", "100"), ("1000", "1k"), ("1e3", "1e3"), ("1E3", "1e3"),
        ("1e2", "100"), ("1e4", "10e3"), ("1e-3", "1e-3"), ("1E", "1E"), ("+2", "2"),
        ("1.5Gi", "1536Mi"), ("0.5Gi", "512Mi"), ("1024Ki", "1Mi"), ("1500Ki", "1500Ki"),
        ("0.5Ki", "512"), ("0.1Ki", "102400m"), ("1Ei", "1Ei"), ("-1Gi", "-1Gi"), ("0Gi", "0"),
        ("0.1n", "1n"), ("-0.1n", "-1n"), ("1u", "1u"), ("9223372036854775807", None),
        (2, "2"), (0.5, "500m"), (1e16, "10e15"), (0, "0"), (1.0, "1"),
    ],
)  # fmt: skip
def test_amounts_are_written_as_kubernetes_writes_them(written, expected):
    assert canonical_quantity(written) == (expected or written)


@pytest.mark.parametrize(
    ("written", "advice"),
    [
        ("", "empty"), ("   ", "empty"), ("4 Gi", "'4Gi'"), ("1,5", "'1.5'"), ("16GB", "Gi or G"),
        ("2K", "Ki or k"), ("1g", "G or Gi"), ("1e", "suffix"), ("Gi", "number"), ("--1", "number"),
        ("1e3e3", "number"), ("nan", "number"), ("٣", "number"), ("1" * 500, "500 characters"),
        (True, "number"), (float("nan"), "number"), (float("inf"), "number"), ([], "number"),
        (None, "number"), ("0x10", "number"), (".", "number"), ("1\n", "spaces"),
    ],
)  # fmt: skip
def test_what_is_no_amount_is_refused_with_advice(written, advice):
    with pytest.raises(QuantityError, match=advice):
        parse_quantity(written)


@pytest.mark.parametrize(
    ("written", "expected"), [("1e100000000000", "9223372036854775807"), ("1e-99999999999", "1e-9")]
)
def test_absurd_exponents_cost_nothing(written, expected):
    assert parse_quantity(written) == parse_quantity(expected)


def test_cpu_is_rounded_up_to_thousandths():
    written = ("0.0001", "1", "250m", "-0.0001")
    assert [parse_quantity(text).milli for text in written] == [1, 1000, 250, -1]


@given(AMOUNTS)
def test_what_is_written_reads_back_as_the_same(quantity):
    assert parse_quantity(str(quantity)) == quantity


@given(AMOUNTS)
def test_writing_is_stable(quantity):
    once = canonical_quantity(str(quantity))
    assert canonical_quantity(once) == once


@given(NUMBERS, st.sampled_from(sorted(SUFFIXES)))
def test_amounts_are_exact_down_to_a_billionth_and_rounded_away_from_zero(number, suffix):
    exact = Fraction(number) * SUFFIXES[suffix] * 10**9
    away = -(-exact.numerator // exact.denominator) if exact > 0 else exact.__floor__()
    largest = (2**63 - 1) * 10**9
    assert parse_quantity(f"{number:f}{suffix}").nano == max(-largest, min(largest, away))


@given(AMOUNTS, AMOUNTS)
def test_subtracting_what_was_added_gives_the_amount_back(one, other):
    if abs(one.nano + other.nano) <= (2**63 - 1) * 10**9:
        assert (one + other) - other == one


@given(st.text(max_size=30))
def test_no_text_breaks_the_reader(text):
    with contextlib.suppress(QuantityError):
        assert parse_quantity(str(parse_quantity(text))) == parse_quantity(text)
