"""Figures as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.api.figures import format_count, format_figure, format_scaled, plain_number


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (format_figure(1.461e3, "Gbit/s"), "1,460 Gbit/s"),
        (format_figure(1234567.8), "1,230,000"),
        (format_figure(-1460.5), "-1,460"),
        (format_figure(-0.0004567, "s"), "-0.000457 s"),
        (format_figure(28.0, "GB"), "28 GB"),
        (format_figure(float("nan"), "s"), "nan s"),
        (format_scaled(1.461e12, "bit/s"), "1.46 Tbit/s"),
        (format_scaled(999_999.0, "B"), "1 MB"),
        (format_scaled(6.8e-5, "s", 2), "68 µs"),
        (format_scaled(0.0, "B"), "0 B"),
        (format_scaled(1234.5, "s"), "1,230 s"),
        (format_count(7e9), "7B"),
        (format_count(999.7), "1K"),
        (format_count(0.5), "0.5"),
        (plain_number(0.1 + 0.2), "0.3"),
        (plain_number(-0.0), "0"),
        (plain_number(2e6), "2000000"),
        (plain_number(1e23, 3), "1" + 23 * "0"),
        (plain_number(float("-inf")), "-inf"),
    ],
)
def test_figure_is_written_as_people_do(text: str, expected: str) -> None:
    assert text == expected


@given(st.floats(-1e300, 1e300))
def test_no_figure_has_an_exponent_and_all_are_close(value: float) -> None:
    text = format_figure(value)
    assert "e" not in text
    assert float(text.replace(",", "")) == pytest.approx(value, rel=5e-3)
